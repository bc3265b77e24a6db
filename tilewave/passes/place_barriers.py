"""Separate waves that touch the same shared memory by the fewest barriers.

The waves of a workgroup move a tile together, so a wave may read what any other wrote, and overwrite what another still
reads. On every way from one access to a later one that conflicts with it there must be a barrier:

    write(x, sa)                    loop {
    ‹here›                            ‹here: the reads of the step before are done; the first step needs it not›
    xs = read(sa)                     write(x, sa)
                                      ‹and here›
                                      xs = read(sa)
                                    }

What is brought past the registers is written from when it is asked for until it has been awaited: a barrier in front
of the one, and another behind the other.

A barrier can stand before any access and before any loop that has some: a gap. The pass follows all ways through the
program with what was touched on them, and the gaps since. Each pair that conflicts gives a set of gaps of which one
must be taken; what is taken is the cheapest choice that meets all sets, where a gap costs as often as it is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import prod

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    AwaitBrought,
    Barrier,
    Bring,
    Copy,
    Gather,
    Loop,
    Mma,
    Read,
    Scatter,
    While,
    Write,
    WriteThrough,
)
from tilewave.ir.overlays import lower_memories
from tilewave.ir.residues import Residue, Residues
from tilewave.ir.rewrite import map_blocks, walk
from tilewave.ir.types import Memory
from tilewave.machine.matrix import BY_NAME, GroupInstruction

FEW_ROUNDS = 8
"""An inner loop that goes round no more often than this is followed round by round, its index known."""
MANY_ROUNDS = 16
"""How often a loop is taken to go round where that is not written."""
NO_GAP = -1


def place_barriers(kernel: Kernel) -> Kernel:
    """The kernel with the barriers that it needs beside those it has; one wave needs none."""
    if kernel.waves and prod(kernel.waves) == 1:
        return kernel
    reader = _Reader(kernel)
    walker = _Walker(reader.residues)
    walker.run(reader.steps(kernel.body, ()), {})
    chosen = _cheapest(walker.ways, reader.costs)
    return replace(kernel, body=_with_barriers(kernel.body, chosen, count())) if chosen else kernel


def _with_barriers(block: Block, gaps: Gaps, numbers: Iterator[int]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        if _has_gap(op) and gaps >> next(numbers) & 1:
            ops.append(Barrier(loc=op.loc))
        ops.append(map_blocks(op, lambda inner: _with_barriers(inner, gaps, numbers)) if _is_round(op) else op)
    return replace(block, ops=tuple(ops))


def _is_shared(memory: Value) -> bool:
    return isinstance(memory.type, Memory) and memory.type.space == "shared"


def _is_access(op: Op) -> bool:
    always = isinstance(op, (Copy, Bring, WriteThrough))
    return always or (isinstance(op, (Read, Write, Gather, Scatter)) and _is_shared(op.memory))


def _touched(op: Op) -> Value:
    """The shared memory of an access."""
    match op:
        case Copy(to=memory) | Bring(to=memory) | WriteThrough(shared=memory):
            return memory
        case Read(memory) | Gather(memory) | Write(_, memory) | Scatter(_, memory):
            return memory
        case _:
            raise NotImplementedError(f"{op.loc}: {op.name} touches no shared memory")


def _is_round(op: Op) -> bool:
    """Whether it is a loop in which waves meet, or might."""
    inside = (inner for block in op.blocks for inner in walk(block))
    return isinstance(op, (Loop, While)) and any(_is_access(o) or isinstance(o, Barrier) for o in inside)


def _has_gap(op: Op) -> bool:
    return _is_access(op) or _is_round(op)


# -- the accesses of a kernel, and the gaps before them ---------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """All waves touch a shared memory; `slot` is the part of it, where that is known."""

    gap: int
    """NO_GAP where no barrier may stand in front."""
    memory: str
    writes: bool
    slot: Residue | None
    comes_later: bool = False
    """It is written at some time until it is awaited."""


@dataclass(frozen=True)
class Arrival:
    """What was brought has been awaited: all of it, or some."""

    is_all: bool


@dataclass(frozen=True)
class Meeting:
    """A barrier that stands already."""


@dataclass(frozen=True)
class Round:
    """A loop: what is done again and again, between `least` and `most` times."""

    gap: int
    condition: tuple[Step, ...]
    body: tuple[Step, ...]
    index: str | None
    trips: Value | None
    least: int
    most: int
    made: frozenset[str]
    """The names of values that are others in every round."""

    def is_short(self) -> bool:
        """Whether it is followed round by round: loops around loops only if there is no way back in them."""
        return self.most <= (1 if self.index is None or any(isinstance(s, Round) for s in self.body) else FEW_ROUNDS)


Step = Access | Arrival | Meeting | Round
Gaps = int
"""A set of gaps, one bit each."""
Cost = tuple[int, int, int, int, int]
"""How often a gap is passed; then few barriers are better than many, those between reads and writes than those among
them, outer than inner, late than early."""


class _Reader:
    """Finds the accesses and loops of a kernel, and numbers the gaps before them, in program order."""

    def __init__(self, kernel: Kernel) -> None:
        self.residues = Residues(kernel)
        self.lower = lower_memories(kernel.body)
        self.costs: list[Cost] = []

    def steps(self, block: Block, around: tuple[int, ...]) -> tuple[Step, ...]:
        """What a block does; `around` says how often each loop around it goes round."""
        found: list[Step] = []
        together = _read_together(block)
        for op in block.ops:
            match op:
                case Barrier():
                    found.append(Meeting())
                case AwaitBrought(pending):
                    found.append(Arrival(not pending))
                case Loop() | While() if _is_round(op):
                    found.append(self.round(op, around))
                case Read() | Write() | WriteThrough() | Gather() | Scatter() | Copy() | Bring() if _is_access(op):
                    writes = isinstance(op, (Write, WriteThrough, Scatter, Copy, Bring))
                    among = bool(found) and isinstance(found[-1], Access) and found[-1].writes == writes
                    memory = self.lower.get(_touched(op), _touched(op))
                    gap = self.gap(around, int(among))
                    gap = NO_GAP if together.issuperset(op.results) and op.results else gap
                    found.append(Access(gap, memory.name, writes, self.slot(op), isinstance(op, Bring)))
                case _:
                    pass
        return tuple(found)

    def gap(self, around: tuple[int, ...], among: int = 0) -> int:
        number = len(self.costs)
        self.costs.append((prod(around), 1, among, len(around), -number))
        return number

    def slot(self, op: Op) -> Residue | None:
        """Which part along the first axis is touched; a position outside the memory touches nothing."""
        if isinstance(op, Bring):
            return self.residues.of(op.to_at[0], op.to.type.shape[0]) if op.to_at else None
        if not isinstance(op, (Read, Write)) or 0 in op.axes:
            return None
        return self.residues.of(op.at[0], op.memory.type.shape[0])

    def round(self, op: Loop | While, around: tuple[int, ...]) -> Round:
        gap = self.gap(around)
        made = {v.name for block in op.blocks for v in _made(block)}
        match op:
            case Loop(trips, _, body):
                index = body.args[0].name
                least, most = (max(0, n) for n in self.residues.ranges.of(trips))
                often = max(most, 1) if most <= FEW_ROUNDS or least == most else MANY_ROUNDS
                steps = self.steps(body, (*around, often))
                return Round(gap, (), steps, index, trips, least, most, frozenset(made - {index}))
            case While(_, condition, body):
                inner = (*around, MANY_ROUNDS)
                check, steps = self.steps(condition, inner), self.steps(body, inner)
                return Round(gap, check, steps, None, None, 0, self.residues.most_rounds(op), frozenset(made))


def _read_together(block: Block) -> set[Value]:
    """What is read right behind the other factor of a product, by a matrix unit that reads both when it multiplies."""
    factors = {
        (op.a, op.b)
        for op in block.ops
        if isinstance(op, Mma) and isinstance(BY_NAME.get(op.instruction), GroupInstruction)
    }
    pairs = zip(block.ops, block.ops[1:], strict=False)
    return {
        b.result for a, b in pairs if isinstance(a, Read) and isinstance(b, Read) and (a.result, b.result) in factors
    }


def _made(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in walk(block):
        yield from op.results
        for inner in op.blocks:
            yield from inner.args


# -- all ways through a kernel ----------------------------------------------------------------------------------------

READ, WRITTEN, COMING = "read", "written", "coming"
Touched = tuple[str, str, Residue | None]
"""Which memory, what happens to it, and which slot of it."""
Pending = dict[Touched, frozenset[Gaps]]
"""What was touched since the last barrier, and the gaps passed since, on each way that has no needless ones."""
NOTHING: Pending = {}
HERE: frozenset[Gaps] = frozenset((0,))
"""No gap was passed."""


class _Walker:
    def __init__(self, residues: Residues) -> None:
        self.residues = residues
        self.ways: frozenset[Gaps] = frozenset()
        """The gaps on each way between two accesses that conflict."""
        self.rounds: dict[str, int] = {}
        """The index of each loop that is followed round by round."""

    def run(self, steps: Sequence[Step], pending: Pending) -> Pending:
        for step in steps:
            match step:
                case Meeting():
                    pending = {touched: ways for touched, ways in pending.items() if touched[1] == COMING}
                case Access(gap):
                    pending = self.touch(step, self.past(gap, pending))
                case Arrival(is_all):
                    pending = _arrived(pending, is_all)
                case Round(gap):
                    go_round = self.few_rounds if step.is_short() else self.many_rounds
                    pending = go_round(step, self.past(gap, pending))
        return pending

    def past(self, gap: int, pending: Pending) -> Pending:
        """What is pending behind a gap, without what some barrier will have come between, wherever it stands."""
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
        """Whether it passes all gaps of a way on which there must be a barrier."""
        return any(way & known == known for known in self.ways)

    def touch(self, access: Access, pending: Pending) -> Pending:
        slot = access.slot
        for index, i in self.rounds.items():
            slot = slot and slot.replaced(index, partial(Residue.of, {}, i))
        for (memory, kind, other), ways in pending.items():
            apart = slot is not None and other is not None and slot.differs(other)
            conflicts = kind == WRITTEN or (kind == READ and access.writes)
            if memory == access.memory and conflicts and not apart:
                self.ways = _without_needless(self.ways | ways)
        kinds = [WRITTEN, COMING] if access.comes_later else [WRITTEN if access.writes else READ]
        return {**pending, **{(access.memory, kind, slot): HERE for kind in kinds}}

    def few_rounds(self, step: Round, pending: Pending) -> Pending:
        """One after the other; the loop may end before any of those that it need not make."""
        left = NOTHING
        for i in range(step.most + 1):
            pending = self.run(step.condition, pending)
            if i >= step.least:
                left = _joined(left, _renamed(pending, step, None))
            if i < step.most:
                self.rounds.update({step.index: i} if step.index else {})
                pending = _renamed(self.run(step.body, pending), step, None)
        self.rounds.pop(step.index or "", None)
        return left

    def many_rounds(self, step: Round, pending: Pending) -> Pending:
        """As often as a round finds something pending that none before it has seen."""
        before, seen = pending, None
        while before != seen:
            seen = before
            checked = self.run(step.condition, before)
            after = self.run(step.body, checked)
            before = _joined(before, _renamed(after, step, _step_before(step.index)))
        if step.trips is None:
            return _renamed(checked, step, None)
        left = _renamed(after, step, self.last_step(step.trips))
        return left if step.least else _joined(pending, left)

    def last_step(self, trips: Value) -> Callable[[int], Residue]:
        return lambda modulus: self.residues.of(trips, modulus) + Residue.of({}, -1, modulus)


def _arrived(pending: Pending, is_all: bool) -> Pending:
    """What was on its way is written now, and whoever wants to read it must meet the others behind here."""
    come = {(memory, WRITTEN, slot): HERE for memory, kind, slot in pending if kind == COMING}
    return {touched: ways for touched, ways in pending.items() if touched[1] != COMING or not is_all} | come


def _step_before(index: str | None) -> Callable[[int], Residue] | None:
    """The index of an earlier round in terms of this one's."""
    return None if index is None else partial(Residue.of, {index: 1}, -1)


