"""How fast it must be, in seconds of one core."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    GridConstraint,
    Memory,
    Register,
    TilingConstraint,
    WaveCompileOptions,
    WorkgroupConstraint,
    WorkgroupMapping,
    f16,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    wave_compile,
    write,
)
from tilewave.machine import find
from tilewave.sim import Gemm, best, sensitivity, simulate
from tilewave.sim.kernel import kernel_accesses
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


M, N, K = sym.M, sym.N, sym.K


def persistent(k):
    tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]

    @wave([*tiles, GridConstraint(304), WorkgroupMapping(ORDER)])
    def gemm(
        a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f16],
        b: Memory[N, K, GLOBAL_ADDRESS_SPACE, f16],
        c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    return wave_compile(WaveCompileOptions(subs={M: 2048, N: 2048, K: k}, target="numpy"), gemm)


def test_a_persistent_kernel_costs_as_much_for_each_step_however_many_it_has():
    """Sixteen times the steps cost at most 16 × 1.6 times as much."""
    short, long = (persistent(k) for k in (1024, 16384))
    simulate(short, "MI300X")
    times = [seconds_of(lambda c=c: simulate(c, "MI300X"), 2) for c in (short, long)]
    assert times[1] < 16 * 1.6 * times[0]


def test_other_assumptions_about_a_kernel_do_not_follow_its_accesses_again(monkeypatch):
    followed = []
    module = sys.modules[simulate.__module__]
    monkeypatch.setattr(module, "kernel_accesses", lambda *given: followed.append(given) or kernel_accesses(*given))
    found = sensitivity(persistent(64), "MI300X")
    assert len(found) == 4 and len(followed) == 1
    assert found[0].seconds == simulate(persistent(64), "MI300X").seconds
