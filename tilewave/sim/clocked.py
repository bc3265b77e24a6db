"""The predicted duration of a launch on an AMD card, by cause: the law of `tilewave.cost.clocked` on simulated traffic.

    seconds = launch + max(busy, memory) + exposed · min(busy, memory)

The clock is limited by power, and depends on what the operands hold: random data or zeros. The loops take the matrix
cycles of the tiles divided by a utilization: that of a compiled kernel's machine code, or else by a formula of the tile
(`tilewave.cost.cdna`). `memory` is the time of HBM and that of the last-level cache, through which its bytes go.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.cost.cdna import UnitLaunch, clock_of, formula_cycles, matrix_cycles, memory_time, unit_work
from tilewave.cost.clocked import ClockedTime, UnitWork, clocked_time
from tilewave.cost.gpu import US
from tilewave.cost.parameters import CLOCKED, ClockedParameters
from tilewave.machine import MACHINES, Machine
from tilewave.machine.cards import STANDING_FOR
from tilewave.machine.chips import CHIPS
from tilewave.machine.description import DATA
from tilewave.records import dataclass
from tilewave.sim.accesses import Accesses
from tilewave.sim.calibration import UNKNOWN_TIMING
from tilewave.sim.dispatch import Placed, Residency
from tilewave.sim.time import PARTS, Moved, TimePart, last_level_rate, rate_of

PICO = 1e-12
CODE_ERROR = 0.15
CODE_FITTED_ON = "AMD's kernels by their machine code (benchmarks/fit_amd.py); the clock is the card's, ± 15 %"
"""Launch times cannot tell cycles from the clock: ratios between kernels are tested, the scale is that of the clock."""
OTHER_CARD_ERROR = 0.4
"""On MI325X the product of 8192³ that hipBLASLt computes with 785 TFLOP/s is predicted at 480."""


@dataclass(frozen=True)
class LoopFacts:
    """What is known of the loops of a launch besides its tiles."""

    data: str = DATA[0]
    """What the operands hold, one of `DATA`."""
    utilization: float | None = None
    """The part of the loop's cycles in which matrix units multiply, by its machine code; None where that is unknown."""


UNKNOWN_LOOP = LoopFacts()


def clocked_parameters(machine: Machine, loop: LoopFacts) -> ClockedParameters | None:
    """Return the parameters of a card with a CDNA chip, and what their error is there; None for any other card."""
    chip = CHIPS.get(machine.target)
    found = CLOCKED.get(chip.matrix) if chip else None
    if found is None or (machine == STANDING_FOR[machine.target] and loop.utilization is None):
        return found
    if machine.name not in MACHINES:
        return replace(found, error=UNKNOWN_TIMING.error, fitted_on=UNKNOWN_TIMING.fitted_on)
    if loop.utilization is not None:
        return replace(found, error=CODE_ERROR, fitted_on=CODE_FITTED_ON)
    fitted_on = f"{found.fitted_on}, not on {machine.name}"
    return replace(found, error=OTHER_CARD_ERROR, fitted_on=fitted_on)


@dataclass(frozen=True, eq=False)
class ClockedLaunch:
    """A simulated launch on a CDNA card."""

    accesses: Accesses
    placed: Placed
    machine: Machine
    residency: Residency
    moved: Moved
    loop: LoopFacts
    parameters: ClockedParameters

    @property
    def clock_hz(self) -> float:
        """The clock in the loops; the highest one where nothing is multiplied."""
        cycles, loops = self._work.cycles, self._time.loops
        return min(self.machine.clock_hz, cycles / (loops * PICO)) if cycles else self.machine.clock_hz

    def with_parameters(self, parameters: ClockedParameters) -> ClockedLaunch:
        """Return this launch on a card with other parameters, for fits."""
        return replace(self, parameters=parameters)

    @property
    def microseconds(self) -> float:
        """The predicted duration."""
        return float(self._time.total / US)

    def parts(self) -> tuple[TimePart, ...]:
        """Where the time goes; the launch takes their sum."""
        time, idle = self._time, self._idle
        loops, begin = time.loops * (1 - idle), time.outside * (1 - idle)
        multiplied = loops * self._multiplied
        exposed = time.total - self.parameters.launch - max(time.busy, time.memory)
        hidden = time.busy >= time.memory
        by_hbm = exposed * self._hbm / time.memory if hidden and time.memory else 0.0
        found = {
            "matrix": multiplied,
            "load latency": loops - multiplied,
            "start and end": self.parameters.launch + begin,
            "tail": time.busy * idle,
            "HBM": by_hbm,
            "last level": exposed - by_hbm if hidden else 0.0,
            "L2 requests": 0.0,
            "bandwidth": 0.0 if hidden else time.memory - time.busy + exposed,
        }
        return tuple(TimePart(name, found[name] * PICO) for name in PARTS)

    @property
    def _time(self) -> ClockedTime:
        p = self.parameters
        clock = clock_of(self.machine, self.accesses.dtype, self.loop.data)
        return clocked_time(self._work, clock, p.launch, p.exposed_percent)

    @property
    def _work(self) -> UnitWork:
        a = self.accesses
        launch = UnitLaunch(
            tiles=a.tasks,
            waves=self.placed.launch_waves * self.residency.occupancy,
            steps=a.steps,
            step_matrix_cycles=self._matrix,
            step_cycles=self._cycles,
            tile_stored_bytes=round(a.output_bytes / a.tasks),
            memory=self._hbm + self._last_level,
            shares_last_wave=a.shares_last_wave,
        )
        work = unit_work(launch, self.machine.units, self.parameters)
        return replace(work, outside=round(work.outside / a.tasks_a_tile))

    @property
    def _matrix(self) -> int:
        """Matrix cycles of one step on one unit."""
        if not self.accesses.step_flops:
            return 0
        rate_of(self.machine, self.accesses.dtype)
        return matrix_cycles(self.machine, self.accesses.dtype, self.accesses.step_flops)

    @property
    def _cycles(self) -> int:
        """Cycles of one step."""
        if self.loop.utilization is not None:
            return round(self._matrix / self.loop.utilization)
        a = self.accesses
        loaded = round(a.asked_bytes / a.tasks / a.steps) if self._matrix else 0
        return int(formula_cycles(self._matrix, loaded, self.parameters))

    @property
    def _multiplied(self) -> float:
        """The share of the loops that is not spent waiting for loads, as far as that is known."""
        if not self._cycles:
            return 0.0
        issued = 1.0 if self.loop.utilization is not None else self.parameters.loop_percent / 100
        return min(1.0, self._matrix / issued / self._cycles)

    @property
    def _idle(self) -> float:
        """The share of the busiest unit's steps that other units do not have."""
        steps = self.accesses.tasks * self.accesses.steps * self._cycles
        return 1.0 - min(1.0, steps / (self._work.cycles * self.machine.units)) if steps else 0.0

    @property
    def _hbm(self) -> int:
        moved = round(self.moved.hbm_read + self.moved.hbm_written)
        return int(memory_time(self.machine.hbm.bytes_per_second, moved, self.parameters))

    @property
    def _last_level(self) -> int:
        rate = last_level_rate(self.machine, UNKNOWN_TIMING)
        return int(memory_time(rate, round(self.moved.last_level), self.parameters))