def _joined(a: Pending, b: Pending) -> Pending:
    joined = dict(a)
    for touched, ways in b.items():
        joined[touched] = _without_needless(joined[touched] | ways) if touched in joined else ways
    return joined


def _without_needless(ways: Iterable[Gaps]) -> frozenset[Gaps]:
    """Without ways that pass all gaps of another: whatever separates that separates these."""
    kept: list[Gaps] = []
    for way in sorted(ways, key=int.bit_count):
        if not any(way & k == k for k in kept):
            kept.append(way)
    return frozenset(kept)


def _renamed(pending: Pending, step: Round, index: Callable[[int], Residue] | None) -> Pending:
    """What was touched in a round, seen from the next or from behind: another index, and other values."""
    found: Pending = {}
    for (memory, kind, slot), ways in pending.items():
        if slot is not None and index is not None and step.index is not None:
            slot = slot.replaced(step.index, index)
        if slot is not None and any(name in step.made for name, _ in slot.terms):
            slot = None
        same = found.get((memory, kind, slot))
        found[memory, kind, slot] = _without_needless(same | ways) if same else ways
    return found


# -- the cheapest choice ----------------------------------------------------------------------------------------------


def _cheapest(ways: frozenset[Gaps], costs: Sequence[Cost]) -> Gaps:
    """Gaps of which every way passes one."""
    ways = _without_needless(ways)
    while (fewer := _without_needless(_without_worse_gaps(ways, costs))) != ways:
        ways = fewer
    if not ways:
        return 0
    choices = (1 << gap for gap in _bits(min(ways, key=lambda way: (way.bit_count(), way))))
    found = [bit | _cheapest(frozenset(w for w in ways if not w & bit), costs) for bit in choices]
    return min(found, key=lambda gaps: _total(gaps, costs))


def _without_worse_gaps(ways: Iterable[Gaps], costs: Sequence[Cost]) -> frozenset[Gaps]:
    """Without gaps that cost more than another which lies on all their ways."""
    ways = list(ways)
    common: dict[int, Gaps] = {}
    for way in ways:
        for gap in _bits(way):
            common[gap] = common.get(gap, way) & way
    worse = sum(1 << gap for gap, others in common.items() if any(costs[o] < costs[gap] for o in _bits(others)))
    return frozenset(way & ~worse for way in ways)


def _total(gaps: Gaps, costs: Sequence[Cost]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(costs[gap] for gap in _bits(gaps)), strict=True)))


def _bits(gaps: Gaps) -> Iterator[int]:
    return (gap for gap in range(gaps.bit_length()) if gaps >> gap & 1)
