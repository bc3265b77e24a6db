"""What reaches L2 of what workgroups ask for: sums by hand, and parameters that no neighbour beats."""

from __future__ import annotations

from dataclasses import fields, replace
from statistics import fmean

import pytest

from tilewave.machine import find
from tilewave.sim import Gemm, simulate
from tilewave.sim.requests import SharedReads, Sharers, Sync, shared_reads
from tilewave.sim.simulate import run
from tilewave.sim.validation import h200_runs, unseen_runs

PLAIN = SharedReads(
    asked_bytes=1e6,
    left=0.25,
    sharers=Sharers.APART,
    missed=0.5,
    last_missed=0.5,
    steps=500.0,
    first_tile=0.1,
    area=1.0,
)


def reads_of(gemm, mapping):
    made = run(gemm, "H200", mapping)
    return shared_reads(made.accesses, made.placed, find("H200").merging.most, made.flows)


def test_in_its_first_tile_a_launch_merges_all_that_can_be():
    """128 tiles on 132 units, 16 rows in a group: B's panels go to 16 neighbours each, A's to one in a GPC."""
    reads = reads_of(Gemm(2048, 2048, 2048, workgroups=132), "grouped(16)")
    assert [one.first_tile for one in reads] == [1.0, 1.0]
    for one in reads:
        assert one.requested(Sync()) == pytest.approx(one.left * one.asked_bytes)
    assert 0.25 < reads[1].left < 0.32 < 0.95 < reads[0].left <= 1.0


@pytest.mark.parametrize("sharers", [Sharers.NEIGHBOURS, Sharers.APART])
def test_a_line_that_l2_has_is_merged_less(sharers):
    found = [replace(PLAIN, sharers=sharers, missed=missed).requested(Sync()) for missed in (1.0, 0.5, 0.0)]
    assert found == sorted(found) and found[0] < 0.95 * found[-1]


def test_units_further_apart_merge_less_the_longer_a_launch_and_the_smaller_its_tiles():
    longer = [replace(PLAIN, steps=steps).requested(Sync()) for steps in (10, 100, 1000)]
    smaller = [replace(PLAIN, area=area).requested(Sync()) for area in (1.0, 0.5, 0.25)]
    assert longer == sorted(longer) and smaller == sorted(smaller)
    assert len(set(longer)) == len(set(smaller)) == 3


def test_neighbours_that_share_the_first_stream_go_apart_by_the_misses_of_their_own():
    """A random walk: after four times the misses twice as far."""
    first = replace(PLAIN, sharers=Sharers.NEIGHBOURS_FIRST, first_tile=0.0, left=0.0, asked_bytes=1.0)
    lost = [1 / (1 - replace(first, last_missed=missed).requested(Sync())) - 1 for missed in (0.1, 0.4)]
    assert lost[1] == pytest.approx(2 * lost[0])


def test_the_order_tells_who_shares():
    gemm = Gemm(4096, 8192, 1024, workgroups=132)
    assert [one.sharers for one in reads_of(gemm, "grouped(8)")] == [Sharers.APART, Sharers.NEIGHBOURS]
    assert [one.sharers for one in reads_of(gemm, "grouped(1)")] == [Sharers.NEIGHBOURS_FIRST, Sharers.NEIGHBOURS]


def test_where_nothing_is_merged_all_that_is_asked_for_arrives():
    report = simulate(Gemm(1024, 1024, 512), "MI300X")
    assert report.l2_request_bytes == report.asked_bytes + report.hbm_write_bytes


def mean_error(rows, sync):
    return fmean(abs((sum(r.requested(sync) for r in reads) + out) / counted - 1) for reads, out, counted in rows)


def test_no_shipped_parameter_is_better_elsewhere():
    """A quarter more or less of any of them, on all persistent rows of both files."""
    rows = [
        (shared_reads(m.accesses, m.placed, 4, m.flows), m.accesses.output_bytes, row.requests_bytes)
        for row, m in (*h200_runs(), *unseen_runs())
        if row.persistent
    ]
    shipped = mean_error(rows, Sync())
    assert shipped < 0.038
    for field in fields(Sync):
        for factor in (0.75, 1.25):
            changed = replace(Sync(), **{field.name: factor * getattr(Sync(), field.name)})
            assert mean_error(rows, changed) > shipped, field.name
