"""The groups of a ragged grid, for an example of their rows: which tiles each has, and their figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewave.mapping import Grid, MappingError
from tilewave.mapping.coverage import Array
from tilewave.mapping.ragged import MOST_ROWS, RaggedGrid, RaggedTiles
from tilewave.records import dataclass


@dataclass(frozen=True)
class PicturedGroups:
    """Where the groups end, and how many rows a tile has."""

    ends: tuple[int, ...]
    block: int
    rows: int
    """The rows of all groups, and those after the last one."""

    @staticmethod
    def of(ends: Sequence[int], block: int, rows: int | None = None) -> PicturedGroups:
        """Return the groups; an error where they are none."""
        counts = np.diff(np.asarray(ends, np.int64), prepend=0)
        if not len(counts) or (counts < 0).any():
            raise MappingError(f"groups end at {list(ends)}", remedy="give one group or more, of 0 rows or more each")
        last = int(ends[-1])
        if max(last, rows or 0) > MOST_ROWS:
            raise MappingError(f"groups have {max(last, rows or 0):,} rows, and kernels number {MOST_ROWS:,}")
        if rows is not None and rows < last:
            raise MappingError(f"the groups end at {last:,}, and there are {rows:,} rows")
        if block < 1:
            raise MappingError(f"a tile has {block} rows", remedy="give 1 or more")
        return PicturedGroups(tuple(map(int, ends)), block, last if rows is None else rows)

    @property
    def grid_rows(self) -> int:
        """The rows of tiles."""
        return int(RaggedGrid(self.block).count(self.rows, len(self.ends)))

    @property
    def counts(self) -> list[int]:
        """The rows of each group."""
        found: list[int] = np.diff(np.asarray(self.ends, np.int64), prepend=0).tolist()
        return found

    def tiles(self) -> RaggedTiles:
        """Return the group and the rows of each row of tiles."""
        return RaggedGrid(self.block).tiles(self.ends, range(self.grid_rows))

    def of_rows(self) -> Array:
        """Return the group of each row of tiles, -1 for none."""
        return self.tiles().group

    def want_grid(self, grid: Grid) -> None:
        """Raise an error unless a grid has as many rows of tiles."""
        if grid.rows != self.grid_rows:
            what = f"{len(self.ends)} groups of {self.rows:,} rows are {self.grid_rows} rows of tiles of {self.block}"
            raise MappingError(f"{what}, and the grid is {grid}", remedy=f"write {self.grid_rows}x{grid.cols}")

    def to_json(self) -> dict[str, object]:
        """For machines; the group, the first row and the end of the rows of each row of tiles."""
        found = self.tiles()
        rows = {"group": found.group.tolist(), "first": found.first.tolist(), "end": found.end.tolist()}
        return {"ends": list(self.ends), "block": self.block, "rows": rows}

    def __str__(self) -> str:
        empty = sum(count == 0 for count in self.counts)
        without = f", {empty} of them empty" if empty else ""
        return f"{len(self.ends)} groups{without}, {self.ends[-1]:,} rows in tiles of {self.block}"
