"""Turns at tiles of arrays while a kernel runs: who has them, and in which turn each element was added to.

A sum in a fixed order needs three things, and each is checked as the kernel runs: a wave that adds to an array knows
that the workgroup has a turn, and the turn is passed by a wave that knows of the addition; all that is added to one
element is added in turns of one counter; in a turn each element is added to once. A wave may wait for turns, or pass
them, for the others of its workgroup: what a wave knows follows from barriers and mbarriers (`clocks.py`).

A workgroup may have several turns at once, and an addition is then in one of them, which it does not name: of each
element all turns are kept in which it may have been added to, and none may be left without one.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import PassTurn, TurnOp, WaitTurn
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

Turn = tuple[Value, int, int]
"""The counters, the position of one through all their elements, and the number of a turn there."""


@dataclass(frozen=True)
class Standpoint:
    """A wave in a segment of its run, and the segments of its workgroup that it knows; None: it is alone."""

    workgroup: int
    segment: int = 0
    known: Array | None = None

    def knows(self, segment: int) -> bool:
        return self.known is None or bool(segment < len(self.known) and self.known[segment])


@dataclass(frozen=True)
class Addition:
    """Elements of an array that a wave added to in a segment of its run."""

    op: Op
    memory: Value
    shape: tuple[int, ...]
    flat: Array
    segment: int


@dataclass
class HeldTurn:
    """A turn that waves of a workgroup waited for, and that not all who must have passed."""

    op: WaitTurn
    turn: Turn
    taken: list[int] = field(default_factory=list)
    """The segments in which waves came to have it."""
    passed: list[Standpoint] = field(default_factory=list)
    additions: list[Addition] = field(default_factory=list)
    """What may have been added in this turn."""

    def is_known(self, at: Standpoint) -> bool:
        return any(map(at.knows, self.taken))


class Turns:
    """The turns of one launch."""

    def __init__(self, kernel: Kernel) -> None:
        self.memories = {op.memory for op in walk(kernel.body) if isinstance(op, TurnOp)}
        """The arrays to which waves add in turns."""
        self.held: dict[int, dict[Turn, HeldTurn]] = {}
        """The turns of each workgroup."""
        self.added: dict[Value, Array] = {}
        """For each element of an array, the number in `sets` of the turns in which it may have been added to last."""
        self.sets: list[frozenset[Turn]] = [frozenset()]
        """0: not added to yet."""
        self.numbers: dict[frozenset[Turn], int] = {}

    def has_come(self, op: WaitTurn, turns: Array, counter: int, turn: int) -> bool:
        return int(turns.flat[counter]) >= turn * op.waves

    def take(self, at: Standpoint, op: WaitTurn, turns: Array, counter: int, turn: int) -> None:
        """Record that a wave has a turn that has come."""
        found, name = int(turns.flat[counter]), place(op, turns, counter)
        if turn < 0 or found >= (turn + 1) * op.waves:
            remedy = "the turns of a tile are 0, 1, 2, …, each once, and its counter is 0 before the launch"
            self.fail(at, op, f"waits for turn {turn} of {name}, which is over", remedy)
        which = (op.turns, counter, turn)
        held = self.held.setdefault(at.workgroup, {}).setdefault(which, HeldTurn(op, which))
        held.taken.append(at.segment)

    def give(self, at: Standpoint, op: PassTurn, turns: Array, counter: int) -> None:
        """Record that a wave passes a turn, and count that."""
        mine = self.held.get(at.workgroup, {}).values()
        those = [one for one in mine if one.turn[:2] == (op.turns, counter) and one.op.memory == op.memory]
        held = next((one for one in those if one.is_known(at)), None)
        if held is None:
            self.fail(at, op, f"passes a turn of {place(op, turns, counter)} that it did not wait for")
        turns.flat[counter] += 1
        held.passed.append(at)
        if len(held.passed) == held.op.waves:
            del self.held[at.workgroup][held.turn]
            for addition in held.additions:
                if not any(one.knows(addition.segment) for one in held.passed):
                    self.note_passed_before(at, held, addition)

    def note_added(self, at: Standpoint, op: Op, memory: Value, shape: tuple[int, ...], flat: Array) -> None:
        """Record and check that a wave adds to elements of an array."""
        if memory not in self.memories:
            return
        held = [one for one in self.held.get(at.workgroup, {}).values() if one.op.memory == memory and one.is_known(at)]
        if not held:
            self.fail(at, op, f"adds to {memory.name}[{position(flat[:1], shape)}] without a turn")
        ordered, counts = np.unique(flat, return_counts=True)
        if (counts > 1).any():
            self.fail_twice(at, op, memory, shape, ordered[counts > 1])
        stamps, now = self.stamps(memory, shape), frozenset(one.turn for one in held)
        before = stamps.take(flat)
        for number in map(int, np.unique(before)):
            those = flat[before == number]
            common = {turn for turn in now if number == 0 or any(turn[:2] == old[:2] for old in self.sets[number])}
            if not common:
                where = position(those[:1], shape)
                self.fail(
                    at, op, f"adds to {memory.name}[{where}] in turns of two counters: the order decides the result"
                )
            new = frozenset(common) - self.sets[number]
            if not new:
                self.fail_twice(at, op, memory, shape, those)
            stamps[those] = self.number(new)
        addition = Addition(op, memory, shape, flat, at.segment)
        for one in held:
            one.additions.append(addition)

    def note_passed_before(self, at: Standpoint, held: HeldTurn, addition: Addition) -> None:
        """Record that a turn is passed by waves that do not know of an addition: it was not in this turn."""
        stamps = self.stamps(addition.memory, addition.shape)
        before = stamps.take(addition.flat)
        for number in map(int, np.unique(before)):
            if held.turn not in self.sets[number]:
                continue
            those = addition.flat[before == number]
            left = self.sets[number] - {held.turn}
            if not left:
                what = f"{addition.memory.name}[{position(those[:1], addition.shape)}]"
                self.fail(at, addition.op, f"adds to {what}, and passes the turn before it knows of that")
            stamps[those] = self.number(left)

    def stamps(self, memory: Value, shape: tuple[int, ...]) -> Array:
        return self.added.setdefault(memory, np.zeros(int(np.prod(shape)), np.int64))

    def number(self, turns: frozenset[Turn]) -> int:
        if turns not in self.numbers:
            self.numbers[turns] = len(self.sets)
            self.sets.append(turns)
        return self.numbers[turns]

    def want_passed(self, workgroup: int) -> None:
        """Raise where a workgroup ends with a turn."""
        for held in self.held.pop(workgroup, {}).values():
            at = Standpoint(workgroup)
            self.fail(at, held.op, f"ends and has not passed turn {held.turn[2]} at {held.op.memory.name}")

    def fail_twice(self, at: Standpoint, op: Op, memory: Value, shape: tuple[int, ...], flat: Array) -> NoReturn:
        where = position(flat[:1], shape)
        self.fail(at, op, f"adds twice to {memory.name}[{where}] in one turn: the order decides the result")

    def fail(self, at: Standpoint, op: Op, why: str, remedy: str = "") -> NoReturn:
        raise InterpreterError(f"workgroup {at.workgroup} {why}", loc=op.loc, remedy=remedy)


def place(op: TurnOp, turns: Array, counter: int) -> str:
    return f"{op.turns.name}[{position(np.array([counter]), turns.shape)}]"


def counter_of(workgroup: int, op: TurnOp, turns: Array, at: tuple[Any, ...]) -> int:
    """Return the position of a counter through all elements; raise where it is out of bounds."""
    where = tuple(map(int, at))
    if not all(0 <= p < n for p, n in zip(where, turns.shape, strict=True)):
        said = f"{op.turns.name}[{', '.join(map(str, where))}]"
        raise InterpreterError(f"workgroup {workgroup} has a turn at {said}, outside {op.turns.type}", loc=op.loc)
    return int(np.ravel_multi_index(where, turns.shape))


def position(flat: Array, shape: tuple[int, ...]) -> str:
    return ", ".join(str(int(axis[0])) for axis in np.unravel_index(flat, shape))
