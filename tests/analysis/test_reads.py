# ruff: noqa: E501  (the messages are as a terminal shows them)
"""What a workgroup may read and write of the memory that all share: judged when a kernel is compiled, for all of them."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *
from messages import HEAD, said, same
from sampled import examples

from tilewave.analysis import reads
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.reads import judged_schedule
from tilewave.errors import AccessError, CoverageError, InterpreterError
from tilewave.interp.tiles import interpret
from tilewave.ir.parse import parse
from tilewave.ir.verify import verify
from tilewave.lang.kernel import trace_kernel
from tilewave.pipeline.runner import run
from tilewave.pipeline.tile_level import tile_level

i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
OFFSET = sym.OFFSET
BY_FOUR = [WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 4, 1)]


def there(rows, columns=j):
    return IndexMapping(2, inputs={M: rows, N: columns}, outputs={M: i, N: j})


def put(rows, columns=j):
    return IndexMapping(2, inputs={M: i, N: j}, outputs={M: rows, N: columns})


def copying(mapping, constraints=BY_FOUR):
    @wave(constraints)
    def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a, mapping=mapping), c)

    return copy


def in_place(mapping, constraints=BY_FOUR):
    @wave(constraints)
    def change(c: Memory[M, N, G, f32]):
        write(read(c, mapping=mapping), c)

    return change


def filling(*mappings):
    @wave(BY_FOUR)
    def fill(c: Memory[M, N, G, f32]):
        for number, mapping in enumerate(mappings):
            write(Register[M, N, f32](float(number)), c, mapping=mapping)

    return fill


# -- out-of-bounds accesses -------------------------------------------------------------------------------------------

KERNEL = """
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
there = IndexMapping(2, inputs={M: ROWS, N: j}, outputs={M: i, N: j})
@wave(tiles)
def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
    x = read(a, mapping=there)
    write(x, c)
