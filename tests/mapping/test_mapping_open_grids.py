"""On a grid whose sides are known only at launch, a mapping computes the tiles of the actual grid."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_strategies import MAPPINGS
from open_index import Hidden, Wide, shown
from sampled import examples
from traced_index import Tape

from tilewave.interp.tiles import interpret
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Broadcast, Workgroup, Write
from tilewave.ir.types import I32, INDEX_SCALAR, Memory, Tile
from tilewave.ir.verify import verify
from tilewave.mapping import (
    Grid,
    Mapping,
    MappingError,
    OpenGrid,
    PersistentFormula,
    as_mapping,
    folded,
    from_function,
    grouped,
    hilbert,
    is_right_on_every_grid,
    last_first,
    linear,
    morton,
    paired,
    snake,
    supertiles,
    xcd_chunked,
    xcd_contiguous,
)
from tilewave.mapping.grid import MOST_TILES
from tilewave.passes.grid.map_workgroups import Dealt

pytestmark = pytest.mark.share(4)

SIZES = (1, 2, 3, 4, 7, 12, 40, MOST_TILES)
ORDERS = [
    *(make(along) for make in (linear, paired) for along in "mn"),
    *(make(size, along) for make in (grouped, snake) for size in SIZES for along in "mn"),
    *(supertiles(rows, cols) for rows in (1, 2, 3, 5, 12, 40) for cols in (1, 2, 4, 7, MOST_TILES)),
    morton(),
    hilbert(),
]
RENUMBERINGS = [
    *(xcd_contiguous(xcds) for xcds in SIZES),
    *(xcd_chunked(xcds, chunk) for xcds in (1, 2, 3, 8, 40) for chunk in SIZES),
    folded(),
    folded() >> last_first(),
    xcd_chunked(3, 2) >> xcd_contiguous(5),
    xcd_contiguous(8) >> xcd_chunked(2, 3) >> xcd_contiguous(3),
]
SMALL = [Grid(*sides) for sides in product(range(1, 13), range(1, 13), (1, 2))]
WORKGROUPS = (1, 3, 8, 12, 17, 41, 60, MOST_TILES)


def hidden_grid(grids: list[Grid]) -> tuple[Hidden, OpenGrid]:
    """Return all numbers of all these grids, one after the other, each with the sides of its grid."""
    numbers = np.concatenate([np.arange(grid.size) for grid in grids])
    sides = np.repeat([(g.rows, g.cols, g.batches) for g in grids], [g.size for g in grids], axis=0)
    return Hidden(numbers), OpenGrid(*map(Hidden, sides.T))


def want_same(got: tuple, expected: list[tuple], numbers: np.ndarray, what: object) -> None:
    """Assert equal (batch, row, col), number by number."""
    for at, part in enumerate(("batch", "row", "col")):
        known = np.concatenate([np.broadcast_to(tiles[at], count) for tiles, count in expected])
        np.testing.assert_array_equal(np.broadcast_to(shown(got[at]), numbers.shape), known, f"{part} of {what}")


@cache
def all_small() -> tuple[Hidden, OpenGrid]:
    return hidden_grid(SMALL)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_order_on_all_grids_to_12x12_in_two_batches(order):
    t, grid = all_small()
    expected = [(order.tile(np.arange(known.size), known), known.size) for known in SMALL]
    want_same(order.tile(t, grid), expected, t.values, order)


@pytest.mark.share(12)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_sides_that_are_known_beside_sides_that_are_not(order):
    for known in (Grid(*sides) for sides in product((1, 2, 6), (1, 3, 5), (1, 2))):
        numbers = np.arange(known.size)
        expected = [(order.tile(numbers, known), known.size)]
        sides = (known.rows, known.cols, known.batches)
        for is_open in product((False, True), repeat=3):
            mixed = OpenGrid(*(Hidden(side) if hide else side for side, hide in zip(sides, is_open, strict=True)))
            want_same(order.tile(Hidden(numbers), mixed), expected, numbers, f"{order} on {known}, {is_open} open")


@pytest.mark.share(12)
@pytest.mark.parametrize("renumbering", RENUMBERINGS, ids=str)
def test_every_renumbering_on_all_numbers_of_tiles_to_60_and_of_workgroups(renumbering):
    grids = [Grid(1, count) for count in range(1, 61)]
    t, grid = hidden_grid(grids)
    for workgroups in (None, *WORKGROUPS):
        expected = [(renumbering.tile(np.arange(g.size), g, workgroups), g.size) for g in grids]
        what = f"{renumbering} with {workgroups} workgroups"
        want_same(renumbering.tile(t, grid, workgroups), expected, t.values, what)
        if workgroups is not None:
            want_same(renumbering.tile(t, grid, Hidden(workgroups)), expected, t.values, f"{what}, told at the launch")


@pytest.mark.parametrize("workgroups", [None, 7, 24, 300])
def test_a_whole_mapping_over_several_batches(workgroups):
    t, grid = all_small()
    mapping = xcd_chunked(8, 2) >> xcd_contiguous(3) >> snake(3, "n")
    expected = [(mapping.tile(np.arange(known.size), known, workgroups), known.size) for known in SMALL]
    want_same(mapping.tile(t, grid, workgroups), expected, t.values, mapping)


def opened(mapping: Mapping) -> Mapping:
    """Return the mapping with every number hidden, as if it were known only at launch."""

    def step_opened(step):
        hidden = {name: Hidden(value) for name, value in vars(step).items() if isinstance(value, int)}
        return replace(step, **hidden)

    return Mapping(tuple(map(step_opened, mapping.renumberings)), step_opened(mapping.order))


@pytest.mark.share(12)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_parameters_told_at_the_launch_on_a_grid_told_there_too(order):
    t, grid = all_small()
    mapping = xcd_chunked(8, 3) >> order
    for workgroups in (None, 24):
        expected = [(mapping.tile(np.arange(known.size), known, workgroups), known.size) for known in SMALL]
        want_same(opened(mapping).tile(t, grid, workgroups), expected, t.values, mapping)


LARGE = [
    *[(46340, 46340), (46341, 46340), (46339, 46342), (46337, 46344)],  # the largest squares
    *[(1, MOST_TILES), (MOST_TILES, 1), (2, MOST_TILES // 2), (3, MOST_TILES // 3), (MOST_TILES // 7, 7)],
    *[(32767, 65537), (65537, 32767), (32768, 65535), (32769, 65533), (65536, 32767)],  # around the powers of two
    *[(53687, 40000), (100, 21474836), (1024, 1024), (1023, 4097)],
]


def some_numbers(grid: Grid, count: int, seed: int) -> np.ndarray:
    """Both ends of a grid, and some between."""
    ends = np.arange(min(grid.size, 40))
    return np.concatenate([np.random.default_rng(seed).integers(0, grid.size, count), ends, grid.size - 1 - ends])


def want_same_on_some(mapping: Mapping, known: Grid, workgroups: int | None, seed: int = 0) -> None:
    t = some_numbers(known, 300, seed)
    expected = [(mapping.tile(t, known, workgroups), len(t))]
    launched = None if workgroups is None else Hidden(workgroups)
    grid = OpenGrid(Hidden(known.rows), Hidden(known.cols), Hidden(known.batches))
    for candidate in (mapping, opened(mapping)):
        want_same(candidate.tile(Hidden(t), grid, launched), expected, t, f"{mapping} on {known}, {workgroups}")


@pytest.mark.parametrize("sides", LARGE, ids=str)
def test_grids_as_large_as_a_launch_can_be_stay_within_32_bits(sides):
    orders = [linear("n"), grouped(8), snake(7, "n"), grouped(MOST_TILES), supertiles(3, 5), morton(), hilbert()]
    for order, workgroups in product(orders, (None, 132, MOST_TILES)):
        want_same_on_some(as_mapping(order), Grid(*sides), workgroups)
    for step, workgroups in product((xcd_contiguous(8), xcd_chunked(8, 5), xcd_chunked(3, 2**30)), (None, 7, 132)):
        want_same_on_some(step >> linear(), Grid(*sides), workgroups)


def test_one_xcd_that_computes_all_a_launch_can_hold_needs_one_bit_more():
    """A chunk of one more than all tiles is 2³¹: the IR's indices have 64 bits."""
    known, t = Grid(1, MOST_TILES), some_numbers(Grid(1, MOST_TILES), 300, 0)
    mapping = xcd_chunked(1, 2**31) >> linear()
    got = mapping.tile(Wide(t), OpenGrid(1, Wide(MOST_TILES)))
    want_same(got, [(mapping.tile(t, known), len(t))], t, mapping)


