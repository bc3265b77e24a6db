"""Positions that a kernel computes or loads: `read(table, at={V: rows})`, and the same for writes.

A dim that `at` names has no window. A number moves the tile along it, and the tile lacks the dim; a tile of indices has
its own dims in the place of that dim:

    Memory[V, D]    at={V: 3}                 [D]       one row
    Memory[V, D]    at={V: rows}, rows [T]    [T, D]    one row for each element of `rows`
    Memory[T, V]    at={V: label}, label [T]  [T]       of each row the element that its label says
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tilewave.errors import DimensionError, DTypeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.core import Value
from tilewave.ir.types import BOOL, INDEX, Scalar, Tile
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, describe, extents_of, index_of, repeated, scalar_of
from tilewave.lang.windows import (
    end_of,
    ends_with_a_group,
    ends_with_a_tile,
    extent_here,
    length_of,
    want_room,
    window_of,
)
from tilewave.trace import TileTransfer, Trace


class IndexedPlace:
    """The positions in a memory of a tile some of whose dims are given by indices."""

    def __init__(self, trace: Trace, op: str, memory: MemoryArgument, at: Mapping[Any, Any]) -> None:
        self.trace, self.memory = trace, memory
        for d in at:
            if d not in memory.dims:
                named = ", ".join(map(str, memory.dims))
                what = f"{op}: at names {d}, which {memory} has not"
                raise DimensionError(what, loc=here(), remedy=f"its dims are {named}")
        if op != "read":
            memory.want_same_lengths((d for d in memory.dims if d not in at), partial(length_of, trace))
        self.given = {d: self._in_bounds(index_along(trace, op, d, at[d])) for d in memory.dims if d in at}
        self.extents = self._extents(op)

    def _extents(self, op: str) -> dict[Any, int]:
        """Return the length of the tile along each of its dims, in the memory's order."""
        found: dict[Any, int] = {}
        for d in self.memory.dims:
            if d not in self.given:
                self._add(op, found, {d: extent_here(self.trace, d, f"{op}: {self.memory}")})
            else:
                self._add(op, found, extents_of(self.given[d]))
        return found

    def _add(self, op: str, found: dict[Any, int], more: Mapping[Any, int]) -> None:
        for d, extent in more.items():
            if found.setdefault(d, extent) != extent:
                raise DimensionError(f"{op}: indices have {found[d]} and {extent} elements along {d}", loc=here())

    @property
    def has_tiles(self) -> bool:
        """Return whether the elements form no window: indices are tiles, or the window may end with a group."""
        return any(x.dims for x in self.given.values()) or any(map(self._is_grouped, self.memory.dims))

    def _is_grouped(self, dim: Any) -> bool:
        """Return whether a window along a dim ends with its group."""
        return dim not in self.given and ends_with_a_group(self.trace, dim)

    @property
    def is_window(self) -> bool:
        """Return whether the elements form a window, which of an array may be out of bounds."""
        return not self.has_tiles and self.memory.has_edges

    @property
    def indexed_axes(self) -> tuple[int, ...]:
        """The axes of the memory along which indices give the position."""
        return tuple(axis for axis, d in enumerate(self.memory.dims) if d in self.given)

    def window(self) -> tuple[tuple[Value, ...], tuple[int, ...]]:
        """Return where the tile begins along each axis of the memory, and the axes that it runs along."""
        starts = [self.given[d] if d in self.given else self._start(d) for d in self.memory.dims]
        axes = tuple(axis for axis, d in enumerate(self.memory.dims) if d not in self.given)
        return tuple(x.value for x in starts), axes

    def numbers(self, dims: Sequence[Any]) -> tuple[Value, ...] | None:
        """Return where the tile begins along some dims of the memory; None where indices along one are a tile."""
        if any(self._is_grouped(d) or (d in self.given and self.given[d].dims) for d in dims):
            return None
        return tuple((self.given[d] if d in self.given else self._start(d)).value for d in dims)

    def positions(self, mask: Traced | None = None) -> tuple[Value, ...]:
        """Return a tile of positions for each axis of the memory; those of elements that do not count are -1."""
        first, *others = (repeated(self.trace, self._along(d), self.extents) for d in self.memory.dims)
        if mask is not None:
            first = self._where(repeated(self.trace, mask, self.extents), first)
        return tuple(x.value for x in (first, *others))

    def _where(self, holds: Traced, places: Traced) -> Traced:
        nowhere = self.trace.const(-1, places.type)
        return places.make(self.trace.emit(ir.Select, holds.value, places.value, nowhere, type=places.type))

    def _in_bounds(self, indices: Traced) -> Traced:
        """Return indices with -1 for those that belong to no element: of the boundary tiles of their own dims."""
        for d, extent in extents_of(indices).items():
            if d in self.trace.windows and not ends_with_a_tile(self.trace, d, extent):
                counted = Traced(self.trace, self.trace.emit(ir.Iota, type=Tile((extent,), INDEX)), (d,))
                inside = counted + scalar_of(self.trace, self.trace.windows[d].start, INDEX) < end_of(self.trace, d)
                indices = self._where(repeated(self.trace, inside, extents_of(indices)), indices)
        return indices

    def read(self, positions: tuple[Value, ...], kind: Tile) -> Value:
        """Return the elements at these positions."""
        memory = self.memory.value
        if self.memory.has_edges:
            return self.trace.emit(ir.ReadIndexed, memory, positions, self.in_runs(), type=kind)
        return self.trace.emit(ir.ReadIndexedShared, memory, positions, type=kind)

    def in_runs(self) -> bool:
        """Whether neighbours along the last dim are neighbours in memory, in tiles from multiples of their length."""
        last = self.memory.dims[-1]
        if (
            last in self.given
            or next(reversed(self.extents)) != last
            or any(last in x.dims for x in self.given.values())
        ):
            return False
        return window_of(self.trace, last, str(self.memory)).number is not None

    def _start(self, dim: Any) -> Traced:
        return scalar_of(self.trace, self.memory.start(window_of(self.trace, dim, str(self.memory))), INDEX)

    def _along(self, dim: Any) -> Traced:
        """Return the positions along a dim: the indices, or those of the window."""
        if dim in self.given:
            return self.given[dim]
        counted = self.trace.emit(ir.Iota, type=Tile((self.extents[dim],), INDEX))
        places: Traced = Traced(self.trace, counted, (dim,)) + self._start(dim)
        if self._is_grouped(dim):
            return self._where(places < scalar_of(self.trace, end_of(self.trace, dim), INDEX), places)
        return places


