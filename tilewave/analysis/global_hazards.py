"""Hazards in global memory: two lanes access one element, and one of them writes.

Accesses of one lane happen in program order. A barrier is needed only where one lane accesses what another lane
accessed before, and that depends on the layouts in which lanes hold tiles:

    write(%x, %c, [%m, %n])           in the layout of an MMA accumulator
    %y = read(%c, [%m, %n])           used in that layout: each lane reads what it wrote itself
    %z = read(%c, [%m, %n])           staged, coalesced: lanes read what other lanes wrote

A position is the sum of a base, which is uniform over all lanes, and an offset per lane. Bases are compared as sums of
values, so that their difference is often known, or known to be a multiple of a tile:

    64 · %tile now, 64 · %tile some iterations ago   0, or at least 64 apart: the same tile, or disjoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from itertools import product as combinations
from math import gcd, prod
from typing import Any

import numpy as np

from tilewave.analysis.layouts_needed import LayoutsNeeded
from tilewave.analysis.positions import scalars_of
from tilewave.analysis.residues import Residue, Residues
from tilewave.forks import cached_property
from tilewave.interp.arithmetic import elementwise
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Const,
    Elementwise,
    FloorDiv,
    Gather,
    Mod,
    Mul,
    Read,
    Scatter,
    Sub,
    Write,
    WriteIndexed,
    WriteThrough,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

Array = np.ndarray[Any, np.dtype[np.int64]]
Bounds = tuple[int, int]

WHOLE = 1 << 62
"""A modulus that no position reaches: such a residue is the number itself."""
MOST_SHIFTS = 64
"""How many differences of two bases are tried before the two accesses are assumed to conflict."""


class Meets(IntEnum):
    """Who conflicts: no one, lanes of one wave, or different waves; of two answers the greater counts."""

    NOTHING = 0
    LANES = 1
    """Lanes of one wave."""
    WAVES = 2


@dataclass(frozen=True)
class AccessOnTheWay:
    """An access on a path through the program, as seen from a later point of the path."""

    op: Op
    known: tuple[tuple[str, int], ...] = ()
    """Indices of loops that are unrolled in the analysis."""
    changed: frozenset[str] = frozenset()
    """Names of values that were recomputed since the access."""
    before: frozenset[str] = frozenset()
    """Indices of loops that were incremented since the access."""


def touched_again(kernel: Kernel) -> set[Value]:
    """Return the global memories that are written, and accessed by more than one op or in a loop."""
    written = {v for op in walk(kernel.body) for v in op.written if is_in(v, "global")}
    once = [v for op in kernel.body.ops for v in (*op.read, *op.written)]
    blocks = [block for top in kernel.body.ops for block in top.blocks]
    inside = {v for block in blocks for op in walk(block) for v in (*op.read, *op.written)}
    return {memory for memory in written if memory in inside or once.count(memory) > 1}


@dataclass(frozen=True, eq=False)
class Footprint:
    """The elements that all lanes of a workgroup access: bases, and each lane's offsets, one row per element."""

    base: tuple[Residue, ...]
    lanes: Array
    places: Array

    def based(self, visit: AccessOnTheWay) -> tuple[Residue, ...]:
        """Return the bases with known loop indices filled in and with new names for values that changed since."""
        found = []
        for base in self.base:
            for name, i in visit.known:
                base = base.replaced(name, partial(Residue.of, {}, i))
            for name in visit.changed | visit.before:
                base = base.replaced(name, partial(Residue.of, {_earlier(name): 1}, 0))
            found.append(base)
        return tuple(found)

    def moved(self, shift: Sequence[int]) -> Footprint:
        return replace(self, places=self.places + np.array(shift)) if any(shift) else self

    def differs(self, other: Footprint, together: int) -> bool:
        """Return whether two lanes, one of each side and of different groups of `together`, access one element."""
        both = list(zip(self.ranges, other.ranges, strict=True))
        low = [min(one[0], two[0]) for one, two in both]
        extents = tuple(max(one[1], two[1]) - least + 1 for (one, two), least in zip(both, low, strict=True))
        numbered = (np.ravel_multi_index(tuple((x.places - np.array(low)).T), extents) for x in (self, other))
        elements, mine, theirs = _renumbered(prod(extents), *numbered)
        who, others = self.lanes // together, other.lanes // together
        least, most = _first_and_last(elements, mine, who)
        return bool(((least[theirs] != NO_WORKGROUP) & ((least[theirs] != others) | (most[theirs] != others))).any())

    @cached_property
    def ranges(self) -> list[Bounds]:
        """The least and the greatest position along each axis."""
        return [(int(column.min()), int(column.max())) for column in self.places.T]


