"""What no data sheet tells, fitted on measured rows that are named here; facts about chips stand in `machine`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewave.machine import Machine
from tilewave.sim.accesses import Array

POINTS = 7


@dataclass(frozen=True)
class Softness:
    """How sharply a cache's capacity shows: results are averaged over 1 ± `spread` of it.

    Between `narrow` and `wide` of the nominal capacity lies what a cache was ever seen to hold; a launch whose bytes
    differ between the two stands on a cliff.
    """

    spread: float = 0.0
    narrow: float = 26 / 30
    wide: float = 42 / 30
    passing: float = 1.0
    """Of what is written to another partition, the share that takes room in the writer's as well."""

    def factors(self) -> Array:
        """Of the capacity: those to be averaged, then the narrow and the wide one."""
        middle = np.linspace(1 - self.spread, 1 + self.spread, POINTS) if self.spread else np.ones(1)
        return np.concatenate([middle, [self.narrow, self.wide]])

    def l2_capacities(self, machine: Machine) -> Array:
        return self.factors() * (machine.l2.bytes / machine.l2.partitions)

    def last_level_capacities(self, machine: Machine) -> Array:
        """The last level is as large as it says; only the ends of the range differ."""
        assert machine.last_level is not None
        factors = self.factors()
        factors[:-2] = 1.0
        return factors * machine.last_level.bytes

    def combined(self, bytes_at: Array) -> tuple[Array, Array, Array]:
        """(mean, narrow, wide) of an array whose last axis runs over `factors`."""
        return bytes_at[..., :-2].mean(-1), bytes_at[..., -2], bytes_at[..., -1]


LONG_STEPS = 64
"""Steps of 64 elements of K from which on units keep in step; fitted like LOOSE_SOFTNESS."""
HOPPER_SOFTNESS = Softness(spread=4 / 30, passing=0.0)
"""Of tiles of LONG_STEPS or more; fitted on all rows of h200_l2_counters.csv, the range of capacities by probes."""
LOOSE_SOFTNESS = Softness(spread=7 / 30, narrow=17 / 30, passing=1.0)
"""Of tiles of half as many steps or fewer; fitted on the rows marked so in h200_unseen_counters.csv."""


def softness_of(machine: Machine, steps: float) -> Softness:
    """How soft the L2 is to tiles of so many steps: where tiles are short, units drift apart and writes crowd in."""
    if machine.l2.partitions == 1:
        return Softness()
    loose = min(1.0, max(0.0, LONG_STEPS / steps - 1.0))
    firm, soft = HOPPER_SOFTNESS, LOOSE_SOFTNESS
    return Softness(
        spread=firm.spread + loose * (soft.spread - firm.spread),
        narrow=firm.narrow + loose * (soft.narrow - firm.narrow),
        wide=firm.wide,
        passing=min(1.0, firm.passing + 2 * loose * (soft.passing - firm.passing)),
    )


@dataclass(frozen=True)
class Timing:
    """The parameters of `time.py`; `fitted_on` names the rows, `error` is the spread of what they leave unexplained."""

    matrix_share: float
    """Of the data sheet's matrix rate, what a good inner loop reaches."""
    step_floor_seconds: float = 398e-9
    """A step of the K loop takes no less: the latency of its loads over the stages in flight."""
    start_seconds: float = 3.25e-6
    """To fill the pipeline of a task and to write its tile."""
    exposed: float = 0.367
    """Of the time that memory needs for its bytes, what products do not hide."""
    request_seconds_per_byte: float = 5.80e-15
    """Each byte that reaches L2."""
    last_level_bytes_per_second: float = 17.2e12
    """Where no source tells it: that of MI300X."""
    error: float = 0.25
    fitted_on: str = ""


HOPPER_TIMING = Timing(
    matrix_share=0.940,
    error=0.05,
    fitted_on="all persistent rows of h200_l2_counters.csv (time_ns)",
)
MI300X_TIMING = Timing(
    matrix_share=0.778,
    request_seconds_per_byte=0.0,
    error=0.30,
    fitted_on="matrix_share: the four rows with K = 4160 of wave_reordering.csv; the rest as on H200",
)
MI355X_TIMING = Timing(
    matrix_share=0.519,
    request_seconds_per_byte=0.0,
    error=0.15,
    fitted_on="matrix_share: the row 9216 chunked(5, 25) of published_gemm_cache_rates.csv; the rest as on H200",
)
TIMINGS = {
    "H100": HOPPER_TIMING,
    "H200": HOPPER_TIMING,
    "MI300X": MI300X_TIMING,
    "MI325X": MI300X_TIMING,
    "MI350X": MI355X_TIMING,
    "MI355X": MI355X_TIMING,
}
UNKNOWN_TIMING = Timing(matrix_share=0.7, error=0.5, fitted_on="nothing: no row of this machine is known")


def timing_of(machine: Machine) -> Timing:
    return TIMINGS.get(machine.name, UNKNOWN_TIMING)
