"""Tiles in vector registers: rows of vectors, every step unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from tilewave.ir.core import Op
from tilewave.ir.ops import Div, ReadIndexed, ReadIndexedShared, Reduce, Shift, WriteIndexed
from tilewave.ir.types import F32, Tile
from tilewave.lower.cpu.indexed import Positions, load_each, load_one, load_run, write_vector
from tilewave.lower.cpu.memory import LINE_BYTES, Place, inside, prefetch, store, zero
from tilewave.lower.cpu.quotients import FEWEST, divided_by_one
from tilewave.lower.cpu.reductions import Flat, combining, lane_by_lane, regrouped, without_axis
from tilewave.lower.cpu.register_access import (
    edge_copy,
    from_buffer,
    is_whole,
    load_vector,
    store_vector,
    vector_address,
    vectors_of,
)
from tilewave.lower.cpu.row_vectors import RegisterSpace, RowVectors, flat
from tilewave.lower.cpu.target import OperandRows, Panel
from tilewave.lower.elements import in_memory, literal, splat_constant, stored
from tilewave.lower.integers import Known
from tilewave.lower.llvm import Typed, splat
from tilewave.lower.numbers import elementwise


class RegisterTiles(RegisterSpace):
    """The lowering of ops on tiles in registers."""

    def constant(self, kind: Tile, value: float) -> RowVectors:
        text = literal(value, kind.dtype)
        return self.build(kind, lambda _, __, lanes: splat_constant(stored(kind.dtype), text, lanes))

    def elementwise(self, op: Op, operands: list[RowVectors | str], kind: Tile, known: Known) -> RowVectors:
        tiles = [x for x in operands if isinstance(x, RowVectors)]
        like = tiles[-1]

        def one(at: tuple[int, int]) -> str:
            parts = [x.rows[at[0]][at[1]] if isinstance(x, RowVectors) else x for x in operands]
            if isinstance(operands[0], str) and like.lanes > 1:  # a scalar condition chooses for every lane
                parts[0] = splat(self.f, "i1", parts[0], like.lanes)
            return elementwise(self.f, op, parts, like.dtype, like.lanes, known)

        def row(r: int) -> tuple[str, ...]:
            if isinstance(op, Div) and self.is_one_divisor(like, r):
                return tuple(divided_by_one(self.f, tiles[0].rows[r], like.rows[r][0], like.lanes))
            return tuple(one((r, c)) for c in range(len(like.rows[r])))

        return RowVectors(kind, like.lanes, tuple(row(r) for r in range(len(like.rows))))

    def is_one_divisor(self, by: RowVectors, row: int) -> bool:
        """Return whether a row is divided by one f32, often enough for its reciprocal to be faster."""
        often = by.lanes > 1 and len(by.rows[row]) >= FEWEST
        return often and by.dtype == F32 and self.target.fuses and len(set(by.rows[row])) == 1

    def broadcast(self, x: RowVectors | str, axes: tuple[int, ...], kind: Tile) -> RowVectors:
        f = self.f
        if isinstance(x, str):
            one = splat(f, stored(kind.dtype), x, self.lanes(kind))
            return self.build(kind, lambda *_: one)
        last = len(kind.shape) - 1
        if axes and axes[-1] == last:
            return self.build(kind, lambda index, first, lanes: x.rows[self._row(x, axes, index)][first // lanes])
        if last in axes:
            return self.from_elements(kind, lambda index: x.element(f, [index[a] for a in axes]))
        made: dict[tuple[int, ...], str] = {}

        def part(index: tuple[int, ...], _: int, lanes: int) -> str:
            source = tuple(index[a] for a in axes)
            if source not in made:
                made[source] = splat(f, stored(kind.dtype), x.element(f, source), lanes)
            return made[source]

        return self.build(kind, part)

    def _row(self, x: RowVectors, axes: tuple[int, ...], index: tuple[int, ...]) -> int:
        return flat([index[a] for a in axes[:-1]], x.type.shape[:-1])

    def permute(self, x: RowVectors, axes: tuple[int, ...], kind: Tile) -> RowVectors:
        def element(index: tuple[int, ...]) -> str:
            source = [0] * len(axes)
            for to, axis in enumerate(axes):
                source[axis] = index[to]
            return x.element(self.f, source)

        return self.from_elements(kind, element)

    def iota(self, kind: Tile) -> RowVectors:
        def part(_: tuple[int, ...], first: int, lanes: int) -> str:
            numbers = [f"{stored(kind.dtype)} {literal(first + lane, kind.dtype)}" for lane in range(lanes)]
            return f"<{', '.join(numbers)}>" if lanes > 1 else numbers[0].split()[1]

        return self.build(kind, part)

    # -- along an axis

    def reduce(self, op: Reduce, x: RowVectors) -> RowVectors | str:
        f, combine = self.f, combining(self.f, op)
        shape = op.shape_with_runs
        found = Flat(x.dtype, shape, x.lanes, tuple(v for row in x.rows for v in row))
        for axis in reversed(op.axes_with_runs):
            if not op.has_order and axis == len(found.shape) - 1:
                found = lane_by_lane(f, found, combine)
            found = without_axis(f, found, axis, combine)
        kind = op.result.type
        if not isinstance(kind, Tile):
            return regrouped(f, found, 1).vectors[0]
        lanes = self.lanes(kind)
        vectors = iter(regrouped(f, found, lanes).vectors)
        return self.build(kind, lambda *_: next(vectors))

    def shift(self, op: Shift, x: RowVectors) -> RowVectors:
        def element(index: tuple[int, ...]) -> str:
            before = list(index)
            before[op.axis] -= op.by
            is_inside = 0 <= before[op.axis] < x.type.shape[op.axis]
            return x.element(self.f, before) if is_inside else zero(x.dtype)

        return self.from_elements(x.type, element)

    # -- memory

    def read(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> RowVectors:
        f = self.f
        quick = is_whole(self, place, at, axes, kind)
        lanes = self.lanes(kind)

        def whole() -> list[Typed]:
            rows = self.build(kind, lambda index, first, n: load_vector(self, place, at, axes, (*index, first), n))
            return rows.typed()

        def edge() -> list[Typed]:
            buffer = self.buffer(kind)
            edge_copy(self, place, at, axes, kind, buffer, "load")
            return self.whole_buffer(buffer, kind).typed()

        found = f.choose(quick, whole, edge)
        empty = RowVectors(kind, lanes, tuple(("",) * (kind.shape[-1] // lanes) for _ in range(prod(kind.shape[:-1]))))
        return self.rebuilt(empty, [v for _, v in found])

    def prefetch(self, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> None:
        """Prefetch a tile that is accessed next: the cache lines of its rows, which may begin within one."""
        length, each = kind.shape[-1], LINE_BYTES // kind.dtype.bytes
        for index in product(*map(range, kind.shape[:-1]), (*range(0, length, each), length - 1)):
            prefetch(self.f, vector_address(self, place, at, axes, index))

    def write(self, place: Place, at: Sequence[str], axes: tuple[int, ...], tile: RowVectors) -> None:
        kind = tile.type
        parts = list(vectors_of(self, tile))

        def whole() -> None:
            for index, value in parts:
                address = vector_address(self, place, at, axes, index)
                store_vector(self, value, kind.dtype, tile.lanes, address)

        def edge() -> None:
            edge_copy(self, place, at, axes, kind, self.to_buffer(tile), "store")

        self.f.when(is_whole(self, place, at, axes, kind), whole, edge)

    def buffer(self, kind: Tile) -> str:
        """Return a stack buffer for a boundary tile, shared by all tiles of this type."""
        name = f"%edge_{'x'.join(map(str, kind.shape))}_{kind.dtype}"
        return self.f.room(name, f"alloca [{prod(kind.shape)} x {in_memory(kind.dtype)}], align 64")

    def to_buffer(self, tile: RowVectors) -> str:
        """Store a tile in a buffer, row after row, and return its address."""
        buffer = self.buffer(tile.type)
        for index, value in vectors_of(self, tile):
            where = f"getelementptr {in_memory(tile.dtype)}, ptr {buffer}, i64 {flat(index, tile.type.shape)}"
            store_vector(self, value, tile.dtype, tile.lanes, self.f.value(where))
        return buffer

    def whole_buffer(self, buffer: str, kind: Tile) -> RowVectors:
        return self.build(kind, lambda index, first, n: from_buffer(self, buffer, kind, (*index, first), n))

    # -- single elements, at positions given by a formula

    def gather(self, place: Place, kind: Tile, where: Callable[[tuple[int, ...]], Sequence[str]]) -> RowVectors:
        return self.from_elements(kind, lambda index: load_one(self.f, place, where(index)))

    def scatter(self, place: Place, tile: RowVectors, where: Callable[[tuple[int, ...]], Sequence[str]]) -> None:
        f = self.f
        for index in product(*map(range, tile.type.shape)):
            position, value = where(index), tile.element(f, index)

            def put(position: Sequence[str] = position, value: str = value) -> None:
                store(f, tile.dtype, value, place.address(f, position))

            f.when(inside(f, position, place.extents), put, lambda: None)

    # -- single elements, at positions that are tiles

    def read_indexed(
        self, op: ReadIndexed | ReadIndexedShared, place: Place, at: Sequence[RowVectors], kind: Tile
    ) -> RowVectors:
        loaded = load_run if op.in_runs else load_each

        def part(index: tuple[int, ...], first: int, lanes: int) -> str:
            return loaded(self.f, place, self._positions(at, (*index, first)), lanes)

        return self.build(kind, part)

    def write_indexed(self, op: WriteIndexed, place: Place, at: Sequence[RowVectors], tile: RowVectors) -> None:
        for index, x in vectors_of(self, tile):
            write_vector(self.f, op, place, self._positions(at, index), x, tile.lanes)

    def _positions(self, at: Sequence[RowVectors], index: tuple[int, ...]) -> Positions:
        *leading, first = index
        return lambda lane: [x.element(self.f, (*leading, first + lane)) for x in at]

    # -- products

    def multiply(self, a: Panel | OperandRows, b: Panel, acc: RowVectors) -> RowVectors:
        return self.rebuilt(acc, self.target.multiply_panels(self.f, a, b, acc.rows, acc.lanes, acc.dtype))
