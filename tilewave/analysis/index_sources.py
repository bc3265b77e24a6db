"""What positions that a kernel computes are made of: windows, elements of arrays, quotients and remainders of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewave.analysis.index_trace import made_of_data
from tilewave.analysis.segments import Segments, keeps_apart
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Const,
    Elementwise,
    FloorDiv,
    Iota,
    Less,
    Mod,
    Mul,
    Permute,
    RaggedTile,
    Read,
    Reduce,
    Select,
    Sub,
    Write,
    WriteIndexed,
)
from tilewave.ir.types import Memory, Scalar
from tilewave.records import dataclass

Axis = int | None
IN_SEGMENT: tuple[str, object] = ("segment", None)
NUMBER: tuple[str, object] = ("number", None)


@dataclass(frozen=True)
class PositionPart:
    """A memory axis of the judged write: its extent, where the tile begins, and the tile's axis along it, if any."""

    extent: int | str
    start: Value
    axis: Axis
    rows: RaggedTile | None = None
    """The tile of a ragged grid whose rows these are; then the extent is the number of tiles."""


@dataclass(frozen=True)
class PositionSource:
    """What positions along one axis are made of: the elements of a read, or a window."""

    read: Read | None
    parts: tuple[PositionPart, ...]
    how: tuple[str, object] = ("whole", None)
    """("whole", None) where different elements give different indices, else ("quotient", n), ("remainder", n),
    ("segment", None), ("number", None) or ("", None)."""


