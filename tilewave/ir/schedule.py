"""Which workgroup computes which tiles, in which order; and the check that every tile is computed exactly once.

The tiles are those of the first memory the kernel writes. Nothing here knows a mapping: what is found is what the code
does, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewave.errors import CoverageError
from tilewave.forks import cached_property
from tilewave.ir.arithmetic import Array
from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Scatter, Write
from tilewave.ir.rewrite import walk
from tilewave.ir.visits import Visit, visits

SEEN_AT_ONCE = 1 << 20
MOST_TILES = 2**31 - 1
"""As many as a launch has workgroups."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Workgroup → tiles in order; `grid` counts the tiles along each axis of the output."""

    workgroups: int
    grid: tuple[int, ...]
    workgroup: Array
    tile: Array

    def tiles_of(self, workgroup: int) -> list[tuple[int, ...]]:
        """The tiles that one workgroup computes, in order."""
        mine = self.tile[self.starts[workgroup] : self.starts[workgroup + 1]]
        return [tuple(map(int, t)) for t in zip(*np.unravel_index(mine, self.grid), strict=True)]

    def table(self) -> Array:
        """The workgroup that computes each tile."""
        return self._on_grid(self.workgroup)

    def rounds(self) -> Array:
        """How many tiles its workgroup computes before each tile."""
        return self._on_grid(np.arange(len(self.tile)) - self.starts[self.workgroup])

    def _on_grid(self, numbers: Array) -> Array:
        flat = np.full(prod(self.grid), -1, np.int64)
        flat[self.tile] = numbers
        return flat.reshape(self.grid)

    @cached_property
    def starts(self) -> Array:
        """Where each workgroup's tiles begin in `tile`."""
        return np.searchsorted(self.workgroup, np.arange(self.workgroups + 1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        same = (self.workgroups, self.grid) == (other.workgroups, other.grid)
        return same and np.array_equal(self.workgroup, other.workgroup) and np.array_equal(self.tile, other.tile)

    def __hash__(self) -> int:
        return hash((self.workgroups, self.grid))


def checked_schedule(kernel: Kernel, symbols: Mapping[str, int], remedy: str = "") -> Schedule:
    """The schedule, if every element of every memory written is computed exactly once; else a counterexample."""
    writes = [op for op in walk(kernel.body) if isinstance(op, (Write, Scatter))]
    if not writes:
        raise CoverageError(f"{kernel.name} writes nothing", remedy="end it with write(tile, memory)")
    memories = list(dict.fromkeys(op.memory for op in writes))
    covers = {memory: _Cover(kernel, [op for op in writes if op.memory == memory]) for memory in memories}
    for visit in visits(kernel, symbols, (Write, Scatter)):
        covers[visit.op.memory].add(visit, remedy)
    for cover in covers.values():
        cover.check(symbols, remedy)
    first = covers[memories[0]]
    return Schedule(kernel.workgroups, first.cut.grid, *first.pairs)


@dataclass(frozen=True)
class Cut:
    """How a written memory is cut into tiles; axes that no tile spans come first, one element each."""

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


class _Cover:
    """The tiles of one memory, and who computes them."""

    def __init__(self, kernel: Kernel, writes: list[Write | Scatter]) -> None:
        self.kernel, self.op = kernel, writes[0]
        self.cut = Cut.by(self.op)
        self.aligned = all(Cut.by(op) == self.cut for op in writes)
        tiles = prod(self.cut.grid)
        if tiles > MOST_TILES:
            what = f"{kernel.name} cuts {self.op.memory.name} into {tiles:,} tiles"
            raise CoverageError(
                what, loc=self.op.loc, remedy=f"make them larger: at most {MOST_TILES:,} can be numbered"
            )
        self.found = _Pairs(min(tiles, kernel.workgroups), max(tiles, kernel.workgroups))

    def add(self, visit: Visit, remedy: str) -> None:
        number: Any = 0
        outside = np.zeros(len(visit.workgroups), bool)
        for axis, size, count in zip(self.cut.axes, self.cut.tile, self.cut.grid, strict=True):
            position, rest = (visit.at[axis], 0) if size == 1 else np.divmod(visit.at[axis], size)
            self.aligned = self.aligned and not np.any(rest)
            outside |= (position < 0) | (position >= count)
            number = number * count + position
        if outside.any():
            self.report_outside(visit, int(np.argmax(outside)), remedy)
        self.found.add(visit.workgroups, number)

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """(workgroup, tile), by workgroup, and for each in the order in which it computes them."""
        return self.found.sorted()

    def check(self, symbols: Mapping[str, int], remedy: str) -> None:
        """Raise unless every tile, or every element where the tiles are not those of a grid, is computed once."""
        cut, (workgroups, tiles) = self.cut, self.pairs
        if not self.aligned:
            cut = Cut.into_elements(self.op.memory.type.shape)
            workgroups, tiles = _elements(self.kernel, symbols, self.op.memory)
        seen = np.zeros(prod(cut.grid), bool)
        for first in range(0, len(tiles), SEEN_AT_ONCE):
            seen[tiles[first : first + SEEN_AT_ONCE]] = True  # numpy makes each number 8 bytes first
        if len(tiles) == len(seen) and seen.all():
            return
        again = np.zeros(len(tiles), bool)
        again[1:] = (np.diff(tiles) == 0) & (np.diff(workgroups) == 0)  # a workgroup may rewrite the tile it is at
        self.report(cut, workgroups[~again], tiles[~again], remedy)

    def report(self, cut: Cut, workgroups: Array, tiles: Array, remedy: str) -> None:
        times = np.bincount(tiles, minlength=prod(cut.grid))
        lost, twice = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
        if not len(lost) and not len(twice):
            return
        one = "element" if cut != self.cut or isinstance(self.op, Scatter) else "tile"
        said = []
        if len(twice):
            who = np.unique(workgroups[tiles == twice[0]])
            verb = f"workgroups {who[0]} and {who[1]} both compute" if len(who) > 1 else f"workgroup {who[0]} repeats"
            said.append(f"{verb} {one} {cut.coordinates(twice[0])}")
        if len(lost):
            said.append(f"{one} {cut.coordinates(lost[0])} is computed by none")
        name = self.op.memory.name
        counts = f"{name} has {len(times):,} {one}s: {len(lost):,} lost, {len(twice):,} computed more than once."
        raise CoverageError("; ".join(said), loc=self.op.loc, remedy=f"{counts}\n{remedy}".rstrip())

    def report_outside(self, visit: Visit, which: int, remedy: str) -> None:
        positions = zip(self.cut.axes, self.cut.tile, strict=True)
        tile = tuple(int(visit.at[axis][which]) // size for axis, size in positions)
        grid = "x".join(map(str, self.cut.grid))
        what = f"computes tile {tile}, outside the {grid} tiles of {visit.op.memory.name}"
        raise CoverageError(f"workgroup {visit.workgroups[which]} {what}", loc=visit.op.loc, remedy=remedy)


class _Pairs:
    """Workgroups and their tiles, 8 bytes a pair where they fit; a launch may have 100 million of them."""

    def __init__(self, expected: int, largest: int) -> None:
        dtype = np.int32 if largest < 1 << 31 else np.int64
        self.workgroups, self.tiles = np.empty(expected, dtype), np.empty(expected, dtype)
        self.count = 0

    def add(self, workgroups: Array, tiles: Array) -> None:
        end = self.count + len(workgroups)
        if end > len(self.tiles):
            self._resize(2 * end)
        self.workgroups[self.count : end], self.tiles[self.count : end] = workgroups, tiles
        self.count = end

    def sorted(self) -> tuple[Array, Array]:
        """By workgroup, and for each in the order in which they came."""
        self._resize(self.count)
        if (self.workgroups[1:] < self.workgroups[:-1]).any():
            order = np.argsort(self.workgroups, kind="stable")
            self.workgroups, self.tiles = self.workgroups[order], self.tiles[order]
        return self.workgroups, self.tiles

    def _resize(self, count: int) -> None:
        for numbers in (self.workgroups, self.tiles):
            numbers.resize(count, refcheck=False)  # in place: nothing is held twice


def _elements(kernel: Kernel, symbols: Mapping[str, int], memory: Value) -> tuple[Array, Array]:
    """(workgroup, element) of all writes: for tiles that overlap, or begin where no tile of a grid does."""
    shape = memory.type.shape
    who, what = [], []
    for visit in visits(kernel, symbols, (Write, Scatter)):
        if visit.op.memory != memory:
            continue
        if isinstance(visit.op, Scatter):
            who.append(visit.workgroups)
            what.append(np.ravel_multi_index(visit.at, shape))
            continue
        cut = Cut.by(visit.op)  # type: ignore[arg-type]
        size = dict(zip(cut.axes, cut.tile, strict=True))
        for w, *at in zip(visit.workgroups, *visit.at, strict=True):
            axes = [np.arange(max(p, 0), min(p + size[a], shape[a])) for a, p in enumerate(at)]
            flat = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), shape).reshape(-1)
            who.append(np.full(len(flat), w))
            what.append(flat)
    return np.concatenate(who), np.concatenate(what)
