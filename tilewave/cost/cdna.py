"""The time of a launch on an AMD CDNA card, by the law of `clocked.py`: what each unit does, in cycles and picoseconds.

Workgroups of a launch run in waves, one on each unit, or share the last wave as stream-K does. A tile's loop takes its
matrix cycles divided by the loop's utilization: that of its machine code (`tilewave.cycles`), or where that is not
known, a formula of the cycles of matrix instructions and of L1. Before and after the loop a workgroup loads its first
operands and stores its tile, which nothing hides with one workgroup on a unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewave.cost.clocked import ClockedTime, LaunchClock, UnitWork, clocked_time
from tilewave.cost.gpu import EMPTY, US, refused_config
from tilewave.cost.parameters import ClockedParameters
from tilewave.cost.prediction import Prediction
from tilewave.cost.work import CutProduct, CutWork
from tilewave.ir.host_program import Number, chosen, quotient, rounded_up, smaller
from tilewave.machine import Machine
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

SIDE = 16
"""Rows and columns of a matrix instruction, to which the sides of a tile are padded."""
MOST_RESIDENT = 32
"""Workgroups on a unit, of kernels without products."""
L1_BYTES = 64
"""Bytes that a unit's L1 delivers in a cycle."""


@dataclass(frozen=True)
class UnitLaunch:
    """A launch of equal tiles on the units of a card."""

    tiles: Number
    waves: Number
    """Tiles of the busiest unit."""
    steps: Number
    """Steps of a tile's loop."""
    step_matrix_cycles: Number
    """Matrix cycles of one step on one unit."""
    step_cycles: Number
    tile_stored_bytes: Number
    memory: Number
    """Picoseconds of the launch's bytes."""
    shares_last_wave: bool = False
    """Whether workgroups share the tiles of the last wave, as in stream-K."""
    joins: Number = 0
    """Partial sums of a tile that are handed over, in split-K."""


def formula_cycles(matrix_cycles: Number, loaded_bytes: Number, p: ClockedParameters) -> Number:
    """Return the cycles of loops whose machine code is not known, from those of their products and loads."""
    return quotient(matrix_cycles * 100, p.loop_percent) + quotient(loaded_bytes * p.load_percent, 100 * L1_BYTES)


def unit_work(launch: UnitLaunch, units: int, p: ClockedParameters) -> UnitWork:
    """Return what the busiest unit does, and the units on average."""
    steps, joins = launch.steps, launch.joins
    last: Number = steps
    if launch.shares_last_wave:
        last = rounded_up((launch.tiles - (launch.waves - 1) * units) * steps, units)
        joins = chosen(last < steps, 1, 0)
    stored = quotient(smaller(launch.tiles, units) * launch.tile_stored_bytes * US, p.store_bytes_per_us)
    return UnitWork(
        outside=launch.waves * (p.workgroup + stored) + joins * (p.join + stored),
        cycles=((launch.waves - 1) * steps + last) * launch.step_cycles,
        matrix_cycles=quotient(launch.tiles * steps * launch.step_matrix_cycles, units),
        memory=launch.memory,
    )


def launch_time(launch: UnitLaunch, units: int, clock: LaunchClock, p: ClockedParameters) -> ClockedTime:
    """Return the time of a launch of equal tiles."""
    return clocked_time(unit_work(launch, units, p), clock, p.launch, p.exposed_percent)


def matrix_cycles(card: Machine, dtype: str, flops: float) -> int:
    """Return the cycles of so many operations on the matrix units of one unit."""
    rate = card.flops(dtype) or (card.flops("f16") or card.rates[0].flops) / 16
    return max(1, round(flops * card.clock_hz * card.units / rate))


def clock_of(card: Machine, dtype: str, data: str = "random") -> LaunchClock:
    """Return the clock of launches with products of a dtype."""
    return LaunchClock.of(card.sustained_hz(dtype, data), card.clock_hz)


