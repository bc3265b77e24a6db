"""The ops of a kernel: each function adds ops to the kernel being traced and returns their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.errors import (
    ConstraintError,
    DimensionError,
    DTypeError,
    ShapeError,
    SymbolError,
    TraceError,
    here,
)
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.types import BOOL, F32, F64, FLOAT8, I8, I32, INDEX, INDEX_SCALAR, DType, Scalar, Tile, dims
from tilewave.lang.constraints import NAME_INSTRUCTION, MMAType
from tilewave.lang.index_mapping import IndexMapping, Iterator, iterators_in, mapping_between, unit_step
from tilewave.lang.indexed import IndexedPlace
from tilewave.lang.reductions import inside_of
from tilewave.lang.symbols import Expression, Symbol, Whole, want_no_hardware
from tilewave.lang.tags import taggable
from tilewave.lang.types import MemoryArgument, want_dtype
from tilewave.lang.values import (
    Traced,
    beside,
    describe,
    extents_of,
    in_order,
    index_of,
    literal,
    one_shape,
    repeated,
    scalar_of,
    spread,
    together,
    want_number,
    without_single_dims,
)
from tilewave.lang.windows import extent_here, want_room, window_of
from tilewave.trace import TileProduct, TileTransfer, Trace, current

# -- memory ---------------------------------------------------------------------------------------------------------


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
    _want_memory("read", memory)
    _want_mapping_by_name("read", memory, elements_per_thread)
    per_lane = _count(trace, "read", elements_per_thread)
    mapping = _mapping(trace, "read", memory, mapping, mapping_dynamic_vals, source, target)
    if at is not None:
        return _read_indexed(trace, memory, at, per_lane)
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
    its_dims = tuple(trace.goes_with.get(d, d) for d in tile_dims)
    if memory.has_edges:
        both = zip(its_dims, tile_dims, strict=True)
        trace.zero_outside[value] = frozenset(
            mine for mine, d in both if d in memory.dims and (not mapping or mapping.keeps(d))
        )
    return Traced(trace, value, its_dims)


def _read_indexed(trace: Trace, memory: MemoryArgument, at: Mapping[Any, Any], per_lane: int) -> Traced:
    place = IndexedPlace(trace, "read", memory, at)
    if not place.extents:
        return _read_number(trace, memory, place)
    dims = tuple(place.extents)
    kind = Tile(tuple(place.extents.values()), memory.value.type.dtype)
    want_room(trace, kind, dims, f"read: {memory}")
    trace.transfers.append(TileTransfer(memory.name, dims, kind.dtype, False, trace.walked))
    if place.has_tiles:
        value = trace.emit(ir.ReadIndexed, memory.value, place.positions(), place.in_runs(), type=kind)
    else:
        value = trace.emit(ir.Read, memory.value, *place.window(), memory.through, per_lane, type=kind)
    return Traced(trace, value, dims)


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
    _want_tile("write", tile)
    _want_memory("write", memory)
    _want_mapping_by_name("write", memory, elements_per_thread)
    per_lane = _count(trace, "write", elements_per_thread)
    mapping = _mapping(trace, "write", memory, mapping, mapping_dynamic_vals, source, target)
    if at is not None:
        _write_indexed(trace, "write", tile, memory, at)
        return
    tile_dims = mapping.tile_dims("inputs") if mapping else memory.dims
    tile = _with_single_dims(trace, tile, memory, tile_dims)
    _check_write(trace, tile, memory, tile_dims)
    trace.transfers.append(TileTransfer(memory.name, tuple(tile_dims), tile.dtype, True, trace.walked))
    place = _Place(trace, memory, tile.dims, mapping.inputs if mapping else None, mapping.outputs if mapping else None)
    if trace.mask is not None:
        tile = _where_it_holds(trace, tile, place)
    if place.is_window():
        memory.want_room("write", place.axes(), tile.type.shape)
        trace.effect(ir.Write, tile.value, memory.value, place.at(), place.axes(), per_lane)
    else:
        trace.effect(ir.Scatter, tile.value, memory.value, place.where())


def _write_indexed(
    trace: Trace, op: str, tile: Traced, memory: MemoryArgument, at: Mapping[Any, Any], combine: str = ""
) -> None:
    place = IndexedPlace(trace, op, memory, at)
    dims = tuple(place.extents)
    tile = _with_dims(trace, tile, place.extents)
    _check_fits(op, tile, memory, place.extents)
    trace.transfers.append(TileTransfer(memory.name, dims, tile.dtype, True, trace.walked))
    tile = in_order(tile, dims)
    if trace.mask is None and not place.has_tiles and not combine:
        starts, axes = place.window()
        trace.effect(ir.Write, tile.value, memory.value, starts, axes, 0, place.indexed_axes)
        return
    positions = place.positions(trace.mask)
    trace.effect(ir.WriteIndexed, tile.value, memory.value, positions, place.in_runs(), combine)


def _read_number(trace: Trace, memory: MemoryArgument, place: IndexedPlace) -> Traced:
    """Return one element of a memory as a number; 0 out of bounds."""
    kind = Tile((1,), memory.value.type.dtype)
    starts, _ = place.window()
    trace.transfers.append(TileTransfer(memory.name, (), kind.dtype, False, trace.walked))
    one = trace.emit(ir.Read, memory.value, starts, (len(starts) - 1,), type=kind)
    how = "any" if kind.dtype == BOOL else "max"  # a reduction of one element is that element
    return Traced(trace, trace.emit(ir.Reduce, one, (0,), how, type=Scalar(kind.dtype)))


def _atomic(name: str, combine: str) -> Any:
    def apply(tile: Traced, memory: MemoryArgument, at: Mapping[Any, Any] | None = None) -> None:
        trace = current(name)
        _want_tile(name, tile)
        _want_memory(name, memory)
        _write_indexed(trace, name, tile, memory, at or {}, combine)

    apply.__name__ = name
    apply.__doc__ = (
        f"Combine each element of a tile with what `memory` has, by `{combine}`, atomically and in any order; elements "
        "out of bounds are left out."
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
    _check_fits("write", tile, memory, {d: extent_here(trace, d, f"write: {memory}") for d in tile_dims})


def _check_fits(op: str, tile: Traced, memory: MemoryArgument, extents: Mapping[Any, int]) -> None:
    if dict(zip(tile.dims, tile.type.shape, strict=True)) != extents:
        expected = f"[{', '.join(map(str, extents))}] ({dims(tuple(extents.values()))})"
        raise ShapeError(
            f"{op}: {describe(tile)} does not fit {memory.name}, which takes {expected}",
            loc=here(),
            remedy=f"declare {memory.name} as Memory[{', '.join(map(str, tile.dims))}, …], or write another tile",
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


def _want_memory(op: str, x: object) -> None:
    if not isinstance(x, MemoryArgument):
        found = describe(x) if isinstance(x, Traced) else repr(x)
        read_already = op == "read" and isinstance(x, Traced)
        remedy = "it is a tile already: leave read out" if read_already else "name a parameter that is a Memory[…]"
        raise TraceError(f"{op} needs one of the kernel's memories, not {found}", loc=here(), remedy=remedy)


BY_DATA = (
    "the positions of tiles are known before there is data: store the elements in the order in which they are read, by "
    "a kernel or on the host, or write the position as a formula of an IndexMapping"
)


def _mapping(
    trace: Trace,
    op: str,
    memory: MemoryArgument,
    mapping: IndexMapping | None,
    by_data: Sequence[Traced],
    source: Sequence[Any] | None,
    target: Sequence[Any] | None,
) -> IndexMapping | None:
    """Return the mapping of a read or write, from `mapping=` or from `source=` and `target=`."""
    if by_data:
        what = f"{op}: mapping_dynamic_vals are positions in {memory} that depend on data"
        raise TraceError(what, loc=here(), remedy=BY_DATA)
    _want_mapping(op, mapping)
    if source is None and target is None:
        return mapping
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


def _count(trace: Trace, op: str, given: Any) -> int:
    """Return the elements for each lane; 0 where the author gives none."""
    x = given.evaluate(trace.symbols) if isinstance(given, Expression) else given
    if isinstance(x, bool) or not isinstance(x, int) or x < 0:
        remedy = "write elements_per_thread=8, say, or leave it out"
        raise TraceError(f"{op}: elements_per_thread is {given!r}, no number of elements", loc=here(), remedy=remedy)
    return x


def _want_tile(op: str, x: object) -> None:
    if isinstance(x, MemoryArgument):
        raise TraceError(f"{op} needs a tile, and `{x.name}` is a memory", loc=here(), remedy=f"write {x.read_as}")
    if not isinstance(x, Traced) or not x.dims:
        found = describe(x) if isinstance(x, Traced) else "nothing" if x is None else repr(x)
        remedy = "a tile is read(memory), Register[M, N, f32](0.0), or what is computed from them"
        raise TraceError(f"{op} needs a tile, not {found}", loc=here(), remedy=remedy)


# -- matrix products ------------------------------------------------------------------------------------------------


@taggable
def mma(a: Traced, b: Traced, acc: Traced | None = None, mma_type: MMAType | None = None) -> Traced:
    """Return acc + a · bᵀ over the dimension that a and b share and acc lacks; `mma_type` asks for an instruction."""
    trace = current("mma")
    if mma_type is not None and not isinstance(mma_type, MMAType):
        raise ConstraintError(f"mma: mma_type is {mma_type!r}, no MMAType", loc=here(), remedy=NAME_INSTRUCTION)
    if acc is None:
        remedy = "write mma(a, b, acc); without sums to go on with, acc is Register[M, N, f32](0.0)"
        raise TraceError("mma adds products to sums, and none are given", loc=here(), remedy=remedy)
    for x in (a, b, acc):
        _want_tile("mma", x)
    _check_product(trace, a, b, acc)
    *batch, rows, cols = acc.dims
    if cols in a.dims and rows in b.dims and rows not in a.dims:
        a, b = b, a
    (depth,) = (d for d in a.dims if d in b.dims and d not in acc.dims)
    trace.products.append(TileProduct(rows, cols, depth, tuple(batch), a.dtype, acc.dtype, trace.walked))
    x = _whole_depth(trace, in_order(a, (*batch, rows, depth)), depth)
    y = _whole_depth(trace, in_order(b, (*batch, cols, depth)), depth)
    wish = mma_type.value if mma_type else ""
    return acc.make(trace.emit(ir.Mma, x.value, y.value, acc.value, wish, type=acc.type))


def _whole_depth(trace: Trace, x: Traced, depth: Any) -> Traced:
    """Return x with zeros past the end of the K dimension, where it may have something else there."""
    inside = None if depth in trace.zero_outside.get(x.value, ()) else inside_of(trace, x, depth, "mma")
    if inside is None:
        return x
    zero = trace.const(0.0 if x.dtype.is_float else 0, x.type)
    return x.make(trace.emit(ir.Select, inside, x.value, zero, type=x.type))


def _check_product(trace: Trace, a: Traced, b: Traced, acc: Traced) -> None:
    shared = [d for d in a.dims if d in b.dims and d not in acc.dims]
    mine = [d for d in a.dims if d in acc.dims and d not in b.dims]
    theirs = [d for d in b.dims if d in acc.dims and d not in a.dims]
    batch = [d for d in acc.dims if d in a.dims and d in b.dims]
    fits = len(shared) == len(mine) == len(theirs) == 1 and set(acc.dims[:-2]) == set(batch)
    fits = fits and len(a.dims) == len(b.dims) == len(acc.dims) >= 2
    if not fits or not _extents_agree(a, b, acc):
        first = f"mma: a is {_plain(a)} and b is {_plain(b)}, but the accumulator is {_plain(acc)}"
        raise ShapeError(first, loc=here(), remedy=_product_remedy(trace, a, b, acc, shared))
    _check_dtypes(a.dtype, b.dtype, acc.dtype)


def _check_dtypes(a: DType, b: DType, acc: DType) -> None:
    if a != b and not (a in FLOAT8 and b in FLOAT8):
        narrow, wide = sorted((a, b), key=lambda dtype: dtype.bits)
        remedy = f"write cast(x, {narrow}) or cast(x, {wide}) for one of them; GPUs multiply f16, bf16, f8 and i8"
        raise DTypeError(f"mma multiplies operands of one dtype, not {a} and {b}", loc=here(), remedy=remedy)
    sums = SUMS.get(a, (F32, F64) if a.is_float else ())
    if not sums:
        remedy = "cast its operands: floats, or i8 for whole numbers"
        raise DTypeError(f"mma does not multiply {a}", loc=here(), remedy=remedy)
    if acc not in sums:
        zero = "0.0" if sums[0].is_float else "0"
        raise DTypeError(
            f"mma adds products of {a} up in {' or '.join(map(str, sums))}, not in {acc}",
            loc=here(),
            remedy=f"begin with Register[M, N, {sums[0]}]({zero}), and cast the result afterwards",
        )


SUMS: dict[DType, tuple[DType, ...]] = {F64: (F64,), I8: (I32,)}
"""The accumulator dtypes of operand dtypes, where they are not f32 or f64."""


def _extents_agree(*tiles: Traced) -> bool:
    extents: dict[Any, int] = {}
    pairs = (pair for t in tiles for pair in zip(t.dims, t.type.shape, strict=True))
    return all(extents.setdefault(d, n) == n for d, n in pairs)


def _plain(x: Traced) -> str:
    return f"{dims(x.type.shape)} [{', '.join(map(str, x.dims))}]"


def _product_remedy(trace: Trace, a: Traced, b: Traced, acc: Traced, shared: list[Any]) -> str:
    def elsewhere(x: Traced) -> bool:
        return x.value in trace.made_at and trace.made_at[x.value].line != here().line

    named = (("a", a), ("b", b))
    made = "; ".join(f"{name} was made at {trace.made_at[x.value]}" for name, x in named if elsewhere(x))
    if len(shared) != 1:
        return f"a and b must share exactly one dim that the accumulator has not, to sum over; {made}".rstrip("; ")
    rows, cols = acc.dims[-2:]
    depth = shared[0]
    for batch in acc.dims[:-2]:
        for name, x, side in (("a", a, rows), ("b", b, cols)):
            wanted = (*acc.dims[:-2], side, depth)
            if batch not in x.dims and set(x.dims) <= set(wanted):
                listed = ", ".join(map(str, wanted))
                return f"{name} has no {batch}: write broadcast({name}, target_shape=[{listed}]); {made}".rstrip("; ")
    for name, x, other in (("a", a, b), ("b", b, a)):
        if single := _single_dims(x, other, acc):
            left = ", ".join(str(d) for d in acc.dims if d not in single)
            gone = ", ".join(map(str, single))
            return (
                f"{name} has one element along {gone}: leave that out, {name}.max(dim=[{gone}]), and begin with "
                f"Register[{left}, {acc.dtype}](…); write puts a dim of one element back"
            )
    return f"a needs the dims [{rows}, {depth}] and b [{cols}, {depth}], in any order; {made}".rstrip("; ")


def _single_dims(x: Traced, other: Traced, acc: Traced) -> list[Any]:
    """Return the dims of one element that an operand has besides its row or column dim of the result."""
    alone = [d for d in x.dims if d in acc.dims and d not in other.dims]
    extents = extents_of(x)
    single = [d for d in alone if extents[d] == 1]
    return single if len(alone) - len(single) == 1 else single[:-1] if len(alone) == len(single) else []


# -- numbers --------------------------------------------------------------------------------------------------------


@taggable
def scalar(x: Any, dtype: DType = INDEX) -> Traced:
    """Return a Python number, an expression of symbols, or a traced number, as a number of `dtype`."""
    trace = current("scalar")
    want_number("scalar", x, f"a tile stays a tile: write cast(x, {dtype}) for its elements in {dtype}")
    if isinstance(x, (Expression, Number)):
        return scalar_of(trace, x, dtype)
    return Traced(trace, trace.const_named(literal(x, dtype), Scalar(dtype)))


@taggable
def self_index(dim: Symbol, dtype: DType = INDEX, elements_per_thread: int = 0) -> Traced:
    """Return the index along `dim`: a number for a while loop's symbol, else a tile with the index of each element."""
    trace = current("self_index")
    _count(trace, "self_index", elements_per_thread)
    if dim in trace.settable:
        return scalar_of(trace, trace.settable[dim], dtype)
    window = window_of(trace, dim, "self_index")
    places = Traced(trace, trace.emit(ir.Iota, type=Tile((window.extent,), dtype)), (dim,))
    shifted: Traced = places + scalar_of(trace, window.start, dtype)
    return shifted


