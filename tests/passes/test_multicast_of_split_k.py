"""Neighbours that share copies while sums are cut among workgroups: all their pairs take equally many steps."""

from dataclasses import replace
from functools import cache

import pytest
from hopper_kernels import mapped_tiles, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import K, gemm, poisoned, sizes
from lane_runs import ORDERS, TIMES, check_same_bits, operands
from sampled import examples
from tunings import FREE

from tilewave import *
from tilewave.analysis import multicast as peers
from tilewave.analysis.producer_roles import OTHER_FORM
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import (
    Arrive,
    Barrier,
    ClusterBarrier,
    HandOver,
    MakeExchange,
    MakeMbarriers,
    TakeOverAll,
)
from tilewave.ir.rewrite import rewrite
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A
from tilewave.machine.tuning import SplitTuning
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.memory.multicast_loads import MulticastLoads
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

TILE = (64, 64, 64)


ANYWAY = MulticastLoads(replace(SM_90A, line_bytes=1 << 20), SM_90A.tuning.loads)
"""Wherever neighbours want the same: no row begins on such a line."""


def steps_of(kernel, workgroups=132, stages=2, split=None):
    passes = lists.hopper(SM_90A, Places(), stages, workgroups)
    forced = [ANYWAY if isinstance(p, MulticastLoads) else p for p in passes]
    return run(kernel, [split if split and isinstance(p, StreamK) else p for p in forced])


def in_parts(shape, parts, tile=TILE):
    made = gemm(constraints=(SplitConstraint(K, parts),), out=f32)
    return wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="numpy"), made).kernel


def in_ranges(shape, workgroups, mapping="grouped(4)"):
    tiles = mapped_tiles(shape, TILE, mapping, f32)
    return steps_of(tiles, workgroups, split=StreamK(workgroups, FREE, 1))[0]


PARTS = {
    "two parts": ((128, 128, 256), 2),
    "three parts of two tiles": ((128, 64, 384), 3),
    "a last part that runs beyond its tile": ((128, 64, 320), 2),
    "one tile": ((64, 64, 256), 2),
    "an odd number of parts of one tile": ((64, 64, 384), 3),
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_that_an_author_cuts_are_right_to_the_last_bit(case):
    shape, parts = PARTS[case]
    kernel, _ = steps_of(in_parts(shape, parts))
    is_one_tile = shape[:2] == TILE[:2]  # its parts have nothing in common
    assert (kernel.cluster == 2) != is_one_tile and ops(kernel, HandOver)
    check_same_bits(kernel, shape)


@pytest.fixture
def always_scattered(monkeypatch):
    """However little there is to take over."""
    monkeypatch.setattr(SplitTuning, "is_scattered", lambda self, parts, sums_bytes: True)


SCATTERED = {"an even number of adders": ((128, 64, 384), 3), "of taking ones, too": ((128, 64, 256), 4)}


@pytest.mark.parametrize("case", SCATTERED)
def test_those_who_add_up_slices_are_pairs_as_well(case, always_scattered):
    shape, parts = SCATTERED[case]
    kernel, _ = steps_of(in_parts(shape, parts))
    assert kernel.cluster == 2 and ops(kernel, TakeOverAll)
    check_same_bits(kernel, shape)


def test_a_pair_of_one_who_multiplies_and_one_who_adds_up_shares_nothing(always_scattered):
    """Three parts of one tile: workgroup 2 has the last, and 3 adds up the first slice."""
    shape = (64, 64, 376)
    kernel, steps = steps_of(in_parts(shape, 3))
    (said,) = (s.remarks for s in steps if s.name == "multicast_loads")
    assert kernel.cluster == 1 and [d.what for d in said] == [OTHER_FORM.what]
    check_same_bits(kernel, shape, TIMES[:2])


RANGES = {
    "two for each tile": ((128, 64, 256), 4, 2),
    "one whole round": ((128, 192, 256), 4, 2),
    "of unequal length, but not within a pair": ((128, 64, 320), 4, 2),
    "of unequal length": ((128, 192, 320), 4, 1),
    "the end of a tile and the begin of another": ((128, 64, 192), 3, 1),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", RANGES)
def test_ranges_of_a_last_round_are_shared_where_all_pairs_have_as_many_steps(case):
    shape, workgroups, cluster = RANGES[case]
    kernel = in_ranges(shape, workgroups)
    assert ops(kernel, MakeExchange) and kernel.cluster == cluster
    check_same_bits(kernel, shape)


def test_turns_that_nobody_looked_at_may_differ(monkeypatch):
    shape = RANGES["one whole round"][0]
    monkeypatch.setattr(peers, "MOST_TURNS", 1)
    assert in_ranges(shape, 4).cluster == 1


@given(
    shape=st.tuples(st.integers(1, 260), st.integers(1, 200), st.integers(1, 6)),
    workgroups=st.integers(2, 8),
    group=st.integers(1, 4),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(6))
def test_any_shape_whose_rows_begin_on_lines(shape, workgroups, group, order, seed):
    shape = (*shape[:2], 64 * shape[2])
    check_same_bits(in_ranges(shape, workgroups, f"grouped({group})"), shape, [(order, seed)])


# -- what is left out or wrong is found

MUTATED = ((128, 64, 512), 2)
"""Four steps a part, and two stages: slots are filled again."""


@cache
def whole():
    return steps_of(in_parts(*MUTATED))[0]


def found_by(change, order, seed):
    kernel = verify(rewrite(whole(), change))
    assert kernel != whole()
    a, b = operands(MUTATED[0])
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(kernel, [a, b, poisoned(MUTATED[0][:2], f32)], {}, order, seed)
    return str(found.value)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_consumers_that_do_not_tell_the_partner_are_found(order, seed):
    def alone(op):
        if isinstance(op, Arrive) and op.members == 2:
            return [replace(op, members=1)]
        return [replace(op, arrivals=1)] if isinstance(op, MakeMbarriers) else None

    assert "the copy of wave 4 of workgroup" in found_by(alone, order, seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_workgroups_that_do_not_begin_or_end_together_are_found(order, seed):
    first, last = ops(whole(), ClusterBarrier)
    begun = found_by(lambda op: [Barrier(loc=op.loc)] if op is first else None, order, seed)
    ended = found_by(lambda op: [] if op is last else None, order, seed)
    assert "with no cluster_barrier between" in begun and "a cluster_barrier must be after it" in ended
