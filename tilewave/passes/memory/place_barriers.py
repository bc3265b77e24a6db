"""Separate waves that access the same memory by the fewest barriers.

The waves of a workgroup move a tile together, so a wave may read what any other wrote, and overwrite what another still
reads. On every path from one access to a later one that conflicts with it there must be a barrier:

    write(x, sa)                    loop {
    ‹here›                            ‹here: the reads of the step before are done; the first step needs it not›
    xs = read(sa)                     write(x, sa)
                                      ‹and here›
                                      xs = read(sa)
                                    }

An asynchronous copy writes its tile from its issue until its wait: a barrier is needed before the issue, and another
after the wait.

Global memory needs barriers where a kernel accesses again what it wrote, and lanes share the tile in another way then
(`global_hazards.py`): such a barrier says so, since a machine waits longer there. All other kernels keep the barriers
for shared memory only.

`barrier_paths.py` finds the gaps between ops in which barriers could be placed, and the sets of which one gap must be
taken; this pass takes the cheapest choice that covers all sets, where a gap costs as often as it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import prod

from tilewave.analysis.barrier_paths import (
    FEW_ROUNDS,
    NO_GAP,
    Access,
    Arrival,
    Gaps,
    Place,
    Round,
    StandingBarrier,
    Step,
    Walker,
    without_needless,
)
from tilewave.analysis.global_hazards import AccessOnTheWay, Conflicts, Meets, touched_again
from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.residues import Residues
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Barrier,
    CopyAsync,
    Loop,
    Mma,
    Read,
    TurnOp,
    WaitAsync,
    While,
    Write,
    WriteIndexed,
)
from tilewave.ir.overlays import lower_memories
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import map_blocks, walk
from tilewave.machine.matrix import BY_NAME, GroupInstruction
from tilewave.records import dataclass

MANY_ROUNDS = 16
"""The assumed trip count of a loop where it is not known."""

Cost = tuple[int, int, int, int, int]
"""The cost of a gap: how often it is executed; then few barriers are better than many, those between reads and writes
than those among them, outer than inner, late than early."""


def place_barriers(kernel: Kernel) -> Kernel:
    """Return the kernel with the barriers that it lacks: for shared memory first, then for global memory."""
    return _over_global(_over_shared(kernel))


def _over_shared(kernel: Kernel) -> Kernel:
    """Place barriers for shared memory, in a single wave too: a target's compiler may reorder accesses of its lanes."""
    barrier = Barrier(waves=1) if kernel.waves and prod(kernel.waves) == 1 else Barrier()
    reader = _Reader(kernel, _Watched("shared"))
    walker = Walker(reader.residues)
    walker.run(reader.steps(kernel.body, ()), {})
    chosen = _cheapest(walker.ways, reader.costs)
    return _Writer(reader.watched, chosen, dict.fromkeys(_bits(chosen), barrier)).kernel(kernel)


def _over_global(kernel: Kernel) -> Kernel:
    """Place barriers for global memory; existing ones are widened where that suffices, and one wave needs less."""
    repeated = touched_again(kernel)
    if not repeated:
        return kernel
    reader, conflicts = _Reader(kernel, _Watched("global", frozenset(repeated))), Conflicts(kernel, _spreads(kernel))
    steps = reader.steps(kernel.body, ())
    waves, lanes = (Walker(reader.residues, who, conflicts) for who in (Meets.WAVES, Meets.LANES))
    for walker in (waves, lanes):
        walker.run(steps, {})
    chosen = _cheapest(waves.ways | lanes.ways, reader.costs)
    whole = sum(1 << gap for gap in _bits(chosen) if any(way >> gap & 1 for way in waves.ways))
    kinds = {gap: Barrier(over="global") if whole >> gap & 1 else Barrier(waves=1) for gap in _bits(chosen)}
    return _Writer(reader.watched, chosen, kinds).kernel(kernel)


def _spreads(kernel: Kernel) -> LayoutsNeeded | None:
    """Return how lanes will share tiles; None where that is not chosen yet."""
    decided = all(op.instruction in BY_NAME for op in walk(kernel.body) if isinstance(op, Mma))
    return LayoutsNeeded(kernel) if kernel.waves and kernel.lanes and decided else None


class _Writer:
    """Inserts barriers at gaps, or replaces existing ones there."""

    def __init__(self, watched: _Watched, chosen: Gaps, kinds: Mapping[int, Barrier]) -> None:
        self.watched, self.chosen, self.kinds = watched, chosen, kinds
        self.numbers = count()

    def kernel(self, kernel: Kernel) -> Kernel:
        return replace(kernel, body=self.block(kernel.body)) if self.chosen else kernel

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            kind = self.kinds.get(next(self.numbers)) if self.watched.has_gap(op) else None
            if kind is not None:
                ops.append(replace(kind, loc=op.loc))
            if kind is None or not isinstance(op, Barrier):
                ops.append(map_blocks(op, self.block) if self.watched.is_round(op) else op)
        return replace(block, ops=tuple(ops))


