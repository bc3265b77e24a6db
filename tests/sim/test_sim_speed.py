"""How fast it must be, in seconds of one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tilewave.machine import find
from tilewave.sim import Gemm, best, simulate
from tilewave.sim.search import mappings_for

LARGE = Gemm(16384, 16384, 16384, (128, 256, 64))
ORDER = "xcd_contiguous(8) >> grouped(8)"


def seconds_of(work: Callable[[], object], repeats: int = 5) -> float:
    """The least CPU time of a few tries."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.parametrize("mapping", ["linear()", ORDER, "hilbert()"])
def test_the_closed_form_takes_milliseconds(mapping):
    """16384³ on MI300X: under 50 ms."""
    simulate(LARGE, "MI300X", mapping)
    assert seconds_of(lambda: simulate(LARGE, "MI300X", mapping)) < 0.050


@pytest.mark.parametrize("mapping", ["linear()", ORDER])
def test_the_trace_takes_less_than_half_a_second(mapping):
    pytest.importorskip("numba", reason="without numba a trace of this size is refused")
    simulate(LARGE, "MI300X", mapping, engine="trace")
    assert seconds_of(lambda: simulate(LARGE, "MI300X", mapping, engine="trace"), 3) < 0.5


def test_an_edge_does_not_make_a_trace_slow():
    """One row more than whole tiles: lines of very different sizes, among which an H200's L2 looks by chance."""
    pytest.importorskip("numba", reason="without numba a trace of this size is refused")
    whole, ragged = (Gemm(m, 8192, 1024, workgroups=132) for m in (8192, 8193))
    simulate(whole, "H200", "grouped(8)", engine="trace")
    times = [seconds_of(lambda g=g: simulate(g, "H200", "grouped(8)", engine="trace"), 3) for g in (whole, ragged)]
    assert times[1] < 3 * times[0]


@pytest.mark.parametrize("engine", ["closed", "trace"])
def test_cost_grows_linearly_with_workgroups(engine):
    """Sixteen times the workgroups cost at most 16 × 1.6 times as much; sorting and small beginnings are in the 1.6."""
    if engine == "trace":
        pytest.importorskip("numba", reason="without numba a trace of this size is refused")
    small, large = (Gemm(side, side, 4096, (64, 64, 64)) for side in (4096, 16384))
    simulate(small, "MI300X", ORDER, engine=engine)
    times = [seconds_of(lambda g=g: simulate(g, "MI300X", ORDER, engine=engine), 2) for g in (small, large)]
    assert times[1] < 16 * 1.6 * times[0]


def test_five_hundred_candidates_take_seconds():
    """8192³ on MI300X, 250 orders with two tiles each: under 10 s on two cores, so under 10 s of one."""
    start = time.process_time()
    ranked = best(
        Gemm(8192, 8192, 8192), "MI300X", mappings_for(find("MI300X"))[:250], [(128, 256, 64), (128, 128, 64)]
    )
    assert time.process_time() - start < 10
    assert len(ranked) > 450
