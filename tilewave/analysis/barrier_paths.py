"""All paths through a kernel: which accesses to a memory need a barrier between them, and where it could be placed.

    write(%x, %sa)         gap 0
    loop(%trips) {         gap 1
      read(%sa)            gap 2         from the write: a barrier in gap 1 or 2
      write(%y, %sa)       gap 3         from the read: in gap 3; and around the loop, from the write to the read: in 2
    }

A gap is a place for a barrier: before any access, and before any loop that has accesses. Pending accesses are followed
on all paths, with the gaps passed since; each conflicting pair gives a set of gaps of which one must have a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from tilewave.analysis.global_hazards import AccessOnTheWay, Conflicts, Meets
from tilewave.analysis.residues import Residue, Residues
from tilewave.ir.core import Value
from tilewave.ir.ops import Barrier
from tilewave.records import dataclass

FEW_ROUNDS = 8
"""An inner loop with at most this many iterations is unrolled in the analysis, with known indices."""
NO_GAP = -1
"""In place of a gap, where no barrier may be placed."""


@dataclass(frozen=True)
class Access:
    """An access to a memory by all waves; `place` is the slot of a shared memory, where known, or a global access."""

    gap: int
    """The gap before the access; NO_GAP where no barrier may be placed there."""
    memory: str
    writes: bool
    place: Place
    comes_later: bool = False
    """An asynchronous write, which happens at any time until it is waited for."""
    is_atomic: bool = False
    """Whether the elements are combined atomically, in any order with others of the kind."""

    @property
    def kind(self) -> str:
        return COMBINED if self.is_atomic else WRITTEN if self.writes else READ


@dataclass(frozen=True)
class Arrival:
    """A wait for asynchronous copies: for all of them, or for some."""

    is_all: bool


@dataclass(frozen=True)
class StandingBarrier:
    """A barrier that is already in the kernel; in `gap` it can be strengthened."""

    barrier: Barrier
    gap: int


@dataclass(frozen=True)
class Round:
    """A loop, with between `least` and `most` iterations."""

    gap: int
    condition: tuple[Step, ...]
    body: tuple[Step, ...]
    index: str | None
    trips: Value | None
    least: int
    most: int
    made: frozenset[str]
    """The names of values that each iteration defines again."""

    def is_short(self) -> bool:
        """Return whether the analysis unrolls the loop; one with inner loops only if it has at most one iteration."""
        return self.most <= (1 if self.index is None or any(isinstance(s, Round) for s in self.body) else FEW_ROUNDS)


Place = Residue | AccessOnTheWay | None
Step = Access | Arrival | StandingBarrier | Round
Gaps = int
"""A set of gaps, one bit each."""
READ, WRITTEN, COMBINED, COMING = "read", "written", "combined", "coming"
Touched = tuple[str, str, Place]
"""The memory, the kind of access, and the place in the memory."""
Pending = dict[Touched, frozenset[Gaps]]
"""Accesses since the last barrier, with the gaps passed since on each path, without redundant paths."""
NOTHING: Pending = {}
HERE: frozenset[Gaps] = frozenset((0,))
"""No gap was passed."""


class Walker:
    """Finds conflicting accesses: of different waves in shared memory, and in global memory as `conflicts` says."""

    def __init__(self, residues: Residues, who: Meets = Meets.WAVES, conflicts: Conflicts | None = None) -> None:
        self.residues, self.who, self.conflicts = residues, who, conflicts
        self.ways: frozenset[Gaps] = frozenset()
        """The gaps on each path between two conflicting accesses."""
        self.rounds: dict[str, int] = {}
        """The current index of each loop that is unrolled."""

    def run(self, steps: Sequence[Step], pending: Pending) -> Pending:
        for step in steps:
            match step:
                case StandingBarrier(barrier) if self.is_enough(barrier):
                    pending = {touched: ways for touched, ways in pending.items() if touched[1] == COMING}
                case StandingBarrier(gap=gap):
                    pending = self.past(gap, pending)
                case Access(gap):
                    pending = self.touch(step, self.past(gap, pending))
                case Arrival(is_all):
                    pending = _arrived(pending, is_all)
                case Round(gap):
                    go_round = self.few_rounds if step.is_short() else self.many_rounds
                    pending = go_round(step, self.past(gap, pending))
        return pending

    def is_enough(self, barrier: Barrier) -> bool:
        """Return whether a barrier orders everything, so that earlier accesses need not be followed past it."""
        if self.who is Meets.LANES:
            return True
        return barrier.waves == 0 and (self.conflicts is None or barrier.over == "global")

    def past(self, gap: int, pending: Pending) -> Pending:
        """Return the accesses pending after a gap, without those that an already required barrier separates."""
        if gap == NO_GAP:
            return pending
        found: Pending = {}
        for touched, ways in pending.items():
            if touched[1] == COMING:
                found[touched] = ways
            elif still := frozenset(way | 1 << gap for way in ways if not self.is_cut(way | 1 << gap)):
                found[touched] = still
        return found

    def is_cut(self, way: Gaps) -> bool:
        """Return whether a path includes all gaps of a path that must have a barrier."""
        return any(way & known == known for known in self.ways)

    def touch(self, access: Access, pending: Pending) -> Pending:
        place = self.now(access.place)
        for (memory, kind, other), ways in pending.items():
            conflicts = (
                kind == WRITTEN or (kind == READ and access.writes) or (kind == COMBINED and not access.is_atomic)
            )
            if memory == access.memory and conflicts and not self.are_apart(other, place):
                self.ways = without_needless(self.ways | ways)
        kinds = [WRITTEN, COMING] if access.comes_later else [access.kind]
        return {**pending, **{(access.memory, kind, place): HERE for kind in kinds}}

    def now(self, place: Place) -> Place:
        """Return a place with the known indices of unrolled loops."""
        if isinstance(place, AccessOnTheWay):
            return replace(place, known=tuple(sorted(self.rounds.items())))
        for index, i in self.rounds.items():
            place = place and place.replaced(index, partial(Residue.of, {}, i))
        return place

    def are_apart(self, first: Place, second: Place) -> bool:
        match first, second:
            case Residue(), Residue():
                return second.differs(first)
            case AccessOnTheWay(), AccessOnTheWay():
                return self.conflicts is None or self.conflicts.meet(first, second) is not self.who
        return False

    def few_rounds(self, step: Round, pending: Pending) -> Pending:
        """Follow the iterations one by one; from the least trip count on, the loop may end before each."""
        left = NOTHING
        for i in range(step.most + 1):
            pending = self.run(step.condition, pending)
            if i >= step.least:
                left = _joined(left, _renamed(pending, partial(_after_step, step, None)))
            if i < step.most:
                self.rounds.update({step.index: i} if step.index else {})
                pending = _renamed(self.run(step.body, pending), partial(_after_step, step, None))
        self.rounds.pop(step.index or "", None)
        return left

    def many_rounds(self, step: Round, pending: Pending) -> Pending:
        """Follow iterations until one adds no pending access."""
        before, seen = pending, None
        while before != seen:
            seen = before
            checked = self.run(step.condition, before)
            after = self.run(step.body, checked)
            before = _joined(before, _renamed(after, partial(_a_round_later, step)))
        if step.trips is None:
            return _renamed(checked, partial(_after_step, step, None))
        left = _renamed(after, partial(_after_step, step, self.last_step(step.trips)))
        return left if step.least else _joined(pending, left)

    def last_step(self, trips: Value) -> Callable[[int], Residue]:
        return lambda modulus: self.residues.of(trips, modulus) + Residue.of({}, -1, modulus)


def _arrived(pending: Pending, is_all: bool) -> Pending:
    """Turn pending asynchronous writes into writes made here, so that other waves' reads need a barrier."""
    come = {(memory, WRITTEN, slot): HERE for memory, kind, slot in pending if kind == COMING}
    return {touched: ways for touched, ways in pending.items() if touched[1] != COMING or not is_all} | come


