"""Stores of rows before a bound that only the device knows, such as the end of a group in a ragged grid."""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.match import Defs, constant, either, made, source
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Elementwise,
    Iota,
    Less,
    Permute,
    ReadIndexed,
    Select,
    Write,
    WriteIndexed,
)
from tilewave.ir.types import Scalar
from tilewave.records import dataclass

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


def bounded_tile(op: WriteIndexed, defs: Defs) -> BoundedTile | None:
    """Return the tile that a store at positions counted from scalars stores, if its rows alone are bounded."""
    each = [_counted(positions, defs) for positions in op.at]
    known = [counted for counted in each if counted is not None]
    if op.combine or len(known) < len(each):
        return None
    along = {counted.axis: axis for axis, counted in enumerate(known) if counted.axis is not None}
    axes = tuple(along[i] for i in sorted(along))
    ends = [(axis, counted.end) for axis, counted in enumerate(known) if counted.end is not None]
    is_whole = len(axes) == len(op.tile.type.shape) > 1
    if not is_whole or axes != tuple(sorted(axes)) or [axis for axis, _ in ends] != [axes[-2]]:
        return None
    return BoundedTile(tuple(counted.start for counted in known), axes, ends[0][1])


@dataclass(frozen=True)
class BoundedUse:
    """The part of a tile that is used: along `axis`, as much as there is from `start` up to `end`."""

    axis: int
    start: Value
    end: Value
    memory: Value
    """The memory that it is stored to."""


def bounded_use(v: Value, kernel: Kernel) -> BoundedUse | None:
    """Return the rows of a tile that anything depends on, if all its uses store rows before the same end."""
    found = [_bounded_by(op, v, kernel) for op in kernel.users[v]]
    return found[0] if found and all(use == found[0] for use in found) else None


def _bounded_by(op: Op, v: Value, kernel: Kernel) -> BoundedUse | None:
    match op:
        case WriteIndexed() if v not in op.at:
            found = bounded_tile(op, kernel.defs)
            rows = len(v.type.shape) - 2
            return None if found is None else BoundedUse(rows, found.at[found.axes[-2]], found.end, op.memory)
        case Permute(axes=axes):
            use = bounded_use(op.result, kernel)
            return None if use is None else replace(use, axis=axes[use.axis])
        case Elementwise() if not isinstance(op, ReadIndexed):  # which reads at positions, used or not
            return bounded_use(op.result, kernel)
        case _:
            return None


@dataclass(frozen=True)
class _Counted:
    """Positions start, start + 1, … along an axis of a tile, or at one place; those from `end` on are nowhere."""

    start: Value
    axis: int | None = None
    end: Value | None = None


def _counted(positions: Value, defs: Defs) -> _Counted | None:
    op = defs.get(positions)
    if not isinstance(op, Broadcast):
        return None
    if isinstance(op.x.type, Scalar):
        return _Counted(op.x)
    found, bounded = COUNTED.match(op.x, defs), BOUNDED.match(op.x, defs)
    if bounded is not None and _is_negative(bounded["nowhere"], defs) and "start" in bounded:
        return _Counted(bounded["start"], op.axes[0], bounded["end"])
    return _Counted(found["start"], op.axes[0]) if found is not None and "start" in found else None


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
