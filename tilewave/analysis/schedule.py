"""Which workgroup computes which tiles, in which order; and the check that every tile is computed exactly once.

The tiles are those of the first memory the kernel writes. The schedule is found by running the kernel's index code, so
it holds for any mapping, and for code written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from math import prod
from typing import TypeGuard

import numpy as np

from tilewave.errors import NOWHERE, Loc
from tilewave.forks import cached_property
from tilewave.interp.arithmetic import Array
from tilewave.ir.core import Kernel, Op
from tilewave.ir.ops import Scatter, Write, WriteIndexed
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass

OUTSIDE = "a boundary tile may extend past the end of its memory, but not be all out of bounds: correct the mapping"
INJECTIVE = "a position in memory holds one element: let the mapping give every element of the tile its own position"

SEEN_AT_ONCE = 1 << 20
"""Tiles that `Cover.check` marks at a time, to bound the copy that numpy makes of their numbers."""
MOST_TILES = 2**31 - 1
"""The most tiles: as many as a launch has workgroups."""


@dataclass(frozen=True)
class Correction:
    """What an author should correct where tiles are missing or computed twice, and at which line."""

    text: str = ""
    loc: Loc = NOWHERE
    """The location of the tile order, where that may be wrong; NOWHERE selects the write's location."""
    coordinates: Callable[[int, Mapping[str, int]], str] | None = None
    """The text of a workgroup's coordinates at values of dynamic sizes, where the author's formulas use them."""
    values: Mapping[str, int] = field(default_factory=dict)

    def name(self, workgroup: object) -> str:
        """Return `15`, or `15 (WORKGROUP_0 = 3, WORKGROUP_1 = 2)`."""
        found = self.coordinates(int(workgroup), self.values) if self.coordinates else ""  # type: ignore[call-overload]
        return f"{workgroup} ({found})" if found else f"{workgroup}"


NO_CORRECTION = Correction()


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
        """Return, for each tile, how many tiles its workgroup computes before it."""
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


def stores(op: Op) -> TypeGuard[Write | Scatter]:
    """Return whether an op writes an array of the call, at positions that are known, not a memory of a workgroup."""
    return isinstance(op, (Write, Scatter)) and is_in(op.memory, "global")


def writes_something(kernel: Kernel) -> bool:
    return any(stores(op) or isinstance(op, WriteIndexed) for op in walk(kernel.body))


WRITE_SOMETHING = "end it with write(tile, memory)"