def read_at(trace: Trace, op: str, memory: MemoryArgument, at: Mapping[Any, Any], per_lane: int = 0) -> Traced:
    """Return the elements of a memory at indices; 0 out of bounds."""
    place = IndexedPlace(trace, op, memory, at)
    if not place.extents:
        return _read_number(trace, memory, place)
    dims = tuple(place.extents)
    kind = Tile(tuple(place.extents.values()), memory.value.type.dtype)
    want_room(trace, kind, dims, f"{op}: {memory}")
    trace.transfers.append(TileTransfer(memory.name, dims, kind.dtype, False, trace.walked))
    if not place.is_window:
        value = place.read(place.positions(), kind)
    else:
        value = trace.emit(ir.Read, memory.value, *place.window(), memory.through, per_lane, type=kind)
        trace.zero_outside[value] = frozenset(dims).difference(memory.laid_out)
    return Traced(trace, value, dims)


def _read_number(trace: Trace, memory: MemoryArgument, place: IndexedPlace) -> Traced:
    """Return one element of a memory as a number; 0 out of bounds."""
    kind = Tile((1,), memory.value.type.dtype)
    starts, _ = place.window()
    trace.transfers.append(TileTransfer(memory.name, (), kind.dtype, False, trace.walked))
    if place.is_window:
        one = trace.emit(ir.Read, memory.value, starts, (len(starts) - 1,), type=kind)
    else:
        positions = tuple(trace.emit(ir.Broadcast, x, (), type=Tile((1,), INDEX)) for x in starts)
        one = place.read(positions, kind)
    how = "any" if kind.dtype == BOOL else "max"  # a reduction of one element is that element
    return Traced(trace, trace.emit(ir.Reduce, one, (0,), how, type=Scalar(kind.dtype)))


def index_along(trace: Trace, op: str, dim: Any, x: Any) -> Traced:
    """Return an index, or a tile of indices."""
    if isinstance(x, MemoryArgument):
        raise TraceError(f"{op}: {x} is a memory, and no index along {dim}", loc=here(), remedy=f"write {x.read_as}")
    if not isinstance(x, Traced) or not x.dims:
        return index_of(trace, op, x)
    if not x.dtype.is_int:
        what = f"{op}: the indices along {dim} are {describe(x)}"
        raise DTypeError(what, loc=here(), remedy="indices are integers: write cast(x, i32)")
    return x if x.dtype == INDEX else x.make(trace.cast(x.value, INDEX))
