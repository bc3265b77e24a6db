"""Whether the writes of all workgroups cover each output once: gaps, overlaps, and elements out of bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewave.analysis.index_trace import Visit, WholeRun, element_places, want_followed
from tilewave.analysis.indexed_writes import as_windows
from tilewave.analysis.schedule import (
    INJECTIVE,
    MOST_TILES,
    NO_CORRECTION,
    OUTSIDE,
    SEEN_AT_ONCE,
    Correction,
    Schedule,
    stores,
)
from tilewave.errors import CoverageError, Loc
from tilewave.forks import cached_property
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Loop, Scatter, Write
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass


def checked_schedule(kernel: Kernel, symbols: Mapping[str, int], remedy: Correction = NO_CORRECTION) -> Schedule:
    """Return the schedule; raise with a counterexample unless one workgroup computes each element that is written."""
    return Covered.by(kernel, symbols, remedy).schedule


@dataclass(frozen=True, eq=False)
class Covered:
    """A kernel whose workgroups write every element of its outputs, each by one of them."""

    schedule: Schedule
    covers: Mapping[Value, Cover]
    """Which workgroup writes which part of each memory."""

    @staticmethod
    def by(kernel: Kernel, symbols: Mapping[str, int], remedy: Correction) -> Covered:
        given, kernel = kernel, as_windows(kernel)
        want_followed(kernel, lambda op: op.written)
        writes = [op for op in walk(kernel.body) if stores(op)]
        if not writes:  # it adds to what others add to, and nothing says which elements are its own
            each = np.arange(kernel.workgroup_count)
            return Covered(Schedule(kernel.workgroup_count, (kernel.workgroup_count,), each, each), {})
        memories = list(dict.fromkeys(op.memory for op in writes))
        covers = {memory: Cover(kernel, [op for op in writes if op.memory == memory]) for memory in memories}
        remedy = replace(remedy, values=symbols)
        for visit in WholeRun(kernel, symbols, stores).all():
            covers[visit.op.memory].add(visit)
        for cover in covers.values():
            cover.want_inside(remedy)
        first = covers[memories[0]]
        schedule = Schedule(kernel.workgroup_count, tiles_of(given, first.cut, memories[0]), *first.pairs)
        for memory, cover in covers.items():
            if not cover.aligned:
                covers[memory] = Cover.of_elements(kernel, symbols, cover.writes)
            covers[memory].check(remedy)
        return Covered(schedule, covers)


@dataclass(frozen=True)
class Cut:
    """The tiles of a written memory; axes that no tile spans come first, one element each."""

    axes: tuple[int, ...]
    tile: tuple[int, ...]
    memory: tuple[int, ...]

    @staticmethod
    def by(op: Write | Scatter) -> Cut:
        shape = op.memory.type.shape
        if isinstance(op, Scatter):
            return Cut.into_elements(shape)
        rest = tuple(a for a in range(len(shape)) if a not in op.axes)
        axes = rest + op.axes
        return Cut(axes, (1,) * len(rest) + op.tile.type.shape, tuple(shape[a] for a in axes))

    @staticmethod
    def into_elements(shape: tuple[int, ...]) -> Cut:
        return Cut(tuple(range(len(shape))), (1,) * len(shape), shape)

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // t) for n, t in zip(self.memory, self.tile, strict=True))

    def coordinates(self, number: Any) -> tuple[int, ...]:
        return tuple(int(x) for x in np.unravel_index(number, self.grid))


def tiles_of(kernel: Kernel, cut: Cut, memory: Value) -> tuple[int, ...]:
    """Return the tiles along each axis of a memory; that of writes at indices has one axis more than its positions."""
    return cut.grid if memory in kernel.body.args else cut.grid[:-1]


class Cover:
    """The tiles of one memory, or its elements where tiles form no grid, and the workgroups that compute them."""

    def __init__(self, kernel: Kernel, writes: list[Write | Scatter], cut: Cut | None = None) -> None:
        self.writes, self.op = writes, writes[0]
        self.cut = cut or Cut.by(self.op)
        self.aligned = cut is not None or all(Cut.by(op) == self.cut for op in writes)
        self.is_optional = any(map(_optional_writes(kernel).__contains__, map(id, writes)))
        """Whether some elements may stay unwritten."""
        tiles = prod(self.cut.grid)
        if cut is None and tiles > MOST_TILES:
            what = f"{kernel.name} cuts {self.op.memory.name} into {tiles:,} tiles"
            raise CoverageError(
                what, loc=self.op.loc, remedy=f"make them larger: at most {MOST_TILES:,} can be numbered"
            )
        self.first_outside: tuple[int, tuple[int, ...], Loc] | None = None
        """The first workgroup with a tile outside the memory, that tile, and the line of its write."""
        self.found = _Pairs(min(tiles, kernel.workgroup_count), max(tiles, kernel.workgroup_count), len(writes))

    @staticmethod
    def of_elements(kernel: Kernel, symbols: Mapping[str, int], writes: list[Write | Scatter]) -> Cover:
        """Return the cover by elements, for tiles that overlap or are off the grid."""
        cover, mine = Cover(kernel, writes, Cut.into_elements(writes[0].memory.type.shape)), set(map(id, writes))
        for visit in WholeRun(kernel, symbols, lambda op: id(op) in mine).all():
            if isinstance(visit.op, Scatter):
                cover.add(visit)
            else:
                cover.note(visit, *_elements(visit))
        return cover

    def add(self, visit: Visit) -> None:
        if isinstance(visit.op, Scatter):
            self.add_elements(visit)
            return
        if 0 in self.cut.memory:  # a whole axis is empty: nothing is written
            return
        number: Any = 0
        outside = np.zeros(len(visit.workgroups), bool)
        for axis, size, count in zip(self.cut.axes, self.cut.tile, self.cut.grid, strict=True):
            position, rest = (visit.at[axis], 0) if size == 1 else np.divmod(visit.at[axis], size)
            self.aligned = self.aligned and not np.any(rest)
            outside |= (position < 0) | (position >= count)
            number = number * count + position
        if outside.any():
            self.first_outside = self.first_outside or self.outside_at(visit, int(np.argmax(outside)))
            inside = np.broadcast_to(number, len(outside))[~outside]
            self.note(visit, visit.workgroups[~outside], inside)
        else:
            self.note(visit, visit.workgroups, number)

    def note(self, visit: Visit, workgroups: Array, tiles: Array) -> None:
        self.found.add(workgroups, tiles, next(i for i, op in enumerate(self.writes) if op is visit.op))

    def add_elements(self, visit: Visit) -> None:
        """Add each element of a scattered tile that is in bounds."""
        at = element_places(visit)
        inside = np.all([(p >= 0) & (p < n) for p, n in zip(at, self.op.memory.type.shape, strict=True)], axis=0)
        if not inside.any(1).all():
            which = int(np.argmin(inside.any(1)))
            first = ", ".join(str(int(p[which, 0])) for p in at)
            what = f"writes {visit.op.memory.name}[{first}] and the rest of its tile, all of it outside"
            raise CoverageError(f"workgroup {visit.workgroups[which]} {what}", loc=visit.op.loc, remedy=OUTSIDE)
        places = tuple(at[a][inside] // size for a, size in zip(self.cut.axes, self.cut.tile, strict=True))
        workgroups = np.broadcast_to(visit.workgroups[:, None], inside.shape)[inside]
        self.note(visit, workgroups, np.ravel_multi_index(places, self.cut.grid))

    @cached_property
    def owner(self) -> Array:
        """The workgroup of each tile."""
        owner = np.full(prod(self.cut.grid), -1, np.int64)
        workgroups, tiles = self.pairs
        owner[tiles] = workgroups
        return owner

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Return (workgroup, tile) pairs by workgroup, in the order in which each computes its tiles."""
        return self.found.sorted()

    def by_write(self) -> Iterator[tuple[Write | Scatter, Array, Array]]:
        """The pairs of each write."""
        workgroups, tiles = self.pairs
        for i, op in enumerate(self.writes):
            mine = self.found.of(i)
            yield op, workgroups[mine], tiles[mine]

    def check(self, remedy: Correction) -> None:
        """Raise unless every tile, or every element where tiles form no grid, is computed once."""
        seen, tiles = np.zeros(prod(self.cut.grid), bool), self.pairs[1]
        for first in range(0, len(tiles), SEEN_AT_ONCE):
            seen[tiles[first : first + SEEN_AT_ONCE]] = True  # in pieces: numpy converts indices to 8 bytes each
        if len(tiles) == len(seen) and seen.all():
            return
        for op, workgroups, elements in self.by_write():
            if isinstance(op, Scatter):
                self.refuse_two_in_one_place(op, workgroups, elements)
        self.report(*self.once_each(), remedy)

    def refuse_two_in_one_place(self, op: Scatter, workgroups: Array, elements: Array) -> None:
        order = np.lexsort((elements, workgroups))
        same = (np.diff(elements[order]) == 0) & (np.diff(workgroups[order]) == 0)
        if same.any():
            which = order[int(np.argmax(same))]
            place = ", ".join(map(str, self.cut.coordinates(elements[which])))
            what = f"workgroup {workgroups[which]} writes two elements of one tile to {op.memory.name}[{place}]"
            raise CoverageError(what, loc=op.loc, remedy=INJECTIVE)

    def once_each(self) -> tuple[Array, Array]:
        """Return (workgroup, tile) pairs without tiles that a workgroup writes again, by the same write or another."""
        count = prod(self.cut.grid)
        keys, times = [], []
        for _, workgroups, tiles in self.by_write():
            key = workgroups.astype(np.int64) * count + tiles
            key, often = np.unique(key[np.diff(key, prepend=key[:1] - 1) != 0], return_counts=True)
            keys.append(key)
            times.append(np.ones_like(often) if self.in_elements else often)
        pairs, which = np.unique(np.concatenate(keys), return_inverse=True)
        most = np.zeros(len(pairs), np.int64)
        np.maximum.at(most, which, np.concatenate(times))
        workgroups, tiles = np.divmod(np.repeat(pairs, most), count)
        return workgroups, tiles

    @property
    def in_elements(self) -> bool:
        return any(isinstance(op, Scatter) or Cut.by(op) != self.cut for op in self.writes)

    def report(self, workgroups: Array, tiles: Array, remedy: Correction) -> None:
        times = np.bincount(tiles, minlength=prod(self.cut.grid))
        lost, twice = self.lost(times), np.flatnonzero(times > 1)
        if not len(lost) and not len(twice):
            return
        said = []
        if len(twice):
            who = np.unique(workgroups[tiles == twice[0]])
            one, *others = map(remedy.name, who)
            verb = f"workgroups {one} and {others[0]} both compute" if others else f"workgroup {one} repeats"
            said.append(f"{verb} {self.one} {self.cut.coordinates(twice[0])}")
        said += self.computed_by_none(lost)
        raise _coverage_error("; ".join(said), self.op.loc, self.counts(times, lost), remedy)

    def want_inside(self, remedy: Correction) -> None:
        """Raise if a workgroup computes a tile outside the memory; say too which tiles are lost to that."""
        if self.first_outside is None:
            return
        workgroup, tile, loc = self.first_outside
        outside = f"outside the {'x'.join(map(str, self.cut.grid))} tiles of {self.op.memory.name}"
        what = f"workgroup {remedy.name(workgroup)} computes tile {tile}, {outside}"
        if not self.aligned:
            raise _coverage_error(what, loc, "", remedy)
        times = np.bincount(self.once_each()[1], minlength=prod(self.cut.grid))
        lost = self.lost(times)
        raise _coverage_error("; ".join([what, *self.computed_by_none(lost)]), loc, self.counts(times, lost), remedy)

    @property
    def one(self) -> str:
        """The word for what is counted."""
        return "element" if self.in_elements else "tile"

    def lost(self, times: Array) -> Array:
        """Return the tiles that must be computed and are not; `times` is how often each is computed."""
        return np.flatnonzero((times == 0) & (not self.is_optional))

    def computed_by_none(self, lost: Array) -> list[str]:
        return [f"{self.one} {self.cut.coordinates(lost[0])} is computed by none"] if len(lost) else []

    def counts(self, times: Array, lost: Array) -> str:
        """Return how many tiles are lost and computed more than once, as a sentence."""
        name, twice = self.op.memory.name, int((times > 1).sum())
        many = f"{len(times):,} {self.one}" + ("" if len(times) == 1 else "s")
        return f"{name} has {many}: {len(lost):,} lost, {twice:,} computed more than once."

    def outside_at(self, visit: Visit, which: int) -> tuple[int, tuple[int, ...], Loc]:
        """Return the workgroup of a visit, its tile and the line of its write."""
        positions = zip(self.cut.axes, self.cut.tile, strict=True)
        tile = tuple(int(visit.at[axis][which]) // size for axis, size in positions)
        return int(visit.workgroups[which]), tile, visit.op.loc


def _coverage_error(what: str, write: Loc, counts: str, remedy: Correction) -> CoverageError:
    """Return the error at the line of the tile order where that may be wrong, with the write's location in the text."""
    if remedy.loc.line:
        counts = f"{counts} They are written at {write}." if counts else f"The tiles are written at {write}."
    lines = filter(None, (counts, remedy.text))
    return CoverageError(what, loc=remedy.loc if remedy.loc.line else write, remedy="\n".join(lines))


def _optional_writes(kernel: Kernel) -> set[int]:
    """Return the ids of writes in loops that their author marked optional."""
    loops = (op for op in walk(kernel.body) if isinstance(op, Loop) and op.optional)
    return {id(op) for loop in loops for op in walk(loop.body) if isinstance(op, (Write, Scatter))}


class _Pairs:
    """Workgroups and their tiles, 8 bytes a pair where they fit; a launch may have 100 million of them."""

    def __init__(self, expected: int, largest: int, writes: int) -> None:
        dtype = np.int32 if largest < 1 << 31 else np.int64
        self.workgroups, self.tiles = np.empty(expected, dtype), np.empty(expected, dtype)
        self.writes = np.empty(expected, np.int32) if writes > 1 else None
        """The number of the write of each pair, where there are several writes."""
        self.count = 0

    def add(self, workgroups: Array, tiles: Array, write: int) -> None:
        end = self.count + len(workgroups)
        if end > len(self.tiles):
            self._resize(2 * end)
        self.workgroups[self.count : end], self.tiles[self.count : end] = workgroups, tiles
        if self.writes is not None:
            self.writes[self.count : end] = write
        self.count = end

    def sorted(self) -> tuple[Array, Array]:
        """Return the pairs by workgroup, stably."""
        self._resize(self.count)
        if (self.workgroups[1:] < self.workgroups[:-1]).any():
            order = np.argsort(self.workgroups, kind="stable")
            self.workgroups, self.tiles = self.workgroups[order], self.tiles[order]
            self.writes = None if self.writes is None else self.writes[order]
        return self.workgroups, self.tiles

    def of(self, write: int) -> Any:
        """Return the indices of one write's pairs, after sorting."""
        return slice(None) if self.writes is None else self.writes == write

    def _resize(self, count: int) -> None:
        for numbers in (self.workgroups, self.tiles, *([] if self.writes is None else [self.writes])):
            numbers.resize(count, refcheck=False)  # in place, to save a second copy


def _elements(visit: Visit) -> tuple[Array, Array]:
    """Return (workgroup, element) of all tiles of a write."""
    shape = visit.op.memory.type.shape
    cut = Cut.by(visit.op)  # type: ignore[arg-type]
    size = dict(zip(cut.axes, cut.tile, strict=True))
    who, what = [], []
    for w, *at in zip(visit.workgroups, *visit.at, strict=True):
        axes = [np.arange(max(p, 0), min(p + size[a], shape[a])) for a, p in enumerate(at)]
        flat = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), shape).reshape(-1)
        who.append(np.full(len(flat), w))
        what.append(flat)
    return np.concatenate(who), np.concatenate(what)