def first_index(dim: Symbol) -> Traced:
    """Return the index where this workgroup's tile begins along `dim`, as one number."""
    trace = current("first_index")
    return scalar_of(trace, window_of(trace, dim, "first_index").start, INDEX)


def set_symbol(symbol: Symbol, value: Any) -> None:
    """Set the value of `symbol` from here on."""
    trace = current("set_symbol")
    if not isinstance(symbol, Symbol):
        raise SymbolError(f"set_symbol: {symbol!r} is no symbol", loc=here(), remedy="write set_symbol(sym.ROW, …)")
    want_no_hardware("set_symbol", symbol)
    want_number("set_symbol", value, PER_ELEMENT)
    if symbol in trace.symbols and symbol not in trace.settable:
        raise SymbolError(
            f"set_symbol: {symbol} has a value already: {_known(trace.symbols[symbol])}",
            loc=here(),
            remedy=f"leave {symbol} out of subs, or set another symbol",
        )
    trace.set_symbol(symbol, trace.number(index_of(trace, "set_symbol", value).value))


PER_ELEMENT = (
    "a symbol has one value for all elements of a tile, such as scalar(WORKGROUP_0) * 64; what differs from element to "
    "element is written with the iterators of an IndexMapping, such as M - 1 - IndexMapping.iterator(0). What an array "
    "holds comes too late for it, as tiles are placed before there is data: give a length at the call, as a number"
)


