"""Reads and writes of memories, as authors write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tilewave.errors import DimensionError, DTypeError, ShapeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.core import Value
from tilewave.ir.types import BOOL, INDEX_SCALAR, DType, Tile, dims
from tilewave.lang.dynamic_mapping import DynamicMapping
from tilewave.lang.index_mapping import IndexMapping, Iterator, iterators_in, mapping_between, unit_step
from tilewave.lang.indexed import IndexedPlace, read_at
from tilewave.lang.operands import count, want_tile
from tilewave.lang.ops import select
from tilewave.lang.ragged import at_groups
from tilewave.lang.stored_once import write_once
from tilewave.lang.symbols import Expression, Symbol, Whole
from tilewave.lang.tags import taggable
from tilewave.lang.types import MemoryArgument
from tilewave.lang.values import Traced, describe, extents_of, in_order, repeated, without_single_dims
from tilewave.lang.windows import ends_with_a_group, extent_here, length_of, want_room, window_of
from tilewave.trace import TileTransfer, Trace, current


@taggable
def read(
    memory: MemoryArgument,
    elements_per_thread: int = 0,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Traced] = (),
    bounds: object = None,
    source: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    at: Mapping[Any, Any] | None = None,
) -> Traced:
    """Return the workgroup's tile of `memory`; elements out of bounds are 0.

    `at` gives indices along some dims: numbers, or tiles of integers, which may come from memory. `source` and `target`
    give a mapping by the symbols of `IteratorBindings`. `bounds` has no effect: tilewave finds boundary tiles itself.
    """
    trace = current("read")
    want_memory("read", memory)
    _want_mapping_by_name("read", memory, elements_per_thread)
    per_lane = count(trace, "read", elements_per_thread)
    mapping, values = _mapping(trace, "read", memory, mapping, mapping_dynamic_vals, source, target, at)
    mapping = mapping.named_as(memory.dims) if mapping is not None else None
    if mapping is not None and mapping.dynamic_values:
        return _read_mapped(trace, memory, mapping, values, per_lane)
    at = at_groups(trace, memory, at) if mapping is None else at
    if at is not None:
        return read_at(trace, "read", memory, at, per_lane)
    tile_dims = mapping.tile_dims("outputs") if mapping else memory.dims
    kind = Tile(tuple(extent_here(trace, d, f"read: {memory}") for d in tile_dims), memory.value.type.dtype)
    want_room(trace, kind, tile_dims, f"read: {memory}")
    trace.transfers.append(TileTransfer(memory.name, tuple(tile_dims), kind.dtype, False, trace.walked))
    through = memory.through
    place = _Place(trace, memory, tile_dims, mapping.outputs if mapping else None, mapping.inputs if mapping else None)
    if place.is_window():
        memory.want_room("read", place.axes(), kind.shape)
        value = trace.emit(ir.Read, memory.value, place.at(), place.axes(), through, per_lane, type=kind)
    else:
        value = trace.emit(ir.Gather, memory.value, place.where(), through, type=kind)
    if mapping is None:
        trace.read_from[value] = memory
    else:
        trace.mapped[value] = (memory, mapping)
    its_dims = tuple(trace.goes_with.get(d, d) for d in tile_dims)
    if memory.has_edges:
        both = zip(its_dims, tile_dims, strict=True)
        trace.zero_outside[value] = frozenset(
            mine
            for mine, d in both
            if d in memory.dims
            and d not in memory.laid_out
            and (not mapping or mapping.keeps(d))
            and not ends_with_a_group(trace, d)
        )
    return Traced(trace, value, its_dims)


def _read_mapped(
    trace: Trace, memory: MemoryArgument, mapping: IndexMapping, values: Sequence[Any], per_lane: int
) -> Traced:
    """Return the tile of a mapping with dynamic values."""
    place = DynamicMapping(trace, "read", memory, mapping, values, "outputs", "inputs")
    found = read_at(trace, "read", memory, place.positions(), per_lane)
    missing = {d: extent for d, extent in place.extents.items() if d not in found.dims}
    whole = repeated(trace, found, {**missing, **extents_of(found)}) if missing else found
    return in_order(whole, place.dims)


@taggable
def write(
    tile: Traced,
    memory: MemoryArgument,
    elements_per_thread: int = 0,
    mapping: IndexMapping | None = None,
    mapping_dynamic_vals: Sequence[Traced] = (),
    bounds: object = None,
    source: Sequence[Any] | None = None,
    target: Sequence[Any] | None = None,
    at: Mapping[Any, Any] | None = None,
) -> None:
    """Store the workgroup's tile in `memory`; elements out of bounds are not stored.

    `at` gives indices along some dims: numbers, or tiles of integers, which may come from memory.
    """
    trace = current("write")
    if isinstance(tile, MemoryArgument) and isinstance(memory, Traced):
        what = f"write takes the tile first, then the memory, and `{tile.name}` is a memory"
        raise TraceError(what, loc=here(), remedy=f"write write(tile, {tile.name})")
    want_tile("write", tile)
    want_memory("write", memory)
    _want_mapping_by_name("write", memory, elements_per_thread)
    per_lane = count(trace, "write", elements_per_thread)
    mapping, values = _mapping(trace, "write", memory, mapping, mapping_dynamic_vals, source, target, at)
    if mapping is not None and (mapping.dynamic_values or _ends_early(trace, mapping.tile_dims("inputs"))):
        at = DynamicMapping(trace, "write", memory, mapping, values, "inputs", "outputs").positions()
    at = at_groups(trace, memory, at)
    if at is not None or (mapping is None and _ends_early(trace, memory.dims)):
        write_indexed(trace, "write", tile, memory, at or {})
        return
    tile_dims = mapping.tile_dims("inputs") if mapping else memory.dims
    tile = _with_single_dims(trace, tile, memory, tile_dims)
    _check_write(trace, tile, memory, tile_dims)
    trace.transfers.append(TileTransfer(memory.name, tuple(tile_dims), tile.dtype, True, trace.walked))
    place = _Place(trace, memory, tile.dims, mapping.inputs if mapping else None, mapping.outputs if mapping else None)
    plain = (d for d in memory.dims if mapping is None or mapping.keeps(d))
    memory.want_same_lengths(plain, partial(length_of, trace))
    if trace.mask is not None:
        tile = _where_it_holds(trace, tile, place)
    if place.is_window():
        memory.want_room("write", place.axes(), tile.type.shape)
        write_once(trace, tile.value, memory.value, place.at(), place.axes(), per_lane)
    else:
        trace.effect(ir.Scatter, tile.value, memory.value, place.where())


def _ends_early(trace: Trace, dims: Sequence[Any]) -> bool:
    """Return whether the elements of a tile may end before those of the memory do."""
    return any(ends_with_a_group(trace, d) for d in dims)


AT_THESE = (
    "an element goes to each place that the indices and the other dims of the memory give: give the tile those dims, "
    "or indices along the dims that it lacks: at={…, N: 0}"
)


def write_indexed(
    trace: Trace, op: str, tile: Traced, memory: MemoryArgument, at: Mapping[Any, Any], combine: str = ""
) -> None:
    place = IndexedPlace(trace, op, memory, at)
    dims = tuple(place.extents)
    tile = _with_dims(trace, tile, place.extents)
    _check_fits(op, tile, memory, place.extents, AT_THESE)
    trace.transfers.append(TileTransfer(memory.name, dims, tile.dtype, True, trace.walked))
    tile = in_order(tile, dims)
    if trace.mask is None and place.is_window and not combine:
        starts, axes = place.window()
        trace.effect(ir.Write, tile.value, memory.value, starts, axes, 0, place.indexed_axes)
        return
    positions = place.positions(trace.mask)
    trace.effect(ir.WriteIndexed, tile.value, memory.value, positions, place.in_runs(), combine)


def want_atomic(op: str, dtype: DType, combine: str) -> None:
    """Refuse dtypes that no target combines atomically."""
    if combine in ("and", "or") and not dtype.is_int:
        raise DTypeError(f"{op} combines the bits of integers, not {dtype}", loc=here(), remedy="use an array of i32")
    if dtype == BOOL or (dtype.is_float and dtype.bits < 16):
        remedy = "use an array of f32, cast(tile, f32)" if dtype.is_float else "use an array of i32, cast(tile, i32)"
        raise DTypeError(f"{op}: no target combines {dtype} atomically", loc=here(), remedy=remedy)


def _atomic(name: str, combine: str) -> Any:
    def apply(
        tile: Traced,
        memory: MemoryArgument,
        elements_per_thread: int = 0,
        mapping: IndexMapping | None = None,
        mapping_dynamic_vals: Sequence[Traced] = (),
        at: Mapping[Any, Any] | None = None,
    ) -> None:
        trace = current(name)
        want_tile(name, tile)
        want_memory(name, memory)
        _want_mapping_by_name(name, memory, elements_per_thread)
        want_atomic(name, memory.value.type.dtype, combine)
        count(trace, name, elements_per_thread)
        mapping, values = _mapping(trace, name, memory, mapping, mapping_dynamic_vals, None, None, at)
        if mapping is not None:  # its inputs index the memory, as those of a read do
            at = DynamicMapping(trace, name, memory, mapping, values, "outputs", "inputs").positions()
        write_indexed(trace, name, tile, memory, at or {}, combine)

    apply.__name__ = name
    apply.__doc__ = (
        f"Combine each element of a tile with what `memory` has, by `{combine}`, atomically and in any order; elements "
        "out of bounds are left out. The inputs of a mapping are positions in the memory."
    )
    return taggable(apply)


atomic_add, atomic_min, atomic_max = (_atomic(f"atomic_{how}", how) for how in ("add", "min", "max"))
atomic_and, atomic_or = (_atomic(f"atomic_{how}", how) for how in ("and", "or"))


def _with_single_dims(trace: Trace, tile: Traced, memory: MemoryArgument, tile_dims: tuple[Any, ...]) -> Traced:
    """Return the tile with missing dims added, where the memory takes one element along each, and without dims of one
    element that the memory does not have."""
    return _with_dims(trace, tile, {d: extent_here(trace, d, f"write: {memory}") for d in tile_dims})


def _with_dims(trace: Trace, tile: Traced, extents: Mapping[Any, int]) -> Traced:
    tile = without_single_dims(trace, tile, [d for d in tile.dims if d not in extents])
    missing = [d for d in extents if d not in tile.dims]
    if not missing or any(d not in extents for d in tile.dims) or any(extents[d] > 1 for d in missing):
        return tile
    return repeated(trace, tile, {**dict.fromkeys(missing, 1), **extents_of(tile)})


def _check_write(trace: Trace, tile: Traced, memory: MemoryArgument, tile_dims: tuple[Any, ...]) -> None:
    declared = f"declare {memory.name} as Memory[{', '.join(map(str, tile.dims))}, …], or write another tile"
    _check_fits("write", tile, memory, {d: extent_here(trace, d, f"write: {memory}") for d in tile_dims}, declared)


def _check_fits(op: str, tile: Traced, memory: MemoryArgument, extents: Mapping[Any, int], remedy: str) -> None:
    if dict(zip(tile.dims, tile.type.shape, strict=True)) != extents:
        expected = f"[{', '.join(map(str, extents))}] ({dims(tuple(extents.values()))})"
        raise ShapeError(
            f"{op}: {describe(tile)} does not fit {memory.name}, which takes {expected}",
            loc=here(),
            remedy=remedy,
        )
    if tile.dtype != memory.value.type.dtype:
        wanted = memory.value.type.dtype
        raise DTypeError(
            f"{op}: the tile is {tile.dtype}, but {memory.name} holds {wanted}",
            loc=here(),
            remedy=f"write cast(tile, {wanted}), or declare {memory.name} as Memory[…, {tile.dtype}]",
        )


def _where_it_holds(trace: Trace, tile: Traced, place: _Place) -> Traced:
    """Return the tile where the enclosing condition holds, and what the memory has elsewhere."""
    mask: Traced = trace.mask
    strange = next((d for d in mask.dims if d not in tile.dims), None)
    if strange is not None:
        raise ShapeError(
            f"write: the condition spans {strange}, which {describe(tile)} has not",
            loc=here(),
            remedy="an element is stored or not: the condition has no dims but those of the tile",
        )
    memory = place.memory.value
    if place.is_window():
        old = trace.emit(ir.Read, memory, place.at(), place.axes(), type=tile.type, name="old")
    else:
        old = trace.emit(ir.Gather, memory, place.where(), type=tile.type, name="old")
    return select(mask, tile, tile.make(old))


class _Place:
    """The positions of a tile's elements in a memory."""

    def __init__(
        self, trace: Trace, memory: MemoryArgument, tile_dims: tuple[Any, ...], tile_side: Any, memory_side: Any
    ) -> None:
        self.trace, self.memory, self.dims = trace, memory, tile_dims
        if tile_side is None:
            tile_side = {d: IndexMapping.iterator(i) for i, d in enumerate(tile_dims)}
            memory_side = tile_side
        missing = [d for d in memory.dims if d not in memory_side]
        if missing:
            what = f"the mapping does not say where {missing[0]} of {memory} is"
            raise DimensionError(what, loc=here(), remedy=_named(missing[0], memory, memory_side))
        self.dim_of: dict[Iterator, Any] = {tile_side[d]: d for d in tile_dims}
        self.positions: list[Expression] = [memory_side[d] for d in memory.dims]
        self.steps = [unit_step(p) or self.single(p) for p in self.positions]

    def single(self, position: Expression) -> tuple[Iterator, Expression] | None:
        """Return (i, formula) where a formula uses one iterator, along which the tile has a single element."""
        used = iterators_in(position)
        if len(used) > 1 or any(extent_here(self.trace, self.dim_of[i], str(self.memory)) > 1 for i in used):
            return None
        return used.pop(), position

    def start(self, iterator: Iterator) -> Any:
        return self.memory.start(window_of(self.trace, self.dim_of[iterator], str(self.memory)))

    def is_window(self) -> bool:
        """Return whether each tile axis is along one memory axis with unit step, or has a single element there."""
        if not self.memory.has_edges and any(step is None or step[1] != NOT_FURTHER for step in self.steps):
            return False
        used = [step[0] for step in self.steps if step is not None and step[0] is not None]
        return None not in self.steps and sorted(map(str, used)) == sorted(map(str, self.dim_of))

    def at(self) -> tuple[Value, ...]:
        positions = []
        for step in self.steps:
            assert step is not None
            iterator, rest = step
            start = self.start(iterator) if iterator is not None else 0
            if iterator is not None and iterators_in(rest):
                position = rest.evaluate({**self.trace.symbols, iterator: start})
            else:
                position = _plus(start, rest.evaluate(self.trace.symbols))
            positions.append(self.trace.index(position))
        return tuple(positions)

    def axes(self) -> tuple[int, ...]:
        along = {self.dim_of[step[0]]: axis for axis, step in enumerate(self.steps) if step and step[0] is not None}
        return tuple(along[d] for d in self.dims)

    def where(self) -> Any:
        """Return a block from an element's position in the tile to its position in memory."""
        trace = self.trace
        args = {i: trace.fresh("i", INDEX_SCALAR) for i in self.dim_of}
        with trace.region():
            here_are: dict[Symbol, Any] = {i: _plus(trace.number(arg), self.start(i)) for i, arg in args.items()}
            positions = [p.evaluate({**trace.symbols, **here_are}) for p in self.positions]
            return trace.block(args.values(), [trace.index(p) for p in positions])


