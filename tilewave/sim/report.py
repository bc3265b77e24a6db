"""What a simulation answers: a frozen record, with sentences that say what limits and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tilewave.records import dataclass

CLIFF = 1.10
"""A launch is on a capacity cliff if its HBM bytes differ by more than this between a narrow and a wide cache."""
NOTHING = "–"
MARGIN = 0.01
"""What the interval of bytes is widened by: the noise of one measured launch."""


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy: what was asked of it, what it had, what it passed on."""

    name: str
    asked_bytes: float
    hit_bytes: float
    missed_bytes: float
    is_cache: bool = True
    """Memory itself has everything: it is asked, and nothing is passed on."""

    @property
    def hit(self) -> float:
        return self.hit_bytes / self.asked_bytes if self.asked_bytes else 1.0

    @property
    def hit_text(self) -> str:
        return f"{100 * self.hit:.1f} %" if self.is_cache else NOTHING


@dataclass(frozen=True)
class ArrayTraffic:
    """The traffic of one array: its bytes, bytes requested, missed in L2, read from and written to HBM."""

    name: str
    distinct_bytes: float
    asked_bytes: float
    l2_missed_bytes: float
    hbm_read_bytes: float
    hbm_write_bytes: float


@dataclass(frozen=True)
class XcdTraffic:
    """The traffic of one XCD: bytes that its workgroups requested, that missed in its L2, and that HBM delivered."""

    xcd: int
    tasks: int
    asked_bytes: float
    l2_missed_bytes: float
    hbm_read_bytes: float


@dataclass(frozen=True)
class LaunchWave:
    """One wave of workgroups: its tasks, and bytes requested, missed in L2, and read from HBM."""

    tasks: int
    asked_bytes: float
    l2_missed_bytes: float
    hbm_read_bytes: float


@dataclass(frozen=True)
class TimeShare:
    """A part of the time, and which share of the whole it is."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Sensitivity:
    """What L2 hit rate and time would be under another assumption."""

    assumption: str
    l2_hit: float
    hbm_read_bytes: float
    seconds: float


@dataclass(frozen=True)
class Report:
    """The traffic and time of one launch on one machine; hit rates are fractions, sizes bytes."""

    problem: str
    mapping: str
    machine: str
    engine: str
    workgroups: int
    tasks: int
    launch_waves: int
    occupancy: int
    skew_steps: float
    l2_hit: float
    llc_hit: float | None
    hbm_read_bytes: float
    hbm_read_low_bytes: float
    hbm_read_high_bytes: float
    hbm_write_bytes: float
    l2_request_bytes: float
    l2_cross_bytes: float
    asked_bytes: float
    distinct_bytes: float
    flops: float
    seconds: float
    seconds_error: float
    """One standard deviation of the prediction, as a fraction of it."""
    breakdown: tuple[TimeShare, ...]
    levels: tuple[Level, ...]
    arrays: tuple[ArrayTraffic, ...]
    xcds: tuple[XcdTraffic, ...]
    over_time: tuple[LaunchWave, ...]
    fitted_on: str
    clock_hz: float | None = None
    """The clock in the loops, where power limits it; it depends on `data`."""
    data: str = ""
    """What the operands are taken to hold."""
    warnings: tuple[str, ...] = ()
    """What the machine could not do as simulated."""

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12

    @property
    def on_cliff(self) -> bool:
        """Whether a little more or less cache would change HBM bytes by more than a tenth: read the interval."""
        return self.hbm_read_high_bytes > CLIFF * self.hbm_read_low_bytes

    @property
    def limit(self) -> str:
        """What takes the largest part of the time."""
        return max(self.breakdown, key=lambda share: share.seconds).name

    @property
    def breakdown_text(self) -> str:
        """`matrix 52 %, HBM 41 %, tail 7 %`: from the largest, without what rounds to nothing."""
        parts = sorted(self.breakdown, key=lambda share: -share.seconds)
        return ", ".join(f"{p.name} {100 * p.share:.0f} %" for p in parts if round(100 * p.share) > 0)

    def to_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        derived = {"tflops": self.tflops, "on_cliff": self.on_cliff, "limit": self.limit}
        return {**json.loads(json.dumps(asdict(self))), **derived}
