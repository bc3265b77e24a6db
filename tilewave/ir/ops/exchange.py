"""Exchange of partial sums between workgroups, for stream-K and split-K"""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_BOTH, places, same_axes, want_results
from tilewave.ir.types import INDEX_SCALAR, Exchange, Tile, Vector
from tilewave.records import dataclass

__all__ = [
    "HandOver",
    "MakeExchange",
    "TakeOver",
    "TakeOverAll",
]

SLOTS = places(exchange=("exchange",))


@dataclass(frozen=True)
class MakeExchange(Computed):
    """The launch's slots for tiles that workgroups pass to each other."""

    levels = ON_BOTH

    def check(self, want: Want) -> None:
        made = self.result.type
        want(isinstance(made, Exchange) and len(made.shape) > 1, "makes slots for tiles")


@dataclass(frozen=True)
class HandOver(Op):
    """Store a tile into an empty slot, for the workgroup that takes it over.

    On the lane level each wave stores its registers, for the wave of the same number.
    """

    levels = ON_BOTH
    writes = SLOTS

    tile: Value
    exchange: Value
    slot: Value
    wide: int = 1
    """The number of consecutive slots that the tile's columns fill."""

    def check(self, want: Want) -> None:
        _want_slot(self, want, self.wide)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...] | None:
        return _in_slot(self)


@dataclass(frozen=True)
class TakeOver(Op):
    """Wait for the tile in a slot, add it to `tile`, and leave the slot empty.

    Only workgroups of lower numbers may fill the slot: they start earlier, so no workgroup waits for one that cannot
    start.
    """

    levels = ON_BOTH
    gives = 1
    reads = writes = SLOTS

    tile: Value
    exchange: Value
    slot: Value

    def check(self, want: Want) -> None:
        _want_slot(self, want)
        want_results(self, want, self.tile.type)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...] | None:
        slot = _in_slot(self)
        return None if slot is None else (*same_axes(self.result, self.tile), *slot)


@dataclass(frozen=True)
class TakeOverAll(TakeOver):
    """Wait for the tiles in `count` slots, `apart` from each other, and add them to `tile` in order."""

    apart: Value
    count: int

    def check(self, want: Want) -> None:
        super().check(want)
        want(self.apart.type == INDEX_SCALAR, f"counts slots by an index, not {self.apart.type}")


def _in_slot(op: HandOver | TakeOver) -> tuple[tuple[Axis, Axis], ...] | None:
    """Return pairs of equal axes of a tile and a slot; None for vectors, whose order in the slot is not defined."""
    tile = op.tile.type
    if not isinstance(tile, Tile):
        return None
    same = [i for i, n in enumerate(tile.shape) if n == op.exchange.type.shape[i + 1]]  # slots may hold some columns
    return tuple(((op.tile, i), (op.exchange, i + 1)) for i in same)


def _want_slot(op: HandOver | TakeOver, want: Want, wide: int = 1) -> None:
    tile, exchange = op.tile.type, op.exchange.type
    both = isinstance(exchange, Exchange) and isinstance(tile, (Tile, Vector))
    want(both, f"moves a tile, {tile}, and an exchange, {exchange}")
    want(op.slot.type == INDEX_SCALAR, f"counts slots by an index, not {op.slot.type}")
    one = (*exchange.shape[1:-1], exchange.shape[-1] * wide)
    fits = tile.shape == one if isinstance(tile, Tile) else prod(one) % prod(tile.shape) == 0
    want(fits and tile.dtype == exchange.dtype, f"{tile} is not what the slots of {exchange} hold")


OPS: tuple[type[Op], ...] = (
    MakeExchange,
    HandOver,
    TakeOver,
    TakeOverAll,
)
