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
from dataclasses import dataclass
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
from tilewave.ir.residues import Residue, Residues
from tilewave.ir.rewrite import walk
from tilewave.ir.spreads import Spreads

Array = np.ndarray[Any, np.dtype[np.int64]]

WHOLE = 1 << 62
"""A modulus that no position reaches: such a residue is the number itself."""
MOST_SHIFTS = 64
"""How many differences of two bases are tried, before the two accesses are taken to meet."""


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


def _earlier(name: str) -> str:
    return f"{name} before"


class Conflicts:
    """The accesses of a kernel whose tiles are shared among lanes as `spreads` says.

    Where that is not decided yet, each access shares its tile in the same way every time, and no two do so alike.
    """

    def __init__(self, kernel: Kernel, spreads: Spreads | None) -> None:
        self.spreads, self.residues = spreads, Residues(kernel)
        self.wave_lanes, self.waves = kernel.lanes, prod(kernel.waves)
        self._footprints: dict[int, Footprint | None] = {}
        self._known: dict[tuple[Visit, Visit], bool] = {}

    def meet(self, first: Visit, second: Visit) -> bool:
        """Whether a lane may touch in the second access what another one touched in the first."""
        key = first, second
        if key not in self._known:
            self._known[key] = self._meet(first, second)
        return self._known[key]

    def _meet(self, first: Visit, second: Visit) -> bool:
        one, other = self.footprint(first.op), self.footprint(second.op)
        if one is None or other is None:
            return True
        if not len(one.lanes) or not len(other.lanes):
            return False
        bases = zip(one.based(first), other.based(second), strict=True)
        bounds = [
            (int(a.min() - b.max()), int(a.max() - b.min())) for a, b in zip(one.places.T, other.places.T, strict=True)
        ]
        shifts = [_shifts(a, b, first.before, bound) for (a, b), bound in zip(bases, bounds, strict=True)]
        if prod(map(len, shifts)) > MOST_SHIFTS:
            return True
        return any(self._shared(first, second, shift) for shift in combinations(*shifts))

    def _shared(self, first: Visit, second: Visit, shift: tuple[int, ...]) -> bool:
        """Whether two lanes meet where the second access's bases are so much greater."""
        one, other = self.footprint(first.op), self.footprint(second.op)
        assert one is not None and other is not None
        mine, theirs = one.lanes, other.lanes
        if isinstance(second.op, WriteThrough):  # its lanes meet within their wave before they store
            mine, theirs = mine // self.wave_lanes, theirs // self.wave_lanes
        elif isinstance(first.op, WriteThrough):  # which lane of a wave stores an element is settled on its way
            mine = np.full_like(mine, -1)
        places = other.places + np.array(shift, np.int64)
        low = np.minimum(one.places.min(axis=0), places.min(axis=0))
        extents = np.maximum(one.places.max(axis=0), places.max(axis=0)) - low + 1
        return _differ(_flat(one.places - low, extents), mine, _flat(places - low, extents), theirs)

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


def _shifts(a: Residue, b: Residue, before: frozenset[str], bound: tuple[int, int]) -> Sequence[int]:
    """Within the bounds, how much greater b can be than a."""
    low, high = bound
    difference = b + a.times(-1)
    offset = _signed(difference.offset)
    factors = {name: _signed(f) for name, f in difference.terms}
    if not factors:
        return [offset] if low <= offset <= high else []
    step = gcd(*factors.values())
    found = range(offset + -(-(low - offset) // step) * step, high + 1, step)
    same = {offset} if _counts_up(factors, before) else set()  # an index is not what it was
    return found if not same else [shift for shift in found[: MOST_SHIFTS + 2] if shift not in same]


def _counts_up(factors: Mapping[str, int], before: frozenset[str]) -> bool:
    """Whether the difference is a multiple of that of one index and the same index some rounds ago."""
    return any(factors == {name: f, _earlier(name): -f} for name, f in factors.items() if name in before)


def _flat(places: Array, extents: Array) -> Array:
    flat: Array = np.zeros(len(places), np.int64)
    for axis, extent in enumerate(extents):
        flat = flat * extent + places[:, axis]
    return flat


def _differ(places: Array, lanes: Array, others: Array, their_lanes: Array) -> bool:
    """Whether some place is touched by two lanes, one of each side."""
    order = np.argsort(places, kind="stable")
    there, starts = np.unique(places[order], return_index=True)
    least, most = (reduce.reduceat(lanes[order], starts) for reduce in (np.minimum, np.maximum))
    found = np.minimum(np.searchsorted(there, others), len(there) - 1)
    both = there[found] == others
    return bool((both & ((least[found] != their_lanes) | (most[found] != their_lanes))).any())
