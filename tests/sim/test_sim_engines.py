"""Two engines, one answer: the closed form is held against LRU lists, and both against sums done by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from launches import ENGINES, SHARP, Launch, chip, launches, machines, pairs_walked
from sampled import examples

from tilewave.machine import L2, LastLevel
from tilewave.sim import Gemm, Residency, SimError, simulate
from tilewave.sim.accesses import gemm_accesses
from tilewave.sim.dispatch import place
from tilewave.sim.measured import counters, unseen_counters
from tilewave.sim.problem import WALKS

OFF_A_CLIFF, COUNTED_OFF_A_CLIFF, COUNTED_ON_A_CLIFF = 0.02, 0.005, 0.10
"""How far the engines may differ in HBM bytes: on any launch, and on those that were counted on an H200.

On a cliff the trace must be in the interval that the closed form gives, because there a byte more or less decides.
"""

engines = pytest.mark.parametrize("engine", ENGINES)
needs_numba = pytest.mark.skipif(
    find_spec("numba") is None, reason="without numba these traces take minutes; small launches are compared anyway"
)
TILES = ((128, 256, 64), (128, 128, 64))


@settings(max_examples=examples(60))
@given(launch=launches(machines(partitions=(1,)), depths=(256, 512), walks=WALKS[:1]))
def test_the_closed_form_and_the_trace_agree(launch):
    """Where a stream has 32 steps or more: the closed form takes steps to be small."""
    assert_engines_agree(launch)


@settings(max_examples=examples(60))
@given(launch=launches(machines((1,), smallest=15, last_level=st.none()), depths=(256, 512), walks=WALKS[1:]))
def test_the_closed_form_and_the_trace_agree_to_and_fro(launch):
    """Where a cache holds some dozen steps, and with no last level: that hears of the far ends of streams alone."""
    assert_engines_agree(launch)


def assert_engines_agree(launch):
    closed, traced = (simulate(launch.gemm, launch.machine, launch.mapping, engine=e) for e in ENGINES)
    if closed.on_cliff:
        assert closed.hbm_read_low_bytes <= traced.hbm_read_bytes <= closed.hbm_read_high_bytes
    else:
        assert traced.hbm_read_bytes == pytest.approx(closed.hbm_read_bytes, rel=OFF_A_CLIFF)


@needs_numba
@pytest.mark.parametrize("row", counters()[::9], ids=lambda row: f"{row.gemm}-{row.mapping}")
def test_the_engines_agree_on_counted_launches(row):
    closed, traced = (simulate(row.gemm, "H200", row.mapping, engine=engine) for engine in ENGINES)
    bound = COUNTED_ON_A_CLIFF if closed.on_cliff else COUNTED_OFF_A_CLIFF
    assert traced.hbm_read_bytes == pytest.approx(closed.hbm_read_bytes, rel=bound)
    assert traced.l2_hit == pytest.approx(closed.l2_hit, abs=0.03)
    missed = [sum(a.l2_missed_bytes for a in report.arrays) for report in (closed, traced)]
    assert missed[1] == pytest.approx(missed[0], rel=bound)


@needs_numba
@pytest.mark.parametrize("row", unseen_counters()[::8], ids=lambda row: f"{row.gemm}-{row.mapping}")
def test_the_engines_agree_on_launches_counted_later(row):
    """Short tiles are almost always on a cliff: there the interval must contain the trace, and the count."""
    closed, traced = (simulate(row.gemm, "H200", row.mapping, engine=engine) for engine in ENGINES)
    if closed.on_cliff:
        assert closed.hbm_read_low_bytes <= traced.hbm_read_bytes <= closed.hbm_read_high_bytes
        assert closed.hbm_read_low_bytes <= row.hbm_read_bytes <= closed.hbm_read_high_bytes
    else:
        assert traced.hbm_read_bytes == pytest.approx(closed.hbm_read_bytes, rel=COUNTED_OFF_A_CLIFF)


@needs_numba
@pytest.mark.parametrize(
    "row", [row for row in counters() if row.persistent][::7], ids=lambda row: f"{row.gemm}-{row.mapping}"
)
def test_the_engines_agree_where_k_is_walked_to_and_fro(row):
    gemm = replace(row.gemm, walk="to-and-fro")
    closed, traced = (simulate(gemm, "H200", row.mapping, engine=engine) for engine in ENGINES)
    assert traced.hbm_read_bytes == pytest.approx(closed.hbm_read_bytes, rel=OFF_A_CLIFF)


SIDES = st.integers(4, 40).map(lambda count: 128 * count)


@needs_numba
@settings(max_examples=examples(12))
@example(5120, 7808, 1152, (128, 256, 64), 4)
@example(3968, 7424, 1536, (128, 128, 64), 1)
@given(SIDES, SIDES, st.integers(8, 32).map(lambda count: 64 * count), st.sampled_from(TILES), st.integers(1, 32))
def test_the_engines_agree_on_other_shapes_of_the_h200(m, n, k, tile, group):
    """The examples are shapes whose B nearly fits: they show whether both engines age lines in the home partition."""
    gemm = Gemm(m, n, k, tile, workgroups=132)
    closed, traced = (simulate(gemm, "H200", f"grouped({group})", engine=engine) for engine in ENGINES)
    if closed.on_cliff:
        assert closed.hbm_read_low_bytes <= traced.hbm_read_bytes <= closed.hbm_read_high_bytes
    else:
        assert traced.hbm_read_bytes == pytest.approx(closed.hbm_read_bytes, rel=COUNTED_OFF_A_CLIFF)


@engines
def test_what_fits_is_read_once_and_what_does_not_every_time(engine):
    """4×4 tiles, one unit: A's row is read again for every tile of its row, B's rows in turn."""
    gemm = Gemm(64, 64, 128, (16, 16, 8), workgroups=1)
    panel = 16 * 128 * 2
    read = {}
    for panels in (64, 2.5):
        machine = chip(units_per_xcd=1, l2=L2(int(panels * panel), holds_writes=False))
        read[panels] = Launch(gemm, 'linear(along="n")', machine).flows(engine).hbm.sum()
    assert read[64] == 8 * panel
    assert read[2.5] == (4 + 16) * panel  # A's row stays while it is in use; B's rows push each other out


@engines
def test_a_cache_that_just_fits_is_large_enough(engine):
    """Two tiles of one row on one unit: A's row and one of B are exactly what the cache holds."""
    gemm = Gemm(16, 32, 128, (16, 16, 8), workgroups=1)
    panel = 16 * 128 * 2
    machine = chip(units_per_xcd=1, l2=L2(2 * panel, holds_writes=False))
    assert Launch(gemm, "linear()", machine).flows(engine).hbm.sum() == 3 * panel


