"""The share of workgroups' requests that reaches L2: sums by hand, and parameters that are a local optimum."""

from __future__ import annotations

from dataclasses import replace
from math import log
from statistics import fmean

import numpy as np
import pytest

from tilewave.machine import Merging, find
from tilewave.sim import Gemm, simulate
from tilewave.sim.measured import counters, short_counters
from tilewave.sim.requests import SharedReads, Sync, shared_reads
from tilewave.sim.simulate import run

LAST = SharedReads(
    asked_bytes=100.0,
    first_bytes=10.0,
    later_bytes=50.0,
    missed=0.5,
    fetched=0.2,
    waiting=0.0,
    distance=1.0,
    stalls=None,
)
EARLIER = replace(LAST, stalls=100.0)
SYNC = Sync(in_l2=0.4, under_way=0.5, stalls=200.0)


def reads_of(gemm, mapping):
    made = run(gemm, "H200", mapping)
    return shared_reads(made.accesses, made.placed, find("H200").merging.most, made.flows)


def test_in_its_first_beat_a_launch_merges_all_that_can_be():
    """128 tiles on 132 units, 16 rows in a group: sixteen units share a panel of B, and each has a row of A alone."""
    a, b = reads_of(Gemm(2048, 2048, 2048, workgroups=132), "grouped(16)")
    assert (a.first_bytes, a.later_bytes, b.later_bytes) == (0, 0, 0)
    assert b.first_bytes == 0.75 * b.asked_bytes
    assert b.requested(Sync()) == 0.25 * b.asked_bytes


def test_what_is_asked_for_last_by_hand():
    """0.2 is fetched, half of the other 0.3 is found on its way: 0.35 is slow, and so was the reply before it."""
    assert LAST.requested(SYNC) == pytest.approx(100 - 10 - 50 * (1 - 0.6 * 0.65**2))


def test_what_is_asked_for_earlier_by_hand():
    """No unit waits for it: the reply before does not matter, and 100 of 200 stalls let units drift apart."""
    together = log(1.5) / 0.5
    assert EARLIER.requested(SYNC) == pytest.approx(100 - together * (10 + 50 * (1 - 0.6 * 0.65)))


def test_sharers_twice_as_far_apart_go_apart_four_times_as_soon():
    further, longer = replace(EARLIER, distance=2.0), replace(EARLIER, stalls=400.0)
    assert further.requested(SYNC) == pytest.approx(longer.requested(SYNC))
    assert further.requested(SYNC) > EARLIER.requested(SYNC)


def test_a_tile_that_waits_for_its_loads_keeps_step_in_what_it_asks_for_last():
    waiting = [replace(LAST, waiting=share).requested(SYNC) for share in (0.0, 0.5, 1.0)]
    assert waiting == sorted(waiting, reverse=True) and waiting[2] == pytest.approx(40)
    gemm = Gemm(4096, 4096, 1024, workgroups=132)
    tiles = {(128, 256, 64): 0.0, (256, 256, 64): 0.0, (128, 128, 64): 0.5, (64, 128, 64): 0.75}
    assert {tile: reads_of(replace(gemm, tile=tile), "grouped(8)")[1].waiting for tile in tiles} == tiles


def test_a_line_that_l2_has_is_merged_less():
    for reads in (LAST, EARLIER):
        found = [replace(reads, missed=missed, fetched=missed).requested(SYNC) for missed in (1.0, 0.5, 0.0)]
        assert found == sorted(found) and found[0] < 0.9 * found[-1]


def test_a_line_is_fetched_by_one_of_the_merge_groups_that_share_it():
    """In columns of 128 tiles, all groups of a partition read one panel of B; in groups of 16 rows one or two do."""
    columns, own = (reads_of(Gemm(16384, 4096, 512, workgroups=132), f"grouped({rows})")[1] for rows in (128, 16))
    assert columns.fetched < 0.4 * columns.missed
    assert own.fetched > 0.55 * own.missed


def test_the_order_tells_how_far_apart_sharers_sit():
    gemm = Gemm(4096, 8192, 1024, workgroups=132)
    distances = {rows: reads_of(gemm, f"grouped({rows})")[0].distance for rows in (1, 2, 4, 8)}
    assert distances == pytest.approx({1: 1, 2: 2, 4: 4, 8: 8}, rel=0.1)


def test_only_what_is_asked_for_before_the_last_goes_apart():
    a, b = reads_of(Gemm(4096, 8192, 1024, workgroups=132), "grouped(8)")
    assert b.stalls is None and a.stalls > 0
    long, short = (reads_of(Gemm(4096, 8192, k, workgroups=132), "grouped(8)")[0].stalls for k in (8192, 1024))
    assert long > 8 * short


def test_workgroups_that_begin_later_merge_with_their_next_neighbours_alone():
    """Groups of 8 rows: a row of A is read by every eighth workgroup, a panel of B by eight in a row."""
    gemm = Gemm(4096, 8192, 1024)
    (a, b), (a_held, b_held) = (reads_of(g, "grouped(8)") for g in (gemm, replace(gemm, workgroups=132)))
    assert a.first_bytes == a_held.first_bytes > 0
    assert a.later_bytes == 0 < a_held.later_bytes
    assert b.later_bytes == pytest.approx(b_held.later_bytes, rel=0.01)


def test_where_nothing_is_merged_all_that_is_asked_for_arrives():
    report = simulate(Gemm(1024, 1024, 512), "MI300X")
    assert report.l2_request_bytes == report.asked_bytes + report.hbm_write_bytes


def test_a_launch_that_reads_nothing_asks_for_nothing():
    made = run(Gemm(1024, 1024, 512), "H200")
    nothing = replace(made.accesses, reads=made.accesses.reads[:, :0])
    assert shared_reads(nothing, made.placed, 4, made.flows) == []


def test_launches_of_one_tile_a_unit_show_that_sixteen_units_merge():
    rows = [row for row in (*counters(), *short_counters()) if row.gemm.grid.size <= 132]
    assert len(rows) == 16
    errors = {}
    for units in (8, 12, 16, 18, 32):
        chip = replace(find("H200"), merging=Merging(4, units=units))
        predicted = [run(row.gemm, chip, row.mapping).report.l2_request_bytes for row in rows]
        errors[units] = fmean(abs(p / row.requests_bytes - 1) for p, row in zip(predicted, rows, strict=True))
    assert min(errors, key=errors.get) == 16
    assert errors[16] < 0.02 < 0.05 < min(errors[12], errors[18])


def test_a_launch_that_repeats_differs_by_less_than_the_model_errs():
    """The noise between cards, and between two launches on one."""
    found = {}
    for row in short_counters():
        found.setdefault((row.gemm, row.group_m), []).append(row.requests_bytes)
    repeated = [np.array(bytes_) for bytes_ in found.values() if len(bytes_) > 1]
    noise = fmean(float(np.abs(x / x.mean() - 1).mean()) for x in repeated)
    assert len(repeated) > 100 and 0.005 < noise < 0.02
