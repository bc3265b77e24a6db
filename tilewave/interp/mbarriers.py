"""Mbarriers: arrivals, bytes still in flight, and the happens-before edges of waits."""

from __future__ import annotations

from dataclasses import field
from math import prod

import numpy as np

from tilewave.interp.clocks import NOTHING, Knowledge, union
from tilewave.ir.core import Op, Value
from tilewave.records import dataclass


@dataclass
class Mbarrier:
    """One mbarrier."""

    needed: int
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    landed: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    """For each group of waves that arrives together, how many waves are missing."""
    gathered: Knowledge = field(default_factory=lambda: NOTHING)
    """The segments that the current phase releases when it completes."""
    notified: Knowledge = field(default_factory=lambda: NOTHING)
    """The segments that completed phases released."""

    @property
    def is_overfull(self) -> bool:
        """Whether more bytes came than were expected."""
        return self.arrived == self.needed and self.landed > self.expected

    def arrive(self, knowledge: Knowledge, expect: int, group: int = 0, waves: int = 1) -> None:
        """Record the arrival of one of `waves` waves that arrive together."""
        left = self.waiting.pop(group, waves) - 1
        if left:
            self.waiting[group] = left
        self.arrived += not left
        self.expected += expect
        self._gather(knowledge)

    def land(self, segment: int, nbytes: int) -> None:
        """Complete a copy; waits for this phase acquire the copy's segment alone, not its wave's other accesses."""
        self.landed += nbytes
        own = np.zeros((len(NOTHING), segment + 1), bool)
        own[:, segment] = True
        self._gather(own)

    def _gather(self, knowledge: Knowledge) -> None:
        self.gathered = union(self.gathered, knowledge)
        if self.arrived == self.needed and self.landed == self.expected:
            self.notified = union(self.notified, self.gathered)
            self.phase += 1
            self.arrived = self.expected = self.landed = 0
            self.gathered = NOTHING


@dataclass
class MbarrierArray:
    """The mbarriers of a `make_mbarriers`, made once per workgroup."""

    value: Value
    op: Op
    maker: int
    made_in: int | None = None
    """The maker's segment; None until it has initialized them."""
    mbarriers: list[Mbarrier] = field(default_factory=list)

    @staticmethod
    def of(value: Value, op: Op, maker: int, arrivals: int) -> MbarrierArray:
        return MbarrierArray(value, op, maker, None, [Mbarrier(arrivals) for _ in range(prod(value.type.shape))])