@st.composite
def launches(draw):
    """A grid of any sides whose tiles a launch can number, and its workgroups; small sides as often as large ones."""
    sides, room = [], MOST_TILES
    for most in (MOST_TILES, MOST_TILES, 5):
        sides.append(draw(st.integers(1, min(most, room, 1 << draw(st.integers(0, 31))))))
        room //= sides[-1]
    rows, cols = draw(st.permutations(sides[:2]))
    workgroups = draw(st.one_of(st.none(), st.integers(1, 400), st.integers(1, MOST_TILES)))
    return Grid(rows, cols, sides[2]), workgroups


@given(mapping=MAPPINGS, launch=launches(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(200), deadline=None)
def test_any_mapping_on_any_grid(mapping, launch, seed):
    want_same_on_some(mapping, *launch, seed)


NAMES = ("rows", "cols", "batches", "launched", "size")


def kernel_of(mapping: Mapping, launched: object = None) -> Kernel:
    """One workgroup per tile, which writes its number where the mapping sends it; the sides are the launch's."""
    table = Value("table", Memory((2, 12, 12), I32, "global"))
    builder = Builder({"table", *NAMES})
    told = {name: Value(name, INDEX_SCALAR) for name in NAMES}
    number = {name: Dealt(builder, value) for name, value in told.items()}
    w = builder.emit(Workgroup, type=INDEX_SCALAR)
    mapping = mapping.bind(lambda parameter: number["size"])
    grid = OpenGrid(number["rows"], number["cols"], number["batches"])
    found = mapping.tile(Dealt(builder, w), grid, number.get(launched, launched))
    at = tuple(x.value if isinstance(x, Number) else builder.const(x) for x in found)
    tile = builder.emit(Broadcast, builder.cast(w, I32), (), type=Tile((1, 1, 1), I32))
    builder.effect(Write, tile, table, at, (0, 1, 2))
    return verify(Kernel("deal", builder.block((table, *told.values())), 1))


class Size:
    """A symbol whose value is known at launch."""

    def __floordiv__(self, other: object) -> object:
        raise AssertionError("a symbol is bound before it is computed with")


@pytest.mark.parametrize("launched", [None, 5, "launched"])
@pytest.mark.parametrize("make", [linear, lambda: snake(3), lambda: grouped(Size()), lambda: supertiles(2, 4)])
def test_one_kernel_deals_the_tiles_of_every_grid(make, launched):
    mapping = xcd_chunked(3, 2) >> make()
    want_tables(mapping, launched, [Grid(1, 1), Grid(1, 7), Grid(9, 1), Grid(5, 6, 2), Grid(12, 11)])


@pytest.mark.parametrize("order", [morton(), hilbert()], ids=str)
def test_one_kernel_walks_the_curve_of_every_grid(order):
    want_tables(as_mapping(order), None, [Grid(1, 1), Grid(1, 7), Grid(7, 5, 2), Grid(12, 11)])


def want_tables(mapping: Mapping, launched: object, grids: list[Grid]) -> None:
    kernel = kernel_of(mapping, launched)
    for grid in grids:
        values = dict(zip(NAMES, (grid.rows, grid.cols, grid.batches, 7, 4), strict=True))
        table = np.full((2, 12, 12), -1, np.int32)
        interpret(replace(kernel, workgroups=grid.size), [table], values)
        known = mapping.bind(lambda parameter: 4).table(grid, 7 if launched == "launched" else launched)
        expected = np.full_like(table, -1)
        expected[: grid.batches, : grid.rows, : grid.cols] = known
        np.testing.assert_array_equal(table, expected, f"{mapping} on {grid}")


@pytest.mark.parametrize(
    ("mapping", "workgroups", "both_open", "rows_open"),
    [
        (linear(), None, 3, 3),
        (paired(), None, 10, 10),
        (grouped(8), None, 16, 16),
        (snake(8), None, 26, 25),
        (supertiles(2, 4), None, 43, 29),
        (morton(), None, 303, 87),
        (hilbert(), None, 798, 198),
        (xcd_contiguous(8) >> grouped(8), None, 32, 32),
        (xcd_contiguous(8) >> grouped(8), 304, 36, 36),
    ],
    ids=str,
)
def test_the_operations_on_an_open_grid_are_those_in_the_document(mapping, workgroups, both_open, rows_open):
    for known_cols, expected in ((None, both_open), (16, rows_open)):
        tape = Tape()
        t, rows = tape.argument("t"), tape.argument("rows")
        cols = known_cols or tape.argument("cols")
        before = len(tape.ops)
        mapping.tile(t, OpenGrid(rows, cols), workgroups)
        assert len(tape.ops) - before == expected


def test_an_open_grid_of_known_sides_costs_what_the_known_grid_does():
    for order in (linear(), paired(), grouped(8), snake(8), supertiles(2, 4), morton(), hilbert()):
        known, opened = Tape(), Tape()
        order.tile(known.argument("t"), Grid(61, 47))
        order.tile(opened.argument("t"), OpenGrid(61, 47))
        assert len(known.ops) == len(opened.ops), order


def test_a_call_for_one_batch_needs_to_know_that_there_is_one():
    assert [shown(x) for x in as_mapping(linear())(Hidden(5), OpenGrid(Hidden(4), Hidden(3)))] == [1, 1]
    with pytest.raises(MappingError, match=r"use tile\(\), which also returns the batch"):
        as_mapping(linear())(Hidden(5), OpenGrid(4, 3, Hidden(1)))


def row_by_row(w, grid):
    return w // grid.cols, w % grid.cols


def test_a_free_formula_computes_on_an_open_grid_too():
    t, grid = all_small()
    mapping = from_function(row_by_row)
    expected = [(mapping.tile(np.arange(known.size), known), known.size) for known in SMALL]
    want_same(mapping.tile(t, grid), expected, t.values, mapping)


@given(mapping=MAPPINGS)
@settings(max_examples=examples(50), deadline=None)
def test_named_mappings_are_right_on_every_grid(mapping):
    assert is_right_on_every_grid(mapping) and is_right_on_every_grid(str(mapping))


def test_whatever_stands_for_a_named_mapping_is_right_on_every_grid():
    assert is_right_on_every_grid(xcd_contiguous(8)) and is_right_on_every_grid(hilbert())
    assert is_right_on_every_grid(Mapping((xcd_contiguous(8) >> xcd_chunked(2, 3),), grouped(Size())))


class Backwards(type(linear())):
    """A class of an author's own; what it inherits says nothing about what it computes."""

    def formula(self, number, grid):
        return 0, number


def test_what_an_author_writes_is_not_known_to_be_right():
    assert not is_right_on_every_grid(row_by_row)
    assert not is_right_on_every_grid(xcd_contiguous(8) >> from_function(row_by_row))
    assert not is_right_on_every_grid(PersistentFormula(lambda w, grid, workgroups: w, grouped(4)))
    assert not is_right_on_every_grid(Backwards())
    with pytest.raises(MappingError, match="3 is not a mapping"):
        is_right_on_every_grid(3)