class IndexSources:
    """Finds what the positions of a kernel's writes are made of."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.defs, self.of_data = kernel, kernel.defs, made_of_data(kernel.body)
        self.segments = Segments(kernel)
        self.sizes = {n for v in kernel.body.args if isinstance(v.type, Memory) for n in v.type.extents}

    def plain(self, v: Value) -> Value:
        """Return an index before it was cast."""
        op = self.defs.get(v)
        return self.plain(op.x) if isinstance(op, Cast) else v

    def is_constant(self, v: Value) -> bool:
        return isinstance(self.defs.get(v), Const)

    def sources(self, op: Write | WriteIndexed) -> Iterator[PositionSource | None]:
        """Yield what the positions along each axis of the memory are made of; None: not known."""
        extents = op.memory.type.extents
        if isinstance(op, WriteIndexed):
            rank = len(op.tile.type.shape)
            for v, extent in zip(op.at, extents, strict=True):
                yield self.source(v, tuple(range(rank)), extent)
            return
        along = {axis: i for i, axis in enumerate(op.axes)}
        for axis, (v, extent) in enumerate(zip(op.at, extents, strict=True)):
            if v in self.of_data:
                yield self.source(v, (), extent)
            else:
                yield PositionSource(None, (PositionPart(extent, v, along.get(axis)),))

    def source(self, v: Value, axes: tuple[Axis, ...], extent: int | str) -> PositionSource | None:
        """Return what positions are made of; `axes` are the written tile's axes for each axis of `v`."""
        op = self.defs.get(v)
        match op:
            case _ if isinstance(v.type, Scalar) and v not in self.of_data and not self.is_constant(v):
                return PositionSource(None, (PositionPart(extent, v, None),), NUMBER)
            case Broadcast(x, over) if not isinstance(x.type, Scalar):
                return self.source(x, tuple(axes[a] for a in over), extent)
            case Broadcast(x):
                return self.source(x, (), extent)
            case Permute(x, order):
                return self.source(x, tuple(axes[order.index(a)] for a in range(len(order))), extent)
            case Cast(x):
                source = self.source(x, axes, extent)
                return source if source is None or keeps_apart(op) else replace(source, how=("", None))
            case Select(holds, x, other) if self.is_nowhere(other):
                rows = self.rows_of(holds, x)
                if rows is not None:
                    return PositionSource(None, (self.part_of(rows, axes[0]),))
                return self.in_segment(holds, x, axes, extent) or self.source(x, axes, extent)
            case Reduce(x) if all(n == 1 for n in x.type.shape):
                kept = iter(axes)
                return self.source(
                    x, tuple(None if a in op.axes else next(kept) for a in range(len(x.type.shape))), extent
                )
            case Iota():
                return PositionSource(None, (PositionPart(extent, v, axes[0]),))  # `added` gives it its start
            case Add(a, b) | Sub(a, b) | Mul(a, b) | FloorDiv(a, b) | Mod(a, b):
                return self.combined(op, a, b, axes, extent)
            case Read() if op.memory in self.kernel.body.args and self.of_data.isdisjoint(op.at):
                along = dict(zip(op.axes, axes, strict=True))
                facts = zip(op.memory.type.extents, op.at, strict=True)
                return PositionSource(op, tuple(PositionPart(n, at, along.get(i)) for i, (n, at) in enumerate(facts)))
            case Elementwise():
                each = [self.source(x, axes, extent) for x in op.operands if x in self.of_data]
                return replace(each[0], how=("", None)) if len(each) == 1 and each[0] else None
            case _:
                return None

    def in_segment(
        self, condition: Value, x: Value, axes: tuple[Axis, ...], extent: int | str
    ) -> PositionSource | None:
        """Return what indices in a segment are made of: its number, and what counts within it."""
        segment = self.segments.of(condition, x)
        if segment is None:
            return None
        counted = self.source(segment.counted, axes, extent)
        if counted is None or counted.read is not None:
            return None
        number = PositionPart(segment.begin.memory.type.extents[0], segment.begin.at[0], None)
        return PositionSource(segment.begin, (number, *counted.parts), IN_SEGMENT)

    def rows_of(self, holds: Value, x: Value) -> RaggedTile | None:
        """Return the tile of a ragged grid whose rows x counts, those before the end of their group."""
        counted, below = self.defs.get(x), self.defs.get(holds)
        if not isinstance(counted, Add) or not isinstance(below, Less) or below.a != x:
            return None
        starts = [self.scalar(v) for v in (counted.a, counted.b) if not isinstance(self.defs.get(v), Iota)]
        start, end = starts[0] if len(starts) == 1 else None, self.scalar(below.b)
        rows = self.defs.get(start) if start is not None else None
        if not isinstance(rows, RaggedTile) or (start, end) != rows.results[1:] or x.type.shape != (rows.block,):
            return None
        return rows

    def part_of(self, rows: RaggedTile, axis: Axis) -> PositionPart:
        count = self.known(rows.count)
        return PositionPart(count if isinstance(count, int) else rows.count.name, rows.number, axis, rows)

    def combined(self, op: Op, a: Value, b: Value, axes: tuple[Axis, ...], extent: int | str) -> PositionSource | None:
        """Return what an operation on indices and one number gives."""
        of_a, of_b = a in self.of_data, b in self.of_data
        if not of_a and not of_b:
            first, start = (a, b) if isinstance(self.defs.get(a), Iota) else (b, a)
            scalar = self.scalar(start)
            found = self.source(first, axes, extent)
            if not isinstance(op, Add) or scalar is None or found is None or found.read is not None:
                return None
            if any(part.axis is None for part in found.parts):
                return None  # a sum of two numbers
            return replace(found, parts=tuple(replace(part, start=scalar) for part in found.parts))
        if of_a and of_b:
            return None
        found = self.source(a if of_a else b, axes, extent)
        number = self.scalar(b if of_a else a)
        if found is None or number is None or found.how[0] != "whole":
            return found and replace(found, how=("", None))
        match op:
            case FloorDiv() if of_a and self.is_positive(self.known(number)):
                return replace(found, how=("quotient", self.known(number)))
            case Mod() if of_a and self.is_positive(self.known(number)):
                return replace(found, how=("remainder", self.known(number)))
            case _:  # a sum too: equal negative indices, which are no place, may become one place
                return replace(found, how=("", None))

    def scalar(self, v: Value) -> Value | None:
        """Return the number that a tile holds everywhere."""
        if isinstance(v.type, Scalar):
            return v
        op = self.defs.get(v)
        return (
            op.x
            if isinstance(op, Broadcast) and isinstance(op.x.type, Scalar)
            else v
            if isinstance(op, Const)
            else None
        )

    def is_positive(self, n: object) -> bool:
        """Return whether a divisor is certainly not negative: a positive number or the size of an array."""
        return n > 0 if isinstance(n, int) else isinstance(n, Value) and n.name in self.sizes

    def is_nowhere(self, v: Value) -> bool:
        """Return whether an index is negative everywhere, which is no place."""
        number = self.scalar(v)
        value = None if number is None else self.known(number)
        return isinstance(value, int) and value < 0

    def known(self, v: Value) -> object:
        op = self.defs.get(v)
        return op.value if isinstance(op, Const) else self.known(op.x) if isinstance(op, Cast) else v