def _first_and_last(elements: int, numbers: Array, who: Array) -> tuple[Array, Array]:
    """Return the least and the greatest of `who` for each element; the sentinels where no one accesses it."""
    least, most = np.full(elements, NO_WORKGROUP), np.full(elements, -1)
    least[numbers] = most[numbers] = who
    if (least[numbers] != who).any():  # several access an element, so that one assignment is not enough
        np.minimum.at(least, numbers, who)
        np.maximum.at(most, numbers, who)
    return least, most


NO_WORKGROUP = np.iinfo(np.int64).max
MOST_UNUSED = 16
"""Up to this many elements of the box around two footprints, for each of theirs, are not worth a sort."""


def _renumbered(elements: int, mine: Array, theirs: Array) -> tuple[int, Array, Array]:
    """Return how many numbers there are, and the numbers of elements, without gaps where these would be long."""
    if elements <= MOST_UNUSED * (len(mine) + len(theirs)):
        return elements, mine, theirs
    used, numbers = np.unique(np.concatenate((mine, theirs)), return_inverse=True)
    return len(used), numbers[: len(mine)], numbers[len(mine) :]


EARLIER = " before"


def _earlier(name: str) -> str:
    return name + EARLIER


class Conflicts:
    """Hazards between the accesses of a kernel whose tiles are distributed over lanes as `spreads` says.

    Without `spreads`, each access is assumed to use one distribution every time, different from every other access's.
    """

    def __init__(self, kernel: Kernel, spreads: LayoutsNeeded | None) -> None:
        self.spreads, self.residues = spreads, Residues(kernel)
        self.wave_lanes, self.waves = kernel.lanes, prod(kernel.waves)
        self.worst = Meets.LANES if self.waves == 1 and kernel.waves else Meets.WAVES
        self._footprints: dict[int, Footprint | None] = {}
        self._known: dict[tuple[AccessOnTheWay, AccessOnTheWay], Meets] = {}
        positions = scalars_of(kernel.body)
        self._divisors = {v.name: positions.divisor(v) for op in walk(kernel.body) for v in op.results}

    def meet(self, first: AccessOnTheWay, second: AccessOnTheWay) -> Meets:
        """Return who may access in the second access what another one accessed in the first."""
        key = first, second
        if key not in self._known:
            self._known[key] = self._meet(first, second)
        return self._known[key]

    def _meet(self, first: AccessOnTheWay, second: AccessOnTheWay) -> Meets:
        if isinstance(first.op, WriteIndexed) and first.op == second.op:
            return Meets.NOTHING  # `indexed_writes` refuses one that stores twice to an element, unless atomically
        one, other = self.footprint(first.op), self.footprint(second.op)
        if one is None or other is None:
            return self.worst
        if not len(one.lanes) or not len(other.lanes):
            return Meets.NOTHING
        sides = zip(one.based(first), other.based(second), one.ranges, other.ranges, strict=True)
        shifts = [self._shifts(a, b, first.before, (mine, theirs)) for a, b, mine, theirs in sides]
        if prod(map(len, shifts)) > MOST_SHIFTS:
            return self.worst
        moved = (other.moved(shift) for shift in combinations(*shifts))
        return max((self._who(first.op, one, second.op, there) for there in moved), default=Meets.NOTHING)

    def _who(self, first: Op, one: Footprint, second: Op, other: Footprint) -> Meets:
        """Return who conflicts where both accesses have the same bases."""
        if self.spreads is None:
            return self.worst if one.differs(other, 1) else Meets.NOTHING
        if one.differs(other, self.wave_lanes):
            return Meets.WAVES
        if isinstance(second, WriteThrough):  # its lanes synchronize within their wave before they store
            return Meets.NOTHING
        if isinstance(first, WriteThrough):  # lowering decides which lane of a wave stores an element
            one = replace(one, lanes=np.full_like(one.lanes, -1))
        return Meets.LANES if one.differs(other, 1) else Meets.NOTHING

    def _shifts(self, a: Residue, b: Residue, before: frozenset[str], places: tuple[Bounds, Bounds]) -> Sequence[int]:
        """Return the possible differences b - a for which the places still overlap."""
        (first, last), (others_first, others_last) = places
        low, high = first - others_last, last - others_first
        difference = b + a.times(-1)
        offset = _signed(difference.offset)
        factors = {name: _signed(f) for name, f in difference.terms}
        step = gcd(*(f * self._divisor(name) for name, f in factors.items()))
        if not step:
            return [offset] if low <= offset <= high else []
        found = range(offset + -(-(low - offset) // step) * step, high + 1, step)
        if not _counts_up(factors, before):
            return found
        return [shift for shift in found[: MOST_SHIFTS + 2] if shift != offset]  # the index has been incremented

    def _divisor(self, name: str) -> int:
        return self._divisors.get(name.removesuffix(EARLIER), 1)

    # -- footprints

    def footprint(self, op: Op) -> Footprint | None:
        """Return the elements that an access touches; None where they are not known."""
        if id(op) not in self._footprints:
            self._footprints[id(op)] = self._footprint(op)
        return self._footprints[id(op)]

    def _footprint(self, op: Op) -> Footprint | None:
        match op:
            case Read(_, at, axes) | Write(_, _, at, axes) | WriteThrough(_, _, at, _, axes):
                return self._window(at, axes, *self._coordinates(op))
            case Gather(where=where) | Scatter(where=where):
                return self._scattered(where, *self._coordinates(op))
            case _:
                return None

    def _coordinates(self, op: Read | Write | WriteThrough | Gather | Scatter) -> tuple[Array, Array]:
        """Return lane numbers and positions in the tile, for every lane and register that holds some of it."""
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
        known = {arg: Position(found[:, i], NOWHERE) for i, arg in enumerate(where.args)}
        positions = [self._position(v, where.defs, known) for v in where.yielded]
        if any(position is None for position in positions):
            return None
        own = [np.broadcast_to(position.own, lanes.shape) for position in positions if position]
        return Footprint(tuple(position.base for position in positions if position), lanes, np.stack(own, axis=1))

    def _position(self, v: Value, inside: Mapping[Value, Op], known: dict[Value, Position]) -> Position | None:
        """Return the position that `v` computes in an index mapping; None where base and offset do not separate."""
        if v not in known and v not in inside:
            base = self.residues.of(v, WHOLE)
            known[v] = Position(np.int64(_signed(base.offset)), replace(base, offset=0))
        if v not in known:
            op = inside[v]
            parts = [self._position(x, inside, known) for x in op.operands]
            if any(part is None for part in parts):
                return None
            found = _computed(op, [part for part in parts if part])
            if found is None:
                return None
            known[v] = found
        return known[v]


@dataclass(frozen=True, eq=False)
class Position:
    """An offset per lane (`own`, including constants) and a base that is uniform over all lanes."""

    own: Any
    base: Residue

    @property
    def constant(self) -> int | None:
        return int(self.own) if not self.base.terms and np.ndim(self.own) == 0 else None

    def times(self, factor: int) -> Position:
        return Position(self.own * factor, self.base.times(factor))

    def split(self, divisor: int) -> Residue | None:
        """Return the base divided by a number; None if it is not a multiple."""
        factors = {name: _signed(f) for name, f in self.base.terms}
        if any(f % divisor for f in factors.values()):
            return None
        return Residue.of({name: f // divisor for name, f in factors.items()}, 0, WHOLE)


NOWHERE = Residue((), 0, WHOLE)


def _computed(op: Op, parts: list[Position]) -> Position | None:
    """Return the position that an op computes; None where base and offset do not separate."""
    match op, parts:
        case Const(value), _:
            return Position(np.int64(int(value)), NOWHERE)
        case Add(), [a, b]:
            return Position(a.own + b.own, a.base + b.base)
        case Sub(), [a, b]:
            return Position(a.own - b.own, a.base + b.base.times(-1))
        case Mul(), [a, b] if b.constant is not None:
            return a.times(b.constant)
        case Mul(), [a, b] if a.constant is not None:
            return b.times(a.constant)
        case FloorDiv(), [a, b] if (b.constant or 0) > 0 and (base := a.split(b.constant or 1)) is not None:
            return Position(a.own // b.own, base)
        case Mod(), [a, b] if (b.constant or 0) > 0 and a.split(b.constant or 1) is not None:
            return Position(a.own % b.own, NOWHERE)
        case Elementwise(), _ if not any(part.base.terms for part in parts):
            return Position(elementwise(op, [part.own for part in parts]), NOWHERE)
        case _:
            return None


def _signed(factor: int) -> int:
    return factor - WHOLE if factor > WHOLE // 2 else factor


def _counts_up(factors: Mapping[str, int], before: frozenset[str]) -> bool:
    """Return whether the difference is a multiple of that between an index and the same index some iterations ago."""
    return any(factors == {name: f, _earlier(name): -f} for name, f in factors.items() if name in before)
