"""Stores of rows before a bound that only the device knows, such as the end of a group in a ragged grid."""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.ir.core import Op, Value
from tilewave.ir.match import Defs, constant, either, made, source
from tilewave.ir.ops import Add, Broadcast, Iota, Less, Select, Write, WriteIndexed
from tilewave.ir.types import Scalar

COUNTED = either(Add, made(Iota), made(Broadcast, "start")) | made(Iota)
"""Positions start, start + 1, …"""
BOUNDED = made(Select, made(Less, COUNTED.named("rows"), made(Broadcast, "end")), "rows", "nowhere")
"""Positions start, start + 1, … before an end, and others from it on."""


@dataclass(frozen=True)
class BoundedTile:
    """A tile that is stored at `at`, axis i along memory axis `axes[i]`, of which the rows before `end` are stored."""

    at: tuple[Value, ...]
    axes: tuple[int, ...]
    end: Value


def holders(op: Op, defs: Defs) -> frozenset[Value]:
    """Return the values without which a store has no effect, because what it stores is nowhere."""
    if isinstance(op, WriteIndexed):
        return frozenset(v for at in op.at for v in _needed(source(at, defs, Broadcast), defs))
    if isinstance(op, Write):
        sizes = dict(zip(op.axes, op.tile.type.shape, strict=True))
        return frozenset(v for axis, at in enumerate(op.at) for v in _chosen(at, defs, -sizes.get(axis, 1)))
    return frozenset()


def _needed(at: Value, defs: Defs) -> frozenset[Value]:
    """Return the values without which positions are negative."""
    if isinstance(at.type, Scalar):
        return _chosen(at, defs, -1)
    counted = COUNTED.match(at, defs)
    if counted is not None and "start" in counted:
        return _chosen(counted["start"], defs, -at.type.shape[0])
    found = BOUNDED.match(at, defs)
    if found is None or not _is_negative(found["nowhere"], defs):
        return frozenset()
    return _chosen(found["end"], defs, 0)


def _chosen(v: Value, defs: Defs, most: int) -> frozenset[Value]:
    """Return the condition without which a number is a constant of at most `most`."""
    op = defs.get(v)
    other = constant(op.b, defs) if isinstance(op, Select) else None
    return frozenset({op.condition}) if isinstance(op, Select) and other is not None and other <= most else frozenset()


def _is_negative(v: Value, defs: Defs) -> bool:
    number = constant(v, defs, Broadcast)
    return number is not None and number < 0
