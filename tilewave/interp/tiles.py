"""The semantics of the ops on whole tiles, in numpy: simple, and the reference for every pass and every target.

A kernel runs one workgroup after the other. Each output records which workgroup wrote and read each element, so that
whatever depends on the order of workgroups is found in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import EndlessLoop, InterpreterError
from tilewave.interp.arithmetic import Array, unmapped_tile
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.numbers import DTYPE_NUMBERS, Numbers
from tilewave.interp.reductions import reduced_along, reduced_by_runs, shifted
from tilewave.interp.windows import Window
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.ops import (
    Accumulate,
    Allocate,
    Barrier,
    Broadcast,
    Const,
    Convert,
    Copy,
    CopyAsync,
    Elementwise,
    ExtractSlice,
    Gather,
    HandOver,
    Iota,
    LoadAccumulator,
    Loop,
    MakeExchange,
    Mma,
    Overlay,
    Permute,
    Prepack,
    Read,
    ReadAccumulator,
    ReadIndexed,
    ReadPanel,
    Reduce,
    Scatter,
    Shift,
    TakeOver,
    TakeOverAll,
    TileOf,
    TmaCopy,
    WaitAsync,
    WaitPriorLaunch,
    While,
    Workgroup,
    Write,
    WriteIndexed,
    WriteThrough,
    Yield,
    ZeroAccumulator,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.split_steps import steps_of_a_split
from tilewave.ir.types import Memory, Scalar

Env = dict[Value, Any]

NO_WORKGROUP, SEVERAL, LATER, ATOMICALLY = -1, -2, -3, -4
COMBINING: Mapping[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
"""What atomic operations do with an element and what the memory has."""
"""In place of a workgroup's number: no workgroup, several of them, or an asynchronous copy in flight."""
MOST_ROUNDS = 1 << 20
"""A while loop with more iterations than this is taken to be endless."""


def interpret(
    kernel: Kernel,
    arrays: Sequence[Array],
    symbols: Mapping[str, float],
    order: Iterable[int] | None = None,
    numbers: Numbers = DTYPE_NUMBERS,
) -> None:
    """Run every workgroup, in launch order or in the order given; results are kept only if no error is found.

    `arrays` hold what `numbers` holds for their dtypes.
    """
    state = _Interpreter(kernel, arrays, symbols, numbers)
    with np.errstate(all="ignore"):
        for w in range(kernel.workgroup_count) if order is None else order:
            state.run_workgroup(w)
    state.want_all_taken()
    state.keep()


@dataclass
class TrackedMemory:
    """A memory while a kernel runs: its elements, and the workgroups that wrote and read each."""

    value: Value
    data: Array
    writer: Array | None = None
    reader: Array | None = None

    def lose(self, poison: Any) -> None:
        """Make the memory uninitialized."""
        assert self.writer is not None
        self.data[...] = poison
        self.writer[...] = NO_WORKGROUP


