"""The time of a launch on a card whose clock is limited by power, in picoseconds: integers that are known or open.

    time = launch + max(busy, memory) + exposed · min(busy, memory)
    busy = outside the loops + cycles / f
    f    = min(f_most, f_full · u^(−1/3)),  u = matrix cycles / (time · f)

`f_full` is the clock at which matrix units that never stop take all of the power. Power goes with u·f·V², and the
voltage with f, so units that are busy for a part `u` of the cycles run at a clock higher by the third root. The clock
depends on the time and the time on the clock: with f put in, busy = outside + drag/√time, which Newton's method solves
in three steps.
"""

from __future__ import annotations

from tilewave.ir.host_program import Number, larger, quotient, root, smaller
from tilewave.records import dataclass

ONE = 1 << 16
"""The 1 of fixed-point ratios."""
NEWTON_STEPS = 3


@dataclass(frozen=True)
class LaunchClock:
    """The clock of one launch, as picoseconds of a cycle."""

    full: int
    """With matrix units that never stop."""
    least: int
    """With matrix units that hardly run."""

    @staticmethod
    def of(full_hz: float, most_hz: float) -> LaunchClock:
        least = round(1e12 / most_hz)
        return LaunchClock(max(least, round(1e12 / full_hz)), least)


@dataclass(frozen=True)
class UnitWork:
    """What the busiest unit does in a launch, and the units on average."""

    outside: Number
    """Picoseconds outside the loops: prologues, stores, and sums handed over."""
    cycles: Number
    """Cycles of the busiest unit in its loops."""
    matrix_cycles: Number
    """Cycles of its matrix units, on average over all units."""
    memory: Number
    """Picoseconds that memory takes for the bytes of the launch."""


@dataclass(frozen=True)
class ClockedTime:
    """The time of a launch and its parts, in picoseconds."""

    total: Number
    busy: Number
    outside: Number
    memory: Number

    @property
    def loops(self) -> Number:
        return self.busy - self.outside


def clocked_time(work: UnitWork, clock: LaunchClock, launch: int, exposed_percent: int) -> ClockedTime:
    """Return the time at which the clock and the busy units agree."""
    exposed = quotient(work.memory * exposed_percent, 100)
    begin = launch + work.outside + exposed
    total = begin + work.cycles * clock.full
    for _ in range(NEWTON_STEPS):
        total = _nearer(total, begin, work, clock)
    busy = larger(total - launch - exposed, work.outside + work.cycles * clock.least)
    hidden = quotient(smaller(busy, work.memory) * exposed_percent, 100)
    return ClockedTime(launch + larger(busy, work.memory) + hidden, busy, work.outside, work.memory)


def _nearer(total: Number, begin: Number, work: UnitWork, clock: LaunchClock) -> Number:
    """Return a step of Newton's method for total = begin + loops(total), where loops go with 1/√total."""
    faster = root(quotient(total * ONE, work.matrix_cycles * clock.full) * ONE)
    loops = quotient(work.cycles * clock.full * ONE, faster)
    slope = ONE + quotient(loops * (ONE // 2), total)
    return total - quotient((total - begin - loops) * ONE, slope)
