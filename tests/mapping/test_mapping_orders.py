"""Orders: bijections on every grid, in the sequence that they document."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import examples

from tilewave.mapping import (
    Deal,
    Grid,
    MappingError,
    curves,
    grouped,
    hilbert,
    linear,
    morton,
    orders,
    paired,
    parse,
    prove,
    snake,
    supertiles,
    xcd_contiguous,
)

SIDE = st.integers(1, 300)


def steps(order: object, grid: Grid) -> np.ndarray:
    """How far each step goes, |rows| + |columns|."""
    return np.abs(np.diff(order.tiles(grid).astype(int), axis=0)).sum(axis=1)


def test_linear_walks_columns_or_rows():
    assert linear().tiles(Grid(2, 3)).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
    assert linear(along="n").tiles(Grid(2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_batches_come_one_after_the_other():
    tiles = grouped(2).tiles(Grid(3, 4, batches=2))
    assert tiles[:, 0].tolist() == [0] * 12 + [1] * 12
    assert tiles[12:, 1:].tolist() == grouped(2).tiles(Grid(3, 4)).tolist()


@pytest.mark.parametrize("side", [20, pytest.param(48, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", [linear(), linear(along="n"), morton(), hilbert()], ids=str)
def test_orders_without_numbers_are_bijections(order, side):
    prove(order, side, side)


@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("order", [grouped, snake])
def test_grouped_and_snake_are_bijections(order, along):
    prove(lambda size: order(size, along), 14, 14, size=[1, 2, 3, 7, 8, 13, 14, 15, 64])


@pytest.mark.slow
@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("order", [grouped, snake])
def test_grouped_and_snake_are_bijections_on_all_grids_to_48_for_all_sizes_to_64(order, along):
    prove(lambda size: order(size, along), 48, 48, size=range(1, 65))


def test_supertiles_are_bijections():
    prove(supertiles, 12, 12, rows=[1, 2, 3, 5, 12, 64], cols=[1, 2, 4, 7, 13])


@pytest.mark.slow
def test_supertiles_are_bijections_on_all_grids_to_48():
    prove(supertiles, 48, 48, rows=[*range(1, 10), 16, 31, 64], cols=[*range(1, 10), 16, 31, 64])


def test_supertiles_are_as_even_as_possible():
    tops = supertiles(3, 1).tiles(Grid(11, 1))
    table = supertiles(3, 2).table(Grid(11, 5))
    assert len(tops) == 11
    assert [int(table[row, 0]) for row in (0, 4, 8)] == [0, 20, 40]  # heights 4, 4, 3
    assert [int(table[0, col]) for col in (0, 3)] == [0, 12]  # widths 3, 2


@given(rows=SIDE, cols=SIDE)
@settings(max_examples=examples(60), deadline=None)
def test_hilbert_steps_from_neighbour_to_neighbour(rows, cols):
    grid = Grid(rows, cols)
    assert (steps(hilbert(), grid) == 1).all()
    assert hilbert().tiles(grid)[0].tolist() == [0, 0]


def test_hilbert_steps_from_neighbour_to_neighbour_on_all_grids_to_40():
    for rows in range(1, 41):
        for cols in range(1, 41):
            assert (steps(hilbert(), Grid(rows, cols)) == 1).all(), (rows, cols)


def test_hilbert_on_a_power_of_two_is_hilberts_curve():
    """The textbook's loop over the bits of the number, from the lowest pair up."""

    def textbook(number: int, side: int) -> tuple[int, int]:
        x = y = 0
        s = 1
        while s < side:
            rx = 1 & (number // 2)
            ry = 1 & (number ^ rx)
            if ry == 0:
                x, y = (s - 1 - x, s - 1 - y) if rx == 1 else (x, y)
                x, y = y, x
            x, y, number, s = x + s * rx, y + s * ry, number // 4, s * 2
        return x, y

    for side in (2, 4, 8, 16, 32):
        expected = [textbook(number, side) for number in range(side * side)]
        got = [tuple(tile) for tile in hilbert().tiles(Grid(side, side)).tolist()]
        assert got in (expected, [(col, row) for row, col in expected])


@pytest.mark.parametrize("side", [16, 31, 48])
def test_hilbert_keeps_a_run_of_tiles_in_few_rows_and_columns(side):
    grid = Grid(side, side)
    run = 64
    curve, columns = hilbert().tiles(grid), linear().tiles(grid)

    def lines(tiles: np.ndarray) -> float:
        runs = [tiles[at : at + run] for at in range(0, len(tiles) - run + 1, run)]
        return float(np.mean([len(np.unique(part[:, 0])) + len(np.unique(part[:, 1])) for part in runs]))

    assert lines(curve) < 0.75 * lines(columns) if side > run // 2 else lines(curve) <= lines(columns)


@given(rows=SIDE, cols=SIDE)
@settings(max_examples=examples(60), deadline=None)
def test_morton_is_the_order_of_interleaved_bits(rows, cols):
    tiles = morton().tiles(Grid(rows, cols)).astype(np.int64)
    code = sum((((tiles[:, 0] >> b) & 1) << (2 * b + 1)) | (((tiles[:, 1] >> b) & 1) << (2 * b)) for b in range(9))
    assert (np.diff(code) > 0).all()


@given(rows=SIDE, cols=SIDE, size=st.integers(1, 40), along=st.sampled_from("mn"))
@settings(max_examples=examples(60), deadline=None)
def test_snake_keeps_its_row_or_its_column_at_every_step(rows, cols, size, along):
    order = snake(size, along)
    moves = np.abs(np.diff(order.tiles(Grid(rows, cols)).astype(int), axis=0))
    assert (moves.min(axis=1) == 0).all()
    across = cols if along == "m" else rows
    far = (moves.sum(axis=1) > 1).sum()
    bands = -(-(rows if along == "m" else cols) // size)
    assert far == 0 if across % 2 == 1 or size == 1 else far <= bands - 1


@given(rows=SIDE, cols=SIDE, data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_every_order_is_a_bijection_on_large_ragged_grids(rows, cols, data):
    numbers = st.integers(1, 400)
    order = data.draw(
        st.one_of(
            st.builds(grouped, numbers, st.sampled_from("mn")),
            st.builds(snake, numbers, st.sampled_from("mn")),
            st.builds(supertiles, numbers, numbers),
            st.sampled_from([linear(), morton(), hilbert()]),
        )
    )
    assert order.fault(Grid(rows, cols)) is None


def drawn_tables(text: str) -> list[list[list[int]]]:
    """The tables in a docstring: runs of lines that hold only numbers, after an optional `M 0 |`."""
    found: list[list[list[int]]] = [[]]
    for line in text.splitlines():
        body = re.sub(r"^(M )?\s*\d \|", "", line.strip()) if "M 0" in text else line
        words = body.replace("|", " ").split()
        if line.strip().startswith("|"):  # the heading
            continue
        if len(words) > 4 and all(word.isdigit() for word in words):
            found[-1].append([int(word) for word in words])
        elif found[-1] and not set(line.strip()) <= set("+-|"):
            found.append([])
    return [table for table in found if table]


def test_the_tables_at_the_head_of_orders_are_what_the_orders_compute():
    drawn = drawn_tables(orders.__doc__)
    expected = [linear(), grouped(4), snake(4), supertiles(2, 4), paired()]
    tables = [table for table in drawn if len(table) == 6]
    assert tables == [order.table(Grid(6, 8)).tolist() for order in expected]


def test_the_tables_at_the_head_of_curves_are_what_the_curves_compute():
    tables = [table for table in drawn_tables(curves.__doc__) if len(table) == 5]
    assert tables == [order.table(Grid(5, 6)).tolist() for order in (morton(), hilbert())]


def test_an_order_ends_a_mapping():
    with pytest.raises(MappingError, match="grouped\\(4\\) is an order and ends a mapping; linear\\(\\) cannot follow"):
        grouped(4) >> linear()
    with pytest.raises(MappingError, match="ends with an order; xcd_contiguous\\(8\\) cannot follow"):
        (xcd_contiguous(8) >> grouped(4)) >> xcd_contiguous(8)


STEPS = ("linear()", 'linear(along="n")', "grouped(4)", "snake(3)", "supertiles(2, 2)", "morton()", "hilbert()")
RENUMBERED = ("xcd_contiguous(4)", "xcd_chunked(4, 2)", "xcd_contiguous(2) >> xcd_chunked(4, 2)")
NOT_NUMBERS = (-1, 53, True, 1.0, "1", None, np.float64(1), np.bool_(True), np.array([0, 53]), np.array([-1, 0]))
NOT_NUMBERS = (*NOT_NUMBERS, np.array([0.0]), np.array([True]), [0, 1])


@pytest.mark.parametrize("number", NOT_NUMBERS, ids=repr)
@pytest.mark.parametrize("text", STEPS)
def test_a_number_that_is_no_tile_of_the_plane_is_refused(text, number):
    with pytest.raises(MappingError, match=r"there is no tile|whole number"):
        parse(text).order(number, Grid(6, 3, 3))


@pytest.mark.parametrize("number", (*NOT_NUMBERS[:1], 54, *NOT_NUMBERS[2:8], np.array([0, 54])), ids=repr)
@pytest.mark.parametrize("text", (*STEPS, *RENUMBERED, f"{RENUMBERED[0]} >> grouped(4)"))
def test_a_number_that_is_no_tile_of_the_grid_is_refused(text, number):
    with pytest.raises(MappingError, match=r"there is no tile|whole number"):
        parse(text).tile(number, Grid(6, 3, 3))


@pytest.mark.parametrize("text", RENUMBERED)
def test_a_number_past_the_deal_is_refused(text):
    for step in parse(text).renumberings:
        assert step(17, Deal(18, 6)) < 18
        with pytest.raises(MappingError, match="there is no tile 18"):
            step(18, Deal(18, 6))


def test_what_is_refused_says_which_numbers_there_are():
    with pytest.raises(MappingError) as raised:
        grouped(4)(53, Grid(6, 3, 3))
    assert str(raised.value) == (
        "grouped(4) on one plane of 6×3×3: there is no tile 53\n  they are numbered from 0 to 17"
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "uint64"])
def test_narrow_and_unsigned_numbers_do_not_wrap_inside_a_formula(dtype):
    grid = Grid(10, 12)
    numbers = np.arange(120)
    for text in (*STEPS, *RENUMBERED):
        for ours, wide in zip(
            parse(text).tile(numbers.astype(dtype), grid), parse(text).tile(numbers, grid), strict=True
        ):
            np.testing.assert_array_equal(ours, wide)
