"""Turns at a tile of an array, for sums across workgroups in a fixed order"""

from __future__ import annotations

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.rules import GLOBAL, ON_BOTH, are_indices, places
from tilewave.ir.types import I32, INDEX_SCALAR, Memory
from tilewave.records import dataclass

__all__ = [
    "PassTurn",
    "TurnOp",
    "WaitTurn",
]


@dataclass(frozen=True)
class TurnOp(Op):
    """An op on the counter `turns[at]` of a tile of `memory`: how often turns at the tile were passed in this launch.

    On the lane level each wave waits and passes, or one wave does for the others, which wait for it by mbarriers.
    """

    levels = ON_BOTH
    writes = places(memory=GLOBAL, turns=GLOBAL)

    memory: Value
    turns: Value
    at: tuple[Value, ...]

    def check(self, want: Want) -> None:
        kind = self.turns.type
        want(isinstance(kind, Memory) and kind.dtype == I32, f"counts in a memory of i32, not in {kind}")
        assert isinstance(kind, Memory)
        want(len(self.at) == kind.rank and are_indices(self.at), f"{kind} needs {kind.rank} positions of type index")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


@dataclass(frozen=True)
class WaitTurn(TurnOp):
    """Wait until all turns before `turn`, passed by so many waves each, are over; what they added is then visible.

    Only workgroups of lower numbers may have lower turns: they start earlier, so no workgroup waits for one that cannot
    start.
    """

    turn: Value
    waves: int = 1

    def check(self, want: Want) -> None:
        super().check(want)
        want(self.waves >= 1, "is passed by no wave")
        want(self.turn.type == INDEX_SCALAR, f"counts turns by an index, not {self.turn.type}")


class PassTurn(TurnOp):
    """Make visible what this wave added since the wait, or knows that others added, then increase the counter by 1."""


OPS: tuple[type[Op], ...] = (WaitTurn, PassTurn)
