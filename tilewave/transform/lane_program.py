"""The program of one lane while it is built: the vectors that replace tiles, and the positions of their registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.tied_layouts import TileLayouts
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Add, And, Broadcast, ExtractSlice, Lane, Ramp, Read, Wave, Write, Yield
from tilewave.ir.rewrite import names, substitute, walk
from tilewave.ir.types import INDEX, INDEX_SCALAR, Tile, Vector
from tilewave.layouts.formulas import Layout, Term
from tilewave.layouts.reductions import Copies, copies, holding

NO_COPIES = Copies((), ())


class LaneProgram:
    """Emits what each lane computes; `top` is code at the start of the kernel, which is computed once."""

    def __init__(self, kernel: Kernel, spreads: LayoutsNeeded) -> None:
        self.spreads, self.lanes = spreads, kernel.lanes
        taken = names(kernel) - {v.name for op in walk(kernel.body) for v in _tiles_of(op)}
        self.top, self.out = Builder(taken), Builder(taken)
        self.pieces: dict[tuple[Value, TileLayouts], tuple[Value, ...]] = {}
        self.numbers: dict[str, Value] = {}
        self.places: dict[tuple[Term, ...], Value] = {}
        self.masks: dict[int, Value] = {}
        self.holders: dict[Copies, Value] = {}
        self.chunks: dict[tuple[Any, ...], tuple[Value, Value]] = {}
        self.last: list[Op] = []
        """Ops appended at the end of the kernel."""

    def renamed(self, v: Value) -> tuple[Value, ...]:
        """Return the lane values of an argument or result: itself, or the vectors that replace a tile."""
        if not isinstance(v.type, Tile):
            return (v,)
        (spread,) = self.spreads.needed.get(v) or [self.spreads.held(v)]
        found = tuple(self.out.fresh(v.name, Vector(layout.registers, v.type.dtype)) for layout in spread)
        self.pieces[v, spread] = found
        return found

    def held(self, tile: Value) -> list[tuple[Value, Layout]]:
        spread = self.spreads.held(tile)
        return list(zip(self.pieces[tile, spread], spread, strict=True))

    def once(self, tile: Value) -> Iterator[tuple[Value, Layout]]:
        """Yield the vectors of a tile until all elements are covered; later layouts hold copies."""
        waves = prod(self.spreads.waves)
        for held, whole in self.held(tile):
            x, layout = self.without_copies(held, whole)
            yield x, layout
            if prod(layout.registers) * (holding(layout, waves, self.lanes) or 0) == prod(tile.type.shape):
                return

    def without_copies(self, x: Value, layout: Layout) -> tuple[Value, Layout]:
        """Return the vector and its layout without registers that are copies of others."""
        counts = list(layout.registers)
        for axis, step in enumerate(layout.steps):
            if not any(step) and counts[axis] > 1:
                x, counts[axis] = self.part(x, axis, 0, 1), 1
        return x, replace(layout, registers=tuple(counts))

    def mask_of_holders(self, layout: Layout) -> tuple[Value, ...]:
        """Return the mask with which one lane stores, of those that hold the same elements."""
        waves = prod(self.spreads.waves)
        same = None if layout.limit else copies(layout, waves, self.lanes)
        if same is None and (count := holding(layout, waves, self.lanes)):
            return self.mask(replace(layout, limit=count % (waves * self.lanes)))
        if same is None or same == NO_COPIES:
            return self.mask(layout)
        if same not in self.holders:
            self.holders[same] = self.is_first(same)
        return (self.holders[same],)

    def is_first(self, same: Copies) -> Value:
        """Whether this lane is the first of those that hold the same."""
        digits = [("lane", 1 << bit, 2) for bit in same.lane_bits]
        digits += [("wave", divisor, count) for divisor, count in same.wave_digits]
        found: Value | None = None
        for of, divisor, count in digits:
            holds = (Number(self.top, self.number(of)) // divisor % count < 1).value
            found = holds if found is None else self.top.binary(And, found, holds)
        assert found is not None
        return found

    def part(self, x: Value, axis: int, first: int, count: int) -> Value:
        shape = x.type.shape
        if shape[axis] == count:
            return x
        kind = Vector((*shape[:axis], count, *shape[axis + 1 :]), x.type.dtype)
        return self.out.emit(ExtractSlice, x, axis, first, type=kind)

    def window(
        self, at: tuple[Value, ...], axes: tuple[int, ...], layout: Layout
    ) -> tuple[tuple[Value, ...], tuple[tuple[int, ...], ...]]:
        """Return the position of a lane's first register in a memory, and the steps to its other registers."""
        where = list(at)
        for i, axis in enumerate(axes):
            if layout.axes[i]:
                where[axis] = self.out.emit(Add, at[axis], self.place(layout.axes[i]), type=INDEX_SCALAR)
        steps = tuple(
            tuple(step[axes.index(axis)] if axis in axes else 0 for axis in range(len(at))) for step in layout.steps
        )
        return tuple(where), steps

    def within(self, op: Read | Write, layout: Layout) -> tuple[tuple[Value, ...], tuple[int, ...]]:
        """Return the position of a lane's first register in a partial tile, and the extents of that tile."""
        if not op.within:
            return (), ()
        own, within = [self.number("none")] * len(op.at), [1] * len(op.at)
        for i, axis in enumerate(op.axes):
            within[axis] = op.within[i]
            if layout.axes[i]:
                own[axis] = self.place(layout.axes[i])
        return tuple(own), tuple(within)

    def number(self, of: str) -> Value:
        if of not in self.numbers:
            match of:
                case "lane" | "wave":
                    self.numbers[of] = self.top.emit(Lane if of == "lane" else Wave, type=INDEX_SCALAR)
                case "none":
                    self.numbers[of] = self.top.const(0)
                case _:
                    wave, lane = (Number(self.top, self.number(w)) for w in ("wave", "lane"))
                    self.numbers[of] = (wave * self.lanes + lane).value
        return self.numbers[of]

    def place(self, terms: tuple[Term, ...]) -> Value:
        """Return the position at which this lane's part of a tile begins along one axis."""
        if terms not in self.places:
            parts = [term.value(Number(self.top, self.number(term.of))) for term in terms]
            self.places[terms] = sum(parts[1:], parts[0]).value
        return self.places[terms]

    def mask(self, layout: Layout) -> tuple[Value, ...]:
        if not layout.limit:
            return ()
        if layout.limit not in self.masks:
            self.masks[layout.limit] = (Number(self.top, self.number("all")) < layout.limit).value
        return (self.masks[layout.limit],)

    def coordinate(self, layout: Layout, axis: int) -> Value:
        """Return the tile position of each register along one axis."""
        kind = Vector(layout.registers, INDEX)
        ramp = self.out.emit(Ramp, tuple(step[axis] for step in layout.steps), type=kind)
        if not layout.axes[axis]:
            return ramp
        first = self.out.emit(Broadcast, self.place(layout.axes[axis]), type=kind)
        return self.out.binary(Add, first, ramp)

    def inlined(self, where: Block, layout: Layout) -> tuple[Value, ...]:
        """Return the positions that a formula gives for each register."""
        found = {arg: self.coordinate(layout, axis) for axis, arg in enumerate(where.args)}
        for op in where.ops:
            if isinstance(op, Yield):
                return tuple(self.spread_out(found.get(v, v), layout) for v in op.values)
            found[op.result] = self.formula(op, found, layout)
        raise AssertionError("a formula ends in yield")

    def formula(self, op: Op, found: dict[Value, Value], layout: Layout) -> Value:
        operands = [found.get(v, v) for v in op.operands]
        if any(isinstance(v.type, Vector) for v in operands):
            operands = [self.spread_out(v, layout) for v in operands]
            kind: Any = Vector(layout.registers, op.result.type.dtype)
        else:
            kind = op.result.type
        result = self.out.fresh(op.result.name, kind)
        renamed = substitute(op, dict(zip(op.operands, operands, strict=True)))
        self.out.ops.append(replace(renamed, results=(result,)))
        return result

    def spread_out(self, v: Value, layout: Layout) -> Value:
        if isinstance(v.type, Vector):
            return v
        return self.out.emit(Broadcast, v, type=Vector(layout.registers, v.type.dtype))


def _tiles_of(op: Op) -> list[Value]:
    made = [*op.results, *(v for block in op.blocks for v in block.args)]
    return [v for v in made if isinstance(v.type, Tile)]
