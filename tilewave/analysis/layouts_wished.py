"""The layout of a tile that no other op constrains: that of the op which makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, TypeVar

from tilewave.analysis.instructions import fragment_of
from tilewave.analysis.loads import memory_order
from tilewave.analysis.tied_layouts import TileLayouts
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Elementwise,
    Loop,
    Mma,
    Permute,
    Read,
    ReadIndexed,
    Reduce,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.layouts.formulas import blocks, linear
from tilewave.layouts.fragments import Fragment, GroupFragment
from tilewave.layouts.reductions import chunk_width, movers, rows_in_lanes, runs, with_axis_met
from tilewave.machine.matrix import BY_NAME, GroupInstruction

SIDES = 2
"""The axes of a product that its terms keep: rows and columns."""
Found = TypeVar("Found")
AboutValue = Callable[[Any, Value], Found]
"""A method that answers a question about a value."""


def once_per_value(method: AboutValue[Found]) -> AboutValue[Found]:
    """Return the method, which answers once for each value: values share operands, and paths to these are many."""

    @wraps(method)
    def answered(self: Any, v: Value) -> Found:
        key = (method.__name__, v)
        if key not in self.answers:
            self.answers[key] = method(self, v)
        found: Found = self.answers[key]
        return found

    return answered


class LayoutsWished:
    """The layouts that tiles have by how they are made: read, multiplied or reduced."""

    def __init__(self, kernel: Kernel) -> None:
        self.waves = kernel.waves if len(kernel.waves) == 2 else (prod(kernel.waves), 1)
        self.lanes, self.kernel = kernel.lanes * prod(kernel.waves), kernel
        self._defs = kernel.defs
        self._begins = {
            v: init
            for op in walk(kernel.body)
            if isinstance(op, Loop)
            for v, init in zip(op.body.args[1:], op.init, strict=True)
        }
        self.answers: dict[tuple[str, Value], Any] = {}
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        self._reading = next((BY_NAME[op.instruction] for op in products), None)
        self._reduced = {op.x: op.axes for op in walk(kernel.body) if isinstance(op, Reduce)}

    def _wish(self, v: Value) -> TileLayouts:
        """Return the layout for a tile that no op constrains: that of the read it is made from, else the widest chunks.

        Rows that are reduced are held by neighbouring lanes.
        """
        if v in self._reduced:
            return self._rows(v, self._reduced[v])
        return self._as_read(v) or self._plain(v)

    def _rows(self, v: Value, reduced: tuple[int, ...]) -> TileLayouts:
        waves, shape = prod(self.waves), v.type.shape
        if self._is_met(v):  # each lane combines what all waves stored
            (axis,), lanes = reduced, self.lanes // waves
            others = tuple(n for i, n in enumerate(shape) if i != axis)
            rest = rows_in_lanes(others, range(len(others))[::-1], 1, lanes, waves, ())
            return (with_axis_met(rest, axis, shape[axis], lanes),)
        order, element_bytes = self._memory_order(v) or (tuple(range(len(shape))), v.type.dtype.bytes)
        near = order[::-1]
        lanes = self.lanes // waves
        width = chunk_width(shape, near[0], max(1, self._vector_bytes(v) // element_bytes), lanes, waves)
        kept = [axis for axis in range(len(shape)) if axis not in reduced]
        last = kept if self._is_repeated_along(kept, v) else reduced
        return (rows_in_lanes(shape, near, width, lanes, waves, last),)

    def _is_repeated_along(self, kept: Sequence[int], v: Value) -> bool:
        """Return whether a loop adds up `v`, the terms of a product: of tiles that are repeated along one of two sides.

        Waves that split a side would each load the same elements; they meet once, after the loop, if they split the
        depth.
        """
        loop = self._defs.get(v)
        if not isinstance(loop, Loop) or len(kept) < SIDES:
            return False
        repeated, waiting = False, [loop.body.yielded[loop.results.index(v)]]
        while waiting:
            op = self._defs.get(waiting.pop())
            if isinstance(op, Broadcast) and is_tile(op.x):
                repeated |= any(v.type.shape[axis] > 1 for axis in kept if axis not in op.axes)
            elif isinstance(op, Elementwise):
                waiting += op.operands
        return repeated

    def _is_met(self, v: Value) -> bool:
        maker = self._defs.get(v)
        return isinstance(maker, Read) and is_in(maker.memory, "shared") and len(self._reduced[v]) == 1

    @once_per_value
    def _memory_order(self, v: Value) -> tuple[tuple[int, ...], int] | None:
        """Return the axes of v in the order of the memory it is made from, and the bytes of an element there."""
        op = self._defs.get(v)
        match op:
            case Read() if is_in(op.memory, "global"):
                return memory_order(op), v.type.dtype.bytes
            case Permute(x, axes):
                found = self._memory_order(x)
                return found and (tuple(axes.index(axis) for axis in found[0]), found[1])
            case ReadIndexed(in_runs=True):
                return tuple(range(len(v.type.shape))), v.type.dtype.bytes
            case Elementwise():
                same = (x for x in op.operands if is_tile(x))
                return next((found for x in same if (found := self._memory_order(x))), None)
            case None if v in self._begins:  # loaded before the loop, and in each step for the next one
                return self._memory_order(self._begins[v])
            case _:
                return None

    @once_per_value
    def _vector_bytes(self, v: Value) -> int:
        """Return the widest access of a lane in the memory that v is made from; else the least of all."""
        op = self._defs.get(v)
        match op:
            case Read() | ReadIndexed():
                return self.kernel.vector_bytes_of(op.memory)
            case Permute(x):
                return int(self._vector_bytes(x))
            case Elementwise():
                made_of = (self._vector_bytes(x) for x in op.operands if is_tile(x) and self._memory_order(x))
                return next(made_of, self.kernel.vector_bytes)
            case _:
                return self.kernel.vector_bytes

    def left_over(self, op: Reduce, spread: TileLayouts) -> TileLayouts:
        """Return the layout of a reduction's result, given that of its operand."""
        (layout, *_), waves = spread, prod(self.waves)
        if not op.run:
            return tuple(each.along(op.kept)[0] for each in spread) if op.kept else ()
        found = movers(layout, op.axes[0], waves, self.lanes // waves)
        assert found is not None, f"{op.loc}: {op.x.type} cannot be reduced as it is held"
        return (runs(layout, op.axes[0], op.run, found),)

    def met(self, op: Reduce, spread: TileLayouts) -> TileLayouts:
        """Return the layout in which a reduction reads what waves stored in shared memory, given that of its result."""
        (axis,), lanes = op.axes, self.lanes // prod(self.waves)
        return tuple(with_axis_met(layout, axis, op.x.type.shape[axis], lanes) for layout in spread)

    def maker(self, v: Value) -> Op | None:
        return self._defs.get(v)

    def group(self, op: Mma) -> GroupFragment | None:
        """Return the fragment of an MMA that groups of waves compute, with operands in shared memory, or the first in
        registers; None where each wave computes its own blocks."""
        instruction = BY_NAME[op.instruction]
        return instruction.group if isinstance(instruction, GroupInstruction) else None

    def fragment(self, op: Mma) -> Fragment:
        return fragment_of(op)

    @once_per_value
    def is_of_product(self, v: Value) -> bool:
        """Return whether a tile is computed elementwise from an accumulator, so that it has the same layout."""
        op = self._defs.get(v)
        if isinstance(op, (Elementwise, Permute)):
            return any(self.is_of_product(x) for x in op.operands if is_tile(x))
        return isinstance(op, Mma)

    def sums(self, op: Mma) -> TileLayouts:
        fragment = self.group(op) or self.fragment(op)
        return (fragment.sums(op.acc.type.shape, self.waves, transposed=op.is_transposed),)

    def operand(self, op: Mma, side: int) -> TileLayouts:
        return (self.fragment(op).operand((op.a, op.b)[side].type.shape, self.waves, side),)

    def _operands(self, op: Mma) -> list[tuple[Value, TileLayouts]]:
        """Return the operands that lanes hold, with their layouts; operands in shared memory are left out."""
        group = self.group(op)
        if group is None:
            return [(v, self.operand(op, side)) for side, v in enumerate((op.a, op.b))]
        return [(op.a, (group.sums(op.a.type.shape, self.waves),))] if self.is_held(op.a) else []

    def is_held(self, operand: Value) -> bool:
        """Return whether lanes hold an operand of a warpgroup's MMA; else it is read from shared memory."""
        maker = self._defs.get(operand)
        return not (isinstance(maker, Read) and is_in(maker.memory, "shared"))

    @once_per_value
    def _as_read(self, v: Value) -> TileLayouts | None:
        op = self._defs.get(v)
        match op:
            case Read(spread=spread) if spread:
                return self._read(op)
            case Permute(x, axes):
                found = self._as_read(x)
                return found and tuple(layout.permuted(axes) for layout in found)
            case Elementwise():
                return next((s for x in op.operands if is_tile(x) and (s := self._as_read(x))), None)
            case _:
                return None

    def _read(self, op: Read) -> TileLayouts:
        shape = op.result.type.shape
        match op.spread:
            case "linear" | "blocks":  # chunks run along the memory's last axis, wherever that is in the tile
                order = memory_order(op)
                back = tuple(order.index(i) for i in range(len(shape)))
                return tuple(layout.permuted(back) for layout in self._chunks(op, [shape[i] for i in order]))
            case "rows" | "columns":
                return (self._block(op).operand(shape, self.waves, 0 if op.spread == "rows" else 1),)
        raise NotImplementedError(f"{op.loc}: lanes cannot share a tile {op.spread}")

    def _chunks(self, op: Read, shape: Sequence[int]) -> TileLayouts:
        """Return the layout of chunks for a tile whose axes are in the memory's order."""
        if op.spread == "linear":
            return linear(tuple(shape), op.per_lane, self.lanes)
        return blocks(tuple(shape), op.rows_per_lane, op.per_lane, self.lanes)

    def _block(self, op: Read) -> Fragment:
        """Return the fragment of the first MMA, deep enough that a lane takes as many neighbours as it reads."""
        assert self._reading is not None, f"{op.loc}: {op.spread} of what product?"
        return self._reading.fragment().with_neighbours(op.per_lane)

    def _plain(self, v: Value) -> TileLayouts:
        shape, width = v.type.shape, max(1, self._vector_bytes(v) // v.type.dtype.bytes)
        while shape[-1] % width or (width > 1 and prod(shape) // width < self.lanes):
            width //= 2
        return linear(shape, width, self.lanes)


def is_tile(v: Value) -> bool:
    return isinstance(v.type, Tile)
