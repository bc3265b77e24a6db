"""What the ops mean, in numpy: obvious, and the judge of every pass and every target.

A kernel runs one workgroup after the other. Each output remembers which workgroup wrote and read each element, so that
whatever would depend on the order of workgroups is found in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import EndlessLoop, InterpreterError
from tilewave.interp.arithmetic import Array, constant, elementwise, multiply, unmapped_tile
from tilewave.interp.exchanges import Slots
from tilewave.interp.windows import Window
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Accumulate,
    Allocate,
    AwaitAsync,
    AwaitEarlier,
    Barrier,
    Binary,
    Broadcast,
    Const,
    Copy,
    CopyAsync,
    CopyAsyncChunks,
    CopyAsyncCluster,
    CopyAsyncOut,
    CopyAsyncSignal,
    Gather,
    HandOver,
    Iota,
    Load,
    LoadAccumulator,
    LoadEach,
    Loop,
    MakeExchange,
    Mma,
    Overlay,
    Permute,
    Prepack,
    Read,
    ReadAccumulator,
    ReadPanel,
    Scatter,
    Select,
    Store,
    StoreEach,
    TakeOver,
    TileOf,
    Unary,
    While,
    Workgroup,
    Write,
    WriteThrough,
    Yield,
    ZeroAccumulator,
)
from tilewave.ir.rewrite import walk
from tilewave.ir.types import DType, Memory, Scalar

Env = dict[Value, Any]

WRITES = (Write, WriteThrough, Scatter, Store, StoreEach, CopyAsyncOut)
READS = (Read, Gather, Load, LoadEach, Copy, CopyAsyncSignal, CopyAsyncCluster, CopyAsync, CopyAsyncChunks)
NOBODY, SEVERAL, LATER = -1, -2, -3
MOST_ROUNDS = 1 << 20
"""A while loop that goes round more often than this is taken to be endless."""


def interpret(
    kernel: Kernel, arrays: Sequence[Array], symbols: Mapping[str, int], order: Iterable[int] | None = None
) -> None:
    """Run every workgroup, in launch order or in the one given; what they write is kept if all is well."""
    state = _Interpreter(kernel, arrays, symbols)
    with np.errstate(all="ignore"):
        for w in range(kernel.workgroups) if order is None else order:
            state.run_workgroup(w)
    state.want_all_taken()
    state.keep()


@dataclass
class Buffer:
    """A memory while a kernel runs: its elements, and who wrote and who read each."""

    value: Value
    data: Array
    writer: Array | None = None
    reader: Array | None = None

    def lose(self) -> None:
        """Nobody has written it."""
        assert self.writer is not None
        self.data[...] = poison_of(self.value.type.dtype)
        self.writer[...] = NOBODY


class Launch:
    """The arguments of a call while a kernel runs, and which workgroup touched which element of what it writes."""

    def __init__(self, kernel: Kernel, arrays: Sequence[Array], symbols: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.workgroup = 0
        self.starts_early = any(isinstance(op, AwaitEarlier) for op in walk(kernel.body))
        """Kernels launched before may still run."""
        self.env: Env = {}
        memories = [v for v in kernel.body.args if isinstance(v.type, Memory)]
        written, read = touched(kernel)
        self.outputs: list[tuple[Array, Buffer]] = []
        self.exchanges: dict[Value, Slots] = {}
        for value, array in zip(memories, arrays, strict=True):
            self.env[value] = self.argument(value, array, value in written, value in read)
        for value in kernel.body.args:
            if isinstance(value.type, Scalar):
                self.env[value] = symbols[value.name]

    def argument(self, value: Value, array: Array, written: bool, read: bool) -> Buffer:
        if not written:
            return Buffer(value, array)
        buffer = Buffer(value, array.copy(), np.full(array.shape, NOBODY, np.int32))
        if read:
            buffer.reader = np.full(array.shape, NOBODY, np.int32)
        self.outputs.append((array, buffer))
        return buffer

    def exchange(self, value: Value) -> Slots:
        """What all workgroups share; made for the first that comes."""
        return self.exchanges.setdefault(value, Slots(value))

    def want_all_taken(self) -> None:
        for slots in self.exchanges.values():
            slots.want_empty()

    def keep(self) -> None:
        for array, buffer in self.outputs:
            array[...] = buffer.data

    def note_read(self, op: Op, buffer: Buffer, where: Any) -> None:
        if buffer.writer is None:
            return
        writer = buffer.writer[where]
        if buffer.value not in self.kernel.body.args:
            if (writer == NOBODY).any():
                self.fail(op, f"reads {element(buffer, first(writer == NOBODY, where))}, which nobody wrote")
            if (writer == LATER).any():
                at = element(buffer, first(writer == LATER, where))
                self.fail(op, f"reads {at} before what is brought there has arrived; await_async must stand between")
            return
        foreign = (writer != NOBODY) & (writer != self.workgroup)
        if foreign.any():
            at = element(buffer, first(foreign, where))
            self.fail(op, f"reads {at}, which workgroup {writer[foreign].flat[0]} wrote: the order decides the result")
        assert buffer.reader is not None
        readers = buffer.reader[where]
        buffer.reader[where] = np.where((readers == NOBODY) | (readers == self.workgroup), self.workgroup, SEVERAL)

    def note_write(self, op: Op, buffer: Buffer, where: Any) -> None:
        assert buffer.writer is not None
        writer = buffer.writer[where]
        foreign = (writer != NOBODY) & (writer != self.workgroup)
        if foreign.any():
            at, other = element(buffer, first(foreign, where)), writer[foreign].flat[0]
            self.fail(op, f"writes {at}, which workgroup {other} wrote: the order decides the result")
        if buffer.reader is not None:
            readers = buffer.reader[where]
            foreign = (readers != NOBODY) & (readers != self.workgroup)
            if foreign.any():
                at = element(buffer, first(foreign, where))
                self.fail(op, f"writes {at}, which another workgroup reads: the order decides the result")
        buffer.writer[where] = self.workgroup

    def fail(self, op: Op, why: str) -> NoReturn:
        raise InterpreterError(f"workgroup {self.workgroup} {why}", loc=op.loc)


class _Interpreter(Launch):
    def __init__(self, kernel: Kernel, arrays: Sequence[Array], symbols: Mapping[str, int]) -> None:
        super().__init__(kernel, arrays, symbols)
        self.packed: dict[Value, Buffer] = {}
        self.on_the_way: list[Brought] = []

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
        env = self.env
        match op:
            case Binary() | Unary() | Select():
                return (elementwise(op, [env[v] for v in op.operands]),)
            case Const(value):
                return (constant(op, value),)
            case Read(memory):
                return (self.read(op, env[memory]),)
            case Write(tile, memory) | WriteThrough(tile, memory):
                self.write(op, env[memory], env[tile])
                if isinstance(op, WriteThrough):
                    env[op.shared].lose()
                return ()
            case Mma(a, b, acc):
                return (multiply(env[a], env[b], env[acc]),)
            case ZeroAccumulator():
                return (np.zeros(op.result.type.shape, op.result.type.dtype.numpy),)
            case LoadAccumulator(x) | ReadAccumulator(x):
                return (env[x],)
            case Accumulate(a, b, acc):
                return (multiply(env[a], env[b], env[acc]),)
            case Workgroup():
                return (self.workgroup,)
            case TileOf(number, rows, cols):
                return unmapped_tile(env[number], rows, cols)
            case Broadcast(x, axes):
                shape = op.result.type.shape
                return (np.broadcast_to(spread(env[x], axes, len(shape)), shape),)
            case Permute(x, axes):
                return (env[x].transpose(axes),)
            case Iota():
                return (np.arange(op.result.type.shape[0], dtype=op.result.type.dtype.numpy),)
            case Prepack(memory):
                return (self.prepack(op, env[memory]),)
            case ReadPanel(memory, at):
                *batch, panel, first = (env[v] for v in at)
                depth = op.result.type.shape[-1]
                where = (*batch, panel)
                rows = env[memory].data[where].swapaxes(0, 1).reshape(op.result.type.shape[-2], -1)
                return (rows[:, first : first + depth].reshape(op.result.type.shape),)
            case Gather(memory):
                return (self.gather(op, env[memory]),)
            case Scatter(tile, memory):
                self.scatter(op, env[memory], env[tile])
                return ()
            case Loop(trips, init, body):
                carried = tuple(env[v] for v in init)
                for i in range(env[trips]):
                    carried = self.block(body, i, *carried)
                return carried
            case While():
                return self.loop_while(op)
            case Allocate():
                kind = op.result.type
                poison = np.full(kind.shape, poison_of(kind.dtype), kind.dtype.numpy)
                return (Buffer(op.result, poison, np.full(kind.shape, NOBODY, np.int32)),)
            case Overlay(memory):
                return (env[memory],)  # whoever writes here writes all of it: see WriteThrough
            case Copy(memory, _, to):
                self.copy(op, env[memory], env[to])
                return ()
            case MakeExchange():
                return (self.exchange(op.result),)
            case HandOver(tile, exchange, slot):
                env[exchange].put(op, self.workgroup, env[slot], 0, env[tile])
                return ()
            case TakeOver(tile, exchange, slot):
                return (env[tile] + self.take_over(op, env[exchange], env[slot]),)
            case CopyAsync(memory, _, to):
                self.bring(op, env[memory], env[to])
                return ()
            case AwaitAsync(pending):
                self.await_async(pending)
                return ()
            case Barrier():
                return ()  # whole tiles move at once here; waves exist at the lane level only
            case _:
                raise NotImplementedError(f"{op.loc}: no meaning is given to {op.name}")

    def loop_while(self, op: While) -> tuple[Any, ...]:
        carried = tuple(self.env[v] for v in op.init)
        for _ in range(MOST_ROUNDS):
            (goes_on,) = self.block(op.condition, *carried)
            if not goes_on:
                return carried
            carried = self.block(op.body, *carried)
        raise EndlessLoop(f"workgroup {self.workgroup} went round {MOST_ROUNDS:,} times and is not done", loc=op.loc)

    def take_over(self, op: Op, slots: Slots, slot: int) -> Array:
        slots.want_inside(op, self.workgroup, slot)
        if (slot, 0) not in slots.full:
            self.fail(op, f"waits for {slots.name(slot)}, which nobody in front of it handed over")
        return slots.take(op, self.workgroup, slot, 0)

    # -- memory

    def prepack(self, op: Prepack, buffer: Buffer) -> Buffer:
        """Panels of a memory; made for the first workgroup and kept for the others."""
        if op.result not in self.packed:
            *batch, panels, groups, rows, depth = op.result.type.shape
            order = [a for a in range(buffer.data.ndim) if a not in (op.row_axis, op.depth_axis)]
            turned = buffer.data.transpose([*order, op.row_axis, op.depth_axis])
            whole = np.zeros((*batch, panels * rows, groups * depth), op.result.type.dtype.numpy)
            whole[..., : turned.shape[-2], : turned.shape[-1]] = turned.astype(whole.dtype)
            split = whole.reshape(*batch, panels, rows, groups, depth)
            self.packed[op.result] = Buffer(op.result, np.ascontiguousarray(split.swapaxes(-3, -2)))
        return self.packed[op.result]

    def read(self, op: Read, buffer: Buffer) -> Array:
        if any(self.env[op.at[axis]] >= buffer.data.shape[axis] for axis in op.guard):
            return np.zeros(op.result.type.shape, buffer.data.dtype)
        window = self.window(op, buffer, op.result.type.shape)
        self.note_read(op, buffer, window.inside)
        found = buffer.data[window.inside]
        if window.whole:
            return np.array(window.to_tile(found))
        tile: Array = np.zeros(op.result.type.shape, buffer.data.dtype)
        tile[window.part] = window.to_tile(found)
        return tile

    def write(self, op: Write | WriteThrough, buffer: Buffer, tile: Array) -> None:
        window = self.window(op, buffer, op.tile.type.shape)
        self.note_write(op, buffer, window.inside)
        buffer.data[window.inside] = window.to_memory(tile[window.part])

    def copy(self, op: Copy, source: Buffer, target: Buffer) -> None:
        where, tile = self.box(op, source, target)
        self.note_write(op, target, (*where, ...))
        target.data[where] = tile

    def bring(self, op: CopyAsync, source: Buffer, target: Buffer) -> None:
        """What was there is lost at once; what comes is seen when it was awaited."""
        where, tile = self.box(op, source, target)
        self.note_write(op, target, (*where, ...))
        assert target.writer is not None
        target.writer[where] = LATER
        target.data[where] = poison_of(target.value.type.dtype)
        self.on_the_way.append(Brought(target, where, tile))

    def await_async(self, pending: int) -> None:
        while self.on_the_way and sum(b.tile.nbytes for b in self.on_the_way) > pending:
            come = self.on_the_way.pop(0)
            assert come.target.writer is not None
            come.target.writer[come.where] = self.workgroup
            come.target.data[come.where] = come.tile

    def box(self, op: Copy | CopyAsync, source: Buffer, target: Buffer) -> tuple[tuple[int, ...], Array]:
        """Where a copied box goes, and what is in it."""
        box = target.data.shape[len(op.to_at) :]
        window = Window.of([self.env[v] for v in op.at], op.axes, box, source.data.shape)
        tile: Array = np.zeros(box, source.data.dtype)
        if window is not None:
            self.note_read(op, source, window.inside)
            tile[window.part] = window.to_tile(source.data[window.inside])
        return tuple(self.env[v] for v in op.to_at), tile

    def window(self, op: Read | Write | WriteThrough, buffer: Buffer, shape: tuple[int, ...]) -> Window:
        at = [self.env[v] for v in op.at]
        window = Window.of(at, op.axes, shape, buffer.data.shape)
        if window is None:
            position = ", ".join(map(str, at))
            self.fail(op, f"touches {buffer.value.name}[{position}], all of it outside {buffer.value.type}")
        return window

    def gather(self, op: Gather, buffer: Buffer) -> Array:
        where, inside = self.positions(op, buffer, op.result.type.shape)
        self.note_read(op, buffer, tuple(p[inside] for p in where))
        tile: Array = np.where(inside, buffer.data[where], np.zeros((), buffer.data.dtype))
        return tile

    def scatter(self, op: Scatter, buffer: Buffer, tile: Array) -> None:
        where, inside = self.positions(op, buffer, op.tile.type.shape)
        kept = tuple(p[inside] for p in where)
        flat = np.ravel_multi_index(kept, buffer.data.shape)
        numbers, counts = np.unique(flat, return_counts=True)
        if (counts > 1).any():
            position = np.unravel_index(numbers[counts > 1][0], buffer.data.shape)
            self.fail(op, f"stores two elements of one tile at {element(buffer, position)}")
        self.note_write(op, buffer, kept)
        buffer.data[kept] = tile[inside]

    def positions(self, op: Gather | Scatter, buffer: Buffer, tile: tuple[int, ...]) -> tuple[tuple[Array, ...], Array]:
        """Where each element of a tile sits, clipped into the memory, and which of them are inside."""
        memory = buffer.data.shape
        where_to = [np.broadcast_to(np.asarray(p), tile) for p in self.block(op.where, *np.indices(tile))]
        inside = np.ones(tile, bool)
        for p, extent in zip(where_to, memory, strict=True):
            inside &= (p >= 0) & (p < extent)
        if not inside.any() and not op.part:
            position = ", ".join(str(p.flat[0]) for p in where_to)
            self.fail(op, f"touches {buffer.value.name}[{position}], all of it outside {buffer.value.type}")
        return tuple(np.clip(p, 0, n - 1) for p, n in zip(where_to, memory, strict=True)), inside


@dataclass(frozen=True)
class Brought:
    """What is on its way to a part of a memory."""

    target: Buffer
    where: tuple[int, ...]
    tile: Array


def touched(kernel: Kernel) -> tuple[set[Value], set[Value]]:
    """The memories that a kernel writes, and those it reads."""
    written = {op.memory for op in walk(kernel.body) if isinstance(op, WRITES)}
    read = {op.memory for op in walk(kernel.body) if isinstance(op, READS)}
    return written, read


def spread(x: Any, axes: tuple[int, ...], rank: int) -> Array:
    """x with its axes at `axes` of `rank`, and length 1 elsewhere."""
    x = np.asarray(x)
    shape = [1] * rank
    order = np.argsort(axes)
    for axis, extent in zip(axes, x.shape, strict=True):
        shape[axis] = extent
    spread: Array = (x.transpose(order) if axes else x).reshape(shape)
    return spread


def poison_of(dtype: DType) -> float | int:
    """What memory nobody wrote holds: a value that shows."""
    return math.nan if dtype.is_float else (1 << dtype.bits - 1) - 1 if dtype.is_int else 1


def first(mask: Array, where: Any) -> tuple[int, ...]:
    """The position in memory of the first element that `mask` holds."""
    hit = tuple(int(axis[0]) for axis in np.nonzero(mask))
    if all(isinstance(w, np.ndarray) for w in where):
        return tuple(int(w[hit]) for w in where)
    ahead = iter(hit)
    return tuple(w.start + next(ahead) if isinstance(w, slice) else int(w) for w in where)


def element(buffer: Buffer, position: Iterable[Any]) -> str:
    return f"{buffer.value.name}[{', '.join(str(int(p)) for p in position)}]"
