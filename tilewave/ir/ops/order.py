"""Where waves meet, and when their instructions run"""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_BOTH, ON_LANES, parts_only
from tilewave.ir.types import BOOL, Scalar, Vector

GROUPED = ("matrix", "load", "shared_load", "shared_store")
"""What `instruction_group` groups."""


@dataclass(frozen=True)
class Barrier(Op):
    """No wave goes on before all have come here."""

    levels = ON_BOTH

    waves: int = 0
    """0: all waves of the workgroup; else so many neighbours, counted from wave 0 on: 4 are waves 0 to 3, 4 to 7, …"""
    over: str = "shared"
    """Which accesses it orders: `shared`, those to shared memory; `global`, those to global memory too."""

    def check(self, want: Want) -> None:
        want(self.over in ("shared", "global"), f"hands over shared or global memory, not {self.over!r}")


class Meet(Barrier):
    """No wave of the workgroup goes on before all have come to a `meet`, each to whichever it comes to."""

    levels = ON_LANES


@dataclass(frozen=True)
class Agree(Computed):
    """Whether x holds in all registers of all lanes of `waves` neighbours, which wait for each other to know it; they
    are counted from wave 0 on."""

    levels = ON_LANES

    x: Value
    waves: int

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector) and x.dtype == BOOL, f"is asked of a vector of truth values, not {x}")
        want(self.waves > 0, "is the answer of one wave at least")
        want(self.result.type == Scalar(BOOL), f"gives one truth value, not {self.result.type}")


class Scheduling(Op):
    """What lays out instructions; no result depends on it."""

    levels = ON_LANES


@dataclass(frozen=True)
class Priority(Scheduling):
    """How urgent this wave is from here on, 0 to 3, among those that share its units; no result depends on it."""

    level: int

    def check(self, want: Want) -> None:
        want(0 <= self.level <= 3, "is a priority from 0 to 3")


class KeepOrder(Scheduling):
    """A scheduling fence: no op moves across it; no result depends on it."""

    check = parts_only


@dataclass(frozen=True)
class InstructionGroup(Scheduling):
    """The next `count` instructions of a kind come here in a row: matrix, load, shared_load or shared_store.

    A list of these lays out the stretch that it ends; no result depends on it.
    """

    kind: str
    count: int

    def check(self, want: Want) -> None:
        want(self.kind in GROUPED and self.count > 0, f"groups {', '.join(GROUPED)}")


class AwaitLoads(Scheduling):
    """Go on when everything has come that this wave loads from global memory; no result depends on it."""

    check = parts_only


OPS: tuple[type[Op], ...] = (
    Barrier,
    Meet,
    Agree,
    Priority,
    KeepOrder,
    InstructionGroup,
    AwaitLoads,
)
