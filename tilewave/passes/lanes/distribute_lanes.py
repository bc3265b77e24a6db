"""Rewrite what a workgroup does on tiles into what each lane of each wave does on vectors.

%xs = read(%sa, [%c0, %c0])           →  %row = add(%wave_row, %lane_row); …
                                         %xs = load(%sa, [%row, %column]) {steps = …} : vector<2x2x8xf16>
%z = mma(%xs, %ys, %acc)              →  %z = matrix(%xs, %ys, %acc) {shape = [16, 16, 32], …} : vector<2x8x1x4xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Any

from tilewave.analysis.conversions import conversion_of
from tilewave.analysis.layouts_needed import WIDEST_BYTES, LayoutsNeeded
from tilewave.analysis.loads import run_of_neighbours
from tilewave.analysis.tied_layouts import TileLayouts
from tilewave.analysis.wave_transposes import WaveChunks, stored_width
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.faults import lacking
from tilewave.ir.launch import in_front
from tilewave.ir.ops import (
    Add,
    AllOf,
    And,
    Barrier,
    Broadcast,
    Const,
    Convert,
    CopyAsync,
    CopyAsyncChunks,
    Elementwise,
    ExtractSlice,
    Gather,
    HandOver,
    Iota,
    KeepOrder,
    Lane,
    Load,
    LoadEach,
    LoadTransposed,
    Loop,
    Matrix,
    Mma,
    Permute,
    Ramp,
    Read,
    ReadIndexed,
    Rearrange,
    Reduce,
    ReduceHalves,
    ReduceLanes,
    ReduceRegisters,
    Role,
    Scatter,
    Shuffle,
    Store,
    StoreEach,
    TakeOver,
    TakeOverAll,
    TmaStore,
    WaitAsync,
    WaitTmaStores,
    Wave,
    WgmmaRegisters,
    WgmmaShared,
    While,
    Write,
    WriteIndexed,
    WriteThrough,
    Yield,
)
from tilewave.ir.placements import in_its_place, is_in
from tilewave.ir.rewrite import names, substitute, walk
from tilewave.ir.types import INDEX, INDEX_SCALAR, Memory, Scalar, Swizzle, Swizzled, Tile, Vector
from tilewave.layouts.bits import identity
from tilewave.layouts.conversions import LaneExchange, Rearrangement
from tilewave.layouts.formulas import Layout, Term, read_transposed
from tilewave.layouts.reductions import Copies, copies, covers, holding, movers, neighbours_first, registers_first
from tilewave.machine.matrix import BY_NAME

NO_COPIES = Copies((), ())


def distribute_lanes(kernel: Kernel) -> Kernel:
    lanes = _Lanes(kernel, LayoutsNeeded(kernel))
    body = lanes.block(kernel.body)
    whole = Block(kernel.body.args, (*body.ops, *lanes.last))
    return replace(kernel, body=in_front(lanes.top.ops, whole), level="lane")


class _Lanes:
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

    def block(self, block: Block, gives: Sequence[Value] = ()) -> Block:
        """Return the block for one lane; tile arguments and yields become vectors, laid out as the loop's results."""
        args = [v for arg in block.args for v in self.renamed(arg)]
        with self.out.region():
            for op in block.ops:
                self.out.locate = self.top.locate = lambda op=op: op.loc  # type: ignore[misc]
                if isinstance(op, Yield):
                    self.out.effect(Yield, self.carried(op.values, gives or op.values))
                else:
                    self.op(op)
            return self.out.block(args)

    def renamed(self, v: Value) -> tuple[Value, ...]:
        """Return the lane values of an argument or result: itself, or the vectors that replace a tile."""
        if not isinstance(v.type, Tile):
            return (v,)
        (spread,) = self.spreads.needed.get(v) or [self.spreads.held(v)]
        found = tuple(self.out.fresh(v.name, Vector(layout.registers, v.type.dtype)) for layout in spread)
        self.pieces[v, spread] = found
        return found

    def op(self, op: Op) -> None:
        match op:
            case Write():
                self.write(op)
            case WriteThrough() if len(op.shared.type.shape) == 4:  # groups have several buffers each, waves have one
                self.write_by_groups(op)
            case WriteThrough():
                self.write_by_waves(op)
            case CopyAsync():
                self.bring(op)
            case WaitAsync(pending):
                self.out.effect(WaitAsync, pending // prod(self.spreads.waves))
            case Scatter(tile, memory, where):
                for x, layout in self.once(tile):
                    at = self.inlined(where, layout)
                    self.out.effect(StoreEach, x, memory, at, self.mask_of_holders(layout))
            case WriteIndexed(tile, memory, at):
                for i, (x, layout) in enumerate(self.once(tile)):
                    whole = self.spreads.held(tile)
                    places = (self.without_copies(self.pieces[v, whole][i], whole[i])[0] for v in at)
                    mask, run = self.mask_of_holders(layout), in_runs(op, layout)
                    self.out.effect(StoreEach, x, memory, tuple(places), mask, run, op.combine)
            case Reduce() if isinstance(op.result.type, Scalar):
                self.out.effect(AllOf, self.first_register(self.reduced(op, 0)), results=op.results)
            case HandOver(tile, exchange, slot, wide):
                ((x, _),) = self.held(tile)
                self.out.effect(HandOver, x, exchange, slot, wide)
            case Loop(trips, init, body):
                inner = self.block(body, op.results)
                self.carry(op, lambda init: Loop(trips, init, inner, loc=op.loc), init)
            case While(init, condition, body):
                blocks = self.block(condition), self.block(body, op.results)
                self.carry(op, lambda init: While(init, *blocks, loc=op.loc), init)
            case _ if any(isinstance(v.type, Tile) for v in op.results):
                for spread in self.spreads.needed.get(op.result, ()):
                    found = tuple(self.tile(op, spread, i) for i in range(len(spread)))
                    self.pieces[op.result, spread] = found
            case _:
                self.out.ops.append(op)

    def carry(self, op: Loop | While, made: Callable[[tuple[Value, ...]], Op], init: tuple[Value, ...]) -> None:
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
            case Const(value):
                return emit(Const, value)
            case Read(memory, at, axes, transposed=(lanes, rows)):
                where, _ = self.window(at, axes, _reading(op, layout, lanes, rows))
                _, steps = self.window(at, axes, layout)
                return emit(LoadTransposed, memory, where, steps, lanes, rows)
            case Read(memory, at, axes):
                where, steps = self.window(at, axes, layout)
                return emit(Load, memory, where, self.mask(layout), steps, op.guard, *self.within(op, layout))
            case Gather(memory, where):
                return emit(LoadEach, memory, self.inlined(where, layout), self.mask(layout))
            case ReadIndexed(memory, at):
                places = tuple(self.pieces[v, spread][i] for v in at)
                return emit(LoadEach, memory, places, self.mask(layout), in_runs(op, layout))
            case Iota():
                return self.out.cast(self.coordinate(layout, 0), held.dtype)
            case Mma() if self.spreads.group(op):
                return self.wgmma(op, self.pieces[op.acc, spread][0])
            case Mma(a, b, acc):
                parts = [self.pieces[a, self.spreads.operand(op, 0)][0], self.pieces[b, self.spreads.operand(op, 1)][0]]
                shape = self.spreads.fragment(op).shape
                return emit(Matrix, *parts, self.pieces[acc, spread][0], shape, op.instruction, op.is_transposed)
            case Reduce():
                return self.in_registers(op, self.reduced(op, i), held)
            case TakeOverAll(x, exchange, slot, apart, count):
                return emit(TakeOverAll, self.pieces[x, spread][i], exchange, slot, apart, count)
            case TakeOver(x, exchange, slot):
                return emit(TakeOver, self.pieces[x, spread][i], exchange, slot)
            case Broadcast(x, axes) if isinstance(x.type, Scalar):
                return emit(Broadcast, x)
            case Broadcast(x, axes):
                needed = tuple(other.along(axes)[0] for other in spread)
                return emit(Broadcast, self.pieces[x, needed][i], layout.along(axes)[1])
            case ExtractSlice(x, axis, first):
                whole = self.spreads.held(x)
                cut = whole[0].part(axis, x.type.shape[axis], first, op.result.type.shape[axis])
                assert cut is not None, f"{op.loc}: lanes do not hold a part of {x} by themselves"
                return emit(ExtractSlice, self.pieces[x, whole][0], *cut[1:])
            case Convert():
                return self.converted(op, spread, held)
            case Permute(x, axes):
                back = tuple(axes.index(axis) for axis in range(len(axes)))
                return self.pieces[x, tuple(other.permuted(back) for other in spread)][i]
            case Elementwise():
                mine = {x: self.pieces[x, spread][i] for x in op.operands if isinstance(x.type, Tile)}
                result = self.out.fresh(op.result.name, held)
                self.out.ops.append(replace(substitute(op, mine), results=(result,)))
                return result
            case _:
                raise NotImplementedError(f"{op.loc}: {op.name} is not cut among lanes")

    def converted(self, op: Convert, spread: TileLayouts, held: Vector) -> Value:
        """Emit a layout conversion step by step; between steps, registers are numbered and have no axes."""
        (x,), found = self.pieces[op.x, self.spreads.held(op.x)], conversion_of(self.spreads, op, spread)
        assert found is not None, f"{op.loc}: a wave cannot convert {op.x.type} by itself"
        count = prod(held.shape)
        as_they_are = Rearrangement(identity(count.bit_length() - 1), (0,) * (self.lanes.bit_length() - 1))
        steps = found.steps or ((as_they_are,) if x.type != held else ())  # registers may have other axes
        for i, step in enumerate(steps):
            kind = held if i == len(steps) - 1 else Vector((1 << len(step.of_register),), held.dtype)
            cls: Callable[..., Op] = Shuffle if isinstance(step, LaneExchange) else Rearrange
            x = self.out.emit(cls, x, step.of_register, step.of_lane, type=kind, name=op.result.name)
        return x

    def reduced(self, op: Reduce, i: int) -> Value:
        """Return a part of a reduction's result in each lane; lanes that took part in it have the same values."""
        (x, layout), (axis,), waves = self.held(op.x)[i], op.axes, prod(self.spreads.waves)
        extent = op.x.type.shape[axis]
        found = movers(layout, axis, waves, self.lanes)
        assert found is not None and covers(found, extent), f"{op.loc}: lanes hold {op.x} in no order to combine"
        in_order = op.how in ("sum", "prod") and not self.spreads.is_of_product(op.x)
        steps = (neighbours_first if in_order else registers_first)(found, op.run or extent)
        axes = list(range(len(layout.registers)))
        for step in steps:
            if step.of == "lane":
                x = self.out.emit(ReduceLanes, x, step.which, op.how, type=x.type, name=op.result.name)
            elif step.of == "halves":
                x = self.halved(op, x, axes.index(step.which[0]), step.which[1])
            else:
                x = self.without_registers(op, x, tuple(axes.index(i) for i in step.which))
                axes = [i for i in axes if i not in step.which]
        return x

    def halved(self, op: Reduce, x: Value, axis: int, bit: int) -> Value:
        shape = tuple(n // 2 if i == axis else n for i, n in enumerate(x.type.shape))
        kind = Vector(shape, x.type.dtype)
        return self.out.emit(ReduceHalves, x, axis, bit, op.how, type=kind, name=op.result.name)

    def first_register(self, x: Value) -> Value:
        """Return one of the registers that hold the same value."""
        for axis, n in enumerate(x.type.shape):
            if n > 1:
                shape = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
                x = self.out.emit(ExtractSlice, x, axis, 0, type=Vector(shape, x.type.dtype), name=x.name)
        return x

    def without_registers(self, op: Reduce, x: Value, gone: Sequence[int]) -> Value:
        shape = tuple(n for axis, n in enumerate(x.type.shape) if axis not in gone) or (1,)
        kind = Vector(shape, x.type.dtype)
        return self.out.emit(ReduceRegisters, x, tuple(gone), op.how, type=kind, name=op.result.name)

    def in_registers(self, op: Reduce, x: Value, held: Vector) -> Value:
        """Return `x` in the registers of `held`: the others were along reduced axes, or are copies."""
        if x.type == held:
            return x
        if ones := [axis for axis, n in enumerate(x.type.shape) if n == 1]:
            x = self.without_registers(op, x, ones)
        if prod(x.type.shape) == 1 < prod(held.shape):
            copies = Vector((1, *held.shape), held.dtype)
            wider = self.out.emit(Broadcast, x, (0,), type=copies, name=op.result.name)
            return self.without_registers(op, wider, (0,))
        if x.type == held:
            return x
        more = [axis for axis, n in enumerate(held.shape) if n > 1] or [0]
        return self.out.emit(Broadcast, x, tuple(more), type=held, name=op.result.name)

    def wgmma(self, op: Mma, acc: Value) -> Value:
        """Emit a wgmma: lanes hold the accumulator and maybe the left operand, shared memory holds the rest."""
        waves = self.spreads.waves
        group, (rows, cols) = WgmmaShared.group, op.acc.type.shape[-2:]
        shape = (group.group_rows(rows, waves), cols, op.depth)
        b = self.staged(op, op.b)
        transposed = (1,) if _is_transposed(b) else ()
        rest = (b.memory, b.at, acc, shape, op.instruction, (), BY_NAME[op.instruction].ignored_bits)
        if self.spreads.is_held(op.a):
            ((a, _),) = self.held(op.a)
            return self.out.emit(WgmmaRegisters, a, *rest, transposed, type=acc.type, name=op.result.name)
        read = self.staged(op, op.a)
        at = list(read.at)
        if terms := group.group(rows, waves):
            along = read.axes[-2]
            at[along] = self.out.emit(Add, at[along], self.place(terms), type=INDEX_SCALAR)
        transposed = (0, *transposed) if _is_transposed(read) else transposed
        return self.out.emit(WgmmaShared, read.memory, tuple(at), *rest, transposed, type=acc.type, name=op.result.name)

    def staged(self, op: Mma, operand: Value) -> Read:
        """Return the read of an operand that is staged in shared memory."""
        read = self.spreads.maker(operand)
        if not isinstance(read, Read) or not is_in(read.memory, "shared"):
            raise lacking("stage_shared", "an operand of this product is not in shared memory", op.loc)
        *batch, _, _ = read.axes
        rows = read.memory.type.rank - 2  # after the batch axes and the stage axis of software_pipeline
        assert batch == list(range(rows - len(batch), rows)), f"{op.loc}: batches of {operand} do not come first"
        return read

    def held(self, tile: Value) -> list[tuple[Value, Layout]]:
        spread = self.spreads.held(tile)
        return list(zip(self.pieces[tile, spread], spread, strict=True))

    def write(self, op: Write) -> None:
        for x, layout in self.once(op.tile):
            where, steps = self.window(op.at, op.axes, layout)
            mask = self.mask_of_holders(layout)
            self.out.effect(Store, x, op.memory, where, mask, steps, op.guard, *self.within(op, layout))

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

    def bring(self, op: CopyAsync) -> None:
        """Emit asynchronous copies to shared memory, the same number of rows per wave.

        In one round the lanes of a wave fill a contiguous range of shared memory, in lane order.
        """
        to = op.to.type
        assert isinstance(to, Memory)
        width = WIDEST_BYTES // to.dtype.bytes
        high = self.lanes * width // to.shape[-1]
        rounds = to.shape[-2] // prod(self.spreads.waves) // high
        together = 1 if isinstance(to.placement, Swizzled) and high % to.placement.rows else rounds
        for first in range(0, rounds, together):
            self.bring_rounds(op, to, width, first * high, (together, high))

    def bring_rounds(self, op: CopyAsync, to: Memory, width: int, first: int, rounds: tuple[int, int]) -> None:
        """Emit `rounds[0]` rounds of `rounds[1]` rows each, from row `first` of a wave's part on."""
        row, column = self.chunk(to, width, first)
        columns: list[Value] = []
        if any(in_its_place(to, r * rounds[1], 0) for r in range(rounds[0])):
            each = (self.chunk(to, width, first + r * rounds[1])[1] for r in range(rounds[0]))
            columns = [self.out.emit(Add, op.at[op.axes[-1]], far, type=INDEX_SCALAR) for far in each]
        at = list(op.at)
        for axis, far in zip(op.axes[-2:], (row, column), strict=True):
            at[axis] = self.out.emit(Add, at[axis], far, type=INDEX_SCALAR)
        rank = len(at)
        of_round = tuple(rounds[1] if axis == op.axes[-2] else 0 for axis in range(rank))
        begin = self.row_of_wave(to)
        begin = (Number(self.out, begin) + first).value if first else begin
        zeros = (self.out.const(0) for _ in to.shape[len(op.to_at) : -2])
        steps = (of_round, tuple(int(axis == rank - 1) for axis in range(rank)))
        self.out.effect(
            CopyAsyncChunks,
            op.memory,
            tuple(at),
            op.to,
            (*op.to_at, *zeros, begin),
            (rounds[0], width),
            steps,
            tuple(columns),
            op.guard,
        )

    def row_of_wave(self, to: Memory) -> Value:
        """Return the first row that this wave copies."""
        return self.place((Term("wave", to.shape[-2] // prod(self.spreads.waves)),))

    def chunk(self, to: Memory, width: int, first: int) -> tuple[Value, Value]:
        """Return row and column of the chunk that this lane copies, in the range that begins `first` rows later."""
        key = (to.shape[-2:], to.placement, width, first)
        if key not in self.chunks:
            per_row = to.shape[-1] // width
            lane, begin = Number(self.top, self.number("lane")), Number(self.top, self.row_of_wave(to))
            row = begin + lane // per_row + first
            placement = to.placement
            if isinstance(placement, Swizzle):
                placement = replace(placement, chunk=placement.chunk // width)
            column = in_its_place(replace(to, placement=placement), row, lane % per_row) * width
            self.chunks[key] = row.value, column.value
        return self.chunks[key]

    def write_by_waves(self, op: WriteThrough) -> None:
        """Emit stores in which each wave first transposes its tile into rows through shared memory, chunk by chunk.

        A chunk is stored after the next one is loaded, which hides the latency of the load; but not where lanes store
        less than the widest access, because two chunks would need too many registers there.
        """
        ((x, layout),) = self.held(op.tile)
        _, rows, columns = op.shared.type.shape
        chunks = WaveChunks(layout, rows, columns, stored_width(op.memory.type), self.lanes)
        after = int(chunks.width * x.type.dtype.bytes == WIDEST_BYTES)
        lines: list[tuple[Value, tuple[int, ...]]] = []
        self.out.effect(KeepOrder)  # registers of the products before and of the stores after need not fit together
        for first, far in chunks.starts():
            chunk = x
            for axis, (start, count) in enumerate(zip(first, chunks.counts, strict=True)):
                chunk = self.part(chunk, axis, start, count)
            where, steps = self.in_own(op, chunks.written())
            self.out.effect(Store, chunk, op.shared, where, (), steps)
            self.out.effect(Barrier, 1)
            where, steps = self.in_own(op, chunks.read())
            kind = Vector(chunks.read().registers, x.type.dtype)
            lines.append((self.out.emit(Load, op.shared, where, (), steps, type=kind), far))
            self.out.effect(Barrier, 1)
            if len(lines) > after:
                self.store_lines(op, *lines.pop(0), chunks.stored())
        for line in lines:
            self.store_lines(op, *line, chunks.stored())

    def in_own(self, op: WriteThrough, layout: Layout) -> tuple[tuple[Value, ...], tuple[tuple[int, ...], ...]]:
        """Return the positions of a lane's registers in the shared memory of its wave."""
        wave = self.number("wave") if op.shared.type.shape[0] > 1 else self.out.const(0)
        own = (self.place(terms) if terms else self.out.const(0) for terms in layout.axes)
        return (wave, *own), tuple((0, *step) for step in layout.steps)

    def store_lines(self, op: WriteThrough, x: Value, far: tuple[int, ...], layout: Layout) -> None:
        at = list(op.at)
        for axis, steps in zip(op.axes, far, strict=True):
            at[axis] = (Number(self.out, at[axis]) + steps).value if steps else at[axis]
        where, steps_of = self.window(tuple(at), op.axes, layout)
        self.out.effect(Store, x, op.memory, where, (), steps_of, op.guard)

    def write_by_groups(self, op: WriteThrough) -> None:
        """Fill a warpgroup's buffers, issue their TMA stores together, and wait for them before filling them again."""
        ((x, layout),) = self.held(op.tile)
        *batch, blocks, eights, _, _ = x.type.shape
        groups, buffers, rows, columns = op.shared.type.shape
        is_transposed = layout.steps[-1][-2] == 1  # neighbouring registers are one row apart
        each = (rows if is_transposed else columns) // 8
        chunks = [(block, eight) for block in range(blocks) for eight in range(0, eights, each)]
        for first in range(0, len(chunks), buffers):
            some = chunks[first : first + buffers]
            self.out.effect(WaitTmaStores, 0)
            self.out.effect(Barrier, WgmmaShared.group.waves)
            for buffer, (block, eight) in enumerate(some):
                of_block = self.part(x, len(batch), block, 1)
                self.fill(op, self.part(of_block, len(batch) + 1, eight, each), layout, buffer)
            self.out.effect(Barrier, WgmmaShared.group.waves)
            for group in range(groups):
                starts = [((group * blocks + block) * WgmmaShared.group.rows, eight * 8) for block, eight in some]
                self.let_go(op, group, [start[::-1] if is_transposed else start for start in starts])
        self.last = [WaitTmaStores(0, loc=op.loc)]

    def part(self, x: Value, axis: int, first: int, count: int) -> Value:
        shape = x.type.shape
        if shape[axis] == count:
            return x
        kind = Vector((*shape[:axis], count, *shape[axis + 1 :]), x.type.dtype)
        return self.out.emit(ExtractSlice, x, axis, first, type=kind)

    def fill(self, op: WriteThrough, x: Value, layout: Layout, buffer: int) -> None:
        """Store each lane's registers of a chunk to its group's buffer, at positions relative to the group."""
        groups = op.shared.type.shape[0]
        waves = WgmmaShared.group.waves
        group = self.place((Term("wave", 1, waves),)) if groups > 1 else self.out.const(0)
        inside = (tuple(t for t in terms if (t.of, t.divisor) != ("wave", waves)) for terms in layout.axes[-2:])
        at = (group, self.out.const(buffer), *map(self.place, inside))
        steps = tuple((0, 0, *step[-2:]) for step in layout.steps)
        self.out.effect(Store, x, op.shared, at, (), steps)

    def let_go(self, op: WriteThrough, group: int, starts: Sequence[tuple[int, int]]) -> None:
        """Emit the TMA stores of a group's chunks; the first wave of the group issues them."""
        with self.out.region():
            for buffer, start in enumerate(starts):
                at = list(op.at)
                for axis, far in zip(op.axes[-2:], start, strict=True):
                    at[axis] = (Number(self.out, at[axis]) + far).value
                source_at = (self.out.const(group), self.out.const(buffer))
                more = buffer < len(starts) - 1
                self.out.effect(TmaStore, op.shared, source_at, op.memory, tuple(at), op.axes[-2:], more)
            body = self.out.block(())
        self.out.effect(Role, group * WgmmaShared.group.waves, group * WgmmaShared.group.waves + 1, body)

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

    # -- lane and wave numbers: computed once, at the start of the kernel

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

    # -- positions that a formula gives

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


def in_runs(op: ReadIndexed | WriteIndexed, layout: Layout) -> int:
    """Return how many of a lane's registers are neighbours in memory, from a multiple of their number on."""
    if not op.in_runs:
        return 1
    last = layout.rank - 1
    steps = [tuple(step) for step in layout.steps]
    places = (term.factor for term in layout.axes[last])
    extent = (op.tile if isinstance(op, WriteIndexed) else op.result).type.shape[-1]
    others = (far[last] for far in steps if far[last] != 1)
    return gcd(run_of_neighbours(layout.registers, steps), extent, *places, *others)


def _reading(op: Read, layout: Layout, lanes: int, rows: int) -> Layout:
    found = read_transposed(layout, lanes, rows)
    assert found is not None, f"{op.loc}: lanes hold {op.result} otherwise than they can read it for each other"
    return found


def _tiles_of(op: Op) -> list[Value]:
    made = [*op.results, *(v for block in op.blocks for v in block.args)]
    return [v for v in made if isinstance(v.type, Tile)]


def _is_transposed(read: Read) -> bool:
    """Whether an operand is transposed: its rows, and not its depth, run along the memory's last axis."""
    return read.axes[-1] < read.axes[-2]