wave_compile(WaveCompileOptions(subs=sizes, target='numpy'), copy)
"""


@pytest.mark.parametrize("rows", [i - 3, i + 2, 9 - i, 2 * i // 2 - 3, i + 10000, i - 8, 10000 - i, i + i // 4 * 4])
@pytest.mark.parametrize("shape", [(8, 8), (7, 5)])
def test_what_lies_outside_is_read_as_zeros(rows, shape):
    kernel = compiled(copying(there(rows)), subs={M: shape[0], N: shape[1]})
    a, c = np.arange(1.0, np.prod(shape) + 1, dtype=np.float32).reshape(shape), poisoned(shape, f32)
    kernel.interpret(a, c)
    places = np.array([rows.evaluate({i: row}) for row in range(shape[0])])
    inside = (places >= 0) & (places < shape[0])
    np.testing.assert_array_equal(c, np.where(inside[:, None], a[np.clip(places, 0, shape[0] - 1)], 0))


def test_a_read_that_is_never_reached_is_not_judged():
    """The loop iterates only where the read is in bounds."""
    T = sym.T

    @wave([*BY_FOUR, TilingConstraint(T)])
    def careful(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        @iterate(T, start=scalar(WORKGROUP_0), init_args=[Register[M, N, f32](0.0)], condition=T < 1)
        def total(acc):
            set_symbol(OFFSET, self_index(T) * 1000)
            set_symbol(T, self_index(T) + 1)
            return acc + read(a, mapping=there(i + OFFSET))

        write(total, c)

    a, c = np.ones((8, 8), np.float32), poisoned((8, 8), f32)
    compiled(careful, subs={M: 8, N: 8}).interpret(a, c)
    np.testing.assert_array_equal(c, np.repeat([1.0, 0.0], 4)[:, None] * np.ones(8))


def test_an_open_symbol_may_move_a_read_outside():
    kernel = compiled(copying(there(i + OFFSET)), subs={M: 8, N: 8}, dynamic_symbols=[OFFSET])
    assert kernel.schedule.table().tolist() == [[0, 2], [1, 3]]
    a = np.ones((8, 8), np.float32)
    for offset in (3, 4, 7, 8, 100):
        for run_it in (kernel, kernel.interpret):
            c = poisoned((8, 8), f32)
            run_it(a, c, OFFSET=offset)
            assert (c[: max(8 - offset, 0)] == 1).all() and (c[max(8 - offset, 0) :] == 0).all()


FAR = """kernel @k {workgroups = 1} (%a: memory<4xf32, global>, %c: memory<4xf32, global>) {
%zero = const() {value = 0} : index
%far = const() {value = 4} : index
"""
"""A kernel given as text, without compiling it."""


def test_a_formula_that_lies_outside_reads_zeros():
    text = (
        FAR + "%x = gather(%a) : tile<4xf32> do (%i: index) {\n%p = add(%i, %far) : index\nyield([%p])\n}\n"
        "write(%x, %c, [%zero]) {axes = [0]}\n}\n"
    )
    c = np.ones(4, np.float32)
    interpret(verify(parse(text)), [np.ones(4, np.float32), c], {})
    assert (c == 0).all()


def test_the_interpreter_reports_a_formula_that_writes_outside():
    text = (
        FAR + "%x = read(%a, [%zero]) {axes = [0]} : tile<4xf32>\n"
        "scatter(%x, %c) do (%i: index) {\n%p = add(%i, %far) : index\nyield([%p])\n}\n}\n"
    )
    with pytest.raises(InterpreterError, match=r"workgroup 0 touches c\[4\], all of it outside"):
        interpret(verify(parse(text)), [np.ones(4, np.float32), np.ones(4, np.float32)], {})


def test_the_interpreter_reports_a_read_outside_a_workgroups_own_memory():
    text = (
        FAR + "%s = allocate() : memory<4xf32, shared>\n%x = read(%s, [%far]) {axes = [0]} : tile<4xf32>\n"
        "write(%x, %c, [%zero]) {axes = [0]}\n}\n"
    )
    with pytest.raises(InterpreterError, match=r"workgroup 0 touches s\[4\], all of it outside"):
        interpret(verify(parse(text)), [np.ones(4, np.float32), np.ones(4, np.float32)], {})


# -- what another workgroup writes -------------------------------------------------------------------------------------

EXCHANGE = """
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
there = IndexMapping(2, inputs={M: M - 1 - i, N: j}, outputs={M: i, N: j})
@wave(tiles)
def flip(c: Memory[M, N, G, f32]):
    x = read(c, mapping=there)
    write(x, c)
wave_compile(WaveCompileOptions(subs=sizes, target='TARGET'), flip)
"""


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_workgroups_that_exchange_are_refused_with_both_lines(target, tmp_path, monkeypatch):
    wanted = """
    workgroup 0 reads c[127, 0], which workgroup 1 writes
      gemm.py:13
          x = read(c, mapping=there)
              ^^^^^^^^^^^^^^^^^^^^^^
      it is written at gemm.py:14. Workgroups run in no order: write to another memory, or read it in a separate kernel
    """
    same(said(tmp_path, monkeypatch, HEAD + EXCHANGE.replace("TARGET", target), AccessError), wanted)


SHIFTS = {
    "a row from the tile below": (there(i + 1), r"workgroup 0 reads c\[4, 0\], which workgroup 1 writes"),
    "a column from the tile beside": (there(i, j + 1), r"workgroup 0 reads c\[0, 4\], which workgroup 2 writes"),
    "a whole tile": (there(i - i // 4 * 4), r"workgroup 1 reads c\[0, 0\], which workgroup 0 writes"),
    "turned": (
        IndexMapping(2, inputs={M: j, N: i}, outputs={M: i, N: j}),
        r"workgroup 1 reads c\[0, 4\], which workgroup 2 writes",
    ),
}


@pytest.mark.parametrize("case", SHIFTS)
def test_what_a_neighbour_writes_is_not_read(case):
    mapping, wanted = SHIFTS[case]
    with pytest.raises(AccessError, match=wanted):
        compiled(in_place(mapping), subs={M: 8, N: 8})


OWN = {
    "element by element": (None, lambda c: c),
    "a tile upside down": (there(i // 4 * 4 + 3 - i % 4), lambda c: c.reshape(2, 4, 8)[:, ::-1].reshape(8, 8)),
    "rows of a tile, the last of them four times": (there(i // 4 * 4 + 3), lambda c: np.repeat(c[3::4], 4, 0)),
}


@pytest.mark.parametrize("case", OWN)
def test_a_workgroup_may_read_what_it_alone_writes(case):
    mapping, wanted = OWN[case]
    c = np.arange(64, dtype=np.float32).reshape(8, 8)
    want = wanted(c.copy())
    compiled(in_place(mapping), subs={M: 8, N: 8}).interpret(c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("more", [(), (WorkgroupMapping("grouped(2)"),), (GridConstraint(3),)])
def test_a_product_may_be_added_to_what_was_there(more):
    @wave(tiling(*more))
    def update(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        before = read(c)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(0.5 * before + total, c)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (n, 70)).astype(np.float16) for n in (130, 200))
    c = rng.integers(-8, 9, (130, 200)).astype(np.float32)
    want = 0.5 * c + a.astype(float) @ b.astype(float).T
    compiled(update, subs=sizes(130, 200, 70)).interpret(a, b, c)
    np.testing.assert_array_equal(c, want)


def test_an_order_of_tiles_decides_who_exchanges():
    """Tile (1, 0) is read and written by workgroup 2 where tiles are taken by rows."""
    by_rows = WorkgroupMapping(lambda w, grid: (w // grid.cols, w % grid.cols))
    with pytest.raises(AccessError, match=r"workgroup 0 reads c\[4, 0\], which workgroup 2 writes"):
        compiled(in_place(there(i + 1), [*BY_FOUR, by_rows]), subs={M: 8, N: 8})


def test_one_persistent_workgroup_has_nobody_to_exchange_with():
    c = np.arange(64, dtype=np.float32).reshape(8, 8)
    compiled(in_place(there(i), [*BY_FOUR, GridConstraint(1)]), subs={M: 8, N: 8})(c)
    with pytest.raises(AccessError, match=r"workgroup 0 reads c\[4, 0\], which workgroup 1 writes"):
        compiled(in_place(there(i + 1), [*BY_FOUR, GridConstraint(3)]), subs={M: 8, N: 8})


def test_an_open_symbol_that_decides_who_exchanges_is_judged_at_the_call():
    kernel = compiled(in_place(there(i + OFFSET)), subs={M: 8, N: 4}, dynamic_symbols=[OFFSET])
    c = np.ones((8, 4), np.float32)
    with pytest.raises(AccessError, match=r"workgroup 0 reads c\[4, 0\], which workgroup 1 writes"):
        kernel(c, OFFSET=2)
    assert (c == 1).all()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-5, 5), st.integers(-5, 5), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_compiling_and_the_interpreter_agree_on_who_exchanges(m, n, down, right, by_formula):
    """Shifts of any length; the interpreter judges what it saw workgroups do, compiling what their arithmetic says."""
    rows = (i * 2 - i if by_formula else i) + down
    kernel = in_place(there(rows, j + right))
    try:
        compiled(kernel, subs={M: m, N: n})
        told = None
    except AccessError as error:
        told = str(error)
    traced = trace_kernel(kernel, {M: m, N: n}, ())
    tiles, _ = run(traced.ir, tile_level(traced.order))
    try:
        interpret(tiles, [np.ones((m, n), np.float32)], {})
        found = None
    except InterpreterError as error:
        found = str(error)
    assert (told is None) == (found is None), (told, found)


# -- two in one place --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [put(i, j // 2), put(i, j // 2 * 2), put(i // 4 * 4, j), put(i // 4 * 4 + i % 2)])
@pytest.mark.parametrize("before", [(), (None,)])
def test_two_elements_of_one_tile_in_one_place_are_refused(place, before):
    """Refused even where another write of the workgroup leaves no element unwritten."""
    with pytest.raises(CoverageError, match=r"workgroup \d+ writes two elements of one tile to c\[\d, \d\]"):
        compiled(filling(*before, place), subs={M: 8, N: 8})


def test_the_author_is_told_which_write_stores_two_in_one_place(tmp_path, monkeypatch):
    source = (
        KERNEL.replace("ROWS", "i")
        .replace("    write(x, c)", "    write(x, c, mapping=two)")
        .replace("@wave", "two = IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: j // 2})\n@wave")
    )
    wanted = """
    workgroup 0 writes two elements of one tile to c[0, 0]
      gemm.py:15
          write(x, c, mapping=two)
          ^^^^^^^^^^^^^^^^^^^^^^^^
      a position in memory holds one element: let the mapping give every element of the tile its own position
    """
    same(said(tmp_path, monkeypatch, HEAD + source, CoverageError), wanted)


@pytest.mark.parametrize("first", [None, put(3 - i % 4 + i // 4 * 4), put(i, j // 4 * 4 + (j + 1) % 4)])
@pytest.mark.parametrize("then", [None, put(3 - i % 4 + i // 4 * 4), put(i, j // 4 * 4 + (j + 1) % 4)])
def test_a_later_write_of_a_workgroup_replaces_an_earlier_one(first, then):
    c = poisoned((8, 8), f32)
    compiled(filling(first, then), subs={M: 8, N: 8}).interpret(c)
    assert (c == 1).all()


def test_a_scattered_tile_wholly_outside_is_refused():
    with pytest.raises(
        CoverageError, match=r"workgroup 1 writes c\[8, 0\] and the rest of its tile, all of it outside"
    ):
        compiled(filling(None, put(i * 2)), subs={M: 8, N: 8})


def test_scattered_elements_over_the_edge_go_nowhere():
    c = poisoned((6, 8), f32)
    compiled(filling(put(7 - i)), subs={M: 6, N: 8}).interpret(c)
    assert (c == 0).all()


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_arrays_that_are_only_read_or_only_written_are_not_looked_at(monkeypatch):
    def looked(*_):
        raise AssertionError("looked at")

    monkeypatch.setattr(reads._Judge, "judge", looked)
    compiled(gemm(), subs=sizes(130, 200, 70))
    compiled(gemm(constraints=[WorkgroupMapping("xcd_contiguous(8) >> grouped(4)")]), subs=sizes(1300, 200, 70))
    compiled(gemm(constraints=[GridConstraint(7), WorkgroupMapping("hilbert()")]), subs=sizes(1300, 200, 70))
    compiled(in_place(None), subs={M: 8, N: 8})  # each its own tile, which is proved
    with pytest.raises(AssertionError, match="looked at"):
        compiled(in_place(there(i // 4 * 4 + 3 - i % 4)), subs={M: 8, N: 8})


@pytest.mark.parametrize("mapping", [None, there(i // 4 * 4 + 3 - i % 4)])
def test_a_million_workgroups_in_place_in_seconds(mapping):
    """The bound is some ten times what a quiet machine takes."""
    start = time.process_time()
    compiled(in_place(mapping), subs={M: 4096, N: 4096})
    assert time.process_time() - start < 20


def test_beyond_so_many_places_the_interpreter_alone_judges(monkeypatch):
    monkeypatch.setattr(reads, "MOST_PLACES", 10)
    kernel = compiled(in_place(there(i // 4 * 4 + 7 - i % 4 - i // 4 * 8 + (i + 0) // 4 * 4)), subs={M: 40, N: 4})
    with pytest.raises(InterpreterError, match="the order decides the result"):
        kernel.interpret(np.ones((40, 4), np.float32))


def test_a_judged_schedule_is_the_checked_one():
    kernel = compiled(gemm(constraints=[GridConstraint(7)]), subs=sizes(1300, 200, 70)).kernel
    assert judged_schedule(kernel, {}) == checked_schedule(kernel, {})
