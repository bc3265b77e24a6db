"""Rewrite what a workgroup does on tiles into what each lane of each wave does on vectors.

%xs = read(%sa, [%c0, %c0])           →  %row = add(%wave_row, %lane_row); …
                                         %xs = load(%sa, [%row, %column]) {steps = …} : vector<2x2x8xf16>
%z = mma(%xs, %ys, %acc)              →  %z = matrix(%xs, %ys, %acc) {shape = [16, 16, 32], …} : vector<2x8x1x4xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

from tilewave.analysis.conversions import conversion_of
from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.loads import run_of_neighbours
from tilewave.analysis.tied_layouts import TileLayouts
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.faults import lacking
from tilewave.ir.launch import in_front
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import substitute
from tilewave.ir.types import INDEX_SCALAR, Scalar, Tile, Vector
from tilewave.layouts.bits import identity
from tilewave.layouts.conversions import LaneExchange, Rearrangement
from tilewave.layouts.formulas import Layout, Term, read_transposed
from tilewave.machine.matrix import BY_NAME
from tilewave.transform.lane_copies import copy_async
from tilewave.transform.lane_epilogue import write_by_groups, write_by_waves
from tilewave.transform.lane_program import LaneProgram
from tilewave.transform.lane_reductions import first_register, in_registers, reduced


def distribute_lanes(kernel: Kernel) -> Kernel:
    lanes = _Lanes(kernel, LayoutsNeeded(kernel))
    body = lanes.block(kernel.body)
    whole = Block(kernel.body.args, (*body.ops, *lanes.last))
    return replace(kernel, body=in_front(lanes.top.ops, whole), level="lane")


class _Lanes(LaneProgram):
    def block(self, block: Block, gives: Sequence[Value] = ()) -> Block:
        """Return the block for one lane; tile arguments and yields become vectors, laid out as the loop's results."""
        args = [v for arg in block.args for v in self.renamed(arg)]
        with self.out.region():
            for op in block.ops:
                self.out.locate = self.top.locate = lambda op=op: op.loc  # type: ignore[misc]
                if isinstance(op, ir.Yield):
                    self.out.effect(ir.Yield, self.carried(op.values, gives or op.values))
                else:
                    self.op(op)
            return self.out.block(args)

    def op(self, op: Op) -> None:
        match op:
            case ir.Write():
                self.write(op)
            case ir.WriteThrough() if (
                len(op.shared.type.shape) == 4
            ):  # groups have several buffers each, waves have one
                write_by_groups(self, op)
            case ir.WriteThrough():
                write_by_waves(self, op)
            case ir.CopyAsync():
                copy_async(self, op)
            case ir.WaitAsync(pending):
                self.out.effect(ir.WaitAsync, pending // prod(self.spreads.waves))
            case ir.Scatter(tile, memory, where):
                for x, layout in self.once(tile):
                    at = self.inlined(where, layout)
                    self.out.effect(ir.StoreEach, x, memory, at, self.mask_of_holders(layout))
            case ir.WriteIndexed(tile, memory, at):
                for i, (x, layout) in enumerate(self.once(tile)):
                    whole = self.spreads.held(tile)
                    places = (self.without_copies(self.pieces[v, whole][i], whole[i])[0] for v in at)
                    mask, run = self.mask_of_holders(layout), in_runs(op, layout)
                    self.out.effect(ir.StoreEach, x, memory, tuple(places), mask, run, op.combine)
            case ir.Reduce() if isinstance(op.result.type, Scalar):
                self.out.effect(ir.AllOf, first_register(self, reduced(self, op, 0)), results=op.results)
            case ir.HandOver(tile, exchange, slot, wide):
                ((x, _),) = self.held(tile)
                self.out.effect(ir.HandOver, x, exchange, slot, wide)
            case ir.WaitTurn():
                self.out.ops.append(replace(op, waves=prod(self.spreads.waves)))
            case ir.Loop(trips, init, body):
                inner = self.block(body, op.results)
                self.carry(op, lambda init: ir.Loop(trips, init, inner, loc=op.loc), init)
            case ir.While(init, condition, body):
                blocks = self.block(condition), self.block(body, op.results)
                self.carry(op, lambda init: ir.While(init, *blocks, loc=op.loc), init)
            case _ if any(isinstance(v.type, Tile) for v in op.results):
                for spread in self.spreads.needed.get(op.result, ()):
                    found = tuple(self.tile(op, spread, i) for i in range(len(spread)))
                    self.pieces[op.result, spread] = found
            case _:
                self.out.ops.append(op)

    def carry(self, op: ir.Loop | ir.While, made: Callable[[tuple[Value, ...]], Op], init: tuple[Value, ...]) -> None:
        carried = self.carried(init, op.results)
        results = tuple(v for old in op.results for v in self.renamed(old))
        self.out.ops.append(replace(made(carried), results=results))

    def carried(self, values: Sequence[Value], like: Sequence[Value]) -> tuple[Value, ...]:
        """Return the lane values of `values`, each tile in the layouts of its counterpart in `like`."""
        found: list[Value] = []
        for v, other in zip(values, like, strict=True):
            found += self.pieces[v, self.spreads.held(other)] if isinstance(v.type, Tile) else (v,)
        return tuple(found)

    # -- tiles

    def tile(self, op: Op, spread: TileLayouts, i: int) -> Value:
        """Return the vector for the part of a tile that one layout covers."""
        layout = spread[i]
        held = Vector(layout.registers, op.result.type.dtype)

        def emit(cls: Callable[..., Op], *parts: Any) -> Value:
            return self.out.emit(cls, *parts, type=held, name=op.result.name)

        match op:
            case ir.Const(value):
                return emit(ir.Const, value)
            case ir.Read(memory, at, axes, transposed=(lanes, rows)):
                where, _ = self.window(at, axes, _reading(op, layout, lanes, rows))
                _, steps = self.window(at, axes, layout)
                return emit(ir.LoadTransposed, memory, where, steps, lanes, rows)
            case ir.Read(memory, at, axes):
                where, steps = self.window(at, axes, layout)
                return emit(ir.Load, memory, where, self.mask(layout), steps, op.guard, *self.within(op, layout))
            case ir.Gather(memory, where):
                return emit(ir.LoadEach, memory, self.inlined(where, layout), self.mask(layout))
            case ir.ReadIndexedShared(memory, at):
                return emit(ir.LoadEach, memory, tuple(self.pieces[v, spread][i] for v in at), self.mask(layout))
            case ir.ReadIndexed(memory, at):
                places = tuple(self.pieces[v, spread][i] for v in at)
                return emit(ir.LoadEach, memory, places, self.mask(layout), in_runs(op, layout))
            case ir.Iota():
                return self.out.cast(self.coordinate(layout, 0), held.dtype)
            case ir.Mma() if self.spreads.group(op):
                return self.wgmma(op, self.pieces[op.acc, spread][0])
            case ir.Mma(a, b, acc):
                parts = [self.pieces[a, self.spreads.operand(op, 0)][0], self.pieces[b, self.spreads.operand(op, 1)][0]]
                shape = self.spreads.fragment(op).shape
                return emit(ir.Matrix, *parts, self.pieces[acc, spread][0], shape, op.instruction, op.is_transposed)
            case ir.Reduce():
                return in_registers(self, op, reduced(self, op, i), held)
            case ir.TakeOverAll(x, exchange, slot, apart, count):
                return emit(ir.TakeOverAll, self.pieces[x, spread][i], exchange, slot, apart, count)
            case ir.TakeOver(x, exchange, slot):
                return emit(ir.TakeOver, self.pieces[x, spread][i], exchange, slot)
            case ir.Broadcast(x, axes) if isinstance(x.type, Scalar):
                return emit(ir.Broadcast, x)
            case ir.Broadcast(x, axes):
                needed = tuple(other.along(axes)[0] for other in spread)
                return emit(ir.Broadcast, self.pieces[x, needed][i], layout.along(axes)[1])
            case ir.ExtractSlice(x, axis, first):
                whole = self.spreads.held(x)
                cut = whole[0].part(axis, x.type.shape[axis], first, op.result.type.shape[axis])
                assert cut is not None, f"{op.loc}: lanes do not hold a part of {x} by themselves"
                return emit(ir.ExtractSlice, self.pieces[x, whole][0], *cut[1:])
            case ir.Convert():
                return self.converted(op, spread, held)
            case ir.Permute(x, axes):
                back = tuple(axes.index(axis) for axis in range(len(axes)))
                return self.pieces[x, tuple(other.permuted(back) for other in spread)][i]
            case ir.Elementwise():
                mine = {x: self.pieces[x, spread][i] for x in op.operands if isinstance(x.type, Tile)}
                result = self.out.fresh(op.result.name, held)
                self.out.ops.append(replace(substitute(op, mine), results=(result,)))
                return result
            case _:
                raise NotImplementedError(f"{op.loc}: {op.name} is not cut among lanes")

    def converted(self, op: ir.Convert, spread: TileLayouts, held: Vector) -> Value:
        """Emit a layout conversion step by step; between steps, registers are numbered and have no axes."""
        (x,), found = self.pieces[op.x, self.spreads.held(op.x)], conversion_of(self.spreads, op, spread)
        assert found is not None, f"{op.loc}: a wave cannot convert {op.x.type} by itself"
        count = prod(held.shape)
        as_they_are = Rearrangement(identity(count.bit_length() - 1), (0,) * (self.lanes.bit_length() - 1))
        steps = found.steps or ((as_they_are,) if x.type != held else ())  # registers may have other axes
        for i, step in enumerate(steps):
            kind = held if i == len(steps) - 1 else Vector((1 << len(step.of_register),), held.dtype)
            cls: Callable[..., Op] = ir.Shuffle if isinstance(step, LaneExchange) else ir.Rearrange
            x = self.out.emit(cls, x, step.of_register, step.of_lane, type=kind, name=op.result.name)
        return x

    def wgmma(self, op: ir.Mma, acc: Value) -> Value:
        """Emit a wgmma: lanes hold the accumulator and maybe the left operand, shared memory holds the rest."""
        waves = self.spreads.waves
        group, (rows, cols) = ir.WgmmaShared.group, op.acc.type.shape[-2:]
        shape = (*group.part(rows, cols, waves), op.depth)
        b = self.staged(op, op.b)
        transposed = (1,) if _is_transposed(b) else ()
        first_row, first_column = group.starts(rows, cols, waves)
        b_at = self.moved(b, first_column)
        rest = (b.memory, b_at, acc, shape, op.instruction, (), BY_NAME[op.instruction].ignored_bits)
        if self.spreads.is_held(op.a):
            ((a, _),) = self.held(op.a)
            more = transposed, False, op.columns_used
            return self.out.emit(ir.WgmmaRegisters, a, *rest, *more, type=acc.type, name=op.result.name)
        read = self.staged(op, op.a)
        at = self.moved(read, first_row)
        transposed = (0, *transposed) if _is_transposed(read) else transposed
        more = transposed, False, op.columns_used
        return self.out.emit(ir.WgmmaShared, read.memory, at, *rest, *more, type=acc.type, name=op.result.name)

    def moved(self, read: ir.Read, terms: Sequence[Term]) -> tuple[Value, ...]:
        """Return where the rows of an operand begin, moved by terms."""
        at, along = list(read.at), read.axes[-2]
        if terms:
            at[along] = self.out.emit(ir.Add, at[along], self.place(tuple(terms)), type=INDEX_SCALAR)
        return tuple(at)

    def staged(self, op: ir.Mma, operand: Value) -> ir.Read:
        """Return the read of an operand that is staged in shared memory."""
        read = self.spreads.maker(operand)
        if not isinstance(read, ir.Read) or not is_in(read.memory, "shared"):
            raise lacking("stage_shared", "an operand of this product is not in shared memory", op.loc)
        *batch, _, _ = read.axes
        rows = read.memory.type.rank - 2  # after the batch axes and the stage axis of software_pipeline
        assert batch == list(range(rows - len(batch), rows)), f"{op.loc}: batches of {operand} do not come first"
        return read

    def write(self, op: ir.Write) -> None:
        for x, layout in self.once(op.tile):
            where, steps = self.window(op.at, op.axes, layout)
            mask = self.mask_of_holders(layout)
            self.out.effect(ir.Store, x, op.memory, where, mask, steps, op.guard, *self.within(op, layout))


def in_runs(op: ir.ReadIndexed | ir.WriteIndexed, layout: Layout) -> int:
    """Return how many of a lane's registers are neighbours in memory, from a multiple of their number on."""
    if not op.in_runs:
        return 1
    last = layout.rank - 1
    steps = [tuple(step) for step in layout.steps]
    places = (term.factor for term in layout.axes[last])
    extent = (op.tile if isinstance(op, ir.WriteIndexed) else op.result).type.shape[-1]
    others = (far[last] for far in steps if far[last] != 1)
    return gcd(run_of_neighbours(layout.registers, steps), extent, *places, *others)


def _reading(op: ir.Read, layout: Layout, lanes: int, rows: int) -> Layout:
    found = read_transposed(layout, lanes, rows)
    assert found is not None, f"{op.loc}: lanes hold {op.result} otherwise than they can read it for each other"
    return found


def _is_transposed(read: ir.Read) -> bool:
    """Whether an operand is transposed: its rows, and not its depth, run along the memory's last axis."""
    return read.axes[-1] < read.axes[-2]