class InterpretedCall:
    """The arguments of a call while a kernel runs, and the workgroups that accessed elements of its outputs."""

    def __init__(
        self,
        kernel: Kernel,
        arrays: Sequence[Array],
        symbols: Mapping[str, float],
        numbers: Numbers = DTYPE_NUMBERS,
    ) -> None:
        self.kernel, self.numbers = kernel, numbers
        self.workgroup = 0
        self.uses_pdl = any(isinstance(op, WaitPriorLaunch) for op in walk(kernel.body))
        """Whether earlier kernels may still run (PDL)."""
        self.filled = frozenset(op.to for op in walk(kernel.body) if isinstance(op, TmaCopy))
        """Shared memories that TMA loads fill asynchronously."""
        self.meetings = count(1)
        """Numbers for the ops at which the lanes of a wave synchronize."""
        self.env: Env = {}
        memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
        written, read = touched(kernel)
        self.outputs: list[tuple[Array, TrackedMemory]] = []
        self.exchanges: dict[Value, ExchangeSlots] = {}
        for value, array in zip(memories, arrays, strict=True):
            self.env[value] = self.argument(value, array, value in written, value in read)
        for value in kernel.body.args:
            if isinstance(value.type, Scalar):
                self.env[value] = numbers.given(symbols[value.name], value.type.dtype)

    def argument(self, value: Value, array: Array, written: bool, read: bool) -> TrackedMemory:
        if not written:
            return TrackedMemory(value, array)
        buffer = TrackedMemory(value, array.copy(), np.full(array.shape, NO_WORKGROUP, np.int32))
        if read:
            buffer.reader = np.full(array.shape, NO_WORKGROUP, np.int32)
        self.outputs.append((array, buffer))
        return buffer

    def exchange(self, value: Value) -> ExchangeSlots:
        """Return the exchange that all workgroups share, made for the first of them."""
        return self.exchanges.setdefault(value, ExchangeSlots(value))

    def want_all_taken(self) -> None:
        for slots in self.exchanges.values():
            slots.want_empty()

    def keep(self) -> None:
        for array, buffer in self.outputs:
            array[...] = buffer.data

    def note_read(self, op: Op, buffer: TrackedMemory, where: Any) -> None:
        if buffer.writer is None:
            return
        writer = buffer.writer[where]
        if buffer.value not in self.kernel.body.args:
            if (writer == NO_WORKGROUP).any():
                self.fail(op, f"reads {element(buffer, first(writer == NO_WORKGROUP, where))}, which was never written")
            if (writer == LATER).any():
                at = element(buffer, first(writer == LATER, where))
                self.fail(op, f"reads {at} before its copy has arrived; a wait_async must be between them")
            return
        foreign = (writer != NO_WORKGROUP) & (writer != self.workgroup)
        if foreign.any():
            at = element(buffer, first(foreign, where))
            self.fail(op, f"reads {at}, which workgroup {writer[foreign].flat[0]} wrote: the order decides the result")
        assert buffer.reader is not None
        readers = buffer.reader[where]
        buffer.reader[where] = np.where(
            (readers == NO_WORKGROUP) | (readers == self.workgroup), self.workgroup, SEVERAL
        )

    def note_write(self, op: Op, buffer: TrackedMemory, where: Any, writes: int | None = None) -> None:
        """Record who writes: this workgroup, or `ATOMICALLY` any."""
        assert buffer.writer is not None
        mine = self.workgroup if writes is None else writes
        writer = buffer.writer[where]
        foreign = (writer != NO_WORKGROUP) & (writer != mine)
        if foreign.any():
            at, other = element(buffer, first(foreign, where)), writer[foreign].flat[0]
            self.fail(op, f"writes {at}, which workgroup {other} wrote: the order decides the result")
        if buffer.reader is not None:
            readers = buffer.reader[where]
            foreign = (readers != NO_WORKGROUP) & (readers != self.workgroup)
            if foreign.any():
                at = element(buffer, first(foreign, where))
                self.fail(op, f"writes {at}, which another workgroup reads: the order decides the result")
        buffer.writer[where] = mine

    def fail(self, op: Op, why: str) -> NoReturn:
        raise InterpreterError(f"workgroup {self.workgroup} {why}", loc=op.loc)


