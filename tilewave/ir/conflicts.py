"""Which accesses to a global memory may meet: two lanes touch one place, and one of them writes.

A lane's own accesses happen in the order of the program. A barrier is needed only where one lane touches what another
one did, and that is decided by the layouts in which lanes share tiles:

    write(%x, %c, [%m, %n])           as a product leaves its sums
    %y = read(%c, [%m, %n])           used as those are: each lane reads what it wrote itself
    %z = read(%c, [%m, %n])           staged, in neighbouring chunks: lanes read what others wrote

A position is a sum of two: a number that all lanes agree on, the base, and one that each lane knows of its own. Bases
are compared as sums of values, so that their difference is often known, or a multiple of a tile:

    64 · %tile here, 64 · %tile some rounds ago      0, or at least 64 apart: the same tile, or none of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import product as combinations
from math import gcd, prod
from typing import Any

import numpy as np

from tilewave.ir.arithmetic import elementwise
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.interp import READS, WRITES
from tilewave.ir.ops import ELEMENTWISE, Gather, Read, Scatter, Write, WriteThrough
from tilewave.ir.placements import lies_in
from tilewave.ir.positions import Positions
from tilewave.ir.residues import Residue, Residues
from tilewave.ir.rewrite import walk
from tilewave.ir.spreads import Spreads

Array = np.ndarray[Any, np.dtype[np.int64]]

WHOLE = 1 << 62
"""A modulus that no position reaches: such a residue is the number itself."""
MOST_SHIFTS = 64
"""How many differences of two bases are tried, before the two accesses are taken to meet."""


class Meets(IntEnum):
    """Who touches what another one did; of two answers the greater counts."""

    NOBODY = 0
    LANES = 1
    """Lanes of one wave."""
    WAVES = 2


@dataclass(frozen=True)
class Visit:
    """An access as a way through the program comes to it, seen from where the way has got to."""

    op: Op
    known: tuple[tuple[str, int], ...] = ()
    """Indices of loops that are followed round by round."""
    changed: frozenset[str] = frozenset()
    """Values that have been made anew since."""
    before: frozenset[str] = frozenset()
    """Indices of loops that have been counted up since."""


def touched_again(kernel: Kernel) -> set[Value]:
    """The global memories that are written, and touched at more than one place or time."""
    written = {op.memory for op in walk(kernel.body) if isinstance(op, WRITES) and lies_in(op.memory, "global")}
    once = [op.memory for op in kernel.body.ops if isinstance(op, (*READS, *WRITES))]
    inside = {op.memory for top in kernel.body.ops for block in top.blocks for op in _touching(block)}
    return {memory for memory in written if memory in inside or once.count(memory) > 1}


def _touching(block: Block) -> Iterator[Any]:
    return (op for op in walk(block) if isinstance(op, (*READS, *WRITES)))


@dataclass(frozen=True, eq=False)
class Footprint:
    """Where all lanes of a workgroup touch a memory: bases, and what each lane adds, one row per element."""

    base: tuple[Residue, ...]
    lanes: Array
    places: Array

    def based(self, visit: Visit) -> tuple[Residue, ...]:
        """The bases with indices that are known, and under names of their own those values that are others now."""
        found = []
        for base in self.base:
            for name, i in visit.known:
                base = base.replaced(name, partial(Residue.of, {}, i))
            for name in visit.changed | visit.before:
                base = base.replaced(name, partial(Residue.of, {_earlier(name): 1}, 0))
            found.append(base)
        return tuple(found)

    def differs(self, other: Footprint, together: int) -> bool:
        """Whether some place is touched by two lanes, one of each side, that are not among so many neighbours."""
        low = np.minimum(self.places.min(axis=0), other.places.min(axis=0))
        extents = np.maximum(self.places.max(axis=0), other.places.max(axis=0)) - low + 1
        mine, theirs = (np.ravel_multi_index(tuple((x.places - low).T), tuple(extents)) for x in (self, other))
        order = np.argsort(mine, kind="stable")
        there, starts = np.unique(mine[order], return_index=True)
        who = self.lanes[order] // together
        least, most = (reduce.reduceat(who, starts) for reduce in (np.minimum, np.maximum))
        found = np.minimum(np.searchsorted(there, theirs), len(there) - 1)
        others = other.lanes // together
        return bool(((there[found] == theirs) & ((least[found] != others) | (most[found] != others))).any())


EARLIER = " before"


def _earlier(name: str) -> str:
    return name + EARLIER


class Conflicts:
    """The accesses of a kernel whose tiles are shared among lanes as `spreads` says.

    Where that is not decided yet, each access shares its tile in the same way every time, and no two do so alike.
    """

    def __init__(self, kernel: Kernel, spreads: Spreads | None) -> None:
        self.spreads, self.residues = spreads, Residues(kernel)
        self.wave_lanes, self.waves = kernel.lanes, prod(kernel.waves)
        self._footprints: dict[int, Footprint | None] = {}
        self._known: dict[tuple[Visit, Visit], Meets] = {}
        positions = Positions(kernel.body)
        self._divisors = {v.name: positions.divisor(v) for op in walk(kernel.body) for v in op.results}

    def meet(self, first: Visit, second: Visit) -> Meets:
        """Who may touch in the second access what another one touched in the first."""
        key = first, second
        if key not in self._known:
            self._known[key] = self._meet(first, second)
        return self._known[key]

    def _meet(self, first: Visit, second: Visit) -> Meets:
        one, other = self.footprint(first.op), self.footprint(second.op)
        if one is None or other is None:
            return Meets.WAVES
        if not len(one.lanes) or not len(other.lanes):
            return Meets.NOBODY
        sides = zip(one.based(first), other.based(second), one.places.T, other.places.T, strict=True)
        shifts = [self._shifts(a, b, first.before, (mine, theirs)) for a, b, mine, theirs in sides]
        if prod(map(len, shifts)) > MOST_SHIFTS:
            return Meets.WAVES
        moved = (replace(other, places=other.places + np.array(shift)) for shift in combinations(*shifts))
        return max((self._who(first.op, one, second.op, there) for there in moved), default=Meets.NOBODY)

    def _who(self, first: Op, one: Footprint, second: Op, other: Footprint) -> Meets:
        """Who meets where the bases of both are the same."""
        if self.spreads is None:
            return Meets.WAVES if one.differs(other, 1) else Meets.NOBODY
        if one.differs(other, self.wave_lanes):
            return Meets.WAVES
        if isinstance(second, WriteThrough):  # its lanes meet within their wave before they store
            return Meets.NOBODY
        if isinstance(first, WriteThrough):  # which lane of a wave stores an element is settled on its way
            one = replace(one, lanes=np.full_like(one.lanes, -1))
        return Meets.LANES if one.differs(other, 1) else Meets.NOBODY

    def _shifts(self, a: Residue, b: Residue, before: frozenset[str], places: tuple[Array, Array]) -> Sequence[int]:
        """How much greater b can be than a, for places that then still overlap."""
        low, high = int(places[0].min() - places[1].max()), int(places[0].max() - places[1].min())
        difference = b + a.times(-1)
        offset = _signed(difference.offset)
        factors = {name: _signed(f) for name, f in difference.terms}
        step = gcd(*(f * self._divisor(name) for name, f in factors.items()))
        if not step:
            return [offset] if low <= offset <= high else []
        found = range(offset + -(-(low - offset) // step) * step, high + 1, step)
        if not _counts_up(factors, before):
            return found
        return [shift for shift in found[: MOST_SHIFTS + 2] if shift != offset]  # an index is not what it was

    def _divisor(self, name: str) -> int:
        return self._divisors.get(name.removesuffix(EARLIER), 1)

    # -- where lanes are

    def footprint(self, op: Op) -> Footprint | None:
        """None where it is not known."""
        if id(op) not in self._footprints:
            self._footprints[id(op)] = self._footprint(op)
        return self._footprints[id(op)]

    def _footprint(self, op: Op) -> Footprint | None:
        match op:
            case Read(_, at, axes) | Write(_, _, at, axes) | WriteThrough(_, _, at, _, axes):
                return self._window(at, axes, *self._coordinates(op))
            case Gather(where=where) | Scatter(where=where):
                return self._scattered(where, *self._coordinates(op))
        return None

    def _coordinates(self, op: Read | Write | WriteThrough | Gather | Scatter) -> tuple[Array, Array]:
        """Of every lane and register that holds some of its tile: the lane, and the position in the tile."""
        tile = op.result if isinstance(op, (Read, Gather)) else op.tile
        rank = len(tile.type.shape)
        if self.spreads is None:
            own = len(self._footprints) * prod(tile.type.shape)
            found = np.indices(tile.type.shape).reshape(rank, -1).T
            return own + np.arange(len(found)), found
        spreads = self.spreads.needed.get(tile, ()) if op.results else [self.spreads.held(tile)]
        lanes, places = [np.zeros(0, np.int64)], [np.zeros((0, rank), np.int64)]
        for layout in (layout for spread in spreads for layout in spread):
            positions = layout.positions(self.waves, self.wave_lanes)
            places.append(positions.reshape(-1, rank))
            lanes.append(np.repeat(np.arange(len(positions)), prod(layout.registers)))
        return np.concatenate(lanes), np.concatenate(places)

    def _window(self, at: tuple[Value, ...], axes: tuple[int, ...], lanes: Array, found: Array) -> Footprint:
        places = np.zeros((len(lanes), len(at)), np.int64)
        for i, axis in enumerate(axes):
            places[:, axis] = found[:, i]
        return Footprint(tuple(self.residues.of(v, WHOLE) for v in at), lanes, places)

    def _scattered(self, where: Block, lanes: Array, found: Array) -> Footprint | None:
        own = {arg.name: found[:, i] for i, arg in enumerate(where.args)}
        makers = {v.name: op for op in walk(where) for v in op.results}
        bases, places = [], []
        for v in where.ops[-1].operands:
            position = self.residues.of(v, WHOLE)
            inside = [(name, f) for name, f in position.terms if name in own or name in makers]
            values = [_evaluated(name, makers, own) for name, _ in inside]
            if any(value is None for value in values):
                return None
            parts = (value * _signed(f) for value, (_, f) in zip(values, inside, strict=True))
            places.append(sum(parts, np.zeros(len(lanes), np.int64)))
            rest = tuple(term for term in position.terms if term not in inside)
            bases.append(Residue(rest, position.offset, WHOLE))
        return Footprint(tuple(bases), lanes, np.stack(places, axis=1))


def _evaluated(name: str, makers: Mapping[str, Op], own: Mapping[str, Array]) -> Any:
    """What lanes compute from their positions in the tile alone; None where anything else decides too."""
    if name in own:
        return own[name]
    op = makers.get(name)
    if not isinstance(op, ELEMENTWISE):
        return getattr(op, "value", None)
    operands = [_evaluated(v.name, makers, own) for v in op.operands]
    return None if any(x is None for x in operands) else elementwise(op, operands)


def _signed(factor: int) -> int:
    return factor - WHOLE if factor > WHOLE // 2 else factor


def _counts_up(factors: Mapping[str, int], before: frozenset[str]) -> bool:
    """Whether the difference is a multiple of that of one index and the same index some rounds ago."""
    return any(factors == {name: f, _earlier(name): -f} for name, f in factors.items() if name in before)