def _named(dim: Expression, memory: MemoryArgument, side: Mapping[Expression, Expression]) -> str:
    """Return how to name a memory's dim in a mapping: by the dim itself, even where it is an expression."""
    part = next((d for d in side if d not in memory.dims and d in tuple(dim.symbols())), None)
    return f"add {dim}: …" if part is None else f"write {dim} in the place of {part}"


NOT_FURTHER = Whole(0)
"""The offset of a window in a memory without boundary tiles."""


def _plus(a: Any, b: Any) -> Any:
    return b if isinstance(a, int) and a == 0 else a if isinstance(b, int) and b == 0 else a + b


def want_memory(op: str, x: object) -> None:
    if not isinstance(x, MemoryArgument):
        found = describe(x) if isinstance(x, Traced) else repr(x)
        read_already = op == "read" and isinstance(x, Traced)
        remedy = "it is a tile already: leave read out" if read_already else "name a parameter that is a Memory[…]"
        raise TraceError(f"{op} needs one of the kernel's memories, not {found}", loc=here(), remedy=remedy)


NO_MAPPING = (
    "give them to a mapping, IndexMapping(…, inputs={M: IndexMapping.dynamic_val(0), …}), or leave both out and write "
    "at={M: indices}"
)


def _mapping(
    trace: Trace,
    op: str,
    memory: MemoryArgument,
    mapping: IndexMapping | None,
    values: Sequence[Any] | Traced,
    source: Sequence[Any] | None,
    target: Sequence[Any] | None,
    at: Mapping[Any, Any] | None,
) -> tuple[IndexMapping | None, Sequence[Any]]:
    """Return the mapping of an access, from `mapping=` or from `source=` and `target=`, and its dynamic values."""
    given = values if isinstance(values, (list, tuple)) else (values,)
    _want_mapping(op, mapping)
    if at is not None and (mapping is not None or source is not None or target is not None):
        what = f"{op}: at and a mapping both say where the elements are in {memory}"
        raise TraceError(what, loc=here(), remedy="leave one of them out; at={V: rows} gives the indices along V alone")
    if source is None and target is None:
        if given and mapping is None:
            what = f"{op}: mapping_dynamic_vals are indices of a mapping, and there is none"
            raise TraceError(what, loc=here(), remedy=NO_MAPPING)
        return mapping, given
    if source is None or target is None or mapping is not None:
        what = f"{op}: source and target are given together, in the place of a mapping"
        raise TraceError(what, loc=here(), remedy=f"write {op}(…, source=(m, k), target=(m, k)), or mapping=…")
    return mapping_between(op, memory, trace.bindings, source, target)


def _want_mapping(op: str, x: object) -> None:
    if x is not None and not isinstance(x, IndexMapping):
        raise TraceError(
            f"{op}: mapping is an IndexMapping, not {x!r}",
            loc=here(),
            remedy="write mapping=IndexMapping(num_iterators=2, inputs={M: …, N: …}, outputs={M: …, N: …})",
        )


def _want_mapping_by_name(op: str, memory: MemoryArgument, elements_per_thread: object) -> None:
    """Refuse a mapping in the place of `elements_per_thread`, which precedes it."""
    if isinstance(elements_per_thread, IndexMapping):
        given = memory.name if op == "read" else f"tile, {memory.name}"
        what = f"{op}: the mapping is in the place of elements_per_thread"
        raise TraceError(what, loc=here(), remedy=f"give it by name: {op}({given}, mapping=…)")