class _Interpreter(InterpretedCall):
    def __init__(self, kernel: Kernel, arrays: Sequence[Array], symbols: Mapping[str, float], numbers: Numbers) -> None:
        super().__init__(kernel, arrays, symbols, numbers)
        self.packed: dict[Value, TrackedMemory] = {}
        self.on_the_way: list[Arriving] = []

    def run_workgroup(self, w: int) -> None:
        self.workgroup = w
        self.on_the_way.clear()
        self.block(self.kernel.body)

    def block(self, block: Block, *args: Any) -> tuple[Any, ...]:
        env = self.env
        env.update(zip(block.args, args, strict=False))
        for op in block.ops:
            if isinstance(op, Yield):
                return tuple(env[v] for v in op.values)
            results = self.op(op)
            if op.results:
                env.update(zip(op.results, results, strict=True))
        return ()

    def op(self, op: Op) -> tuple[Any, ...]:
        return row_of(MEANINGS, op, "no meaning is given to")(self, op)

    # -- numbers

    def elementwise(self, op: Elementwise) -> tuple[Any, ...]:
        return (self.numbers.elementwise(op, [self.env[v] for v in op.operands]),)

    def const(self, op: Const) -> tuple[Any, ...]:
        return (self.numbers.constant(op, op.value),)

    def number(self, op: Workgroup) -> tuple[Any, ...]:
        return (self.workgroup,)

    def tile_of(self, op: TileOf) -> tuple[Any, ...]:
        return unmapped_tile(self.env[op.number], op.rows, op.cols)

    def broadcast(self, op: Broadcast) -> tuple[Any, ...]:
        shape = op.result.type.shape
        return (np.broadcast_to(spread(self.env[op.x], op.axes, len(shape)), shape),)

    def part(self, op: ExtractSlice) -> tuple[Any, ...]:
        count = op.result.type.shape[op.axis]
        return (self.env[op.x].take(range(op.first, op.first + count), axis=op.axis),)

    def permute(self, op: Permute) -> tuple[Any, ...]:
        return (self.env[op.x].transpose(op.axes),)

    def iota(self, op: Iota) -> tuple[Any, ...]:
        kind = op.result.type
        return (self.numbers.counted(np.arange(kind.shape[0]), kind.dtype),)

    # -- reductions

    def reduce(self, op: Reduce) -> tuple[Any, ...]:
        x = self.env[op.x]
        if op.run:
            return (reduced_by_runs(self.numbers, op.how, x, op.axes[0], op.run),)
        found = reduced_along(self.numbers, op.how, x, op.axes)
        return (found if found.shape else found[()],)

    def shift(self, op: Shift) -> tuple[Any, ...]:
        return (shifted(self.env[op.x], op.axis, op.by),)

    # -- products

    def multiply(self, op: Mma | Accumulate) -> tuple[Any, ...]:
        return (self.numbers.multiplied(self.env[op.a], self.env[op.b], self.env[op.acc]),)

    def zero_accumulator(self, op: ZeroAccumulator) -> tuple[Any, ...]:
        return (np.zeros(op.result.type.shape, self.numbers.storage(op.result.type.dtype)),)

    def same_numbers(self, op: Convert | LoadAccumulator | ReadAccumulator) -> tuple[Any, ...]:
        (x,) = op.operands
        return (self.env[x],)

    # -- control

    def loop(self, op: Loop) -> tuple[Any, ...]:
        carried = tuple(self.env[v] for v in op.init)
        if op.split > 1:
            return self.parts(op, carried)
        for i in range(self.env[op.trips]):
            carried = self.block(op.body, i, *carried)
        return carried

    def parts(self, op: Loop, carried: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the carried sums plus those of each part, in order; each part starts from zeros."""
        steps = self.env[op.trips]
        each = steps_of_a_split(steps, op.split)
        for first in range(0, op.split * each, max(1, each)):
            sums = tuple(np.zeros_like(v) for v in carried)
            for i in range(first, min(first + each, steps)):
                sums = self.block(op.body, i, *sums)
            carried = tuple(self.numbers.added(a, b) for a, b in zip(carried, sums, strict=True))
        return carried

    def loop_while(self, op: While) -> tuple[Any, ...]:
        carried = tuple(self.env[v] for v in op.init)
        for _ in range(MOST_ROUNDS):
            (goes_on,) = self.block(op.condition, *carried)
            if not goes_on:
                return carried
            carried = self.block(op.body, *carried)
        raise EndlessLoop(f"workgroup {self.workgroup} ran {MOST_ROUNDS:,} iterations and is not done", loc=op.loc)

    def barrier(self, op: Barrier) -> tuple[Any, ...]:
        return ()  # no effect on whole tiles, because waves exist at the lane level only

    # -- between workgroups

    def make_exchange(self, op: MakeExchange) -> tuple[Any, ...]:
        return (self.exchange(op.result),)

    def hand_over(self, op: HandOver) -> tuple[Any, ...]:
        for i, part in enumerate(np.split(self.env[op.tile], op.wide, axis=-1)):
            self.env[op.exchange].put(op, self.workgroup, self.env[op.slot] + i, 0, part)
        return ()

    def take_over(self, op: TakeOver) -> tuple[Any, ...]:
        return (self.taken(op, self.env[op.tile], self.env[op.slot]),)

    def take_over_all(self, op: TakeOverAll) -> tuple[Any, ...]:
        found = self.env[op.tile]
        for i in range(op.count):
            found = self.taken(op, found, self.env[op.slot] + i * self.env[op.apart])
        return (found,)

    def taken(self, op: TakeOver, tile: Array, slot: int) -> Array:
        slots: ExchangeSlots = self.env[op.exchange]
        slots.want_inside(op, self.workgroup, slot)
        if (slot, 0) not in slots.full:
            self.fail(op, f"waits for {slots.name(slot)}, which no earlier workgroup handed over")
        found: Array = self.numbers.added(tile, slots.take(op, self.workgroup, slot, 0))
        return found

    # -- memory

    def allocate(self, op: Allocate) -> tuple[Any, ...]:
        kind = op.result.type
        poison = np.full(kind.shape, self.numbers.poison(kind.dtype), self.numbers.storage(kind.dtype))
        return (TrackedMemory(op.result, poison, np.full(kind.shape, NO_WORKGROUP, np.int32)),)

    def overlay(self, op: Overlay) -> tuple[Any, ...]:
        return (self.env[op.memory],)  # no other tracking needed: a write to an overlay writes all of it (WriteThrough)

    def read_panel(self, op: ReadPanel) -> tuple[Any, ...]:
        *batch, panel, first = (self.env[v] for v in op.at)
        shape = op.result.type.shape
        where = (*batch, panel)
        rows = self.env[op.memory].data[where].swapaxes(0, 1).reshape(shape[-2], -1)
        return (rows[:, first : first + shape[-1]].reshape(shape),)

    def prepack(self, op: Prepack) -> tuple[Any, ...]:
        """Return the panels of a memory, made for the first workgroup and kept for the others."""
        buffer: TrackedMemory = self.env[op.memory]
        if op.result not in self.packed:
            *batch, panels, groups, rows, depth = op.result.type.shape
            order = [a for a in range(buffer.data.ndim) if a not in (op.row_axis, op.depth_axis)]
            transposed = buffer.data.transpose([*order, op.row_axis, op.depth_axis])
            whole = np.zeros((*batch, panels * rows, groups * depth), self.numbers.storage(op.result.type.dtype))
            whole[..., : transposed.shape[-2], : transposed.shape[-1]] = transposed.astype(whole.dtype)
            split = whole.reshape(*batch, panels, rows, groups, depth)
            self.packed[op.result] = TrackedMemory(op.result, np.ascontiguousarray(split.swapaxes(-3, -2)))
        return (self.packed[op.result],)

    def read(self, op: Read) -> tuple[Any, ...]:
        buffer: TrackedMemory = self.env[op.memory]
        window = None if 0 in op.within else self.window(op, buffer, op.within or op.result.type.shape)
        tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
        if window is not None:
            self.note_read(op, buffer, window.inside)
            found = window.to_tile(buffer.data[window.inside])
            if window.whole and not op.within:
                return (np.array(found),)
            tile[window.part] = found
        return (tile,)

    def write(self, op: Write | WriteThrough) -> tuple[Any, ...]:
        buffer, tile = self.env[op.memory], self.env[op.tile]
        within = op.within if isinstance(op, Write) else ()
        if isinstance(op, Write) and self.is_past(op, buffer):
            return ()
        window = self.window(op, buffer, within or op.tile.type.shape)
        if window is None:
            self.outside(op, buffer, [self.env[v] for v in op.at])
        self.note_write(op, buffer, window.inside)
        buffer.data[window.inside] = window.to_memory(tile[window.part])
        return ()

    def is_past(self, op: Write, buffer: TrackedMemory) -> bool:
        """Return whether a tile is wholly out of bounds along an axis that is predicated."""
        along = dict(zip(op.axes, op.tile.type.shape, strict=True))
        starts = ((self.env[op.at[axis]], along.get(axis, 1), buffer.data.shape[axis]) for axis in op.guard)
        return any(at >= extent or at + size <= 0 for at, size, extent in starts)

    def write_through(self, op: WriteThrough) -> tuple[Any, ...]:
        self.write(op)
        shared: TrackedMemory = self.env[op.shared]
        shared.lose(self.numbers.poison(shared.value.type.dtype))
        return ()

    def copy(self, op: Copy) -> tuple[Any, ...]:
        target: TrackedMemory = self.env[op.to]
        where, tile = self.box(op, self.env[op.memory], target)
        self.note_write(op, target, (*where, ...))
        target.data[where] = tile
        return ()

    def bring(self, op: CopyAsync) -> tuple[Any, ...]:
        """Start an asynchronous copy: old contents are lost at once, new ones are visible after the wait."""
        target: TrackedMemory = self.env[op.to]
        where, tile = self.box(op, self.env[op.memory], target)
        self.note_write(op, target, (*where, ...))
        assert target.writer is not None
        target.writer[where] = LATER
        target.data[where] = self.numbers.poison(target.value.type.dtype)
        self.on_the_way.append(Arriving(target, where, tile))
        return ()

    def wait_async(self, op: WaitAsync) -> tuple[Any, ...]:
        while self.on_the_way and sum(b.bytes for b in self.on_the_way) > op.pending:
            come = self.on_the_way.pop(0)
            assert come.target.writer is not None
            come.target.writer[come.where] = self.workgroup
            come.target.data[come.where] = come.tile
        return ()

    def box(self, op: Copy | CopyAsync, source: TrackedMemory, target: TrackedMemory) -> tuple[tuple[int, ...], Array]:
        """Return the destination and the contents of a copied box."""
        box = target.data.shape[len(op.to_at) :]
        window = Window.of([self.env[v] for v in op.at], op.axes, box, source.data.shape)
        tile: Array = np.zeros(box, source.data.dtype)
        if window is not None:
            self.note_read(op, source, window.inside)
            tile[window.part] = window.to_tile(source.data[window.inside])
        return tuple(self.env[v] for v in op.to_at), tile

    def window(self, op: Read | Write | WriteThrough, buffer: TrackedMemory, shape: tuple[int, ...]) -> Window | None:
        """Return the in-bounds part of a tile; None where there is none, which is allowed in arrays alone."""
        at = [self.env[v] for v in op.at]
        window = Window.of(at, op.axes, shape, buffer.data.shape)
        if window is None and not _has_edges(buffer):
            self.outside(op, buffer, at)
        return window

    def outside(self, op: Op, buffer: TrackedMemory, at: Sequence[int]) -> NoReturn:
        position = ", ".join(map(str, at))
        self.fail(op, f"touches {buffer.value.name}[{position}], all of it outside {buffer.value.type}")

    def gather(self, op: Gather) -> tuple[Any, ...]:
        buffer: TrackedMemory = self.env[op.memory]
        where, inside = self.positions(op, buffer, op.result.type.shape)
        kept = tuple(p[inside] for p in where)
        self.note_read(op, buffer, kept)
        tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
        tile[inside] = buffer.data[kept]  # nothing of an empty memory
        return (tile,)

    def scatter(self, op: Scatter) -> tuple[Any, ...]:
        buffer, tile = self.env[op.memory], self.env[op.tile]
        where, inside = self.positions(op, buffer, op.tile.type.shape)
        kept = tuple(p[inside] for p in where)
        self.want_distinct(op, buffer, kept)
        self.note_write(op, buffer, kept)
        buffer.data[kept] = tile[inside]
        return ()

    def read_indexed(self, op: ReadIndexed) -> tuple[Any, ...]:
        buffer: TrackedMemory = self.env[op.memory]
        where, inside = self.indexed(op, buffer)
        self.note_read(op, buffer, where)
        tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
        tile[inside] = buffer.data[where]
        return (tile,)

    def write_indexed(self, op: WriteIndexed) -> tuple[Any, ...]:
        buffer, tile = self.env[op.memory], self.env[op.tile]
        where, inside = self.indexed(op, buffer)
        if op.combine:
            self.combine(op, buffer, where, tile[inside])
            return ()
        self.want_distinct(op, buffer, where)
        self.note_write(op, buffer, where)
        buffer.data[where] = tile[inside]
        return ()

    def combine(self, op: WriteIndexed, buffer: TrackedMemory, where: tuple[Array, ...], x: Array) -> None:
        """Combine elements with what the memory has, one after the other, as atomic operations do."""
        self.note_write(op, buffer, where, ATOMICALLY)
        COMBINING[op.combine].at(buffer.data, where, x)

    def indexed(self, op: ReadIndexed | WriteIndexed, buffer: TrackedMemory) -> tuple[tuple[Array, ...], Array]:
        """Return the positions of a tile's elements that are in bounds, and which these are."""
        places = [np.asarray(self.env[v]) for v in op.at]
        inside = np.ones(places[0].shape, bool)
        for p, extent in zip(places, buffer.data.shape, strict=True):
            inside &= (p >= 0) & (p < extent)
        return tuple(p[inside] for p in places), inside

    def want_distinct(self, op: Op, buffer: TrackedMemory, where: tuple[Array, ...]) -> None:
        """Refuse to store two elements of one tile at one place."""
        flat = np.ravel_multi_index(where, buffer.data.shape)
        numbers, counts = np.unique(flat, return_counts=True)
        if (counts > 1).any():
            position = np.unravel_index(numbers[counts > 1][0], buffer.data.shape)
            self.fail(op, f"stores two elements of one tile at {element(buffer, position)}")

    def positions(
        self, op: Gather | Scatter, buffer: TrackedMemory, tile: tuple[int, ...]
    ) -> tuple[tuple[Array, ...], Array]:
        """Return the position of each element of a tile, clipped into the memory, and which of them are in bounds."""
        memory = buffer.data.shape
        where_to = [np.broadcast_to(np.asarray(p), tile) for p in self.block(op.where, *np.indices(tile))]
        inside = np.ones(tile, bool)
        for p, extent in zip(where_to, memory, strict=True):
            inside &= (p >= 0) & (p < extent)
        may_be_outside = op.part or (isinstance(op, Gather) and _has_edges(buffer))
        if not inside.any() and not may_be_outside:
            self.outside(op, buffer, [p.flat[0] for p in where_to])
        return tuple(np.clip(p, 0, n - 1) for p, n in zip(where_to, memory, strict=True)), inside


def _has_edges(buffer: TrackedMemory) -> bool:
    """Return whether out-of-bounds reads give 0: of an array they do, of a workgroup's memory they are errors."""
    return is_in(buffer.value, "global")


MEANINGS: dict[type[Op], Callable[[_Interpreter, Any], tuple[Any, ...]]] = {
    Elementwise: _Interpreter.elementwise,
    Const: _Interpreter.const,
    Workgroup: _Interpreter.number,
    TileOf: _Interpreter.tile_of,
    Broadcast: _Interpreter.broadcast,
    ExtractSlice: _Interpreter.part,
    Permute: _Interpreter.permute,
    Convert: _Interpreter.same_numbers,
    Iota: _Interpreter.iota,
    Reduce: _Interpreter.reduce,
    Shift: _Interpreter.shift,
    Mma: _Interpreter.multiply,
    Accumulate: _Interpreter.multiply,
    ZeroAccumulator: _Interpreter.zero_accumulator,
    LoadAccumulator: _Interpreter.same_numbers,
    ReadAccumulator: _Interpreter.same_numbers,
    Loop: _Interpreter.loop,
    While: _Interpreter.loop_while,
    Barrier: _Interpreter.barrier,
    MakeExchange: _Interpreter.make_exchange,
    HandOver: _Interpreter.hand_over,
    TakeOver: _Interpreter.take_over,
    TakeOverAll: _Interpreter.take_over_all,
    Allocate: _Interpreter.allocate,
    Overlay: _Interpreter.overlay,
    Prepack: _Interpreter.prepack,
    ReadPanel: _Interpreter.read_panel,
    Read: _Interpreter.read,
    Write: _Interpreter.write,
    WriteThrough: _Interpreter.write_through,
    Gather: _Interpreter.gather,
    Scatter: _Interpreter.scatter,
    ReadIndexed: _Interpreter.read_indexed,
    WriteIndexed: _Interpreter.write_indexed,
    Copy: _Interpreter.copy,
    CopyAsync: _Interpreter.bring,
    WaitAsync: _Interpreter.wait_async,
}
"""The function of each op on the tile level; it returns as many values as the op has results."""


@dataclass(frozen=True)
class Arriving:
    """A copy in flight to a part of a memory."""

    target: TrackedMemory
    where: tuple[int, ...]
    tile: Array

    @property
    def bytes(self) -> int:
        return self.tile.size * self.target.value.type.dtype.bytes


def touched(kernel: Kernel) -> tuple[set[Value], set[Value]]:
    """Return the global memories that a kernel writes, and those it reads."""
    ops = list(walk(kernel.body))
    written, read = (v for op in ops for v in op.written), (v for op in ops for v in op.read)
    return {v for v in written if is_in(v, "global")}, {v for v in read if is_in(v, "global")}


def spread(x: Any, axes: tuple[int, ...], rank: int) -> Array:
    """Return x with its axes at `axes` of `rank`, and length 1 elsewhere."""
    x = np.asarray(x)
    shape = [1] * rank
    order = np.argsort(axes)
    for axis, extent in zip(axes, x.shape, strict=True):
        shape[axis] = extent
    spread: Array = (x.transpose(order) if axes else x).reshape(shape)
    return spread


def first(mask: Array, where: Any) -> tuple[int, ...]:
    """Return the position in memory of the first element where `mask` is true."""
    hit = tuple(int(axis[0]) for axis in np.nonzero(mask))
    if all(isinstance(w, np.ndarray) for w in where):
        return tuple(int(w[hit]) for w in where)
    ahead = iter(hit)
    return tuple(w.start + next(ahead) if isinstance(w, slice) else int(w) for w in where)


def element(buffer: TrackedMemory, position: Iterable[Any]) -> str:
    return f"{buffer.value.name}[{', '.join(str(int(p)) for p in position)}]"
