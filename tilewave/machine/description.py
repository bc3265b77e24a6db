"""The simulator's description of a card: units, caches, memory and rates, each number with its source."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from tilewave.errors import TilewaveError
from tilewave.records import dataclass

Array = npt.NDArray[np.int64]

LARGEST = 1 << 60
"""The largest plausible size; a larger number is a typing error."""
MOST_UNITS = 1 << 16
LONGEST_NAME = 80
TARGET = re.compile(r"(?:[a-z][a-z0-9_]{0,31})?", re.ASCII)
RATED = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8")
"""Dtypes of products, as kernels name them."""
DATA = ("random", "zeros")
"""What operands may be: power, and so the clock, depends on it."""


class MachineError(TilewaveError):
    """A machine that does not exist, or whose description cannot be one."""


@dataclass(frozen=True)
class L2:
    """The L2 cache of one xcd; its lines are distributed evenly over `partitions`."""

    bytes: int
    partitions: int = 1
    line_bytes: int = 128
    ways: int | None = None
    holds_writes: bool = True
    """Whether written lines stay until evicted, and so evict lines that are read."""


@dataclass(frozen=True)
class LastLevel:
    """A cache between memory and all xcds; `bytes_per_second` is None where no source gives it."""

    bytes: int
    bytes_per_second: float | None = None


@dataclass(frozen=True)
class Hbm:
    """The HBM memory."""

    bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class Rate:
    """Dense matrix throughput of the whole chip for one input dtype, at `clock_hz`."""

    dtype: str
    flops: float


@dataclass(frozen=True)
class SustainedClock:
    """The clock at which matrix units that never stop take all the power of a card, for one dtype, on random data."""

    dtype: str
    hz: float


@dataclass(frozen=True)
class PowerLimit:
    """What power leaves of the clock, where matrix units keep it below `clock_hz`.

    Units that multiply in a part u of the cycles have a clock higher by u^(−1/3), but never above `clock_hz`.
    """

    clocks: tuple[SustainedClock, ...]
    zeros: float = 1.0
    """How much higher the clock is where all operands are zeros."""

    def hz(self, dtype: str, data: str) -> float:
        """Return the sustained clock for a dtype: the lowest one where that of the dtype is not known."""
        known = {clock.dtype: clock.hz for clock in self.clocks}
        return known.get(dtype, min(known.values())) * (self.zeros if data == "zeros" else 1.0)


@dataclass(frozen=True)
class UnitRun:
    """A run of the dispatch order: consecutive units of one xcd and one L2 partition."""

    units: int
    partition: int = 0
    xcd: int = 0


@dataclass(frozen=True)
class Merging:
    """Request merging before L2: up to `most` requests for one line become one, if they come from one merge group.

    A merge group is `units` consecutive units of one xcd in dispatch order.
    """

    most: int
    units: int


@dataclass(frozen=True)
class Source:
    """The source of a number of a machine; `field` names it as `Machine` does."""

    field: str
    text: str


@dataclass(frozen=True)
class Machine:
    """One card, whose chip is `target`.

    `dispatch_order` lists its units in the order in which the hardware fills them; empty: round-robin over xcds.
    """

    name: str
    target: str
    xcds: int
    units_per_xcd: int
    clock_hz: float
    rates: tuple[Rate, ...]
    l2: L2
    hbm: Hbm
    last_level: LastLevel | None = None
    shared_bytes: int | None = None
    dispatch_order: tuple[UnitRun, ...] = ()
    merging: Merging | None = None
    power: PowerLimit | None = None
    """None where power does not limit the clock, or no source says how."""
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        for found in _faults(self):
            raise MachineError(f"machine {self.name[:LONGEST_NAME]}: {found}")

    @property
    def units(self) -> int:
        """Compute units, or SMs: each runs one workgroup at a time by default."""
        return self.xcds * self.units_per_xcd

    @property
    def domains(self) -> int:
        """L2 partitions of all xcds together."""
        return self.xcds * self.l2.partitions

    def places(self) -> tuple[Array, Array, Array]:
        """The (xcd, partition, merge group) of each unit, in dispatch order."""
        if not self.dispatch_order:
            at = np.arange(self.units)
            xcd, partition = at % self.xcds, at // self.xcds % self.l2.partitions
        else:
            counts = [s.units for s in self.dispatch_order]
            xcd, partition = (
                np.repeat([getattr(s, part) for s in self.dispatch_order], counts) for part in ("xcd", "partition")
            )
        return xcd, partition, self._merge_groups(xcd)

    def _merge_groups(self, xcd: Array) -> Array:
        """Return the merge group of each unit, in dispatch order; one group per xcd if there is no merging."""
        size = self.merging.units if self.merging else self.units_per_xcd
        by_xcd = np.argsort(xcd, kind="stable")
        groups: Array = np.empty_like(xcd)
        within = np.arange(len(xcd)) % self.units_per_xcd
        groups[by_xcd] = xcd[by_xcd] * -(-self.units_per_xcd // size) + within // size
        return groups

    def flops(self, dtype: str) -> float | None:
        """Return the dense matrix throughput for this dtype; None where the machine has none, or no source gives it."""
        return next((rate.flops for rate in self.rates if rate.dtype == dtype), None)

    def sustained_hz(self, dtype: str, data: str = DATA[0]) -> float:
        """Return the clock with matrix units that never stop, for operands that are one of `DATA`."""
        return min(self.clock_hz, self.power.hz(dtype, data)) if self.power else self.clock_hz

    def source(self, field: str) -> str:
        """Return the source of a number."""
        return next((s.text for s in self.sources if s.field == field), "")


def _faults(machine: Machine) -> list[str]:
    found = _bad_texts(machine) or _bad_counts(machine) or _bad_numbers(machine)
    if found:
        return found
    known = {f.name for f in fields(Machine)}
    found = [f"a source is given for {s.field!r}, which is no field" for s in machine.sources if s.field not in known]
    return found or _bad_seats(machine)


def _bad_texts(machine: Machine) -> list[str]:
    if not 1 <= len(machine.name) <= LONGEST_NAME or not machine.name.isprintable():
        return [f"its name is a text of 1 to {LONGEST_NAME} characters"]
    if not TARGET.fullmatch(machine.target):
        return [f"its target is a word such as gfx942 or sm_90a, not {machine.target[:LONGEST_NAME]!r}"]
    clocks = machine.power.clocks if machine.power else ()
    named = [("rate", rate.dtype) for rate in machine.rates] + [("sustained clock", clock.dtype) for clock in clocks]
    unknown = [one for one in named if one[1] not in RATED]
    return [f"a {what} is given for {x[:LONGEST_NAME]!r}; the dtypes are {', '.join(RATED)}" for what, x in unknown[:1]]


def _bad_counts(machine: Machine) -> list[str]:
    last, merging = machine.last_level, machine.merging
    counts = {
        "xcds": machine.xcds,
        "units_per_xcd": machine.units_per_xcd,
        "l2.bytes": machine.l2.bytes,
        "l2.partitions": machine.l2.partitions,
        "l2.line_bytes": machine.l2.line_bytes,
        "hbm.bytes": machine.hbm.bytes,
        **({"last_level.bytes": last.bytes} if last else {}),
        **({"merging.most": merging.most, "merging.units": merging.units} if merging else {}),
        **({"l2.ways": machine.l2.ways} if machine.l2.ways is not None else {}),
        **({"shared_bytes": machine.shared_bytes} if machine.shared_bytes is not None else {}),
        **{f"dispatch_order[{at}].units": s.units for at, s in enumerate(machine.dispatch_order)},
    }
    for name, value in counts.items():
        if type(value) is not int or not 1 <= value <= LARGEST:
            return [f"{name} is a whole number of at least 1, not {shown(value)}"]
    if type(machine.l2.holds_writes) is not bool:
        return [f"l2.holds_writes is true or false, not {shown(machine.l2.holds_writes)}"]
    if machine.units > MOST_UNITS:
        return [f"{machine.units:,} units are more than {MOST_UNITS:,}"]
    if machine.l2.partitions > machine.units_per_xcd:
        return [f"{machine.l2.partitions} L2 partitions, but only {machine.units_per_xcd} units in an xcd"]
    return []


def _bad_numbers(machine: Machine) -> list[str]:
    last = machine.last_level
    numbers = {
        "clock_hz": machine.clock_hz,
        "hbm.bytes_per_second": machine.hbm.bytes_per_second,
        **({"last_level.bytes_per_second": last.bytes_per_second} if last and last.bytes_per_second else {}),
        **{f"the rate of {rate.dtype}": rate.flops for rate in machine.rates},
        **({"power.zeros": machine.power.zeros} if machine.power else {}),
        **{f"the sustained clock of {one.dtype}": one.hz for one in (machine.power.clocks if machine.power else ())},
    }
    for name, value in numbers.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= LARGEST * 1e6:  # nan is refused, too
            return [f"{name} is a number above 0, not {shown(value)}"]
    return ["power has no sustained clock"] if machine.power and not machine.power.clocks else []


def _bad_seats(machine: Machine) -> list[str]:
    if not machine.dispatch_order:
        return []
    if sum(s.units for s in machine.dispatch_order) != machine.units:
        held = sum(s.units for s in machine.dispatch_order)
        return [f"its dispatch_order holds {held} units, but there are {machine.units}"]
    for at, s in enumerate(machine.dispatch_order):
        if type(s.xcd) is not int or not 0 <= s.xcd < machine.xcds:
            return [f"dispatch_order[{at}].xcd is from 0 to {machine.xcds - 1}, not {shown(s.xcd)}"]
        if type(s.partition) is not int or not 0 <= s.partition < machine.l2.partitions:
            return [f"a run's partition is from 0 to {machine.l2.partitions - 1}"]
    xcd, _, _ = machine.places()
    if (np.bincount(xcd, minlength=machine.xcds) != machine.units_per_xcd).any():
        return [f"its dispatch_order must give each of {machine.xcds} xcds {machine.units_per_xcd} units"]
    return []


def shown(value: object) -> str:
    """Return a value as text, shortened; Python refuses to print the longest integers."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
