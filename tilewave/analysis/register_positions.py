"""The positions of a lane's registers, as scalars that all share and steps from register to register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Add, Broadcast, Ramp
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass


@dataclass(frozen=True)
class RegisterPositions:
    """Scalars that all registers share, and the offset of each register from the first."""

    numbers: tuple[Value, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    """The axes along which the positions are broadcast; None where they are not."""

    @staticmethod
    def of(v: Value, defs: Mapping[Value, Op]) -> RegisterPositions | None:
        """Return the positions that a vector of indices has; None where they are computed in another way."""
        op, shape = defs.get(v), v.type.shape
        match op:
            case Broadcast(x) if x.type == INDEX_SCALAR:
                return RegisterPositions((x,), (0,) * len(shape), shape)
            case Broadcast(x, axes):
                found = RegisterPositions.of(x, defs)
                return None if found is None or found.axes is not None else replace(found, axes=axes)
            case Ramp(steps):
                return RegisterPositions((), steps, shape)
            case Add(a, b):
                one, other = RegisterPositions.of(a, defs), RegisterPositions.of(b, defs)
                if one is None or other is None or one.axes is not None or other.axes is not None:
                    return None
                steps = tuple(map(sum, zip(one.steps, other.steps, strict=True)))
                return RegisterPositions(one.numbers + other.numbers, steps, shape)
            case _:
                return None