def _known(x: Any) -> str:
    return "the hardware's" if isinstance(x, Number) else str(x)


@taggable
def select(condition: Any, a: Any, b: Any) -> Traced:
    """Return a where the condition holds, else b."""
    trace = current("select")
    if isinstance(condition, Expression):
        condition = condition.evaluate(trace.symbols)
        if isinstance(condition, Number):
            condition = Traced(trace, condition.value)
    if isinstance(condition, bool):
        chosen: Traced = a if condition else b
        return chosen
    x, y = _both(a, b)
    if condition.dims != x.dims:
        z, condition = one_shape(trace, x, condition)
        x, y = (z, spread(trace, y, z)) if z.dims != x.dims else (x, y)
    return x.make(trace.emit(ir.Select, condition.value, x.value, y.value, type=x.type))


@taggable
def minimum(a: Any, b: Any) -> Traced:
    """Return the smaller of both, element by element; NaN where one of them is."""
    return _binary(ir.Min, a, b)


@taggable
def maximum(a: Any, b: Any) -> Traced:
    """Return the larger of both, element by element; NaN where one of them is."""
    return _binary(ir.Max, a, b)


def elementwise(cls: type[ir.Elementwise], *operands: Any) -> Traced:
    """Return an elementwise op of tiles and numbers, each broadcast to the dims of the largest."""
    current(cls.word())
    traced = [x for x in operands if isinstance(x, Traced)] or [scalar(operands[0], F32)]
    like = max(traced, key=lambda x: len(x.dims))
    taken = [x if x is like else beside(x, like) for x in operands]
    return like.make(like.builder.elementwise(cls, *(x.value for x in taken)))


