"""Whether sums across workgroups in turns have one order, and end: proved for the sizes of a launch.

A workgroup takes a turn at a tile where it adds to it. Each addend is added once, in a fixed order, if the turns at a
tile are 0, 1, 2, …, each taken once. And no workgroup waits in a circle if the workgroups that take them ascend:

    Workgroups start in the order of their numbers, so of those that have not ended the one of the lowest number has
    started. It waits for turns of workgroups of lower numbers, which have ended, or for earlier turns of its own. So
    it goes on, and ends. That needs no more than one workgroup at a time on the chip, and holds for any number of them,
    beside any other kernels.

An order in which a workgroup waits for a later one would end only if both are on the chip at once, which no launch
guarantees while other streams use the chip: it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewave.analysis.index_trace import IndexRun
from tilewave.analysis.schedule import NO_CORRECTION, Correction
from tilewave.errors import CoverageError
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Block, Kernel, Value
from tilewave.ir.ops import PassTurn, TurnOp, WaitTurn, WriteIndexed
from tilewave.ir.rewrite import blocks_in, walk

NUMBERED = "turns at a tile are 0, 1, 2, …: as many as workgroups add to it, each taken once"
ASCENDING = (
    "workgroups start in the order of their numbers: let turns ascend with them, or correct the order of tiles; "
    "atomic_add adds in any order"
)


def takes_turns(kernel: Kernel) -> bool:
    return any(isinstance(op, TurnOp) for op in walk(kernel.body))


def added_in_turns(kernel: Kernel) -> set[Value]:
    """Return the arrays to which workgroups add in turns."""
    return {op.memory for op in walk(kernel.body) if isinstance(op, TurnOp)}


def want_ordered(kernel: Kernel, symbols: Mapping[str, int], remedy: Correction = NO_CORRECTION) -> None:
    """Raise with a counterexample unless every sum in turns has one order and ends, at these sizes."""
    if takes_turns(kernel):
        _want_one_counter(kernel)
        for op, taken in turns_taken(kernel, symbols).items():
            taken.check(op, remedy)


def turns_taken(kernel: Kernel, symbols: Mapping[str, int]) -> dict[WaitTurn, TakenTurns]:
    """Return the turns that are counted in each array of counters, with an op that takes some of them."""
    return _TurnRun(kernel, symbols).by_array()


def _want_one_counter(kernel: Kernel) -> None:
    """Refuse an array that has turns by two arrays of counters, or is added to without a turn, too."""
    turns: dict[Value, Value] = {}
    for op in walk(kernel.body):
        if isinstance(op, TurnOp) and turns.setdefault(op.memory, op.turns) != op.turns:
            what = f"turns at {op.memory.name} are counted in {turns[op.memory].name} and in {op.turns.name}"
            raise CoverageError(what, loc=op.loc, remedy="count all turns at an array in one array of counters")
    for block in blocks_in(kernel.body):
        _want_in_turn(block, turns)


def _want_in_turn(block: Block, turns: Mapping[Value, Value]) -> None:
    here: set[Value] = set()
    for op in block.ops:
        if isinstance(op, WaitTurn):
            here.add(op.memory)
        elif isinstance(op, PassTurn):
            here.discard(op.memory)
        elif isinstance(op, WriteIndexed) and op.memory in turns and op.memory not in here:
            what = f"{op.memory.name} is added to in turns, and without a turn here"
            raise CoverageError(what, loc=op.loc, remedy="add to it by ordered_add everywhere, or by atomic_add")


class _TurnRun(IndexRun):
    """Finds all turns that workgroups take."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int]) -> None:
        super().__init__(kernel, symbols, lambda op: isinstance(op, WaitTurn))
        self.found: dict[Value, list[tuple[WaitTurn, Array, tuple[Array, ...], Array]]] = {}

    def visit(self, op: Any, env: dict[Value, Any], w: Array) -> None:
        at = tuple(np.broadcast_to(np.asarray(env[v]), w.shape) for v in op.at)
        turn = np.broadcast_to(np.asarray(env[op.turn]), w.shape)
        self.found.setdefault(op.turns, []).append((op, w, at, turn))

    def by_array(self) -> dict[WaitTurn, TakenTurns]:
        """Return the turns of each array of counters, with an op that takes some of them."""
        for _ in self.all():
            pass
        return {visits[0][0]: TakenTurns.of(visits) for visits in self.found.values() if visits}