@engines
def test_what_is_walked_again_and_again_takes_room_once(engine):
    """Column by column on one unit: between two reads of a row of A are the other three and two rows of B."""
    gemm = Gemm(64, 64, 128, (16, 16, 8), workgroups=1)
    panel = 16 * 128 * 2
    machine = chip(units_per_xcd=1, l2=L2(int(6.5 * panel), holds_writes=False))
    assert Launch(gemm, "linear()", machine).flows(engine).hbm.sum() == 8 * panel


@engines
def test_what_was_read_last_is_read_first_where_k_is_walked_to_and_fro(engine):
    """Two tiles of one row on one unit, in a cache of 1.5 panels: forwards, A's row is evicted before its reuse.

    Backwards, at the fraction t of the second tile t · 3 panels have been read since: half of A's row is still there.
    """
    panel = 16 * 128 * 2
    machine = chip(units_per_xcd=1, l2=L2(int(1.5 * panel), holds_writes=False))
    read = {
        walk: Launch(Gemm(16, 32, 128, (16, 16, 4), workgroups=1, walk=walk), "linear()", machine)
        .flows(engine)
        .hbm.sum()
        for walk in WALKS
    }
    assert read["forwards"] == 4 * panel
    assert read["to-and-fro"] == pytest.approx(3.5 * panel, abs=2 * panel / 32)


def test_a_workgroup_turns_round_after_every_tile_of_its_own():
    """Nine tiles: with one each none is reversed; with two workgroups, every second tile is read from its end."""
    alone, two = (Gemm(48, 48, 64, (16, 16, 8), workgroups=count, walk="to-and-fro") for count in (None, 2))
    assert not gemm_accesses(alone).backwards.any()
    accesses = gemm_accesses(two)
    assert accesses.backwards.tolist() == [turn % 2 == 1 for turn in accesses.turn]
    placed = place(accesses, chip(), Residency())
    assert placed.backwards.tolist() == [False, True, False, True, False]


def test_a_beat_goes_the_way_of_most_of_its_tasks():
    """Seven tiles, five workgroups, three units: in the second wave two go backwards, and one has just begun."""
    accesses = gemm_accesses(Gemm(16, 112, 64, (16, 16, 8), workgroups=5, walk="to-and-fro"))
    placed = place(accesses, chip(units_per_xcd=3), Residency())
    assert sorted(accesses.backwards[placed.launch_wave == 1].tolist()) == [False, True, True]
    assert placed.backwards.tolist() == [False, True, False]


@engines
def test_each_xcd_reads_for_itself_and_the_last_level_reads_once(engine):
    """Four tiles of one row on four xcds: each misses A's row, memory delivers it once."""
    gemm = Gemm(16, 64, 128, (16, 16, 8))
    panel = 16 * 128 * 2
    machine = chip(xcds=4, units_per_xcd=1, last_level=LastLevel(1 << 22))
    flows = Launch(gemm, "linear()", machine).flows(engine)
    assert flows.missed.sum() == 8 * panel
    assert flows.hbm.sum() == 5 * panel


@engines
@pytest.mark.parametrize("panels", [1.2, 2.3, 3.3, 4.6, 5.4, 6.7, 7.5])
def test_memory_delivers_no_more_than_it_is_asked_for(engine, panels):
    """A last level too small for anything, after an L2 that holds parts of streams of different sizes."""
    gemm = Gemm(40, 72, 128, (16, 32, 8), workgroups=1)
    machine = chip(units_per_xcd=1, l2=L2(int(panels * 16 * 128 * 2)), last_level=LastLevel(256))
    flows = Launch(gemm, "grouped(2)", machine).flows(engine)
    assert (flows.hbm <= flows.asked_of_memory * (1 + 1e-9) + 1e-9).all()


