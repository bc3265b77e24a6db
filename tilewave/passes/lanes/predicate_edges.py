"""Find the memory axes along which a boundary tile may be out of bounds, so that lanes predicate those and no others.

A tile of 128 rows in a memory of 300 may end past it; in one of 512 it never does: it begins at a multiple of 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.accesses import Access, sizes
from tilewave.analysis.index_trace import made_of_data
from tilewave.analysis.positions import scalars_of
from tilewave.analysis.ranges import ranges_of
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Write, WriteThrough
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.types import Extent, Memory

WRITES = (Write, WriteThrough)
Start = tuple[int, Extent]
"""A formula, and the extent of the memory axis within which it is known to begin."""


def predicate_edges(kernel: Kernel) -> Kernel:
    edges = _Edges(kernel)

    def guard(op: Op) -> Sequence[Op] | None:
        if isinstance(op, Access) and op.memory.type.space == "global":  # type: ignore[union-attr]
            return [replace(op, guard=edges.of(op))]
        return None

    return rewrite(kernel, guard)


class _Edges:
    def __init__(self, kernel: Kernel) -> None:
        self.positions, self.ranges = scalars_of(kernel.body), ranges_of(kernel)
        self.least: dict[str, int] = {name: least for name, least, _ in kernel.limits}
        """The least size of each dynamic extent that a workgroup takes whole."""
        # Every tile of an output begins inside the memory, because the schedule has been checked; not at indices.
        self.of_data = made_of_data(kernel.body)
        self.starts = {s for op in walk(kernel.body) if isinstance(op, WRITES) for s in self.begun(op)}

    def begun(self, op: Write | WriteThrough) -> list[Start]:
        extents = zip(op.at, op.memory.type.extents, strict=True)
        return [(self.positions.formula(v), n) for v, n in extents if self.is_tiled(n) and v not in self.of_data]

    def is_tiled(self, extent: Extent) -> bool:
        """Whether an extent has as many tiles as fill it; the single tile of a whole extent begins in an empty one."""
        return extent not in self.least if isinstance(extent, str) else extent > 0

    def of(self, op: Access) -> tuple[int, ...]:
        """Return the memory axes along which this tile may be out of bounds."""
        memory = op.memory.type
        assert isinstance(memory, Memory)
        tile = sizes(op)
        extents = enumerate(zip(op.at, memory.extents, strict=True))
        return tuple(axis for axis, (at, n) in extents if not self.inside(at, tile.get(axis, 1), n))

    def inside(self, at: Value, size: int, extent: Extent) -> bool:
        low, high = self.ranges.of(at)
        if low >= 0 and high + size <= (self.least.get(extent, 0) if isinstance(extent, str) else extent):
            return True
        begins_inside = (self.positions.formula(at), extent) in self.starts
        return begins_inside and _divides(size, extent) and self.positions.divisor(at) % size == 0


def _divides(size: int, extent: Extent) -> bool:
    """Whether tiles of that size leave no remainder; in a dynamic extent, only tiles of one element leave none."""
    return extent % size == 0 if isinstance(extent, int) else size == 1
