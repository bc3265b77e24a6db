"""Turns at tiles of arrays while a kernel runs: which wave has one, and in which turn each element was added to.

A sum in a fixed order needs three things, and each is checked as the kernel runs: a wave that adds to the array has a
turn; all that is added to one element is added in turns of one counter; in a turn each element is added to once.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import PassTurn, TurnOp, WaitTurn
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

MOST_TURNS = 1 << 32
Waiter = tuple[int, int]
"""A workgroup and a wave of it; whole tiles have no waves, and take 0."""


@dataclass(frozen=True)
class HeldTurn:
    """A turn that a wave waited for and has not passed."""

    op: WaitTurn
    counter: int
    """The position of the counter in `turns`, counted through all its elements."""
    turn: int

    @property
    def stamp(self) -> int:
        """A number for this turn of this counter; never 0."""
        return self.counter * MOST_TURNS + self.turn + 1


class Turns:
    """The turns of one launch."""

    def __init__(self, kernel: Kernel) -> None:
        self.memories = {op.memory for op in walk(kernel.body) if isinstance(op, TurnOp)}
        """The arrays to which waves add in turns."""
        self.held: dict[Waiter, HeldTurn] = {}
        self.added: dict[Value, Array] = {}
        """For each element of an array, the stamp of the turn in which it was last added to, or 0."""

    def has_come(self, op: WaitTurn, turns: Array, counter: int, turn: int) -> bool:
        return int(turns.flat[counter]) >= turn * op.waves

    def take(self, who: Waiter, op: WaitTurn, turns: Array, counter: int, turn: int) -> None:
        """Record that a wave has a turn that has come."""
        found, name = int(turns.flat[counter]), place(op, turns, counter)
        if who in self.held:
            self.fail(who, op, f"waits for turn {turn} of {name}, and has another turn that it did not pass")
        if turn < 0 or found >= (turn + 1) * op.waves:
            remedy = "the turns of a tile are 0, 1, 2, …, each once, and its counter is 0 before the launch"
            self.fail(who, op, f"waits for turn {turn} of {name}, which is over", remedy)
        self.held[who] = HeldTurn(op, counter, turn)

    def give(self, who: Waiter, op: PassTurn, turns: Array, counter: int) -> None:
        """Record that a wave passes its turn, and count that."""
        held, name = self.held.pop(who, None), place(op, turns, counter)
        if held is None or (held.counter, held.op.turns, held.op.memory) != (counter, op.turns, op.memory):
            self.fail(who, op, f"passes a turn of {name} that it did not wait for")
        turns.flat[counter] += 1

    def note_added(self, who: Waiter, op: Op, memory: Value, shape: tuple[int, ...], flat: Array) -> None:
        """Record and check that a wave adds to elements of an array."""
        if memory not in self.memories:
            return
        held = self.held.get(who)
        if held is None or held.op.memory != memory:
            self.fail(who, op, f"adds to {memory.name}[{position(flat[:1], shape)}] without a turn")
        stamps = self.added.setdefault(memory, np.zeros(int(np.prod(shape)), np.int64))
        before = stamps.take(flat)
        other = (before != 0) & ((before - 1) // MOST_TURNS != held.counter)
        if other.any():
            where = position(flat[other][:1], shape)
            self.fail(who, op, f"adds to {memory.name}[{where}] in turns of two counters: the order decides the result")
        ordered, counts = np.unique(flat, return_counts=True)
        twice = np.concatenate([flat[before == held.stamp], ordered[counts > 1]])
        if len(twice):
            where = position(twice[:1], shape)
            self.fail(who, op, f"adds twice to {memory.name}[{where}] in one turn: the order decides the result")
        stamps[flat] = held.stamp

    def want_passed(self, who: Waiter) -> None:
        """Raise where a wave ends with a turn."""
        held = self.held.get(who)
        if held is not None:
            self.fail(who, held.op, f"ends and has not passed turn {held.turn} at {held.op.memory.name}")

    def fail(self, who: Waiter, op: Op, why: str, remedy: str = "") -> NoReturn:
        raise InterpreterError(f"workgroup {who[0]} {why}", loc=op.loc, remedy=remedy)


def place(op: TurnOp, turns: Array, counter: int) -> str:
    return f"{op.turns.name}[{position(np.array([counter]), turns.shape)}]"


def counter_of(who: Waiter, op: TurnOp, turns: Array, at: tuple[Any, ...]) -> int:
    """Return the position of a counter through all elements; raise where it is out of bounds."""
    where = tuple(map(int, at))
    if not all(0 <= p < n for p, n in zip(where, turns.shape, strict=True)):
        said = f"{op.turns.name}[{', '.join(map(str, where))}]"
        raise InterpreterError(f"workgroup {who[0]} has a turn at {said}, outside {op.turns.type}", loc=op.loc)
    return int(np.ravel_multi_index(where, turns.shape))


def position(flat: Array, shape: tuple[int, ...]) -> str:
    return ", ".join(str(int(axis[0])) for axis in np.unravel_index(flat, shape))
