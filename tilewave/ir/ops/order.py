"""Barriers, and scheduling of instructions"""

from __future__ import annotations

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_BOTH, ON_LANES, parts_only
from tilewave.ir.types import BOOL, Scalar, Vector
from tilewave.records import dataclass

__all__ = [
    "Agree",
    "Barrier",
    "InstructionGroup",
    "KeepOrder",
    "Meet",
    "Priority",
    "Scheduling",
    "WaitLoads",
]

GROUPED = ("matrix", "load", "shared_load", "shared_store")
"""The kinds of `instruction_group`."""


@dataclass(frozen=True)
class Barrier(Op):
    """A barrier: no wave continues before all have arrived."""

    levels = ON_BOTH

    waves: int = 0
    """0: all waves of the workgroup; else groups of so many neighbours from wave 0 on: 4 are waves 0 to 3, 4 to 7, …"""
    over: str = "shared"
    """Which accesses it orders: `shared`, those to shared memory; `global`, those to global memory too."""

    def check(self, want: Want) -> None:
        want(self.over in ("shared", "global"), f"hands over shared or global memory, not {self.over!r}")


class Meet(Barrier):
    """A barrier of all waves of the workgroup that may arrive at different `meet` ops."""

    levels = ON_LANES


@dataclass(frozen=True)
class Agree(Computed):
    """Whether x is true in all registers of all lanes of a group of `waves` neighbouring waves, from wave 0 on; a
    barrier of the group."""

    levels = ON_LANES

    x: Value
    waves: int

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector) and x.dtype == BOOL, f"is asked of a vector of truth values, not {x}")
        want(self.waves > 0, "is the answer of one wave at least")
        want(self.result.type == Scalar(BOOL), f"gives one truth value, not {self.result.type}")


class Scheduling(Op):
    """An op that affects only the schedule of instructions."""

    levels = ON_LANES


@dataclass(frozen=True)
class Priority(Scheduling):
    """Set this wave's scheduling priority, 0 to 3, among those that share its units; no result depends on it."""

    level: int

    def check(self, want: Want) -> None:
        want(0 <= self.level <= 3, "is a priority from 0 to 3")


class KeepOrder(Scheduling):
    """A scheduling fence: no op moves across it; no result depends on it."""

    check = parts_only


@dataclass(frozen=True)
class InstructionGroup(Scheduling):
    """Schedule the next `count` instructions of a kind here: matrix, load, shared_load or shared_store.

    A list of these orders the instructions before it; no result depends on it.
    """

    kind: str
    count: int

    def check(self, want: Want) -> None:
        want(self.kind in GROUPED and self.count > 0, f"groups {', '.join(GROUPED)}")


class WaitLoads(Scheduling):
    """Wait until all of this wave's loads from global memory are complete; no result depends on it."""

    check = parts_only


OPS: tuple[type[Op], ...] = (
    Barrier,
    Meet,
    Agree,
    Priority,
    KeepOrder,
    InstructionGroup,
    WaitLoads,
)
