"""Does every tile get computed exactly once? By exhaustion, vectorised, with a counterexample that names names."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.mapping.grid import FITS_INT32, AnyGrid, Deal, Grid, MappingError, MappingHasNoEffect, deal_of
from tilewave.mapping.index import Index
from tilewave.records import dataclass

Array = npt.NDArray[Any]

BLOCK = 1 << 15
"""Tiles per step: the arrays of a formula's intermediate values then stay in the processor's own cache."""


@dataclass(frozen=True)
class Visits:
    """Who computes what: entry i says that `workgroup[i]` computes tile (batch[i], row[i], col[i])."""

    workgroup: Array
    batch: Index
    row: Index
    col: Index


@dataclass(frozen=True)
class Counterexample:
    """A grid on which a formula fails; `computed_by` share `tile` (one workgroup: outside the grid, or twice)."""

    grid: Grid
    workgroups: int | None
    message: str
    computed_by: tuple[int, ...]
    tile: tuple[int, ...] | None
    lost: tuple[int, ...] | None

    def __str__(self) -> str:
        launched = "" if self.workgroups is None else f" with {count_of(self.workgroups, 'workgroup')}"
        return f"on a grid of {self.grid}{launched}: {self.message}"


class Coverage(ABC):
    """Anything that sends workgroups to tiles."""

    @abstractmethod
    def visits(self, grid: Grid, workgroups: int | None = None) -> Iterator[Visits]:
        """Everything that the workgroups compute, block by block."""

    def warnings(self, grid: Grid, workgroups: int | None = None) -> tuple[str, ...]:
        """What does nothing on this grid, in words."""
        return ()

    def fault(self, grid: Grid, workgroups: int | None = None) -> Counterexample | None:
        """Why this does not compute every tile of the grid exactly once; None where it does."""
        seen = np.zeros(grid.size, bool)
        count = 0
        for visits in self.visits(grid, workgroups):
            if not _inside(visits, grid):
                return self._explained(grid, workgroups)
            seen[_flat(visits, grid)] = True
            count += len(visits.workgroup)
        if count == grid.size and seen.all():  # as many visits as tiles, and none missed: none twice
            return None
        return self._explained(grid, workgroups)

    def workgroup_name(self, workgroup: int, grid: Grid, workgroups: int | None) -> str:
        """Return how messages name a workgroup."""
        return str(workgroup)

    def _explained(self, grid: Grid, workgroups: int | None) -> Counterexample:
        def name(workgroup: int) -> str:
            return self.workgroup_name(workgroup, grid, workgroups)

        return explain(lambda: self.visits(grid, workgroups), grid, workgroups, name)

    def verify(self, grid: Grid, workgroups: int | None = None) -> None:
        """Prove this grid, or raise MappingError with a counterexample; warn about what does nothing on it."""
        found = self.fault(grid, workgroups)
        if found is not None:
            raise MappingError(f"{self} fails {found}", counterexample=found)
        for message in self.warnings(grid, workgroups):
            warnings.warn(message, MappingHasNoEffect, stacklevel=2)


class Walk(Coverage):
    """A coverage in which the t-th tile to be dealt is a function of t: what mappings are."""

    @abstractmethod
    def tile(self, t: Index, grid: AnyGrid, workgroups: Index | None = None) -> tuple[Index, Index, Index]:
        """(batch, row, col) of the t-th tile; workgroup t % workgroups computes it in round t // workgroups."""

    @abstractmethod
    def parameters(self) -> tuple[object, ...]:
        """Return the parameters whose values are known only at launch."""

    def visits(self, grid: Grid, workgroups: int | None = None) -> Iterator[Visits]:
        """Everything that the workgroups compute, in the order in which tiles are dealt."""
        if self.parameters():
            names = ", ".join(str(p) for p in self.parameters())
            raise MappingError(f"{self}: the value of {names} is not known here", remedy="give it one with .bind(…)")
        deal = deal_of(grid, workgroups)
        dtype = np.int32 if grid.size <= FITS_INT32 else np.int64
        for start in range(0, grid.size, BLOCK):
            t = np.arange(start, min(start + BLOCK, grid.size), dtype=dtype)
            batch, row, col = (as_integers(part, t) for part in self.tile(t, grid, workgroups))
            yield Visits(_workgroup(t, deal), batch, row, col)

    def tiles(self, grid: Grid, workgroups: int | None = None) -> Array:
        """tiles[t] is the (row, col) of the t-th tile dealt; (batch, row, col) where there are several batches."""
        width = 2 if grid.batches == 1 else 3
        out = np.empty((grid.size, width), np.int32)
        start = 0
        for visits in self.visits(grid, workgroups):
            block = out[start : start + len(visits.workgroup)]
            for at, part in enumerate((visits.batch, visits.row, visits.col)[3 - width :]):
                block[:, at] = part
            start += len(block)
        return out

    def table(self, grid: Grid, workgroups: int | None = None) -> Array:
        """table[row, col] is the t that computes that tile ([batch, row, col] for several batches); -1: none."""
        out = np.full(grid.size, -1, np.int32)
        start = 0
        for visits in self.visits(grid, workgroups):
            inside = _inside_mask(visits, grid)
            t = np.arange(start, start + len(visits.workgroup), dtype=np.int32)
            out[_flat(visits, grid)[inside]] = t[inside]
            start += len(t)
        shape = (grid.rows, grid.cols) if grid.batches == 1 else (grid.batches, grid.rows, grid.cols)
        return out.reshape(shape)


