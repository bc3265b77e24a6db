"""A kernel while it runs on numpy arrays: its memories, and which workgroup accessed what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.numbers import DTYPE_NUMBERS, Numbers
from tilewave.interp.turns import Turns
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.effects import touched
from tilewave.ir.ops import TmaCopy, WaitPriorLaunch, Yield
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory, Scalar
from tilewave.records import dataclass

Env = dict[Value, Any]

NO_WORKGROUP, SEVERAL, LATER, ATOMICALLY = -1, -2, -3, -4
"""In place of a workgroup's number: no workgroup, several of them, an asynchronous copy in flight, or any."""
COMBINING: Mapping[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
"""What atomic operations do with an element and what the memory has."""


Meaning = Callable[["TileRun", Any], tuple[Any, ...]]
"""The function of an op; it returns as many values as the op has results."""


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
        self.turns = Turns(kernel)
        self.rows: dict[int, list[tuple[Op, Any, bool]]] = {}
        """The ops of each block of lanes' code, by its id: what runs it at once, and whether other waves can see it."""
        self.boxes: dict[tuple[Any, ...], Array] = {}
        """The elements of the boxes that MMAs read, by op, operand, wave and position; most are read again."""
        self.constants: dict[int, Any] = {}
        """The numbers and vectors of constants, by the id of their op."""
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


@dataclass(frozen=True)
class Arriving:
    """A copy in flight to a part of a memory."""

    target: TrackedMemory
    where: tuple[int, ...]
    tile: Array

    @property
    def bytes(self) -> int:
        return self.tile.size * self.target.value.type.dtype.bytes


class TileRun(InterpretedCall):
    """Runs the workgroups of a kernel, one after the other, by the function of each op in `meanings`."""

    def __init__(
        self,
        kernel: Kernel,
        arrays: Sequence[Array],
        symbols: Mapping[str, float],
        numbers: Numbers,
        meanings: Mapping[type[Op], Meaning],
    ) -> None:
        super().__init__(kernel, arrays, symbols, numbers)
        self.meanings = meanings
        self.packed: dict[Value, TrackedMemory] = {}
        self.on_the_way: list[Arriving] = []

    def run_workgroup(self, w: int) -> None:
        self.workgroup = w
        self.on_the_way.clear()
        self.block(self.kernel.body)
        self.turns.want_passed(w)

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
        return row_of(self.meanings, op, "no meaning is given to")(self, op)


def has_edges(buffer: TrackedMemory) -> bool:
    """Return whether out-of-bounds reads give 0: of an array they do, of a workgroup's memory they are errors."""
    return is_in(buffer.value, "global")


def first(mask: Array, where: Any) -> tuple[int, ...]:
    """Return the position in memory of the first element where `mask` is true."""
    hit = tuple(int(axis[0]) for axis in np.nonzero(mask))
    if all(isinstance(w, np.ndarray) for w in where):
        return tuple(int(w[hit]) for w in where)
    ahead = iter(hit)
    return tuple(w.start + next(ahead) if isinstance(w, slice) else int(w) for w in where)


def element(buffer: TrackedMemory, position: Iterable[Any]) -> str:
    return f"{buffer.value.name}[{', '.join(str(int(p)) for p in position)}]"
