"""The clock under load: the law's solution, its limits, and the same answer from a program as from integers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import examples

from tilewave.cost.cdna import UnitLaunch, matrix_cycles, unit_work
from tilewave.cost.clocked import LaunchClock, UnitWork, clocked_time
from tilewave.cost.parameters import CDNA3_CLOCKED
from tilewave.machine import find

FULL_HZ, MOST_HZ = 1.1e9, 2.1e9
CLOCK = LaunchClock.of(FULL_HZ, MOST_HZ)
LAUNCH = 2_000_000


@settings(max_examples=examples(200), deadline=None)
@given(
    cycles=st.integers(2_000, 10**9),
    share=st.floats(0.02, 1.0),
    outside=st.integers(0, 10**8),
)
def test_time_and_clock_agree(cycles, share, outside):
    """What is left of the time for the loops is their cycles at the clock of the utilization of that time."""
    work = UnitWork(outside, cycles, round(share * cycles), 0)
    found = clocked_time(work, CLOCK, LAUNCH, 30)
    seconds = found.total / 1e12
    utilization = work.matrix_cycles / seconds
    clock = min(MOST_HZ, (FULL_HZ**3 / utilization) ** 0.5)  # f = f_full · (utilization / f)^(−1/3)
    assert found.loops / 1e12 == pytest.approx(cycles / clock, rel=0.01)
    assert FULL_HZ * 0.99 <= cycles / (found.loops / 1e12) <= MOST_HZ * 1.01


def test_units_that_wait_run_at_a_higher_clock():
    busy, half = (clocked_time(UnitWork(0, 10**8, m, 0), CLOCK, 0, 0).total for m in (10**8, 10**8 // 2))
    assert half < busy
    assert half / busy == pytest.approx(0.5 ** (1 / 3), rel=0.01)


def test_a_launch_takes_at_least_its_bytes_and_what_they_do_not_hide():
    memory = 10**9
    found = clocked_time(UnitWork(10**6, 10**5, 10**5, memory), CLOCK, LAUNCH, 25)
    assert found.total == LAUNCH + memory + found.busy * 25 // 100


def test_without_products_there_is_no_clock():
    found = clocked_time(UnitWork(5_000_000, 0, 0, 0), CLOCK, LAUNCH, 30)
    assert found.total == LAUNCH + 5_000_000


def test_stream_k_shares_the_last_wave():
    facts = {"steps": 64, "step_matrix_cycles": 1000, "step_cycles": 1250, "tile_stored_bytes": 65536, "memory": 0}
    whole = unit_work(UnitLaunch(tiles=320, waves=2, **facts), 304, CDNA3_CLOCKED)
    shared = unit_work(UnitLaunch(tiles=320, waves=2, shares_last_wave=True, **facts), 304, CDNA3_CLOCKED)
    assert whole.cycles == 2 * 64 * 1250
    assert shared.cycles == (64 + 4) * 1250  # 16 tiles of 64 steps among 304 units
    assert shared.outside > whole.outside and shared.matrix_cycles == whole.matrix_cycles


def test_matrix_cycles_are_those_of_the_instructions():
    """128x256x64 of f16 on four matrix units of 512 operations a cycle each."""
    assert matrix_cycles(find("MI300X"), "f16", 2 * 128 * 256 * 64) == pytest.approx(2048, rel=1e-3)
    assert matrix_cycles(find("MI355X"), "bf16", 2 * 256 * 256 * 64) == pytest.approx(2048, rel=1e-3)
