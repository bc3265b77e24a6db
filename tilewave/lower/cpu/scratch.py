"""Tiles in scratch memory of the worker: every op is a loop over its elements.

Used for kernels whose tiles cannot be split into register blocks; LLVM vectorizes what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tilewave.ir.core import Op
from tilewave.ir.ops import ReadIndexed, Reduce, Shift, WriteIndexed
from tilewave.ir.types import DType, Memory, Tile
from tilewave.lower.cpu.indexed import Positions, load_each, load_run, write_vector
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import (
    Place,
    add,
    all_of,
    inside,
    lanes_inside,
    load,
    load_inside,
    product,
    store,
    store_apart,
    store_inside,
    times,
    whole_inside,
    zero,
)
from tilewave.lower.cpu.products import Put, multiply_along_depth, multiply_tiles, turn
from tilewave.lower.cpu.reductions import Combine, Flat, combining, lane_by_lane, regrouped, without_axis
from tilewave.lower.cpu.target import CpuTarget, Panel
from tilewave.lower.cpu.tile_uses import TileUses
from tilewave.lower.elements import in_memory, literal, splat_constant, stored
from tilewave.lower.llvm import LlvmFunction, Typed, splat, vector
from tilewave.lower.numbers import Known, cast, elementwise
from tilewave.machine.register_blocks import runs_along_depth

ALIGNMENT = 64
LONGEST_STRETCH = 64
"""Elements of a row that are reduced in registers at once, for as many rows in parallel as a vector has lanes."""


@dataclass(frozen=True)
class ScratchTile:
    """A tile in memory, row-major unless `order` says otherwise."""

    type: Tile
    pointer: str
    order: tuple[int, ...] = ()
    """The axes in memory order, the contiguous one last."""
    strides: tuple[str, ...] = ()
    """The strides of the axes, for a tile that is part of a larger memory."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def lying(self) -> ScratchTile:
        """The tile with its axes in memory order."""
        order = self.order or tuple(range(len(self.type.shape)))
        kind = Tile(tuple(self.type.shape[axis] for axis in order), self.dtype)
        return ScratchTile(kind, self.pointer, (), tuple(self.strides[axis] for axis in order if self.strides))

    @property
    def is_transposed(self) -> bool:
        """Whether the last axis but one is the contiguous one."""
        *batch, one, other = range(len(self.type.shape))
        return self.order == (*batch, other, one)

    def address(self, f: LlvmFunction, index: Sequence[str]) -> str:
        number = "0"
        if self.strides:
            for i, stride in zip(index, self.strides, strict=True):
                number = add(f, number, product(f, i, stride))
            return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {number}")
        for axis in self.order or range(len(self.type.shape)):
            scaled = number if number == "0" else f.value(f"mul nuw nsw i64 {number}, {self.type.shape[axis]}")
            number = add(f, scaled, index[axis])
        return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {number}")

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str:
        """Load an element, or `lanes` of them along the last axis."""
        if lanes == 1 or not self.order or self.order[-1] == len(index) - 1:
            return load(f, self.dtype, self.address(f, index), lanes)
        found, kind = "poison", stored(self.dtype)
        for lane in range(lanes):
            one = self.element(f, [*index[:-1], add(f, index[-1], lane)])
            found = f.value(f"insertelement <{lanes} x {kind}> {found}, {kind} {one}, i64 {lane}")
        return found

    def put(self, f: LlvmFunction, index: Sequence[str], x: str, lanes: int = 1) -> None:
        store(f, self.dtype, x, self.address(f, index), lanes)


@dataclass(frozen=True)
class ComputedTile:
    """A tile without memory: its elements are computed where they are used."""

    type: Tile
    compute: Callable[[LlvmFunction, Sequence[str], int], str]
    """Computes elements along the last axis, from the first index and their number."""

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str:
        return self.compute(f, index, lanes)

    @property
    def dtype(self) -> DType:
        return self.type.dtype


HeldTile = ScratchTile | ComputedTile


