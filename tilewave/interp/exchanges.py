"""Tiles that workgroups put into an exchange and that are not taken yet, while a kernel runs."""

from __future__ import annotations

from dataclasses import field

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Op, Value
from tilewave.records import dataclass


@dataclass(frozen=True)
class Handed:
    """A tile, or one wave's part of it."""

    op: Op
    workgroup: int
    tile: Array


@dataclass
class ExchangeSlots:
    """An exchange of one launch; `part` is 0 for whole tiles, and the wave's number on the lane level."""

    value: Value
    full: dict[tuple[int, int], Handed] = field(default_factory=dict)

    def put(self, op: Op, workgroup: int, slot: int, part: int, tile: Array) -> None:
        self.want_inside(op, workgroup, slot)
        before = self.full.get((slot, part))
        if before is not None:
            raise InterpreterError(
                f"workgroup {workgroup} hands over {self.name(slot)}, which workgroup {before.workgroup} filled",
                loc=op.loc,
                remedy=f"it was handed over at {before.op.loc} and must be taken over first",
            )
        self.full[slot, part] = Handed(op, workgroup, tile.copy())

    def take(self, op: Op, workgroup: int, slot: int, part: int) -> Array:
        self.want_inside(op, workgroup, slot)
        return self.full.pop((slot, part)).tile

    def want_inside(self, op: Op, workgroup: int, slot: int) -> None:
        if not 0 <= slot < self.value.type.shape[0]:
            raise InterpreterError(
                f"workgroup {workgroup} wants {self.name(slot)}, outside {self.value.type}", loc=op.loc
            )

    def want_empty(self) -> None:
        """Raise where a slot is full at the end of the launch, because the next launch needs empty slots."""
        for (slot, _), handed in self.full.items():
            raise InterpreterError(
                f"workgroup {handed.workgroup} hands over {self.name(slot)}, which is never taken over",
                loc=handed.op.loc,
            )

    def name(self, slot: int) -> str:
        return f"{self.value.name}[{slot}]"
