"""A memory cut into blocks, such that every tile that a kernel reads or writes is made of whole ones.

The block's side along an axis is the greatest that divides all tiles and all the places where they begin. So tiles that
overlap share blocks, and a GEMM's tiles are one block each.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, prod
from typing import Any

import numpy as np

from tilewave.analysis.index_trace import Visit
from tilewave.ir.core import Value
from tilewave.ir.ops import Gather, Read, Scatter, Write
from tilewave.records import dataclass
from tilewave.sim.accesses import NO_STREAM, Array

LINE_BYTES = 128
FINEST = 8
"""A tile is cut into at most so many blocks along an axis; a finer overlap is rounded to that."""
MemoryOp = Read | Write | Gather | Scatter


def tile_of(op: MemoryOp) -> tuple[int, ...]:
    """What one visit covers along each axis of the memory; single elements for gathers and scatters."""
    if isinstance(op, (Gather, Scatter)):
        return (1,) * len(op.memory.type.shape)
    shape = op.tile.type.shape if isinstance(op, Write) else op.results[0].type.shape
    along = dict(zip(op.axes, shape, strict=True))
    return tuple(along.get(axis, 1) for axis in range(len(op.memory.type.shape)))


class VisitStarts:
    """Keys for the starts of visits along an axis: one constant for all workgroups, or an array by workgroup."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}
        self._kept: list[Array] = []

    def key(self, at: Array) -> int:
        """Return a key that is equal for the same array in every loop iteration, and -1 for a constant."""
        if len(at) == 1 or at.strides[0] == 0:
            return -1
        where = (at.__array_interface__["data"][0], at.strides[0], len(at))
        if where not in self._known:
            self._known[where] = len(self._known)
            self._kept.append(at)  # or its address could be given to another
        return self._known[where]


@dataclass(frozen=True)
class Blocks:
    """One memory and its blocks, numbered from `first` on."""

    memory: Value
    side: tuple[int, ...]
    first: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.type.shape

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-extent // side) for extent, side in zip(self.shape, self.side, strict=True))

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.counts[axis + 1 :]) for axis in range(len(self.counts)))

    def bytes_of(self, numbers: Array) -> Array:
        """Return the bytes of the blocks with these numbers, without the out-of-bounds part of boundary blocks."""
        total = np.full(numbers.shape, float(self.memory.type.dtype.bytes))
        where = np.unravel_index(numbers - self.first, self.counts)
        for at, extent, side in zip(where, self.shape, self.side, strict=True):
            total *= np.minimum(side, extent - at * side)
        return total

    def numbers(self, op: MemoryOp, at: tuple[Array, ...]) -> Array:
        """[workgroup, i]: the blocks of each workgroup's tile; NO_STREAM for those outside the memory."""
        tile = tile_of(op)
        found = np.full((len(at[0]), 1), self.first, np.int64)
        inside = np.ones((len(at[0]), 1), bool)
        for begin, size, side, count, stride in zip(at, tile, self.side, self.counts, self.strides, strict=True):
            place = (begin // side)[:, None] + np.arange(-(-size // side))
            found = (found[:, :, None] + (place * stride)[:, None, :]).reshape(len(begin), -1)
            inside = (inside[:, :, None] & ((place >= 0) & (place < count))[:, None, :]).reshape(len(begin), -1)
        return np.where(inside, found, NO_STREAM)


def cut(visits: Iterable[Visit]) -> dict[Value, Blocks]:
    """Every memory that is visited, cut into blocks."""
    sides: dict[Value, list[int]] = {}
    largest: dict[Value, list[int]] = {}
    positions = VisitStarts()
    seen: set[tuple[str, int, int]] = set()
    for visit in visits:
        memory, tile = visit.op.memory, tile_of(visit.op)
        side = sides.setdefault(memory, [0] * len(tile))
        most = largest.setdefault(memory, [1] * len(tile))
        for axis, (at, size) in enumerate(zip(visit.at, tile, strict=True)):
            most[axis] = max(most[axis], size)
            key = positions.key(at)
            if key >= 0 and (memory.name, axis, key) in seen:
                side[axis] = gcd(side[axis], size)
                continue
            seen.add((memory.name, axis, key))
            begins = int(np.gcd.reduce(at)) if key >= 0 else int(at[0]) if len(at) else 0
            side[axis] = gcd(side[axis], size, begins)
    return _numbered(sides, largest)


def _numbered(sides: dict[Value, list[int]], largest: dict[Value, list[int]]) -> dict[Value, Blocks]:
    blocks: dict[Value, Blocks] = {}
    first = 0
    for memory, side in sides.items():
        coarse = [max(s, -(-most // FINEST)) for s, most in zip(side, largest[memory], strict=True)]
        if all(most == 1 for most in largest[memory]):  # single elements: a cache knows lines
            coarse = [1] * (len(side) - 1) + [max(1, LINE_BYTES // memory.type.dtype.bytes)]
        blocks[memory] = Blocks(memory, tuple(coarse), first)
        first += prod(blocks[memory].counts)
    return blocks


def written_bytes(visit: Visit) -> Array:
    """Return the in-bounds bytes that each workgroup writes."""
    memory = visit.op.memory.type
    total: Any = np.full(len(visit.workgroups), float(memory.dtype.bytes))
    for axis, (begin, size, extent) in enumerate(zip(visit.at, tile_of(visit.op), memory.shape, strict=True)):
        end = np.minimum(begin + size, np.minimum(extent, visit.end.get(axis, extent)))
        total = total * np.clip(end - np.maximum(begin, 0), 0, None)
    return np.asarray(total)