def _binary(cls: type[ir.Binary], a: Any, b: Any) -> Traced:
    x, y = _both(a, b)
    return x.make(x.builder.binary(cls, x.value, y.value))


def _both(a: Any, b: Any) -> tuple[Traced, Traced]:
    if not isinstance(a, Traced) and not isinstance(b, Traced):
        a = scalar(a, F32 if isinstance(a, float) or isinstance(b, float) else INDEX)
    return together(a, b)


def fma(a: Any, b: Any, c: Any) -> Traced:
    """Return a · b + c of f32, rounded once."""
    for x in (a, b, c):
        if isinstance(x, Traced) and x.dtype != F32:
            remedy = "write cast(x, f32) first"
            raise DTypeError(f"fma takes f32, not {describe(x)}", loc=here(), remedy=remedy)
    return elementwise(ir.Fma, a, b, c)


@taggable
def cast(x: Traced, dtype: DType) -> Traced:
    """Return x in another dtype: floats are rounded to nearest even, floats to integers towards zero."""
    want_dtype(dtype)
    if not isinstance(x, Traced):
        return scalar(x, dtype)
    value = x.builder.cast(x.value, dtype)
    trace = current("cast")
    if x.value in trace.zero_outside:
        trace.zero_outside[value] = trace.zero_outside[x.value]
    return x.make(value)


