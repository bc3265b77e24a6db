"""Split-K with many parts of large tiles: workgroups store partial sums, and others each reduce a slice of columns.

    workgroups 0 to T · P - 1                       the T · R after them
      %part = loop(‹its steps›, …) {…}                %sum = take_over_all(‹zeros›, %exchange, ‹slice›, …) {count = P}
      hand_over(%part, %exchange, …) {wide = R}       write(%sum, %c, [%m, ‹its columns›])

One workgroup that reduces all parts of a tile reads P tiles; R that share the work read P / R each. Their numbers are
higher than those of all workgroups that store parts, so no workgroup waits for one that starts later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewave.analysis.shared_tiles import TileProgram
from tilewave.ir.build import Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Const, Elementwise, ExtractSlice, Permute, Read, TakeOverAll, Write
from tilewave.ir.rewrite import substitute
from tilewave.ir.split_steps import steps_of_a_split
from tilewave.ir.types import Exchange, Tile
from tilewave.machine.tuning import SplitTuning
from tilewave.transform.shared_tiles import SharedTiles, Turn

GRAIN = 16
"""Columns of a slice are a multiple of this, because the blocks of every matrix unit divide it."""
MOST_ROWS = 128
"""The most rows for which the columns of a slice are contiguous in registers."""


def slices_of(tile: TileProgram, parts: int, costs: SplitTuning) -> int:
    """Return how many workgroups reduce slices of a tile that is split into `parts`; 1 where one reduces all of it."""
    *outer, rows, columns = tile.loop.init[0].type.shape
    in_a_row = prod(outer) == 1 and rows <= MOST_ROWS
    if not costs.is_scattered(parts, tile.sums_bytes) or not in_a_row or not _Columns.can_cut(tile):
        return 1
    fitting = (n for n in range(parts, 1, -1) if columns % (n * GRAIN) == 0)
    return next(fitting, 1)


class ScatteredSplits(SharedTiles):
    """Writes split-K for static sizes: parts of equal steps; neighbours have the same part of different tiles."""

    def __init__(self, kernel: Kernel, tile: TileProgram, parts: int, slices: int, costs: SplitTuning) -> None:
        self.tiles, self.parts, self.slices = kernel.workgroup_count, parts, slices
        self.runs_on = tile.ends_in_zeros or tile.steps % parts == 0
        super().__init__(kernel, tile.running_on if tile.ends_in_zeros and tile.steps % parts else tile, 0, costs)
        self.slots = self.tiles * parts * slices

    @property
    def slot_type(self) -> Exchange:
        sums = self.tile.loop.init[0].type
        return Exchange((self.slots, *sums.shape[:-1], sums.shape[-1] // self.slices), sums.dtype)

    def kernel(self) -> Kernel:
        self.prepare()
        self.compute(self.own)
        return self.finished(self.tiles * (self.parts + self.slices))

    def compute(self, count: Number) -> None:
        adders = self.tiles * self.parts
        adds = self.own < adders
        which = adds.choose(self.own, self.own - adders)
        tile, at = which % self.tiles, which // self.tiles
        each = steps_of_a_split(self.tile.steps_at(self.builder), self.parts)
        first = adds.choose(at, 0) * each
        left = each if self.runs_on else (self.tile.steps_at(self.builder) - first).larger(0).smaller(each)
        sums = self.add_up(Turn(tile.value, first, first + left, adds.choose(left, 0)))
        self.hand_over(sums, adds.choose(1, 0))
        slice_ = adds.choose(
            0, at
        )  # a valid slice also for workgroups that reduce none, because reads may be hoisted above the condition
        self.when(adds.choose(0, 1), lambda: self.add_up_slice(tile, slice_, sums))

    @property
    def own_slot(self) -> Number:
        return Number(self.builder, (self.own * self.slices).value)

    @property
    def wide(self) -> int:
        return self.slices

    def slot(self, other: Number) -> Any:
        raise NotImplementedError("all are taken over at once")

    def add_up_slice(self, tile: Number, at: Number, sums: Value) -> None:
        """Emit the reduction of a slice; `sums` are zeros, because this workgroup has run no step."""
        b, kind = self.builder, self.slot_type
        one = Tile(kind.shape[1:], kind.dtype)
        zeros = b.emit(ExtractSlice, sums, len(one.shape) - 1, 0, type=one, name="zeros")
        slot, apart = (tile * self.slices + at).value, b.const(self.tiles * self.slices)
        whole = b.emit(TakeOverAll, zeros, self.exchange, slot, apart, self.parts, type=one, name="whole")
        _Columns(self, tile.value, whole, at * one.shape[-1]).write()


class _Columns:
    """The epilogue of a tile, applied to some columns of its sums."""

    def __init__(self, sharing: SharedTiles, number: Value, sums: Value, first: Number) -> None:
        self.sharing, self.program, self.builder, self.first = sharing, sharing.tile, sharing.builder, first
        self.numbers: Mapping[Value, Value] = sharing.numbers(number)
        self.width = sums.type.shape[-1]
        self.defs = _defs(self.program)
        (result,) = self.program.loop.results
        self.whole = result.type.shape[-1]
        self.made: dict[tuple[Value, int], Value] = {(result, len(result.type.shape) - 1): sums}

    @staticmethod
    def can_cut(program: TileProgram) -> bool:
        """Return whether everything that is written is computed from the sums column by column."""
        defs = _defs(program)
        (result,) = program.loop.results
        writes = [op for op in program.after if isinstance(op, Write)]
        if not writes or any(op.has_effect and op not in writes for op in program.after):
            return False
        tiles = [op.tile for op in writes]
        axes = [_axis(v, result, defs) for v in tiles]
        ends = {op.memory.type.extents[op.axes[i]] for op, i in zip(writes, axes, strict=True) if i is not None}
        cut = (i is not None and _is_cut(v, i, result, defs) for v, i in zip(tiles, axes, strict=True))
        return all(cut) and len(ends) == 1

    def write(self) -> None:
        """Emit the scalars for positions, then the writes, predicated where columns may be out of bounds."""
        writes = [op for op in self.program.after if isinstance(op, Write)]
        numbers = [op for op in self.program.after if op.results and not isinstance(op.results[0].type, Tile)]
        self.builder.ops += [substitute(op, self.numbers) for op in numbers]
        axes = {op: self.axis(op) for op in writes}
        edges = [
            self.inside(op, axis) for op, axis in axes.items() if op.memory.type.extents[op.axes[axis]] % self.whole
        ]
        if not edges:
            self.write_all(axes)
            return
        self.sharing.when(edges[0].choose(1, 0), lambda: self.write_all(axes))

    def write_all(self, axes: Mapping[Write, int]) -> None:
        for op, axis in axes.items():
            at = self.moved(op.at, op.axes[axis])
            self.builder.ops.append(replace(op, tile=self.cut(op.tile, axis), at=at))

    def inside(self, op: Write, axis: int) -> Number:
        """Return whether these columns begin inside the memory."""
        along = op.axes[axis]
        start = Number(self.builder, self.moved(op.at, along)[along])
        return Number(self.builder, (start < op.memory.type.extents[along]).value)

    def axis(self, op: Write) -> int:
        (result,) = self.program.loop.results
        axis = _axis(op.tile, result, self.defs)
        assert axis is not None
        return axis

    def moved(self, at: tuple[Value, ...], axis: int) -> tuple[Value, ...]:
        here = (Number(self.builder, at[axis]) + self.first).value
        return (*at[:axis], here, *at[axis + 1 :])

    def cut(self, v: Value, axis: int) -> Value:
        """Return the slice's columns of a tile, which are along `axis`."""
        if (v, axis) not in self.made:
            shape = tuple(self.width if i == axis else n for i, n in enumerate(v.type.shape))
            result = self.builder.fresh(v.name, Tile(shape, v.type.dtype))
            op = replace(self.narrow(self.defs[v], axis), results=(result,))
            self.builder.ops.append(op)
            self.made[v, axis] = result
        return self.made[v, axis]

    def narrow(self, op: Op, axis: int) -> Op:
        match op:
            case Read():
                return replace(op, at=self.moved(op.at, op.axes[axis]))
            case Const():
                return op
            case _:
                parts = {x: self.cut(x, i) for x, i in _made_of(op, axis)}
                return substitute(op, parts)