@dataclass(frozen=True)
class _Watched:
    """Memories whose accesses are tracked: all of a space, or some."""

    space: str
    some: frozenset[Value] = frozenset()

    def touches(self, op: Op) -> tuple[Value, bool] | None:
        """Return the memory of an access, and whether `op` writes it; None where `op` accesses no tracked memory.

        Turns order what waves add, each wave by itself.
        """
        if not (op.reads or op.writes) or isinstance(op, TurnOp):
            return None
        found = [*((m, True) for m in op.written), *((m, False) for m in op.read)]
        return next(((m, w) for m, w in found if is_in(m, self.space) and (not self.some or m in self.some)), None)

    def is_round(self, op: Op) -> bool:
        """Whether `op` is a loop with barriers or tracked accesses inside."""
        inside = (inner for block in op.blocks for inner in walk(block))
        return isinstance(op, (Loop, While)) and any(self.touches(o) or isinstance(o, Barrier) for o in inside)

    def has_gap(self, op: Op) -> bool:
        stands = isinstance(op, Barrier) and bool(self.some)
        return stands or self.touches(op) is not None or self.is_round(op)


# -- the accesses of a kernel, and the gaps before them ---------------------------------------------------------------


class _Reader:
    """Finds the accesses and loops of a kernel, and numbers the gaps before them, in program order."""

    def __init__(self, kernel: Kernel, watched: _Watched) -> None:
        self.watched, self.residues = watched, Residues(kernel)
        self.lower = lower_memories(kernel.body)
        self.costs: list[Cost] = []

    def steps(self, block: Block, around: tuple[int, ...]) -> tuple[Step, ...]:
        """Return the accesses, loops and barriers of a block; `around`: the trip counts of the loops around it."""
        found: list[Step] = []
        together = _read_together(block)
        for op in block.ops:
            match op:
                case Barrier():
                    gap = self.gap(around, new=0) if self.watched.has_gap(op) else NO_GAP
                    found.append(StandingBarrier(op, gap))
                case WaitAsync(pending):
                    found.append(Arrival(not pending))
                case Loop() | While() if self.watched.is_round(op):
                    found.append(self.round(op, around))
                case _ if touches := self.watched.touches(op):
                    memory, writes = touches
                    among = bool(found) and isinstance(found[-1], Access) and found[-1].writes == writes
                    gap = self.gap(around, int(among))
                    gap = NO_GAP if together.issuperset(op.results) and op.results else gap
                    under = self.lower.get(memory, memory)
                    place = AccessOnTheWay(op) if is_in(memory, "global") else self.slot(op)
                    is_atomic = isinstance(op, WriteIndexed) and op.is_atomic
                    found.append(Access(gap, under.name, writes, place, self.comes_later(op), is_atomic))
                case _ if any(self.watched.touches(inner) for block in op.blocks for inner in walk(block)):
                    raise NotImplementedError(f"{op.loc}: no rule for when {op.name} runs its blocks")
                case _:
                    pass  # accesses no tracked memory
        return tuple(found)

    def comes_later(self, op: Op) -> bool:
        return isinstance(op, CopyAsync) and self.watched.space == "shared"

    def gap(self, around: tuple[int, ...], among: int = 0, new: int = 1) -> int:
        number = len(self.costs)
        self.costs.append((prod(around), new, among, len(around), -number))
        return number

    def slot(self, op: Op) -> Place:
        """Return the part along the first axis that `op` accesses; a position outside the memory accesses nothing."""
        if isinstance(op, CopyAsync):
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
    """Return reads directly after the read of the other factor, where a wgmma reads both as it multiplies."""
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


# -- the cheapest choice ----------------------------------------------------------------------------------------------


def _cheapest(ways: frozenset[Gaps], costs: Sequence[Cost]) -> Gaps:
    """Return the cheapest gaps of which every path contains one."""
    ways = without_needless(ways)
    while (fewer := without_needless(_without_worse_gaps(ways, costs))) != ways:
        ways = fewer
    if not ways:
        return 0
    choices = (1 << gap for gap in _bits(min(ways, key=lambda way: (way.bit_count(), way))))
    found = [bit | _cheapest(frozenset(w for w in ways if not w & bit), costs) for bit in choices]
    return min(found, key=lambda gaps: _total(gaps, costs))


def _without_worse_gaps(ways: Iterable[Gaps], costs: Sequence[Cost]) -> frozenset[Gaps]:
    """Return the paths without gaps that cost more than another which is on all the same paths."""
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
    while gaps:
        last = gaps & -gaps
        yield last.bit_length() - 1
        gaps ^= last
