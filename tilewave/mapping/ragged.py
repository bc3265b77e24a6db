"""Ragged grids: groups of rows one after the other, cut into tiles group by group; only the device knows the counts.

Group g has the rows from ends[g - 1], or 0, up to ends[g], and as many tiles as its rows need. Tiles are numbered group
by group:

    row       0  1  2  3  4  5  6  7  8  9       ends [3, 3, 9, 10], block 4
    group     0  0  0  2  2  2  2  2  2  3
    tile      0  0  0  1  1  1  2  2  2  3       tiles 4 and 5 have no rows

Each row is in exactly one tile, for all counts: the first tile of a group is the number of tiles of all groups before,
so no two groups share a tile, and the tiles of a group are blocks of its rows, one after the other. A group of c rows
has ceil(c / block) tiles, at most (c + block - 1) / block, so all have at most rows // block + groups: the number of
tiles follows from sizes that the host knows.

Workgroups that take every n-th tile have about the same work: tiles that no group needs come last, and those of a group
are equally long, but for rounding to what a matrix unit computes at once (GRAIN). So t tiles of c rows have c / t rows
or more each, and hold all of them; and none is longer than a block, which is at least c / t and a multiple of GRAIN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from tilewave.mapping.coverage import Array
from tilewave.mapping.grid import MappingError, OpenGrid
from tilewave.mapping.index import Index, larger
from tilewave.mapping.orders import Grouped
from tilewave.records import dataclass

NO_GROUP = -1
"""The group of a tile without rows."""
MOST_ROWS = 2**31 - 1
"""The most rows of all groups: kernels number them in 32 bits."""


@dataclass(frozen=True)
class RaggedCounterexample:
    """A row that a ragged grid does not compute exactly once."""

    ends: tuple[int, ...]
    row: int
    tiles: tuple[int, ...]
    """The tiles that compute the row."""

    def __str__(self) -> str:
        how = f"is computed by tiles {', '.join(map(str, self.tiles))}" if self.tiles else "is computed by no tile"
        return f"row {self.row} of groups that end at {list(self.ends)} {how}"


GRAIN = 16
"""The rows that the length of tiles is a multiple of, if the block is."""


@dataclass(frozen=True)
class RaggedTiles:
    """The group, the first row and the end of the rows of each tile, by its number."""

    group: Array
    first: Array
    end: Array


@dataclass(frozen=True)
class RaggedGrid:
    """The tiles of groups of rows: their number, and which rows of which group each has.

    A subclass with another formula is checked by `verify` and `prove`, as an author's own order of tiles is.
    """

    block: int

    def count(self, rows: Index, groups: Index) -> Index:
        """Return the number of tiles, some of which have no rows."""
        return rows // self.block + groups

    def tiles_of(self, count: Index) -> Index:
        """Return the number of tiles of a group with so many rows, which is no number below 0 for a count that is."""
        return (larger(count, 0) + (self.block - 1)) // self.block

    def length(self, count: Index) -> Index:
        """Return the rows of each tile of a group with so many rows, but for its last tile, which may have fewer.

        They are 0 for a count below 0, as after the last group: no tile there then begins before row 0.
        """
        grain = GRAIN if self.block % GRAIN == 0 else 1
        tiles = larger(self.tiles_of(count), 1)
        return ((larger(count, 0) + (tiles - 1)) // tiles + (grain - 1)) // grain * grain

    def first_row(self, tile: Index, start: Index, length: Index) -> Index:
        """Return the first row of a group's tile, by its number within a group whose rows begin at `start`."""
        return start + tile * length

    def in_band(self, tile: Index, column: Index, sides: tuple[Index, Index], band: int) -> tuple[Index, Index]:
        """Return the tile of a group and the column that are computed in the place of others, in bands of tiles.

        `sides`: the tiles of the group, and the columns. Row by row, a group's tiles have consecutive numbers, and an
        order is a bijection on every grid, so each of them is computed once.
        """
        tiles, columns = sides
        return Grouped(band).formula(tile * columns + column, OpenGrid(tiles, columns))

    def tiles(self, ends: Sequence[int] | Array, numbers: Sequence[int] | Array) -> RaggedTiles:
        """Return the group and rows of tiles: group -1 and rows from -block to 0 for those without any."""
        given, number = np.asarray(ends, np.int64), np.asarray(numbers, np.int64)
        bounds = np.concatenate(([0], given, [0]))  # no group begins before row 0, and those after the last are empty
        after = np.cumsum(self.tiles_of(bounds[1:-1] - bounds[:-2]))
        group = (after[:, None] <= number.reshape(-1)).sum(0).reshape(number.shape)
        start, end = bounds[group], bounds[group + 1]
        length = self.length(end - start)
        first = self.first_row(number - np.concatenate(([0], after))[group], start, length)
        has_rows, end = first < end, np.minimum(end, first + length)
        return RaggedTiles(
            np.where(has_rows, group, NO_GROUP), np.where(has_rows, first, -self.block), np.where(has_rows, end, 0)
        )

    def tiles_in_groups(
        self, ends: Sequence[int] | Array, at: tuple[Array, Array], columns: int | Array, band: int
    ) -> tuple[Array, Array]:
        """Return the rows and columns of tiles that are computed in the place of those at `at`."""
        row, column = at
        after = np.cumsum(self.tiles_of(np.diff(np.asarray(ends, np.int64), prepend=0)))
        bounds = np.concatenate(([0], after, [after[-1]]))
        group = (after[:, None] <= row.reshape(-1)).sum(0).reshape(row.shape)
        before, tiles = bounds[group], np.maximum(bounds[group + 1] - bounds[group], 1)
        has_rows = row < after[-1]
        tile, placed = self.in_band(np.where(has_rows, row - before, 0), column, (tiles, columns), band)
        return np.where(has_rows, before + tile, row), np.where(has_rows, placed, column)

    def fault(self, ends: Sequence[int], rows: int | None = None) -> RaggedCounterexample | None:
        """Return the first row below the last end that is not computed exactly once, or in its group; None: all are."""
        last = ends[-1] if ends else 0
        found = self.tiles(ends, range(self.count(last if rows is None else rows, len(ends))))
        by_row: dict[int, list[int]] = {}
        for tile, (group, first, end) in enumerate(zip(found.group, found.first, found.end, strict=True)):
            for row in range(max(first, 0), min(first + self.block, end)):
                is_own = row >= (ends[group - 1] if group else 0)
                by_row.setdefault(row, []).extend([tile] if is_own else [tile, tile])
        wrong = (row for row in range(last) if len(by_row.get(row, ())) != 1)
        return next((RaggedCounterexample(tuple(ends), row, tuple(by_row.get(row, ()))) for row in wrong), None)

    def verify(self, ends: Sequence[int], rows: int | None = None) -> None:
        """Raise MappingError with a counterexample unless each row is computed exactly once."""
        found = self.fault(ends, rows)
        if found is not None:
            raise MappingError(f"{self} fails: {found}", counterexample=found)

    def __str__(self) -> str:
        return f"ragged({self.block})"


@dataclass(frozen=True)
class RaggedProof:
    """What was proved: each vector of counts up to these limits, by exhaustion."""

    groups: int
    most_rows: int
    checks: int

    def __str__(self) -> str:
        return (
            f"every row exactly once, for all {self.checks:,} vectors of up to {self.groups} counts from 0 to "
            f"{self.most_rows}"
        )


def prove_ragged(grid: RaggedGrid, groups: int = 3, most_rows: int | None = None) -> RaggedProof:
    """Check a ragged grid for all vectors of counts up to a size; raise MappingError with the smallest counterexample.

    `RaggedGrid` itself is right for all counts (the head of this module says why), so this is for other formulas.
    """
    most = 2 * grid.block + 1 if most_rows is None else most_rows
    checks = 0
    for counts in _smallest_first(groups, most):
        grid.verify([int(end) for end in np.cumsum(counts)])
        checks += 1
    return RaggedProof(groups, most, checks)


def _smallest_first(groups: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the vectors of counts, those of few groups and few rows first."""
    for length in range(1, groups + 1):
        yield from sorted(product(range(most + 1), repeat=length), key=sum)