def _workgroup(t: Array, deal: Deal) -> Array:
    return t if deal.in_one_round else t % deal.workgroups


def as_integers(part: Index, like: Array) -> Array:
    """One coordinate as an array of integers as long as `like`; formulas may answer with a plain int."""
    array = np.asarray(part, like.dtype) if isinstance(part, int) else np.asarray(part)
    if array.dtype.kind not in "iu":
        raise MappingError(f"a formula returns integers, not {array.dtype}", remedy="divide with //, not with /")
    try:
        return np.broadcast_to(array, like.shape)
    except ValueError:
        raise MappingError(f"a formula given {len(like)} workgroups answered with shape {array.shape}") from None


def _inside_mask(visits: Visits, grid: Grid) -> Array:
    sides = ((visits.batch, grid.batches), (visits.row, grid.rows), (visits.col, grid.cols))
    inside = np.ones(len(visits.workgroup), bool)
    for part, side in sides:
        inside &= (part >= 0) & (part < side)
    return inside


def _inside(visits: Visits, grid: Grid) -> bool:
    sides = ((visits.row, grid.rows), (visits.col, grid.cols), (visits.batch, grid.batches))
    return all(part.max() < side and part.min() >= 0 for part, side in sides)


def _flat(visits: Visits, grid: Grid) -> Array:
    plane = visits.row * grid.cols + visits.col
    return plane if grid.batches == 1 else visits.batch * grid.plane + plane  # type: ignore[no-any-return]


def explain(
    walk: Callable[[], Iterator[Visits]], grid: Grid, workgroups: int | None, name: Callable[[int], str] = str
) -> Counterexample:
    """Return the first error in the order in which tiles are dealt; each call of `walk()` starts from the beginning."""
    seen = np.zeros(grid.size, bool)
    outside: tuple[int, tuple[int, ...]] | None = None
    clash: tuple[int, int] | None = None
    for visits in walk():
        inside = _inside_mask(visits, grid)
        if outside is None and not inside.all():
            at = int(inside.argmin())
            outside = int(visits.workgroup[at]), _named(visits, at, grid)
        flat = _flat(visits, grid)[inside].astype(np.int64)
        if clash is None and (repeated_ := _seen_again(flat, seen)).any():
            at = int(repeated_.argmax())
            clash = int(flat[at]), int(visits.workgroup[inside][at])
        seen[flat] = True
    lost = None if seen.all() else _name(int(seen.argmin()), grid)
    tail = f"; tile {lost} is computed by none" if lost is not None else ""
    if outside is not None:
        w, tile = outside
        message = f"workgroup {name(w)} computes tile {tile}, which is outside{tail}"
        return Counterexample(grid, workgroups, message, (w,), tile, lost)
    if clash is None:
        return Counterexample(grid, workgroups, tail.removeprefix("; "), (), None, lost)
    return _explain_clash(walk(), grid, workgroups, clash, lost, tail, name)


def _seen_again(flat: Array, seen: Array) -> Array:
    """Which of these tiles somebody computed before."""
    repeated_: Array = seen[flat]
    _, first = np.unique(flat, return_index=True)
    repeated = np.ones(len(flat), bool)
    repeated[first] = False
    return repeated_ | repeated


def _explain_clash(
    visits: Iterator[Visits],
    grid: Grid,
    workgroups: int | None,
    clash: tuple[int, int],
    lost: tuple[int, ...] | None,
    tail: str,
    name: Callable[[int], str],
) -> Counterexample:
    """`clash` is a tile, and the second workgroup that computes it."""
    flat, other = clash
    same = ((block, _flat(block, grid) == flat) for block in visits)
    one = next(int(block.workgroup[int(here.argmax())]) for block, here in same if here.any())
    by, tile = (min(one, other), max(one, other)), _name(flat, grid)
    if one == other:
        message = f"workgroup {name(one)} computes tile {tile} twice{tail}"
        return Counterexample(grid, workgroups, message, (one,), tile, lost)
    message = f"workgroups {name(by[0])} and {name(by[1])} both compute tile {tile}{tail}"
    return Counterexample(grid, workgroups, message, by, tile, lost)


def _name(flat: int, grid: Grid) -> tuple[int, ...]:
    place = (flat // grid.plane, flat % grid.plane // grid.cols, flat % grid.cols)
    return place if grid.batches > 1 else place[1:]


def _named(visits: Visits, at: int, grid: Grid) -> tuple[int, ...]:
    place = (int(visits.batch[at]), int(visits.row[at]), int(visits.col[at]))
    return place if grid.batches > 1 else place[1:]


def count_of(number: int, thing: str) -> str:
    """`1 workgroup`, `2 workgroups`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