@engines
def test_a_line_of_the_other_partition_crosses_once(engine):
    """One tile on one of two partitions: half of what it reads has its home in the other."""
    gemm = Gemm(16, 16, 128, (16, 16, 8))
    flows = Launch(gemm, "linear()", chip(l2=L2(1 << 22, partitions=2))).flows(engine)
    assert flows.crossed.sum() == pytest.approx(16 * 128 * 2)
    assert flows.hbm.sum() == pytest.approx(2 * 16 * 128 * 2)


@engines
def test_what_is_written_takes_room_only_where_the_machine_says_so(engine):
    """A cache of two rows, one unit, wide outputs: B's row survives the output only where that is not held."""
    gemm = Gemm(64, 16, 64, (16, 16, 8), out="f64", workgroups=1)
    panel = 16 * 64 * 2
    read = []
    for holds in (False, True):
        machine = chip(units_per_xcd=1, l2=L2(int(2.5 * panel), holds_writes=holds))
        read.append(Launch(gemm, "linear()", machine).flows(engine).hbm.sum())
    assert read[0] == 5 * panel
    assert read[1] > read[0]


@engines
def test_what_was_walked_since_is_not_counted_twice(engine):
    """Stream 1 comes back after 0 and 2; so much of the new stream 3 has been read that half of 1 is evicted."""
    panel = 16 * 128 * 2
    machine = chip(xcds=2, units_per_xcd=1, l2=L2(int(3.5 * panel), holds_writes=False))
    accesses = pairs_walked([(0, 1), (0, 2), (1, 3)], [(4, 5), (4, 6), (5, 7)], panel)
    placed = place(accesses, machine, Residency())
    flows = ENGINES[engine](accesses, placed, machine, Residency(), SHARP)
    late = (flows.walks.launch_wave == 2) & (flows.walks.stream == 1)
    assert flows.hbm[late].sum() == pytest.approx(panel / 2, abs=2 * panel / 32)


@engines
@pytest.mark.parametrize(("panels", "read"), [(48, 68), (56, 20)])
def test_what_is_written_to_another_partition_takes_room_on_its_way(engine, panels, read):
    """Two units, one in each partition, column by column; an output is as large as a panel.

    In a column a partition sees the 8 panels of A that its unit reads, 4 for which it is only the home, one of B, 8 of
    outputs at home, and 4 that pass through: 25. Without those, half of 48 would be enough.
    """
    panel = 16 * 64 * 2
    gemm = Gemm(256, 64, 64, (16, 16, 8), out="f64", workgroups=2)
    launch = Launch(gemm, "linear()", chip(units_per_xcd=2, l2=L2(panels * panel, partitions=2)))
    assert len(set(launch.placed()[1].domain)) == 2
    assert launch.flows(engine).hbm.sum() == pytest.approx(read * panel, rel=0.01)


@engines
def test_a_home_does_not_hear_of_the_use_of_a_copy(engine):
    """One partition reads stream 0 in every wave; then the other, home to half of it, requests it.

    Meanwhile five panels have been read there, which is all it holds: that half is read from HBM a second time.
    """
    panel = 16 * 128 * 2
    machine = chip(units_per_xcd=2, l2=L2(10 * panel, partitions=2, holds_writes=False))
    one, other = [(0, new) for new in range(1, 7)] + [(7, 8)], [(9, 10)] + [(11, 12)] * 5 + [(0, 12)]
    accesses = pairs_walked(one, other, panel)
    placed = place(accesses, machine, Residency())
    flows = ENGINES[engine](accesses, placed, machine, Residency(), SHARP)
    of_stream, early = flows.walks.stream == 0, flows.walks.launch_wave < 6
    assert flows.hbm[of_stream & early].sum() == pytest.approx(panel, rel=1e-3)
    assert flows.hbm[of_stream & ~early].sum() == pytest.approx(panel / 2, rel=1e-3)


def test_the_trace_needs_no_numba_for_small_launches():
    """Plain Python gives equal results, and suggests numba for large launches."""
    code = """
import sys
sys.modules["numba"] = None
from tilewave.sim import Gemm, SimError, simulate
print(simulate(Gemm(512, 512, 512), "MI300X", engine="trace").hbm_read_bytes)
try:
    simulate(Gemm(16384, 16384, 16384), "H200", engine="trace")
except SimError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    bytes_read, said, remedy = run.stdout.splitlines()
    assert float(bytes_read) == simulate(Gemm(512, 512, 512), "MI300X", engine="trace").hbm_read_bytes
    assert "takes minutes without numba" in said
    assert remedy == '  pip install tilewave[sim], or use engine="closed"'


def test_the_trace_does_not_pretend_to_know_skew():
    with pytest.raises(SimError, match="keeps resident workgroups in step"):
        simulate(Gemm(512, 512, 512), "MI300X", engine="trace", residency=Residency(skew_steps=2.0))
