"""The layouts in which each tile of a kernel is needed, before `distribute_lanes` splits it among lanes.

An MMA decides the layout of its accumulator, a staged read how it is loaded, and what is computed from them follows:

    %z = mma(%x, %y, %acc)        %x, %y as the matrix instruction takes them, %acc and %z as it gives its sums
    %scaled = mul(%z, %factor)    as %z, and so is %factor
    write(%scaled, %c, …)         in the layout it has

A tile that is not available in the layout needed (`tied_layouts.py`) is listed in `mismatches`, with the ops that need
it; after `convert_layouts` there are none. It is listed as close to its use as is cheap: before a cast that makes it
larger, and before a broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewave.analysis.instructions import fragment_of
from tilewave.analysis.loads import memory_order
from tilewave.analysis.tied_layouts import Ties, TileLayouts, bodies, carried, carried_args, part_of
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Convert,
    Elementwise,
    ExtractSlice,
    HandOver,
    Loop,
    Mma,
    Permute,
    Read,
    ReadIndexed,
    Reduce,
    Scatter,
    TakeOver,
    While,
    Write,
    WriteIndexed,
    WriteThrough,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.layouts.formulas import blocks, linear
from tilewave.layouts.fragments import Fragment, GroupFragment
from tilewave.layouts.reductions import chunk_width, movers, rows_in_lanes, runs, with_axis_met
from tilewave.machine.matrix import BY_NAME, GroupInstruction

WIDEST_BYTES = 16


class LayoutsNeeded:
    """`needed[v]` lists the layouts in which tile v is used; their order does not matter.

    `mismatches[v]` lists the ops that use v in a layout in which it is not available.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.waves = kernel.waves if len(kernel.waves) == 2 else (prod(kernel.waves), 1)
        self.lanes, self.vector_bytes = kernel.lanes * prod(kernel.waves), kernel.vector_bytes
        self.needed: dict[Value, list[TileLayouts]] = {}
        self.mismatches: dict[Value, list[Op]] = {}
        self._had: dict[tuple[Value, TileLayouts], bool] = {}
        self._defs = kernel.defs
        products = [op for op in walk(kernel.body) if isinstance(op, Mma)]
        self._reading = next((BY_NAME[op.instruction] for op in products), None)
        self._reduced = {op.x: op.axes for op in walk(kernel.body) if isinstance(op, Reduce)}
        self._tied = Ties(kernel, self.sums, self._operands, self._wish, self.left_over, self.met).spread
        self._walk_back(kernel.body)

    # -- the layout of a tile where it is made

    def held(self, v: Value) -> TileLayouts:
        """Return the layout of a tile: that of its ties, or the preferred one where any is available."""
        return self._tied[v] if v in self._tied else self._wish(v)

    def _wish(self, v: Value) -> TileLayouts:
        """Return the layout for a tile that no op constrains: that of the read it is made from, else the widest chunks.

        Rows that are reduced are held by neighbouring lanes.
        """
        if v in self._reduced:
            return self._rows(v, self._reduced[v])
        return self._as_read(v) or self._plain(v.type.shape, v.type.dtype.bytes)

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
        width = chunk_width(shape, near[0], max(1, self.vector_bytes // element_bytes), lanes, waves)
        return (rows_in_lanes(shape, near, width, lanes, waves, reduced),)

    def _is_met(self, v: Value) -> bool:
        maker = self._defs.get(v)
        return isinstance(maker, Read) and is_in(maker.memory, "shared") and len(self._reduced[v]) == 1

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
                same = (x for x in op.operands if _is_tile(x))
                return next((found for x in same if (found := self._memory_order(x))), None)
            case _:
                return None

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

    def is_of_product(self, v: Value) -> bool:
        """Return whether a tile is computed elementwise from an accumulator, so that it has the same layout."""
        op = self._defs.get(v)
        if isinstance(op, (Elementwise, Permute)):
            return any(self.is_of_product(x) for x in op.operands if _is_tile(x))
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

    def _as_read(self, v: Value) -> TileLayouts | None:
        op = self._defs.get(v)
        match op:
            case Read(spread=spread) if spread:
                return self._read(op)
            case Permute(x, axes):
                found = self._as_read(x)
                return found and tuple(layout.permuted(axes) for layout in found)
            case Elementwise():
                return next((s for x in op.operands if _is_tile(x) and (s := self._as_read(x))), None)
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

    def _plain(self, shape: tuple[int, ...], element_bytes: int) -> TileLayouts:
        width = max(1, self.vector_bytes // element_bytes)
        while shape[-1] % width or (width > 1 and prod(shape) // width < self.lanes):
            width //= 2
        return linear(shape, width, self.lanes)

    # -- the layouts needed, from the last use to the first

    def _walk_back(self, block: Block) -> None:
        for op in reversed(block.ops):
            self._needs(op)

    def _needs(self, op: Op) -> None:
        match op:
            case Write(tile) | WriteThrough(tile) | Scatter(tile) | HandOver(tile) | Convert(tile):
                self._need(op, tile, self.held(tile))
            case WriteIndexed(tile, _, at):
                for x in (tile, *at):
                    self._need(op, x, self.held(tile))
            case TakeOver(tile):
                self._held_as(op.result, self.held(op.result))
                self._need(op, tile, self.held(op.result))
            case Reduce(x):
                if _is_tile(op.result):
                    self._held_as(op.result, self.held(op.result))
                self._need(op, x, self.held(x))
            case Mma(acc=acc):
                self._held_as(op.result, self.sums(op))
                self._need(op, acc, self.sums(op))
                for v, spread in self._operands(op):
                    self._need(op, v, spread)
            case Loop() | While():
                self._loop_needs(op)
            case _:
                for spread in self.needed.get(op.results[0], ()) if op.results else ():
                    for x, passed in self._made_of(op, spread):
                        self._need(op, x, passed)

    def _made_of(self, op: Op, spread: TileLayouts) -> list[tuple[Value, TileLayouts]]:
        """Return the tiles that a result is computed from lane by lane, with the layouts they need for `spread`."""
        match op:
            case Broadcast(x, axes) if _is_tile(x):
                return [(x, tuple(layout.along(axes)[0] for layout in spread))]
            case Permute(x, axes):
                back = tuple(axes.index(i) for i in range(len(axes)))
                return [(x, tuple(layout.permuted(back) for layout in spread))]
            case Elementwise():
                return [(x, spread) for x in op.operands if _is_tile(x)]
            case ExtractSlice(x):
                return [(x, self.held(x))] if self.cuts(op) in (None, spread) else []
            case _:
                return []  # made of no tile; other ops are refused by `distribute_lanes`

    def cuts(self, op: ExtractSlice) -> TileLayouts | None:
        """Return the layout of a slice of a tile; None where lanes hold it in other than consecutive registers."""
        return part_of(self.held(op.x), op)

    def _loop_needs(self, op: Loop | While) -> None:
        ends = op.body.ops[-1]
        for result, *_, yielded, init in carried(op):
            self._held_as(result, self.held(result))
            self._need(ends, yielded, self.held(result))
            self._need(op, init, self.held(result))
        for body in bodies(op):
            self._walk_back(body)
            for v in carried_args(op, body):
                if _is_tile(v):
                    self._held_as(v, self.held(v))

    def _need(self, op: Op, v: Value, spread: TileLayouts) -> None:
        """Record that `op` uses `v` in layout `spread`."""
        if not _is_tile(v):
            return
        if not self._can_be_had(v, spread) and not self._is_smaller_before(v, spread):
            self.mismatches.setdefault(v, []).append(op)
        elif spread not in self.needed.setdefault(v, []):
            self.needed[v].append(spread)

    def _can_be_had(self, v: Value, spread: TileLayouts) -> bool:
        """Return whether a tile is available in a layout: held in it, or computable from operands held in theirs."""
        if v not in self._tied or self._tied[v] == spread:
            return True
        if (v, spread) not in self._had:
            parts = self._made_of(self._defs[v], spread) if v in self._defs else []
            self._had[v, spread] = bool(parts) and all(self._can_be_had(x, passed) for x, passed in parts)
        return self._had[v, spread]

    def is_tied(self, v: Value) -> bool:
        """Return whether a tile is available in one layout only."""
        return v in self._tied

    def _is_smaller_before(self, v: Value, spread: TileLayouts) -> bool:
        """Return whether converting what `v` is made from moves fewer bytes."""
        parts = self._made_of(self._defs[v], spread) if v in self._defs else []
        wrong = {x for x, passed in parts if not self._can_be_had(x, passed)}
        return bool(parts) and sum(map(_bytes, wrong)) < _bytes(v)

    def _held_as(self, v: Value, spread: TileLayouts) -> None:
        """Record that `v` is available in this layout only."""
        assert all(other == spread for other in self.needed.get(v, ())), f"{v} is needed as it cannot be had"
        self.needed[v] = [spread]


def _bytes(v: Value) -> int:
    return prod(v.type.shape) * v.type.dtype.bytes


def _is_tile(v: Value) -> bool:
    return isinstance(v.type, Tile)
