"""Words for tiles that take differently long, what they cost, and when the units of a launch are done."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapping_strategies import MAPPINGS
from sampled import examples

from tilewave import WaveCompileOptions, wave_compile
from tilewave.analysis.index_trace import visits
from tilewave.ir.ops import Read
from tilewave.mapping import (
    Causal,
    Deal,
    Grid,
    MappingError,
    balance,
    even_rounds,
    folded,
    last_first,
    linear,
    paired,
    parse,
    prove,
    xcd_contiguous,
)
from tilewave.mapping.balance import next_free

ONE_A_ROW = Causal(1, 1)
"""Row r costs r + 1."""
GRIDS_TO_48 = [Grid(rows, cols) for rows in range(1, 49) for cols in range(1, 49)]


@pytest.mark.parametrize("along", ["m", "n"])
def test_paired_is_a_bijection_on_all_grids_to_48(along):
    prove(paired(along), 48, 48)


@pytest.mark.parametrize("side", [20, pytest.param(48, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workgroups", [1, 2, 5, 7, 31, 132, 304])
def test_folded_is_a_permutation_of_every_number_of_tiles(workgroups, side):
    prove(folded() >> last_first() >> linear("n"), side, side, workgroups=workgroups)


def test_words_for_uneven_tiles_compose_on_all_grids_to_48():
    for text in ("xcd_contiguous(8) >> last_first() >> paired()", "xcd_chunked(8, 3) >> folded() >> paired(along='n')"):
        assert prove(parse(text), 48, 48).max_rows == 48


def test_paired_goes_from_both_ends_of_a_line_inwards():
    assert paired().tiles(Grid(5, 2))[:, 0].tolist() == [4, 0, 3, 1, 2] * 2
    assert paired("n").tiles(Grid(2, 4))[:, 1].tolist() == [3, 0, 2, 1] * 2


def test_neighbours_of_a_pair_cost_as_much_as_the_next_two():
    for grid in GRIDS_TO_48[48:]:
        cost = ONE_A_ROW.costs(grid)[tuple(paired().tiles(grid).T)].reshape(grid.cols, grid.rows)
        pairs = cost[:, : grid.rows // 2 * 2].reshape(grid.cols, -1, 2).sum(2)
        assert (pairs == grid.rows + 1).all()


def test_every_xcd_has_as_much_to_do_in_contiguous_ranges_of_pairs():
    """Whole pairs in a range have equal costs; half a pair at each end, and a tile more or less, is the difference."""
    for grid in GRIDS_TO_48:
        work = [xcd.work for xcd in balance("xcd_contiguous(8) >> paired()", grid, ONE_A_ROW.costs(grid), 8).xcds]
        assert max(work) - min(work) <= 2.5 * (grid.rows + 1)
    plain = balance("xcd_contiguous(8)", Grid(64, 4), ONE_A_ROW.costs(Grid(64, 4)), 8)
    assert [xcd.work for xcd in plain.xcds] == [528, 1552] * 4  # the light half of a head, and its heavy half


def test_folded_rounds_give_workgroups_the_same_sum():
    grid = Grid(24, 1)
    work = balance("folded() >> last_first()", grid, ONE_A_ROW.costs(grid), workgroups=6)
    assert [parse("folded() >> last_first()").tiles(grid, 6)[w::6, 0].tolist() for w in (0, 5)] == [
        [23, 12, 11, 0],
        [18, 17, 6, 5],
    ]
    assert (work.ends, work.busy) == (50, 1.0)
    assert balance("last_first()", grid, ONE_A_ROW.costs(grid), workgroups=6).ends == 24 + 18 + 12 + 6


@pytest.mark.parametrize("workgroups", [4, 7, 31, 132])
def test_even_rounds_give_workgroups_the_same_sum_on_all_grids_to_48(workgroups):
    """Rows of each head one after the other: two rounds give all the same, and what is left is no more than two."""
    found = 0
    for grid in GRIDS_TO_48:
        staying = even_rounds(grid.rows, workgroups)
        assert staying == 0 or 15 * workgroups <= 16 * staying <= 16 * workgroups
        if 0 < staying < grid.size:
            cost = ONE_A_ROW.costs(grid)[tuple(parse("folded() >> last_first()").tiles(grid, staying).T)]
            whole = len(cost) // (2 * staying) * 2 * staying
            pairs = cost[:whole].reshape(-1, 2, staying).sum(1)
            assert (pairs == grid.rows + 1).all()
            assert cost[whole:].sum() <= 2 * staying * grid.rows
            found += 1
    assert found > 100


def test_few_workgroups_of_many_may_not_stay():
    assert [even_rounds(rows, 132) for rows in (8, 32, 86, 128, 79, 512)] == [132, 128, 129, 128, 0, 0]
    assert even_rounds(np.array([8, 79]), 132).tolist() == [132, 0]


def test_the_last_round_is_folded_though_it_is_short():
    got = folded()(np.arange(14), Deal(14, 4))
    assert got.tolist() == [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 13, 12]


def test_warnings_of_folded_tell_the_truth():
    for count in range(2, 30):
        for workgroups in range(1, 12):
            same = np.array_equal(folded()(np.arange(count), Deal(count, workgroups)), np.arange(count))
            assert same == bool(folded().warnings(Grid(count, 1), workgroups)), (count, workgroups)


def one_by_one(lengths, queue_of_unit):
    """Return when each workgroup begins, without a heap: the first free unit of its queue takes it."""
    free, starts = dict.fromkeys(range(len(queue_of_unit)), 0), []
    for w, length in enumerate(lengths):
        mine = [u for u in free if queue_of_unit[u] == w % (max(queue_of_unit) + 1)]
        unit = min(mine, key=lambda u: (free[u], u))
        starts.append(free[unit])
        free[unit] += length
    return starts


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    xcds=st.integers(1, 5),
    more=st.integers(0, 11),
)
@settings(max_examples=examples(150), deadline=None)
def test_workgroups_go_to_the_next_free_unit_of_their_xcd(lengths, xcds, more):
    units = np.arange(xcds + more) % xcds
    start, unit = next_free(np.array(lengths), units)
    assert start.tolist() == one_by_one(lengths, units.tolist())
    assert (units[unit] == np.arange(len(lengths)) % xcds).all()


@given(mapping=MAPPINGS, rows=st.integers(1, 20), cols=st.integers(1, 9), units=st.integers(1, 30))
@settings(max_examples=examples(100), deadline=None)
def test_no_order_ends_before_the_work_is_done_nor_a_longest_tile_after_it(mapping, rows, cols, units):
    grid = Grid(rows, cols)
    found = balance(mapping, grid, ONE_A_ROW.costs(grid), units=units)
    assert found.work == cols * rows * (rows + 1) // 2 and found.longest == rows
    assert found.soonest <= found.ends < found.work / found.units + found.longest
    assert found.busy == found.work / (found.units * found.ends)


def test_the_longest_first_end_sooner_than_the_longest_last():
    for rows, cols, units in ((4, 1, 2), (32, 8, 38), (64, 16, 132), (17, 5, 7)):
        grid = Grid(rows, cols)
        orders = linear("n"), last_first() >> linear("n")
        last, first = (balance(order, grid, ONE_A_ROW.costs(grid), units=units) for order in orders)
        assert first.ends < last.ends


def test_units_that_cannot_reach_every_xcd_are_refused():
    with pytest.raises(MappingError, match="3 units are too few for 8 XCDs"):
        balance(linear(), Grid(64, 1), ONE_A_ROW.costs(Grid(64, 1)), xcds=8, units=3)
    with pytest.raises(MappingError, match="causal: keys is 0, but must be at least 1"):
        Causal(128, 0)


@pytest.mark.parametrize(("m", "keys"), [(70, 70), (96, 96), (1, 1), (33, 80), (80, 33), (100, 100)])
def test_a_tile_costs_as_many_blocks_of_keys_as_the_kernel_walks(m, keys):
    example = run_path(str(Path(__file__).parents[2] / "examples" / "causal_attention.py"))
    sizes = example["subs"](m, keys, 3, block_m=32, block_k2=16)
    made = wave_compile(WaveCompileOptions(subs=sizes, target="numpy"), example["causal_attention"])
    walked = np.zeros(made.schedule.workgroups, np.int64)
    for visit in visits(made.kernel, {}, (Read,)):
        if visit.op.memory.name == "k":
            np.add.at(walked, visit.workgroups, 1)
    grid = Grid(-(-m // 32), 3)
    costs = Causal(32, 16, keys).costs(grid)
    assert walked.tolist() == [costs[tile] for tile in map(tuple, (xcd_contiguous(8) >> paired()).tiles(grid))]
