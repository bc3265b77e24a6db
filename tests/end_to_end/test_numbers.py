# ruff: noqa: E501  (the messages are as a terminal shows them)
"""Where one number is needed for a whole workgroup, a tile is refused, and so is what would be cut off."""

import sys

import numpy as np
import pytest
from kernels import *
from messages import HEAD, said, same

import tilewave
from tilewave.errors import DTypeError, ShapeError, SymbolError


def kernel_with(body):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return (
        HEAD
        + "S = sym.S\n@wave([*tiles, TilingConstraint(T)])\ndef fill(c: Memory[M, N, G, f32]):\n"
        + lines
        + "    write(Register[M, N, f32](0.0), c)\n"
        + "wave_compile(WaveCompileOptions(subs=sizes, target='numpy'), fill)"
    )


CASES = {
    "scalar of a tile": (
        ShapeError,
        "x = scalar(Register[M, N, f32](1.0), f32)",
        """
        scalar needs one number, not a tile [M, N] (64x64 f32)
          gemm.py:11
              x = scalar(Register[M, N, f32](1.0), f32)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a tile stays a tile: write cast(x, f32) for its elements in f32
        """,
    ),
    "a symbol set to a tile": (
        ShapeError,
        "set_symbol(S, self_index(M))",
        """
        set_symbol needs one number, not a tile [M] (64 index)
          gemm.py:11
              set_symbol(S, self_index(M))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a symbol has one value for all elements of a tile, such as scalar(WORKGROUP_0) * 64; what differs from element to element is written with the iterators of an IndexMapping, such as M - 1 - IndexMapping.iterator(0). What an array holds comes too late for it, as tiles are placed before there is data: give a length at the call, as a number
        """,
    ),
    "a loop that begins at a tile": (
        ShapeError,
        "@iterate(T, start=self_index(M), condition=T < 3)\ndef rounds():\n    set_symbol(T, self_index(T) + 1)",
        """
        iterate needs one number, not a tile [M] (64 index)
          gemm.py:11
              @iterate(T, start=self_index(M), condition=T < 3)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          start is where T begins, such as scalar(WORKGROUP_0)
        """,
    ),
    "a symbol set to a float": (
        DTypeError,
        "set_symbol(S, scalar(2.5, f32))",
        """
        set_symbol needs a whole number, not a number (f32)
          gemm.py:11
              set_symbol(S, scalar(2.5, f32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write cast(x, index)
        """,
    ),
    "something set that is no symbol": (
        SymbolError,
        "set_symbol(3, scalar(2))",
        """
        set_symbol: 3 is no symbol
          gemm.py:11
              set_symbol(3, scalar(2))
              ^^^^^^^^^^^^^^^^^^^^^^^^
          write set_symbol(sym.ROW, …)
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_author_is_told(case, tmp_path, monkeypatch):
    error, body, wanted = CASES[case]
    if sys.version_info < (3, 11) and "      @iterate" in wanted:
        pytest.skip("Python 3.10 gives a decorator's call the line of the function below it")
    same(said(tmp_path, monkeypatch, kernel_with(body), error), wanted)


def test_what_is_written_instead_works():
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    upside_down = IndexMapping(2, inputs={M: i, N: j}, outputs={M: sym.LAST - i, N: j})

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 4, 1)])
    def rows(c: Memory[M, N, G, f32]):
        set_symbol(sym.LAST, cast(scalar(7.5, f32), index))
        write(Register[M, N, f32](0.0) + cast(self_index(M), f32), c, mapping=upside_down)

    c = poisoned((8, 8), f32)
    compiled(rows, subs={M: 8, N: 8}).interpret(c)
    np.testing.assert_array_equal(c, np.repeat(np.arange(7.0, -1, -1)[:, None], 8, 1))


@pytest.mark.parametrize("dtype", [f32, i32, index, tilewave.bool])
def test_a_number_stays_a_number_of_any_dtype(dtype):
    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 4, 1)])
    def ones(c: Memory[M, N, G, i32]):
        write(Register[M, N, i32](0) + scalar(scalar(1, dtype), i32), c)

    c = poisoned((4, 4), i32)
    compiled(ones, subs={M: 4, N: 4}).interpret(c)
    assert (c == 1).all()


@pytest.mark.parametrize("take", [lambda x: scalar(x), lambda x: scalar(x, f32), lambda x: set_symbol(sym.S, x)])
def test_what_was_read_is_no_number(take):
    @wave([WorkgroupConstraint(M, 4, 0)])
    def taking(a: Memory[M, G, i64], c: Memory[M, G, i64]):
        take(read(a))
        write(read(a), c)

    with pytest.raises(ShapeError, match="needs one number"):
        compiled(taking, subs={M: 8})