def _defs(program: TileProgram) -> dict[Value, Op]:
    return {v: op for op in (*program.before, *program.after) for v in op.results}


def _made_of(op: Op, axis: int) -> list[tuple[Value, int]]:
    """Return the tiles that an op's result is made of column by column, and the axis of the columns in each."""
    match op:
        case Permute(x, axes):
            return [(x, axes[axis])]
        case Broadcast(x, axes):
            return [(x, axes.index(axis))] if axis in axes and isinstance(x.type, Tile) else []
        case _:
            return [(x, axis) for x in op.operands if isinstance(x.type, Tile)]


def _axis(v: Value, sums: Value, defs: Mapping[Value, Op]) -> int | None:
    """Return the axis of a tile along which the columns of the sums are; None if it is not computed from them."""
    if v == sums:
        return len(v.type.shape) - 1
    match defs.get(v):
        case Permute(x, axes):
            found = _axis(x, sums, defs)
            return None if found is None else axes.index(found)
        case Broadcast(x, axes) if isinstance(x.type, Tile):
            found = _axis(x, sums, defs)
            return None if found is None else axes[found]
        case Elementwise() as op:
            axes_found = (_axis(x, sums, defs) for x in op.operands if isinstance(x.type, Tile))
            return next((axis for axis in axes_found if axis is not None), None)
        case _:
            return None


def _is_cut(v: Value, axis: int, sums: Value, defs: Mapping[Value, Op]) -> bool:
    """Return whether columns of a tile along an axis can be computed independently."""
    if v == sums:
        return axis == len(v.type.shape) - 1
    op = defs.get(v)
    if isinstance(op, (Read, Const)):
        return not isinstance(op, Read) or not op.within
    if not isinstance(op, (Permute, Broadcast, Elementwise)):
        return False
    return all(_is_cut(x, i, sums, defs) for x, i in _made_of(op, axis))
