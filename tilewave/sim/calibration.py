"""Model parameters that no data sheet gives, fitted on the measured rows named here; chip facts are in `machine`."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np

from tilewave.machine import Machine
from tilewave.records import dataclass
from tilewave.sim.accesses import Array

MANY_LOOKS = 1000.0
"""As good as LRU."""


@dataclass(frozen=True)
class Softness:
    """The eviction policy of a partitioned cache, and the range of its effective capacity.

    `narrow` and `wide` bound the share of the nominal capacity that was observed; a launch whose HBM bytes differ
    between the two is on a capacity cliff.
    """

    looks: float = MANY_LOOKS
    """How many randomly sampled lines the cache compares to evict the oldest of them."""
    share: float = 1.0
    """The effective share of the nominal capacity."""
    narrow: float = 26 / 30
    wide: float = 42 / 30

    def factors(self) -> Array:
        """Return the expected, the narrow and the wide share of the nominal capacity."""
        return np.array([self.share, self.narrow, self.wide])

    def l2_capacities(self, machine: Machine) -> Array:
        return self.factors() * (machine.l2.bytes / machine.l2.partitions)

    def last_level_capacities(self, machine: Machine) -> Array:
        """The last level is as large as it says; only the ends of the range differ."""
        assert machine.last_level is not None
        return np.array([1.0, self.narrow, self.wide]) * machine.last_level.bytes


LONG_STEPS = 64
"""Steps of 64 elements of K from which on units keep in step; fitted like FIRM."""
FIRM = Softness(looks=12.0)
"""For tiles of LONG_STEPS or more; fitted on all rows of h200_l2_counters.csv, the range of capacities by probes."""
LOOSE = Softness(looks=6.0, share=0.93, narrow=17 / 30)
"""For tiles of at most 3/4 of LONG_STEPS; fitted on the rows of h200_short_counters.csv. A probe that alternates reads
and writes, with no GEMM in it, also showed 4 to 6 looks (benchmarks/fit_l2.py)."""


IN_STEP_ROUNDS, DRIFT = 10, 0.03
"""Workgroups with more tiles than that drift apart, and one finds what another read as if the cache were larger: with
each further tile it may seem larger by so much. No more is known of it, so it is a matter of the interval."""


def softness_of(machine: Machine, steps: float, rounds: int = 1) -> Softness:
    """How soft the L2 is to tiles of so many steps: where they are short, units drift apart and writes crowd in.

    A workgroup computes `rounds` tiles.
    """
    if machine.l2.partitions == 1:
        return Softness()
    loose = min(1.0, max(0.0, 3 * (LONG_STEPS / steps - 1.0)))
    mixed = Softness(*(firm + loose * (soft - firm) for firm, soft in zip(astuple(FIRM), astuple(LOOSE), strict=True)))
    return replace(mixed, wide=mixed.wide + DRIFT * max(0, rounds - IN_STEP_ROUNDS))


@dataclass(frozen=True)
class TimeParameters:
    """The parameters of `time.py`; `fitted_on` names the rows, `error` is the spread of what they leave unexplained."""

    matrix_share: float
    """The share of the data sheet's matrix rate that a good inner loop reaches."""
    step_floor_seconds: float = 405.6e-9
    """A step of the K loop takes no less: the latency of its loads over the stages in flight."""
    start_seconds: float = 3.223e-6
    """To fill the pipeline of a task and to write its tile."""
    exposed: float = 0.3736
    """The share of the memory time that is not hidden by matrix instructions."""
    request_seconds_per_byte: float = 2.826e-15
    """Each byte that reaches L2."""
    last_level_bytes_per_second: float = 17.2e12
    """The rate for machines without a known one: that of MI300X."""
    error: float = 0.25
    fitted_on: str = ""


HOPPER_TIMING = TimeParameters(
    matrix_share=0.9243,
    error=0.05,
    fitted_on="all persistent rows of h200_l2_counters.csv (time_ns)",
)
TIMINGS = {"H100": HOPPER_TIMING, "H200": HOPPER_TIMING}
UNKNOWN_TIMING = TimeParameters(matrix_share=0.7, error=0.5, fitted_on="nothing: no row of this machine is known")


def timing_of(machine: Machine) -> TimeParameters:
    """Return the parameters of a card's time; those of cards with CDNA chips are in `cost.parameters`."""
    return TIMINGS.get(machine.name, UNKNOWN_TIMING)
