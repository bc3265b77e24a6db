"""What holds of every launch on every machine, whichever engine answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import ENGINES, Launch, chip, launches, machines
from sampled import examples

from tilewave.machine import L2, UnitRun
from tilewave.sim import Gemm, Residency, simulate
from tilewave.sim.dispatch import place

engines = pytest.mark.parametrize("engine", ENGINES)
ROUNDING = 1e-6


def at_most(less: float, more: float) -> bool:
    return less <= more * (1 + ROUNDING) + ROUNDING


@engines
@settings(max_examples=examples(40))
@given(launch=launches())
def test_hits_and_misses_are_all_accesses(engine, launch):
    report = simulate(launch.gemm, launch.machine, launch.mapping, engine=engine)
    for level in report.levels:
        assert level.hit_bytes >= -ROUNDING and level.missed_bytes >= 0, level
        assert level.hit_bytes + level.missed_bytes == pytest.approx(level.asked_bytes)
    assert sum(a.asked_bytes for a in report.arrays) == pytest.approx(report.asked_bytes)
    assert sum(x.asked_bytes for x in report.xcds) == pytest.approx(report.asked_bytes)
    assert sum(b.hbm_read_bytes for b in report.over_time) == pytest.approx(report.hbm_read_bytes)
    assert sum(share.share for share in report.breakdown) == pytest.approx(1)


@engines
@settings(max_examples=examples(40))
@given(launch=launches())
def test_misses_are_at_least_the_distinct_bytes(engine, launch):
    flows, distinct = launch.flows(engine), launch.accesses().distinct_bytes
    assert at_most(distinct, float(flows.hbm.sum()))
    assert at_most(distinct, float(flows.missed.sum()))
    assert at_most(float(flows.hbm.sum()), float(flows.asked_of_memory.sum()))


@engines
@settings(max_examples=examples(40))
@given(launch=launches(machines(partitions=(1,))))
def test_nothing_is_missed_that_was_not_asked_for(engine, launch):
    accesses, _ = launch.placed()
    flows = launch.flows(engine)
    assert (flows.missed <= flows.walks.size * flows.walks.peers * (1 + ROUNDING)).all()
    assert at_most(float(flows.missed.sum()), accesses.asked_bytes)


@engines
@settings(max_examples=examples(40))
@given(launch=launches(machines(partitions=(1,))), factor=st.floats(1.0, 8.0))
def test_a_larger_lru_cache_never_misses_more(engine, launch, factor):
    small = launch.machine
    large = replace(small, l2=replace(small.l2, bytes=int(small.l2.bytes * factor)))
    missed = [float(replace(launch, machine=m).flows(engine).missed.sum()) for m in (small, large)]
    assert at_most(missed[1], missed[0])


@engines
@settings(max_examples=examples(30))
@given(launch=launches(machines(partitions=(1,))))
def test_a_larger_last_level_never_asks_more_of_memory(engine, launch):
    small = launch.machine
    if small.last_level is None:
        return
    large = replace(small, last_level=replace(small.last_level, bytes=4 * small.last_level.bytes))
    read = [float(replace(launch, machine=m).flows(engine).hbm.sum()) for m in (small, large)]
    assert at_most(read[1], read[0])


@engines
@settings(max_examples=examples(30))
@given(launch=launches(st.just(chip(l2=L2(1 << 40)))))
def test_one_workgroup_with_an_infinite_cache_misses_its_footprint(engine, launch):
    alone = replace(launch, gemm=replace(launch.gemm, workgroups=1))
    flows = alone.flows(engine)
    assert float(flows.missed.sum()) == pytest.approx(alone.accesses().distinct_bytes)
    assert float(flows.hbm.sum()) == pytest.approx(alone.accesses().distinct_bytes)


@engines
@settings(max_examples=examples(30))
@given(
    launch=launches(st.just(chip())), names=st.permutations(range(4)), runs=st.permutations([0, 0, 1, 1, 2, 2, 3, 3])
)
def test_renaming_xcds_changes_nothing(engine, launch, names, runs):
    reports = []
    for renamed in (range(4), names):
        order = tuple(UnitRun(2, xcd=renamed[x]) for x in runs)
        machine = chip(xcds=4, units_per_xcd=4, dispatch_order=order, l2=L2(1 << 15))
        reports.append(simulate(launch.gemm, machine, launch.mapping, engine=engine))
    one, other = reports
    for name in ("l2_hit", "hbm_read_bytes", "l2_request_bytes", "seconds", "launch_waves"):
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name
    moved = {x.xcd: x.l2_missed_bytes for x in other.xcds}
    assert [moved[names[x.xcd]] for x in one.xcds] == pytest.approx([x.l2_missed_bytes for x in one.xcds])


@settings(max_examples=examples(60))
@given(launch=launches())
def test_every_task_has_a_seat_of_its_own_in_its_beat(launch):
    accesses, placed = launch.placed()
    held = placed.launch_wave * placed.slots + placed.slot
    assert len(np.unique(held)) == accesses.tasks
    if launch.gemm.workgroups is None and not launch.machine.dispatch_order:
        assert (placed.xcd == accesses.workgroup % launch.machine.xcds).all()


@settings(max_examples=examples(30))
@given(launch=launches(machines(partitions=(1,))), skew=st.floats(0.1, 50))
def test_residents_out_of_step_never_hit_more(launch, skew):
    calm = simulate(launch.gemm, launch.machine, launch.mapping)
    skewed = simulate(launch.gemm, launch.machine, launch.mapping, residency=Residency(skew_steps=skew))
    assert at_most(skewed.l2_hit, calm.l2_hit)


def test_workgroups_of_unequal_length_go_to_the_seat_that_is_free_first():
    """Nine tiles for four workgroups on two units: 3, 2, 2, 2 tiles; the third begins when the second is done."""
    launch = Launch(Gemm(48, 48, 64, (16, 16, 8), workgroups=4), "linear()", chip(units_per_xcd=2))
    accesses, placed = launch.placed()
    first = [int(placed.launch_wave[accesses.workgroup == w].min()) for w in range(4)]
    assert first == [0, 0, 2, 3]
    assert [int(placed.slot[accesses.workgroup == w][0]) for w in range(4)] == [0, 1, 1, 0]


def test_two_workgroups_on_a_unit_halve_the_beats():
    launch = Launch(Gemm(256, 256, 64, (16, 16, 8)), "linear()", chip())
    accesses = launch.accesses()
    launch_waves = [place(accesses, launch.machine, Residency(occupancy=o)).launch_waves for o in (1, 2)]
    assert launch_waves == [64, 32]
