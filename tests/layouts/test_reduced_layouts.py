"""Reductions of layouts: every element is combined exactly once, in the order of a sum where that is required."""

from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reduced_tiles import tree

from tilewave.layouts.formulas import linear
from tilewave.layouts.fragments import mfma
from tilewave.layouts.reductions import (
    chunk_width,
    copies,
    covers,
    movers,
    neighbours_first,
    registers_first,
    rows_in_lanes,
    run_of_wave,
    runs,
    with_axis_in_registers,
)


@st.composite
def held_rows(draw):
    """A tile in lanes, how many waves and lanes there are, and the axis to be reduced."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.sampled_from([1, 1, 1, 3, 5])) << draw(st.integers(0, 5)) for _ in range(rank))
    waves, lanes = 1 << draw(st.integers(0, 3)), draw(st.sampled_from([4, 32, 64]))
    order = draw(st.permutations(range(rank)))
    width = chunk_width(shape, order[0], 1 << draw(st.integers(0, 3)), lanes, waves)
    axis = draw(st.integers(0, rank - 1))
    reduced = draw(st.sampled_from([(axis,), tuple(range(rank)), ()]))
    return shape, rows_in_lanes(shape, order, width, lanes, waves, reduced), waves, lanes, axis


def combined(layout, steps, x):
    """What each lane of one wave has after each step; x is lanes x registers x whatever."""
    axes = list(range(len(layout.registers)))
    for step in steps:
        if step.of == "lane":
            for bit in step.which:
                x = x + x[np.arange(len(x)) ^ (1 << bit)]
        elif step.of == "halves":
            i, bit = step.which
            x = halved(x, 1 + axes.index(i), bit)
        else:
            for i in sorted(step.which, key=axes.index, reverse=True):
                x = tree("sum", x, (1 + axes.index(i),))
                axes.remove(i)
    return x


def halved(x, axis, bit):
    """Give each of the two lanes that differ in a bit one half of the registers, of which a power of two are needed."""
    lane, count = np.arange(len(x)), x.shape[axis]
    more = (1 << (count - 1).bit_length()) - count
    x = np.concatenate([x, np.zeros_like(x.take([0] * more, axis))], axis)
    both = x + x[lane ^ (1 << bit)]
    halves = np.array(np.split(both, 2, axis))
    return halves[lane >> bit & 1, lane]


def of_each_wave(layout, waves, lanes):
    """Positions: waves x lanes x registers… x axes."""
    return layout.positions(waves, lanes).reshape(waves, lanes, *layout.registers, layout.rank)


@given(held_rows())
def test_every_element_is_held_and_lanes_are_told_apart_by_bits(tile):
    shape, layout, waves, lanes, axis = tile
    positions = layout.positions(waves, lanes).reshape(-1, len(shape))
    assert len(np.unique(positions, axis=0)) == prod(shape)
    assert covers(movers(layout, axis, waves, lanes), shape[axis])


def check_each_wave(shape, layout, waves, lanes, axis, in_order):
    """What a wave has is one whole run of neighbours for each register and lane, no element twice."""
    found = movers(layout, axis, waves, lanes)
    assert covers(found, shape[axis])
    run = run_of_wave(found, shape[axis])
    for mine in of_each_wave(layout, waves, lanes):
        counts = (mine[..., axis, None] == np.arange(shape[axis])).astype(np.int64)
        left = combined(layout, in_order(found, run), counts).reshape(-1, shape[axis] // run, run)
        assert ((left == 0) | (left == 1)).all()
        assert (left.any(axis=-1) == left.all(axis=-1)).all() and left.any(axis=(1, 2)).all()


@given(held_rows(), st.sampled_from([neighbours_first, registers_first]))
def test_each_wave_combines_every_element_of_its_runs_once(tile, in_order):
    check_each_wave(*tile, in_order)


@given(held_rows())
@example(((1, 192), rows_in_lanes((1, 192), (1, 0), 1, 32, 2, (1,)), 2, 32, 1))  # each of two waves has 96
def test_neighbours_first_is_the_order_of_a_sum(tile):
    shape, layout, waves, lanes, axis = tile
    found = movers(layout, axis, waves, lanes)
    run = run_of_wave(found, shape[axis])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    by_runs = np.moveaxis(x, axis, -1).reshape(*np.delete(shape, axis), -1, run)
    want = np.moveaxis(tree("sum", by_runs, (by_runs.ndim - 1,)), -1, axis)
    np.testing.assert_array_equal(tree("sum", want, (axis,)), tree("sum", x, (axis,)))  # runs are nodes of the tree
    left = runs(layout, axis, run, found)
    places = of_each_wave(left, waves, lanes)
    for wave, mine in enumerate(of_each_wave(layout, waves, lanes)):
        got = combined(layout, neighbours_first(found, run), x[tuple(np.moveaxis(mine, -1, 0))])
        there = want[tuple(np.moveaxis(places[wave], -1, 0))]
        np.testing.assert_array_equal(got.reshape(lanes, -1), there.reshape(lanes, -1))


@given(held_rows())
def test_one_of_those_who_hold_the_same_is_the_first(tile):
    shape, layout, waves, lanes, _ = tile
    same = copies(layout, waves, lanes)
    holders = [
        (wave, lane)
        for wave in range(waves)
        for lane in range(lanes)
        if not any(lane >> bit & 1 for bit in same.lane_bits)
        and not any(wave // divisor % count for divisor, count in same.wave_digits)
    ]
    positions = of_each_wave(layout, waves, lanes)
    mine = np.concatenate([positions[wave, lane].reshape(-1, len(shape)) for wave, lane in holders])
    assert len(mine) == len(np.unique(mine, axis=0)) == prod(shape)


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("waves", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_products_sums_are_combined_once_along_both_axes(rows, waves, axis):
    shape = (2 * rows * waves[0], rows * waves[1])
    layout = mfma(rows, 16).sums(shape, waves, transposed=True)
    check_each_wave(shape, layout, prod(waves), 64, axis, registers_first)


def test_lanes_that_do_not_move_bit_by_bit_are_not_combined():
    (layout, *_) = linear((3, 40), 1, 64)
    assert movers(layout, 1, 1, 64) is None


def test_an_axis_that_every_lane_holds_needs_no_bits():
    (layout, *_) = linear((3, 40), 1, 64)
    held = with_axis_in_registers(layout, 1, 6)
    (mover,) = movers(held, 1, 1, 64)
    assert (mover.of, mover.step, mover.count) == ("registers", 1, 6)


def test_chunks_are_as_wide_as_leaves_every_lane_something_of_its_own():
    assert chunk_width((1, 1024), 1, 8, 32, 4) == 8
    assert chunk_width((1, 256), 1, 8, 32, 4) == 2
    assert chunk_width((1, 3072), 1, 8, 32, 12) == 8  # waves share three parts
    assert chunk_width((31, 64), 1, 16, 64, 1) == 1  # of 31 rows, no two lanes share any
    assert rows_in_lanes((31, 64), (1, 0), 1, 64, 1, (1,)).registers == (1, 31, 1)