def _function(cls: type[ir.Unary], name: str) -> Any:
    def apply(x: Traced) -> Traced:
        trace = current(name)
        x = x if isinstance(x, Traced) else scalar(x, F32)
        if not x.dtype.is_float and cls is not ir.Abs:
            raise DTypeError(f"{name} needs floats, not {describe(x)}", loc=here(), remedy="write cast(x, f32) first")
        return x.make(trace.emit(cls, x.value, type=x.type))

    apply.__name__ = name
    apply.__doc__ = f"{name} of every element."
    return taggable(apply)


_power, _flushed_power = _function(ir.Exp2, "exp2"), _function(ir.Exp2Flushed, "exp2")


@taggable
def exp2(x: Traced, flush: bool = False) -> Traced:
    """Return 2 to the power of every element; `flush` gives 0 below -126, which is faster on GPUs."""
    result: Traced = _flushed_power(x) if flush else _power(x)
    return result


exp, log, log2, log10 = (_function(c, c.word()) for c in (ir.Exp, ir.Log, ir.Log2, ir.Log10))
sqrt, rsqrt, tanh, erf = (_function(c, c.word()) for c in (ir.Sqrt, ir.Rsqrt, ir.Tanh, ir.Erf))
sin, cos, abs_ = (_function(c, c.word()) for c in (ir.Sin, ir.Cos, ir.Abs))
