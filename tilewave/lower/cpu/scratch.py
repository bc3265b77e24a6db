"""Tiles in scratch memory of the worker: every op is a loop over its elements.

Used for kernels whose tiles cannot be split into register blocks; LLVM vectorizes what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from tilewave.ir.core import Op
from tilewave.ir.ops import ReadIndexed, ReadIndexedShared, Reduce, Shift, WriteIndexed
from tilewave.ir.types import Tile
from tilewave.lower.cpu.indexed import Positions, load_each, load_one, load_run, write_vector
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import (
    Place,
    add,
    all_of,
    inside,
    lanes_inside,
    load,
    store,
    store_apart,
    store_inside,
    whole_inside,
    zero,
)
from tilewave.lower.cpu.products import multiply_along_depth, multiply_tiles
from tilewave.lower.cpu.reductions import combining
from tilewave.lower.cpu.scratch_access import in_memory_rows, position, read_edge
from tilewave.lower.cpu.scratch_products import multiply_panels, product_of_line, widened, with_rows_transposed
from tilewave.lower.cpu.scratch_reductions import pairs_combined, rows_reduced
from tilewave.lower.cpu.scratch_tiles import ComputedTile, HeldTile, ProductTile, ScratchSpace, ScratchTile
from tilewave.lower.cpu.target import OperandRows, Panel
from tilewave.lower.elements import literal, splat_constant, stored
from tilewave.lower.integers import Known
from tilewave.lower.llvm import LlvmFunction, Typed, splat, vector
from tilewave.lower.numbers import elementwise
from tilewave.machine.register_blocks import runs_along_depth


class ScratchTiles(ScratchSpace):
    """The lowering of ops on tiles in memory."""

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
                found = rows_reduced(self, found, op, combine)
            while found.type.shape[axis] > 1:
                found = pairs_combined(self, found, axis, combine)
            shape = found.type.shape
            found = ScratchTile(Tile((*shape[:axis], *shape[axis + 1 :]), x.dtype), found.pointer)
        return found if found.type.shape else found.element(self.f, ())

    def shift(self, op: Shift, x: HeldTile) -> ScratchTile:
        f, axis, far, shape = self.f, op.axis, abs(op.by), op.x.type.shape
        tile, source = self.new(x.type), self.kept(x)
        begin, end = (far, 0) if op.by > 0 else (0, shape[axis] - far)  # of what is moved, and of the zeros

        def there(index: list[str], first: int) -> list[str]:
            return [*index[:axis], add(f, index[axis], first), *index[axis + 1 :]]

        def move(index: list[str], lanes: int) -> None:
            tile.put(f, there(index, begin), source.element(f, there(index, far - begin), lanes), lanes)

        def clear(index: list[str], lanes: int) -> None:
            tile.put(f, there(index, end), splat_constant(stored(x.dtype), zero(x.dtype), lanes), lanes)

        for length, do in ((shape[axis] - far, move), (far, clear)):
            some = (*shape[:axis], length, *shape[axis + 1 :])
            lanes = self.lanes(some[-1])
            self.for_each_vector(some, lanes, partial(do, lanes=lanes))
        return tile

    def read(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> ScratchTile:
        """Copy a window to scratch memory, in the order of the source's axes."""
        order = tuple(sorted(range(len(axes)), key=lambda i: axes[i]))
        along = tuple(axes[i] for i in order)
        lying = Tile(tuple(kind.shape[i] for i in order), kind.dtype)
        tile, f = self.new(lying), self.f
        extents = [lying.shape[along.index(a)] if a in along else 1 for a in range(place.type.rank)]

        def copy(index: list[str]) -> None:
            tile.put(f, index, load(f, kind.dtype, place.address(f, position(self, at, along, index))))

        def guarded(index: list[str]) -> None:
            tile.put(f, index, load_one(self.f, place, position(self, at, along, index)))

        def at_the_edge() -> None:
            if self.lanes(lying.shape[-1]) == 1:
                for_each(f, lying.shape, guarded)
                return
            in_rows = in_memory_rows(self, place, along[-1])
            f.when(in_rows, lambda: read_edge(self, place, at, along, tile), lambda: for_each(f, lying.shape, guarded))

        inside = whole_inside(f, at, extents, place.extents)
        f.when(inside, lambda: for_each(f, lying.shape, copy), at_the_edge)
        return ScratchTile(kind, tile.pointer, () if order == tuple(range(len(axes))) else order)

    def prefetch(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> None:
        """Emit nothing: tiles in memory are large, and the hardware prefetches them."""

    def operand(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> ScratchTile:
        """Return an operand of a product in place; a boundary tile, or one without contiguous rows, is copied."""
        f, order = self.f, tuple(sorted(range(len(axes)), key=lambda i: axes[i]))
        extents = [kind.shape[axes.index(a)] if a in axes else 1 for a in range(place.type.rank)]
        in_rows = in_memory_rows(self, place, axes[order[-1]])
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
        in_rows = in_memory_rows(self, place, axes[-1])
        quick = all_of(f, [in_rows, whole_inside(f, at, extents, place.extents)])

        def put(index: Sequence[str], some: str, lanes: int) -> None:
            there = position(self, at, axes, index)

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

    def gather(self, place: Place, kind: Tile, where: Callable[[list[str]], Sequence[str]]) -> ScratchTile:
        return self.fill(kind, lambda index: load_one(self.f, place, where(index)))

    def scatter(self, place: Place, tile: HeldTile, where: Callable[[list[str]], Sequence[str]]) -> None:
        f = self.f

        def element(index: list[str]) -> None:
            position = where(index)

            def put() -> None:
                store(f, tile.dtype, tile.element(f, index), place.address(f, position))

            f.when(inside(f, position, place.extents), put, lambda: None)

        for_each(f, tile.type.shape, element)

    # -- single elements, at positions that are tiles

    def read_indexed(
        self, op: ReadIndexed | ReadIndexedShared, place: Place, at: Sequence[HeldTile], kind: Tile
    ) -> HeldTile:
        loaded = load_run if op.in_runs else load_each

        def compute(f: LlvmFunction, index: Sequence[str], lanes: int) -> str:
            return loaded(f, place, _positions(f, at, index), lanes)

        computed = ComputedTile(kind, compute)
        return computed if isinstance(op, ReadIndexed) and op.result in self.uses.fused else self.kept(computed)

    def write_indexed(
        self, op: WriteIndexed, place: Place, at: Sequence[HeldTile], tile: HeldTile | ProductTile
    ) -> None:
        f, x = self.f, self.stored(tile) if isinstance(tile, ProductTile) else tile
        lanes = self.lanes(x.type.shape[-1])

        def part(index: list[str]) -> None:
            write_vector(f, op, place, _positions(f, at, index), x.element(f, index, lanes), lanes)

        self.for_each_vector(x.type.shape, lanes, part)

    def multiply(
        self, a: HeldTile | Panel | OperandRows, b: HeldTile | Panel, acc: HeldTile
    ) -> ScratchTile | ProductTile:
        if isinstance(a, (Panel, OperandRows)) or isinstance(b, Panel):
            return multiply_panels(self, a, b, acc)
        f, target = self.f, self.target
        left, right = (widened(self, self.kept(x), acc.dtype) for x in (a, b))
        *_, high, wide = acc.type.shape
        lanes = target.vector_bytes // acc.dtype.bytes
        if acc.dtype.is_float and runs_along_depth(lanes, high, wide, right.is_transposed):
            rows, columns = self.in_rows(left), self.in_rows(right)
            return product_of_line(self, acc.type, lambda put: multiply_along_depth(f, target, rows, columns, acc, put))
        transposed = with_rows_transposed(self, right)
        return product_of_line(self, acc.type, lambda put: multiply_tiles(f, target, left, transposed, acc, put))

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


def _one_by_one(
    f: LlvmFunction, kind: Tile, lanes: int, index: Sequence[str], element: Callable[[Sequence[str]], str]
) -> str:
    """Return `lanes` neighbours along the last axis from `index` on, computed one by one."""
    one, found = stored(kind.dtype), "poison"
    for lane in range(lanes):
        there = (*index[:-1], f.value(f"add i64 {index[-1]}, {lane}"))
        found = f.value(f"insertelement <{lanes} x {one}> {found}, {one} {element(there)}, i64 {lane}")
    return found


def _positions(f: LlvmFunction, at: Sequence[HeldTile], index: Sequence[str]) -> Positions:
    def position(lane: int) -> list[str]:
        there = [*index[:-1], add(f, index[-1], lane)]
        return [x.element(f, there) for x in at]

    return position