class TakenTurns:
    """The turns counted in one array: each one's workgroup, place and number, in the order in which each takes them."""

    def __init__(self, workgroup: Array, at: Array, turn: Array, shape: tuple[int, ...]) -> None:
        self.workgroup, self.at, self.turn, self.shape = workgroup, at, turn, shape

    @staticmethod
    def of(visits: list[tuple[WaitTurn, Array, tuple[Array, ...], Array]]) -> TakenTurns:
        workgroup = np.concatenate([w for _, w, _, _ in visits])
        at = np.concatenate([np.stack(at, axis=1) for _, _, at, _ in visits])
        turn = np.concatenate([turn for *_, turn in visits])
        return TakenTurns(workgroup, at, turn, visits[0][0].turns.type.shape)

    def check(self, op: WaitTurn, remedy: Correction) -> None:
        outside = ((self.at < 0) | (self.at >= np.array(self.shape))).any(axis=1)
        if outside.any():
            which = int(np.argmax(outside))
            what = f"workgroup {self.name(which, remedy)} takes a turn at {self.place(op, which)}, outside {op.turns}"
            raise CoverageError(what, loc=op.loc, remedy=NUMBERED)
        counter = np.ravel_multi_index(tuple(self.at.T), self.shape)
        order = np.lexsort((np.arange(len(counter)), self.workgroup, self.turn, counter))
        first = np.diff(counter[order], prepend=-1) != 0
        begins = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        self.want_each_once(op, order, np.arange(len(order)) - begins, remedy)
        self.want_ascending(op, order, first, remedy)

    def want_each_once(self, op: WaitTurn, order: Array, wanted: Array, remedy: Correction) -> None:
        """`wanted` is the number that each turn should have, as the turns at a tile follow each other in `order`."""
        wrong = self.turn[order] != wanted
        if not wrong.any():
            return
        at = int(np.argmax(wrong))
        here, turn = int(order[at]), int(wanted[at])
        place = self.place(op, here)
        if self.turn[here] > turn or self.turn[here] < 0:
            what = f"turn {turn} at {place} is taken by none, and workgroup {self.name(here, remedy)} takes "
            raise CoverageError(f"{what}turn {self.turn[here]}", loc=op.loc, remedy=NUMBERED)
        before = int(order[at - 1])
        same = self.workgroup[before] == self.workgroup[here]
        who = f"workgroup {self.name(here, remedy)} takes turn {turn - 1} at {place} twice"
        if not same:
            both = f"workgroups {self.name(before, remedy)} and {self.name(here, remedy)}"
            who = f"{both} both take turn {turn - 1} at {place}"
        raise CoverageError(who, loc=op.loc, remedy=NUMBERED)

    def want_ascending(self, op: WaitTurn, order: Array, first: Array, remedy: Correction) -> None:
        """Raise where a turn waits for a workgroup that may not have started, or for a later turn of its own."""
        workgroup = self.workgroup[order]
        own_later = (np.diff(workgroup, prepend=0) == 0) & (np.diff(order, prepend=0) < 0)
        wrong = ~first & ((np.diff(workgroup, prepend=0) < 0) | own_later)
        if not wrong.any():
            return
        at = int(np.argmax(wrong))
        here, before = int(order[at]), int(order[at - 1])
        what = f"workgroup {self.name(here, remedy)} takes turn {self.turn[here]} at {self.place(op, here)}"
        other = f"workgroup {self.name(before, remedy)}, which may not have started, takes turn {self.turn[before]}"
        if workgroup[at] == workgroup[at - 1]:
            other = f"takes turn {self.turn[before]} after it"
        raise CoverageError(f"{what}, and {other}", loc=op.loc, remedy=ASCENDING)

    def place(self, op: WaitTurn, which: int) -> str:
        return f"{op.turns.name}[{', '.join(map(str, map(int, self.at[which])))}]"

    def name(self, which: int, remedy: Correction) -> str:
        return remedy.name(self.workgroup[which])
