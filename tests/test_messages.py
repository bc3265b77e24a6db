# ruff: noqa: E501  (the messages stand here as a terminal shows them)
"""Every mistake an author can make, and the exact text it is answered with."""

import os
import runpy
import sys
import textwrap

import pytest

from tilewave.errors import (
    CallError,
    ConstraintError,
    CoverageError,
    DimensionError,
    DTypeError,
    EndlessLoop,
    ShapeError,
    SymbolError,
    TargetError,
    TraceError,
)

HEAD = """
import numpy as np
from tilewave import *
M, N, K, T = sym.M, sym.N, sym.K, sym.T
G = GLOBAL_ADDRESS_SPACE
tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
sizes = {M: 128, N: 128, K: 96}
"""

GEMM = """
@wave(tiles)
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    zero = Register[M, N, f32](0.0)

    @iterate(K, init_args=[zero])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)

"""
A, B, C = "np.ones((128, 96), np.float16)", "np.ones((128, 96), np.float16)", "np.empty((128, 128), np.float32)"


def said(tmp_path, monkeypatch, source, error):
    """What running `source` as gemm.py raises, without the carets that Python 3.10 cannot place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemm.py").write_text(textwrap.dedent(source))
    with pytest.raises(error) as raised:
        runpy.run_path(str(tmp_path / "gemm.py"))
    assert type(raised.value) is error
    return str(raised.value)


def without_carets(text):
    return "\n".join(line for line in text.splitlines() if set(line.strip()) != {"^"})


def same(found, wanted):
    wanted = textwrap.dedent(wanted).strip("\n")
    if sys.version_info < (3, 11):
        found, wanted = without_carets(found), without_carets(wanted)
    assert found == wanted


CASES = {
    "a symbol without a value": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs={M: 128, N: 128}), gemm)",
        """
        K has no value
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={K: …, …})
        """,
    ),
    "an address space without a value": (
        SymbolError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, K, sym.SPACE, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        SPACE has no value
          gemm.py:10
              def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, sym.SPACE, f16], c: Memory[M, N, G, f32]):
                                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={SPACE: SHARED_ADDRESS_SPACE, …})
        """,
    ),
    "a dimension that no constraint covers": (
        DimensionError,
        HEAD
        + GEMM.replace("        return mma", "        bias = read(d)\n        return mma").replace(
            "c: Memory", "d: Memory[M, T, G, f16], c: Memory"
        )
        + "wave_compile(WaveCompileOptions(subs={**sizes, T: 5}), gemm)",
        """
        read: d [M, T] spans T, which no constraint covers here
          gemm.py:15
              bias = read(d)
                     ^^^^^^^
          add WorkgroupConstraint(T, BLOCK_T, …), or TilingConstraint(T, BLOCK_T) and do this inside an iterate over T
        """,
    ),
    "a tiled dimension read outside its loop": (
        DimensionError,
        HEAD
        + GEMM.replace("    zero =", "    early = read(a)\n    zero =")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        read: a [M, K] spans K, which has a tile only inside iterate(K)
          gemm.py:11
              early = read(a)
                      ^^^^^^^
          move it into the function under @iterate(K, …)
        """,
    ),
    "mma shapes that do not fit": (
        ShapeError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, M, G, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        mma: a is 64x32 [M, K] and b is 64x64 [N, M], but the accumulator is 64x64 [M, N]
          gemm.py:15
              return mma(read(a), read(b), acc)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          a and b must share exactly one dim that the accumulator has not, to sum over
        """,
    ),
    "mma dtypes that do not fit": (
        DTypeError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, K, G, bf16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        mma: f16 times bf16 does not add up in f32
          gemm.py:15
              return mma(read(a), read(b), acc)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          floats of one kind accumulate in f32 (or f64), i8 in i32; cast the result afterwards
        """,
    ),
    "a tile written to a memory of another shape": (
        ShapeError,
        HEAD
        + GEMM.replace("c: Memory[M, N, G, f32]", "c: Memory[M, G, f32]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        write: a tile [M, N] (64x64 f32) does not fit c, which takes [M] (64)
          gemm.py:17
              write(total, c)
              ^^^^^^^^^^^^^^^
          declare c as Memory[M, N, …], or write another tile
        """,
    ),
    "a tile written to a memory of another dtype": (
        DTypeError,
        HEAD
        + GEMM.replace("c: Memory[M, N, G, f32]", "c: Memory[M, N, G, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        write: the tile is f32, but c holds f16
          gemm.py:17
              write(total, c)
              ^^^^^^^^^^^^^^^
          write cast(tile, f16), or declare c as Memory[…, f32]
        """,
    ),
    "tiles of two dtypes added": (
        DTypeError,
        HEAD
        + GEMM.replace("write(total, c)", "write(total + cast(total, f16), c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        a tile [M, N] (64x64 f32) and a tile [M, N] (64x64 f16) do not go together
          gemm.py:17
              write(total + cast(total, f16), c)
                    ^^^^^^^^^^^^^^^^^^^^^^^^
          write cast(x, f32) or cast(x, f16) for one of them
        """,
    ),
    "an if on a traced value": (
        TraceError,
        HEAD
        + GEMM.replace("    write(total, c)", "    if total > 0.0:\n        write(total, c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        a tile [M, N] (64x64 bool) has no truth value while the kernel is being traced
          gemm.py:17
              if total > 0.0:
                 ^^^^^^^^^^^
          `if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate
        """,
    ),
    "a while on a symbol": (
        TraceError,
        HEAD
        + GEMM.replace("    write(total, c)", "    while M < N:\n        write(total, c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        M < N has no truth value while the kernel is being traced
          gemm.py:17
              while M < N:
                    ^^^^^
          `if` and `while` run in Python, before sizes are known; write select(condition, a, b) or iterate
        """,
    ),
    "an op outside a kernel": (
        TraceError,
        HEAD + "zero = Register[M, N, f32](0.0)",
        """
        Register is called outside a kernel
          gemm.py:8
              zero = Register[M, N, f32](0.0)
                     ^^^^^^^^^^^^^^^^^^^^^^^^
          kernels run when they are compiled: put it into a function under @wave(constraints)
        """,
    ),
    "a kernel called before it is compiled": (
        TraceError,
        HEAD + GEMM + "gemm(1, 2, 3)",
        """
        gemm is a kernel; it must be compiled before it runs
          gemm.py:19
              gemm(1, 2, 3)
              ^^^^^^^^^^^^^
          write wave_compile(WaveCompileOptions(subs={…}), gemm)(…)
        """,
    ),
    "a loop that returns nothing": (
        ShapeError,
        HEAD
        + GEMM.replace("return mma(read(a), read(b), acc)", "mma(read(a), read(b), acc)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        total carries a tile [M, N] (64x64 f32), but returns nothing
          gemm.py:13
              @iterate(K, init_args=[zero])
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          return the next value of each of init_args, in the same order, dims and dtype
        """,
    ),
    "a grid dimension constrained twice": (
        ConstraintError,
        HEAD.replace("WorkgroupConstraint(N, 64, 1)", "WorkgroupConstraint(N, 64, 0)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        grid dimension 0 is constrained twice: by M and by N
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 0), TilingConstraint(K, 32)]
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          the first is at gemm.py:6; give each its own dimension, 0, 1 or 2
        """,
    ),
    "a tile of zero": (
        ConstraintError,
        HEAD.replace("TilingConstraint(K, 32)", "TilingConstraint(K, sym.BLOCK_K)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs={**sizes, sym.BLOCK_K: 0}), gemm)",
        """
        BLOCK_K is 0
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, sym.BLOCK_K)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a tile is at least 1
        """,
    ),
    "a negative tile": (
        ConstraintError,
        HEAD.replace("WorkgroupConstraint(M, 64, 0)", "WorkgroupConstraint(M, -64, 0)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        the tile is -64
          gemm.py:6
              tiles = [WorkgroupConstraint(M, -64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a tile is at least 1
        """,
    ),
    "a tile that is no whole number": (
        SymbolError,
        HEAD.replace("TilingConstraint(K, 32)", "TilingConstraint(K, K / 5)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        K / 5 is 96/5, no whole number
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, K / 5)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          write // to round down, or ceiling(…) to round up
        """,
    ),
    "a target that does not exist": (
        TargetError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, target='gfx941'), gemm)",
        """
        no target is called 'gfx941'
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, target='gfx941'), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          did you mean 'gfx942'? The targets are cpu, gfx942, gfx950, sm_90a, numpy.
        """,
    ),
    "two orders of tiles": (
        ConstraintError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0, 0), WorkgroupMapping('grouped(4)')]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        the order of tiles is given twice: by WorkgroupMapping and by ReorderingConstraint
          gemm.py:8
              tiles += [ReorderingConstraint(WORKGROUP_0, 0), WorkgroupMapping('grouped(4)')]
                                                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          the other is at gemm.py:8; keep one of them
        """,
    ),
    "a formula that loses tiles": (
        CoverageError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0 // 2, 0)]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        workgroups 0 and 1 both compute tile (0, 0); tile (1, 0) is computed by none
          gemm.py:18
              write(total, c)
              ^^^^^^^^^^^^^^^
          c has 4 tiles: 2 lost, 2 computed more than once.
          Correct the formula, or name a mapping that is right on every grid, for example
              WorkgroupMapping(xcd_contiguous(8) >> grouped(4))
        """,
    ),
    "a formula that leaves the grid": (
        CoverageError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0 + 1, 0)]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        workgroup 1 computes tile (2, 0), outside the 2x2 tiles of c
          gemm.py:18
              write(total, c)
              ^^^^^^^^^^^^^^^
          Correct the formula, or name a mapping that is right on every grid, for example
              WorkgroupMapping(xcd_contiguous(8) >> grouped(4))
        """,
    ),
    "too few arrays": (
        CallError,
        HEAD + GEMM + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {C})",
        """
        gemm: takes 3 arrays (a, b, c), but got 2
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          call gemm(a, b, c)
        """,
    ),
    "an array of another shape": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {B}.T, {C})",
        """
        gemm: b is 96x128, but the kernel was compiled for 128x96
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16).T, np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          it looks transposed: pass b.T
        """,
    ),
    "an array of another dtype": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {C}, {C})",
        """
        gemm: b is f32, but the kernel reads f16
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.empty((128, 128), np.float32), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          pass b.astype(np.float16), or compile with Memory[..., f32]
        """,
    ),
    "a read-only output": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\nc = {C}\nc.flags.writeable = False\n"
        f"compiled.interpret({A}, {B}, c)",
        """
        gemm: c is read-only, but the kernel writes it
          gemm.py:22
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), c)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          pass np.empty((128, 128), np.float32)
        """,
    ),
    "no device": (
        TargetError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes, target='gfx942'), gemm)\ncompiled({A}, {B}, {C})",
        """
        gemm: nothing can be run on gfx942 yet
          gemm.py:20
              compiled(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          gemm.interpret(…) runs it in numpy on any machine
        """,
    ),
    "a dynamic symbol without a value at the call": (
        CallError,
        HEAD
        + "tiles += [WorkgroupMapping(mapping.grouped(sym.WGM))]\n"
        + GEMM
        + "compiled = wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[sym.WGM]), gemm)\n"
        f"compiled.interpret({A}, {B}, {C})",
        """
        gemm needs a value for WGM
          gemm.py:21
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write gemm(…, WGM=4)
        """,
    ),
    "a symbol at the call that the kernel does not take": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {B}, {C}, WGM=4)",
        """
        gemm takes no symbol WGM
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32), WGM=4)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          it takes none; name it in WaveCompileOptions(dynamic_symbols=[WGM])
        """,
    ),
}
PERSISTENT = """
tiles = [GridConstraint(2), WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32), TilingConstraint(T)]
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
there = IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i + sym.ROW, N: j + sym.COLUMN})

@wave(tiles)
def fill(c: Memory[M, N, G, f32]):
    @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
    def tiles():
        tile = self_index(T)
        set_symbol(sym.ROW, tile // 2 * 64)
        set_symbol(sym.COLUMN, tile % 2 * 64)
        write(Register[M, N, f32](1.0), c, mapping=there)
        set_symbol(T, NEXT)

"""
CASES |= {
    "a persistent loop that never advances": (
        EndlessLoop,
        HEAD
        + PERSISTENT.replace("        set_symbol(T, NEXT)\n", "")
        + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        T is never set in its loop, which would not end
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write set_symbol(T, next) at the end of tiles
        """,
    ),
    "a persistent loop that never ends": (
        EndlessLoop,
        HEAD
        + PERSISTENT.replace("NEXT", "tile + scalar(WORKGROUP_0) * 2")
        + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        the loop never ends for workgroup 0
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          let every round bring the loop's symbol closer to its condition's end, with set_symbol
        """,
    ),
    "a persistent loop that goes round for ever": (
        EndlessLoop,
        HEAD + PERSISTENT.replace("NEXT", "(tile + 1) % 3") + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        the loop never ends for workgroup 0
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          let every round bring the loop's symbol closer to its condition's end, with set_symbol
        """,
    ),
    "a persistent loop that loses tiles": (
        CoverageError,
        HEAD + PERSISTENT.replace("NEXT", "tile + 3") + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        tile (1, 0) is computed by none
          gemm.py:20
              write(Register[M, N, f32](1.0), c, mapping=there)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          c has 4 tiles: 1 lost, 0 computed more than once.
          Correct the formula, or name a mapping that is right on every grid, for example
              GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop
        """,
    ),
    "a symbol with a value that the kernel sets": (
        SymbolError,
        HEAD
        + PERSISTENT.replace("NEXT", "tile + 2")
        + "wave_compile(WaveCompileOptions(subs={**sizes, sym.ROW: 0}), fill)",
        """
        set_symbol: ROW has a value already: 0
          gemm.py:18
              set_symbol(sym.ROW, tile // 2 * 64)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave ROW out of subs, or set another symbol
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_author_is_told(case, tmp_path, monkeypatch):
    error, source, wanted = CASES[case]
    found = said(tmp_path, monkeypatch, source, error)
    if os.environ.get("SHOW_MESSAGES"):
        print(f"\n### {case}\n{found}")
    same(found, wanted)