def _joined(a: Pending, b: Pending) -> Pending:
    joined = dict(a)
    for touched, ways in b.items():
        joined[touched] = without_needless(joined[touched] | ways) if touched in joined else ways
    return joined


def without_needless(ways: Iterable[Gaps]) -> frozenset[Gaps]:
    """Return the paths without those that include all gaps of another: a barrier on that one is on these too."""
    kept: list[Gaps] = []
    for way in sorted(ways, key=int.bit_count):
        if not any(way & k == k for k in kept):
            kept.append(way)
    return frozenset(kept)


def _renamed(pending: Pending, change: Callable[[Place], Place]) -> Pending:
    found: Pending = {}
    for (memory, kind, old), ways in pending.items():
        place = change(old)
        same = found.get((memory, kind, place))
        found[memory, kind, place] = without_needless(same | ways) if same else ways
    return found


def _a_round_later(step: Round, place: Place) -> Place:
    """Return a place touched in an iteration as seen from the next one: the index was smaller, other values changed."""
    if isinstance(place, AccessOnTheWay):
        own = frozenset((step.index,)) if step.index else frozenset()
        changed = place.changed | step.made
        return replace(place, changed=changed, before=(place.before | own) - changed)
    return _with_index(place, step, partial(Residue.of, {step.index: 1}, -1) if step.index else None)


def _after_step(step: Round, index: Callable[[int], Residue] | None, place: Place) -> Place:
    """Return a place touched in the loop as seen after it; `index` gives the last iteration, where that is known."""
    if isinstance(place, AccessOnTheWay):
        changed = place.changed | step.made | {step.index or ""}
        return replace(place, changed=changed, before=place.before - changed)
    return _with_index(place, step, index)


def _with_index(slot: Residue | None, step: Round, index: Callable[[int], Residue] | None) -> Residue | None:
    if slot is not None and index is not None and step.index is not None:
        slot = slot.replaced(step.index, index)
    return None if slot is not None and any(name in step.made for name, _ in slot.terms) else slot