@dataclass(frozen=True)
class ProductTile:
    """Sums of a product that are computed when their use is known."""

    type: Tile
    each: Callable[[Put], None]
    """Computes all sums and passes them on, some at a time."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype


class WorkerMemory:
    """The scratch memory of a worker; `bytes` is how much of it is allocated."""

    def __init__(self, f: LlvmFunction, base: str) -> None:
        self.f, self.base, self.bytes = f, base, 0

    def take(self, shape: Sequence[int], dtype: DType) -> str:
        """Allocate memory for a shape and return its address."""
        offset = self.bytes
        self.bytes += -(-prod(shape) * dtype.bytes // ALIGNMENT) * ALIGNMENT
        return self.f.value(f"getelementptr i8, ptr {self.base}, i64 {offset}")

    def allocate(self, kind: Memory) -> Place:
        """Allocate a row-major memory."""
        strides = [str(prod(kind.shape[axis + 1 :])) for axis in range(kind.rank)]
        return Place(kind, self.take(kind.shape, kind.dtype), tuple(strides), tuple(map(str, kind.shape)))


class ScratchTiles:
    """The lowering of ops on tiles in memory."""

    def __init__(self, f: LlvmFunction, memory: WorkerMemory, target: CpuTarget, uses: TileUses) -> None:
        self.f, self.memory, self.target, self.uses = f, memory, target, uses

    def new(self, kind: Tile) -> ScratchTile:
        return ScratchTile(kind, self.memory.take(kind.shape, kind.dtype))

    def fill(self, kind: Tile, element: Callable[[list[str]], str]) -> ScratchTile:
        """Return a new tile whose elements are computed one by one."""
        tile = self.new(kind)
        for_each(self.f, kind.shape, lambda index: tile.put(self.f, index, element(index)))
        return tile

    def kept(self, x: HeldTile) -> ScratchTile:
        """Return x in memory, copied if it is not there."""
        return x if isinstance(x, ScratchTile) else self.copied(x)

    def copied(self, x: HeldTile) -> ScratchTile:
        """Return a copy in a new tile, computed in vectors."""
        tile, lanes = self.new(x.type), self.lanes(x.type.shape[-1])
        self.for_each_vector(x.type.shape, lanes, lambda at: tile.put(self.f, at, x.element(self.f, at, lanes), lanes))
        return tile

    def lanes(self, extent: int) -> int:
        lanes = self.target.vector_bytes // 4
        while extent % lanes:
            lanes //= 2
        return lanes

    def constant(self, kind: Tile, value: float) -> ComputedTile:
        text = literal(value, kind.dtype)
        return ComputedTile(kind, lambda f, index, lanes: splat_constant(stored(kind.dtype), text, lanes))

    def elementwise(
        self, op: Op, operands: list[HeldTile | ProductTile | str], kind: Tile, known: Known
    ) -> HeldTile | ProductTile:
        like = [x for x in operands if not isinstance(x, str)][-1]
        product = next((x for x in operands if isinstance(x, ProductTile)), None)
        others = [self.stored(x) if isinstance(x, ProductTile) and x is not product else x for x in operands]

        def part(x: HeldTile | ProductTile | str, index: Sequence[str], lanes: int, sums: str) -> str:
            if isinstance(x, str):  # a scalar operand next to tiles can only be a condition; it selects for all lanes
                return splat(self.f, "i1", x, lanes)
            return sums if isinstance(x, ProductTile) else x.element(self.f, index, lanes)

        def compute(f: LlvmFunction, index: Sequence[str], lanes: int, sums: str = "") -> str:
            parts = [part(x, index, lanes, sums) for x in others]
            with f.at(op.loc):  # the source line of this op, not of the op that uses it
                return elementwise(f, op, parts, like.dtype, lanes, known)

        if product is not None:
            each = product.each
            made = ProductTile(kind, lambda put: each(lambda at, x, n: put(at, compute(self.f, at, n, x), n)))
            return made if op.result in self.uses.finished else self.stored(made)
        computed = ComputedTile(kind, compute)
        return computed if op.result in self.uses.fused else self.kept(computed)

    def stored(self, x: ProductTile, out: ScratchTile | None = None) -> ScratchTile:
        """Store the elements of a product in `out`, or in a new tile."""
        tile = out or self.new(x.type)
        x.each(lambda index, some, lanes: tile.put(self.f, index, some, lanes))
        return tile

    def broadcast(self, x: HeldTile | str, axes: tuple[int, ...], kind: Tile) -> ComputedTile:
        if isinstance(x, str):
            return ComputedTile(kind, lambda f, index, lanes: splat(f, stored(kind.dtype), x, lanes))
        source, last = self.kept(x), len(kind.shape) - 1

        def compute(f: LlvmFunction, index: Sequence[str], lanes: int) -> str:
            at = [index[a] for a in axes]
            if axes and axes[-1] == last:
                return source.element(f, at, lanes)
            if last in axes and lanes > 1:  # neighbours along the last axis are not contiguous in the operand
                return _one_by_one(f, kind, lanes, index, lambda there: source.element(f, [there[a] for a in axes]))
            return splat(f, stored(kind.dtype), source.element(f, at), lanes)

        return ComputedTile(kind, compute)

    def permute(self, x: HeldTile, axes: tuple[int, ...], kind: Tile) -> ScratchTile:
        return self.fill(kind, lambda index: x.element(self.f, [index[axes.index(a)] for a in range(len(axes))]))

    def iota(self, kind: Tile) -> ComputedTile:
        def compute(f: LlvmFunction, index: Sequence[str], lanes: int) -> str:
            one = stored(kind.dtype)
            first = index[0] if kind.dtype.bits == 64 else f.value(f"trunc i64 {index[0]} to {one}")
            if lanes == 1:
                return first
            numbers = ", ".join(f"{one} {lane}" for lane in range(lanes))
            return f.value(f"add {vector(lanes, one)} {splat(f, one, first, lanes)}, <{numbers}>")

        return ComputedTile(kind, compute)

    def reduce(self, op: Reduce, x: HeldTile) -> ScratchTile | str:
        combine = combining(self.f, op)
        found = ScratchTile(Tile(op.shape_with_runs, x.dtype), self.in_rows(x).pointer)
        for axis in reversed(op.axes_with_runs):
            if axis == len(found.type.shape) - 1:
                found = self.rows_reduced(found, op, combine)
            while found.type.shape[axis] > 1:
                found = self.pairs(found, axis, combine)
            shape = found.type.shape
            found = ScratchTile(Tile((*shape[:axis], *shape[axis + 1 :]), x.dtype), found.pointer)
        return found if found.type.shape else found.element(self.f, ())

    def rows_reduced(self, x: ScratchTile, op: Reduce, combine: Combine) -> ScratchTile:
        """Return x with its last axis shorter: stretches of a power of two become one element each, in registers."""
        f, (*outer, last) = self.f, x.type.shape
        stretch = min(last & -last, LONGEST_STRETCH)
        count, lanes = prod(outer) * last // stretch, self.lanes(stretch)
        side = self.lanes(count)
        tile = self.new(Tile((*outer, last // stretch), x.dtype))
        source, flat = (
            ScratchTile(Tile((count, stretch), x.dtype), x.pointer),
            ScratchTile(Tile((count,), x.dtype), tile.pointer),
        )

        def part(index: list[str]) -> None:
            first = times(f, index[0], side)
            places = [(add(f, first, i), str(j)) for i in range(side) for j in range(0, stretch, lanes)]
            rows = Flat(x.dtype, (side, stretch), lanes, tuple(source.element(f, at, lanes) for at in places))
            rows = rows if op.has_order else lane_by_lane(f, rows, combine)
            found = regrouped(f, without_axis(f, rows, 1, combine), side)
            flat.put(f, [first], found.vectors[0], side)

        for_each(f, (count // side,), part)
        return tile

    def pairs(self, x: ScratchTile, axis: int, combine: Combine) -> ScratchTile:
        """Combine neighbours along an axis; an unpaired last element is kept."""
        f, shape = self.f, x.type.shape
        half, after = shape[axis] // 2, shape[axis + 1 :]
        lanes = self.lanes(after[-1]) if after else 1
        tile = self.new(Tile((*shape[:axis], -(-shape[axis] // 2), *after), x.dtype))

        def at(index: Sequence[str], place: str) -> list[str]:
            found = [*index[:axis], place, *index[axis + 1 :]]
            return [*found[:-1], times(f, found[-1], lanes)] if after else found

        def pair(index: list[str]) -> None:
            first = times(f, index[axis], 2)
            one, other = (x.element(f, at(index, place), lanes) for place in (first, add(f, first, 1)))
            tile.put(f, at(index, index[axis]), combine(one, other, lanes), lanes)

        def waiting(index: list[str]) -> None:
            tile.put(f, at(index, str(half)), x.element(f, at(index, str(shape[axis] - 1)), lanes), lanes)

        parts = (*after[:-1], after[-1] // lanes) if after else ()
        for_each(f, (*shape[:axis], half, *parts), pair)
        if shape[axis] % 2:
            for_each(f, (*shape[:axis], 1, *parts), waiting)
        return tile

    def shift(self, op: Shift, x: HeldTile) -> ScratchTile:
        f, axis = self.f, op.axis

        def element(index: list[str]) -> str:
            before = add(f, index[axis], -op.by)
            found = f.choose(
                f.value(f"icmp sge i64 {before}, 0"),
                lambda: [(stored(x.dtype), x.element(f, [*index[:axis], before, *index[axis + 1 :]]))],
                lambda: [(stored(x.dtype), zero(x.dtype))],
            )
            return found[0][1]

        return self.fill(x.type, element)

    def read(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> ScratchTile:
        """Copy a window to scratch memory, in the order of the source's axes."""
        order = tuple(sorted(range(len(axes)), key=lambda i: axes[i]))
        along = tuple(axes[i] for i in order)
        lying = Tile(tuple(kind.shape[i] for i in order), kind.dtype)
        tile, f = self.new(lying), self.f
        extents = [lying.shape[along.index(a)] if a in along else 1 for a in range(place.type.rank)]

        def copy(index: list[str]) -> None:
            tile.put(f, index, load(f, kind.dtype, place.address(f, self.position(at, along, index))))

        def guarded(index: list[str]) -> None:
            tile.put(f, index, self.guarded(place, kind.dtype, self.position(at, along, index)))

        def at_the_edge() -> None:
            if self.lanes(lying.shape[-1]) == 1:
                for_each(f, lying.shape, guarded)
                return
            in_rows = self.in_memory_rows(place, along[-1])
            f.when(in_rows, lambda: self.read_edge(place, at, along, tile), lambda: for_each(f, lying.shape, guarded))

        inside = whole_inside(f, at, extents, place.extents)
        f.when(inside, lambda: for_each(f, lying.shape, copy), at_the_edge)
        return ScratchTile(kind, tile.pointer, () if order == tuple(range(len(axes))) else order)

    def prefetch(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> None:
        """Emit nothing: tiles in memory are large, and the hardware prefetches them."""

    def in_memory_rows(self, place: Place, axis: int) -> str:
        """Return whether neighbours along an axis are contiguous in memory."""
        return self.f.value(f"icmp eq i64 {place.strides[axis]}, 1")

    def read_edge(self, place: Place, at: Sequence[str], along: tuple[int, ...], tile: ScratchTile) -> None:
        """Copy vectors of a memory's rows, with zeros outside."""
        f, lanes = self.f, self.lanes(tile.type.shape[-1])

        def part(index: list[str]) -> None:
            there = self.position(at, along, index)
            mask = lanes_inside(f, there, place.extents, along[-1], lanes)
            tile.put(f, index, load_inside(f, place.dtype, place.address(f, there), mask, lanes), lanes)

        self.for_each_vector(tile.type.shape, lanes, part)

    def for_each_vector(self, shape: Sequence[int], lanes: int, part: Callable[[list[str]], None]) -> None:
        """Call `part` with the first index of every `lanes` neighbours along the last axis."""
        *outer, last = shape
        for_each(self.f, (*outer, last // lanes), lambda index: part([*index[:-1], times(self.f, index[-1], lanes)]))

    def operand(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> ScratchTile:
        """Return an operand of a product in place; a boundary tile, or one without contiguous rows, is copied."""
        f, order = self.f, tuple(sorted(range(len(axes)), key=lambda i: axes[i]))
        extents = [kind.shape[axes.index(a)] if a in axes else 1 for a in range(place.type.rank)]
        in_rows = self.in_memory_rows(place, axes[order[-1]])
        inside = whole_inside(f, at, extents, place.extents)

        def there() -> list[Typed]:
            pointer = place.address(f, at)
            return [("ptr", pointer), *(("i64", place.strides[axes[i]]) for i in order[:-1])]

        def copied() -> list[Typed]:
            copy = self.read(place, at, axes, kind).lying
            strides = [str(prod(copy.type.shape[i + 1 :])) for i in range(len(order) - 1)]
            return [("ptr", copy.pointer), *(("i64", stride) for stride in strides)]

        (_, pointer), *found = f.choose(all_of(f, [in_rows, inside]), there, copied)
        strides = dict(zip(order, (*(stride for _, stride in found), "1"), strict=True))
        sorted_already = order == tuple(range(len(axes)))
        return ScratchTile(kind, pointer, () if sorted_already else order, tuple(strides[i] for i in range(len(axes))))

    def write(self, place: Place, at: Sequence[str], axes: tuple[int, ...], tile: HeldTile | ProductTile) -> None:
        """Write a tile, in vectors where its rows are rows of the memory; each element is computed once."""
        f, kind = self.f, tile.type
        extents = [kind.shape[axes.index(a)] if a in axes else 1 for a in range(place.type.rank)]
        in_rows = self.in_memory_rows(place, axes[-1])
        quick = all_of(f, [in_rows, whole_inside(f, at, extents, place.extents)])

        def put(index: Sequence[str], some: str, lanes: int) -> None:
            there = self.position(at, axes, index)

            def whole() -> None:
                store(f, kind.dtype, some, place.address(f, there), lanes)

            def edge() -> None:
                address = place.address(f, there)
                if lanes == 1:
                    one = inside(f, there, place.extents)
                    f.when(one, lambda: store(f, kind.dtype, some, address), lambda: None)
                    return
                mask = lanes_inside(f, there, place.extents, axes[-1], lanes)
                beside = partial(store_inside, f, kind.dtype, some, address, mask, lanes)
                stride = place.strides[axes[-1]]
                f.when(in_rows, beside, partial(store_apart, f, kind.dtype, some, address, stride, mask, lanes))

            f.when(quick, whole, edge)

        if isinstance(tile, ProductTile):
            tile.each(put)
            return
        lanes = self.lanes(kind.shape[-1])
        self.for_each_vector(kind.shape, lanes, lambda index: put(index, tile.element(f, index, lanes), lanes))

    def position(self, at: Sequence[str], axes: tuple[int, ...], index: Sequence[str]) -> list[str]:
        position = list(at)
        for axis, i in zip(axes, index, strict=True):
            position[axis] = add(self.f, position[axis], i)
        return position

    def gather(self, place: Place, kind: Tile, where: Callable[[list[str]], Sequence[str]]) -> ScratchTile:
        return self.fill(kind, lambda index: self.guarded(place, kind.dtype, where(index)))

    def guarded(self, place: Place, dtype: DType, position: Sequence[str]) -> str:
        """Load an element of a memory, or 0 outside it."""
        f = self.f
        found = f.choose(
            inside(f, position, place.extents),
            lambda: [(stored(dtype), load(f, dtype, place.address(f, position)))],
            lambda: [(stored(dtype), zero(dtype))],
        )
        return found[0][1]

    def scatter(self, place: Place, tile: HeldTile, where: Callable[[list[str]], Sequence[str]]) -> None:
        f = self.f

        def element(index: list[str]) -> None:
            position = where(index)

            def put() -> None:
                store(f, tile.dtype, tile.element(f, index), place.address(f, position))

            f.when(inside(f, position, place.extents), put, lambda: None)

        for_each(f, tile.type.shape, element)

    # -- single elements, at positions that are tiles

    def read_indexed(self, op: ReadIndexed, place: Place, at: Sequence[HeldTile], kind: Tile) -> HeldTile:
        loaded = load_run if op.in_runs else load_each

        def compute(f: LlvmFunction, index: Sequence[str], lanes: int) -> str:
            return loaded(f, place, _positions(f, at, index), lanes)

        computed = ComputedTile(kind, compute)
        return computed if op.result in self.uses.fused else self.kept(computed)

    def write_indexed(
        self, op: WriteIndexed, place: Place, at: Sequence[HeldTile], tile: HeldTile | ProductTile
    ) -> None:
        f, x = self.f, self.stored(tile) if isinstance(tile, ProductTile) else tile
        lanes = self.lanes(x.type.shape[-1])

        def part(index: list[str]) -> None:
            write_vector(f, op, place, _positions(f, at, index), x.element(f, index, lanes), lanes)

        self.for_each_vector(x.type.shape, lanes, part)

    def multiply(self, a: HeldTile | Panel, b: HeldTile | Panel, acc: HeldTile) -> ScratchTile | ProductTile:
        if isinstance(a, Panel) or isinstance(b, Panel):
            return self.multiply_panels(a, b, acc)
        f, target = self.f, self.target
        left, right = (self.widened(self.kept(x), acc.dtype) for x in (a, b))
        *_, high, wide = acc.type.shape
        lanes = target.vector_bytes // acc.dtype.bytes
        if acc.dtype.is_float and runs_along_depth(lanes, high, wide, right.is_transposed):
            rows, columns = self.in_rows(left), self.in_rows(right)
            return self.product(acc.type, lambda put: multiply_along_depth(f, target, rows, columns, acc, put))
        transposed = self.transposed(right)
        return self.product(acc.type, lambda put: multiply_tiles(f, target, left, transposed, acc, put))

    def product(self, kind: Tile, multiply: Callable[[Put], None]) -> ProductTile:
        """Return a product with this source line; what uses its sums keeps its source line."""
        f, loc = self.f, self.f.loc

        def each(put: Put) -> None:
            later = f.loc

            def put_later(index: Sequence[str], x: str, lanes: int) -> None:
                with f.at(later):
                    put(index, x, lanes)

            with f.at(loc):
                multiply(put_later)

        return ProductTile(kind, each)

    def widened(self, x: ScratchTile, dtype: DType) -> ScratchTile:
        """Return the elements in another dtype, with the same order of axes."""
        if x.dtype == dtype:
            return x
        f, old = self.f, x.lying
        new = self.new(Tile(old.type.shape, dtype))
        for_each(f, new.type.shape, lambda index: new.put(f, index, cast(f, old.element(f, index), x.dtype, dtype, 1)))
        return ScratchTile(Tile(x.type.shape, dtype), new.pointer, x.order)

    def transposed(self, b: ScratchTile) -> ScratchTile:
        """Return b with its last two axes transposed and contiguous rows."""
        *batch, rows, columns = b.type.shape
        kind = Tile((*batch, columns, rows), b.dtype)
        if b.is_transposed:
            return ScratchTile(kind, b.pointer, (), b.lying.strides)
        out = self.new(kind)
        turn(self.f, self.target, self.in_rows(b), out)
        return out

    def in_rows(self, x: HeldTile) -> ScratchTile:
        """Return x in memory with its last axis contiguous, copied if it is not."""
        return x if isinstance(x, ScratchTile) and not x.order else self.copied(x)

    def multiply_panels(self, a: HeldTile | Panel, b: HeldTile | Panel, acc: HeldTile) -> ScratchTile:
        f, kind = self.f, acc.type
        depth = a.depth if isinstance(a, Panel) else a.type.shape[-1]
        wide = stored(kind.dtype)
        plus, times = ("fadd reassoc contract", "fmul contract") if kind.dtype.is_float else ("add", "mul")

        def element(index: list[str]) -> str:
            *batch, row, column = index

            def step(k: str, carried: list[Typed]) -> list[Typed]:
                x = cast(f, factor(f, a, [*batch, row, k]), a.dtype, kind.dtype, 1)
                y = cast(f, factor(f, b, [*batch, column, k]), b.dtype, kind.dtype, 1)
                both = f.value(f"{times} {wide} {x}, {y}")
                return [(wide, f.value(f"{plus} {wide} {carried[0][1]}, {both}"))]

            return f.loop(str(depth), [(wide, acc.element(f, index))], step)[0][1]

        return self.fill(kind, element)

    def to_buffer(self, tile: HeldTile) -> str:
        return self.in_rows(tile).pointer

    def buffer(self, kind: Tile) -> str:
        return self.new(kind).pointer

    def whole_buffer(self, buffer: str, kind: Tile) -> ScratchTile:
        return ScratchTile(kind, buffer)

    def copy(self, x: HeldTile, target: ScratchTile) -> None:
        source = self.in_rows(x)
        size = prod(source.type.shape) * source.dtype.bytes
        self.f.module.declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self.f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target.pointer}, ptr {source.pointer}, i64 {size}, i1 false)")


def _positions(f: LlvmFunction, at: Sequence[HeldTile], index: Sequence[str]) -> Positions:
    def position(lane: int) -> list[str]:
        there = [*index[:-1], add(f, index[-1], lane)]
        return [x.element(f, there) for x in at]

    return position


def factor(f: LlvmFunction, x: HeldTile | Panel, index: Sequence[str]) -> str:
    """Load an element of a product's operand."""
    if not isinstance(x, Panel):
        return x.element(f, index)
    row, k = index[-2:]
    group, within = f.value(f"udiv i64 {k}, {x.group}"), f.value(f"urem i64 {k}, {x.group}")
    number = add(f, f.value(f"mul i64 {group}, {x.rows}"), row)
    number = add(f, f.value(f"mul i64 {number}, {x.group}"), within)
    return load(f, x.dtype, f.value(f"getelementptr {in_memory(x.dtype)}, ptr {x.pointer}, i64 {number}"))


def _one_by_one(
    f: LlvmFunction, kind: Tile, lanes: int, index: Sequence[str], element: Callable[[Sequence[str]], str]
) -> str:
    """Return `lanes` neighbours along the last axis from `index` on, computed one by one."""
    one, found = stored(kind.dtype), "poison"
    for lane in range(lanes):
        there = (*index[:-1], f.value(f"add i64 {index[-1]}, {lane}"))
        found = f.value(f"insertelement <{lanes} x {one}> {found}, {one} {element(there)}, i64 {lane}")
    return found