def memory_time(bytes_per_second: float, moved_bytes: Number, p: ClockedParameters) -> Number:
    """Return the time in which memory with a data sheet's bandwidth moves so many bytes."""
    return quotient(moved_bytes * US, int(bytes_per_second * p.memory_percent / 100 / US))


@dataclass(frozen=True)
class CdnaCost:
    """A chip, the card that represents it, and the parameters fitted to it."""

    chip: Chip
    card: Machine
    parameters: ClockedParameters

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def units(self) -> int:
        return self.card.units

    def refused(self, work: CutWork) -> str:
        """Return why the chip certainly cannot run a config; the compiler refuses the others that it cannot."""
        return refused_config(self.chip, work, 1)

    def predict(self, work: CutWork) -> Prediction:
        """Return the time of a launch whose sizes are known, and what it waits for."""
        time = self._time(work)
        parts = self._parts(work, time)
        limit = max(parts, key=lambda name: parts[name])
        return Prediction(time.total / (US * US), self.parameters.error, limit, self.parameters.fitted_on)

    def picoseconds(self, work: CutWork) -> Number:
        """Return the time of a launch, whose sizes may be numbers of a program."""
        empty = chosen(work.steps < work.split, EMPTY, 0)
        return self._time(work).total + empty

    def _time(self, work: CutWork) -> ClockedTime:
        memory = self._memory(work.distinct_bytes)
        if not work.products:
            return clocked_time(UnitWork(self._rows(work), 0, 0, memory), self._clock(work), *self._around)
        matrix, cycles = self._step(work)
        stored = sum(t.tile_bytes for t in work.transfers if t.is_written)
        tiles, joins = work.tasks * work.split, 1 if work.split > 1 else 0
        waves = rounded_up(tiles, self.units)
        launch = UnitLaunch(tiles, waves, work.split_steps, matrix, cycles, stored, memory, joins=joins)
        return launch_time(launch, self.units, self._clock(work), self.parameters)

    def _memory(self, moved_bytes: Number) -> Number:
        return memory_time(self.card.hbm.bytes_per_second, moved_bytes, self.parameters)

    @property
    def _around(self) -> tuple[int, int]:
        return self.parameters.launch, self.parameters.exposed_percent

    def _clock(self, work: CutWork) -> LaunchClock:
        return clock_of(self.card, work.products[0].dtype.name if work.products else "")

    def _step(self, work: CutWork) -> tuple[Number, Number]:
        """Return the matrix cycles of a step and the cycles of its loop's iteration, without machine code."""
        if len(work.products) == 1:
            matrix: Number = self._matrix(work.products[0])
        else:
            matrix = quotient(sum(self._matrix(p) * p.times for p in work.products), work.steps)
        return matrix, formula_cycles(matrix, work.step_bytes, self.parameters)

    def _matrix(self, p: CutProduct) -> int:
        padded = prod(-(-side // SIDE) * SIDE for side in (p.rows, p.cols))
        return matrix_cycles(self.card, p.dtype.name, 2.0 * p.batch * padded * p.depth)

    def _rows(self, work: CutWork) -> Number:
        """Return the time of a launch that multiplies nothing: waves of tasks, each of which loads and stores."""
        resident = max(1, min(MOST_RESIDENT, self.chip.register_bytes // (4 * max(1, work.read_tile_bytes))))
        at_once = smaller(resident, rounded_up(work.tasks, self.units))
        each = self.parameters.workgroup + self.units * self._memory(at_once * work.task_bytes)
        return rounded_up(work.tasks, self.units * resident) * each

    def _parts(self, work: CutWork, time: ClockedTime) -> Mapping[str, Number]:
        """Return the times of a launch by their bottleneck."""
        matrix, cycles = self._step(work) if work.products else (0, 1)
        compute = quotient(time.loops * quotient(matrix * 100, self.parameters.loop_percent), cycles)
        return {
            "compute": compute,
            "loads": time.loops - compute,
            "latency": time.outside,
            "memory": time.memory,
            "launch": self.parameters.launch,
        }
