"""Grids with more tiles than a page can show: squares of neighbouring tiles become one cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewave.records import dataclass

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Coarse:
    """Cells of `every` × `every` tiles, the last of a row or column perhaps smaller."""

    tile_rows: int
    tile_cols: int
    every: int

    @staticmethod
    def of(rows: int, cols: int, most: int, longest: int) -> Coarse:
        """As fine as `most` cells in all, and `longest` along a side, allow."""
        every = 1
        while -(-rows // every) * -(-cols // every) > most or -(-max(rows, cols) // every) > longest:
            every += 1
        return Coarse(rows, cols, every)

    @property
    def rows(self) -> int:
        return -(-self.tile_rows // self.every)

    @property
    def cols(self) -> int:
        return -(-self.tile_cols // self.every)

    def corners(self, table: Array) -> Array:
        """Return the value of the first tile of each cell."""
        found: Array = table[:: self.every, :: self.every]
        return found

    def means(self, table: Array) -> Array:
        """Return the mean over the tiles of each cell."""
        starts = np.arange(0, self.tile_rows, self.every), np.arange(0, self.tile_cols, self.every)
        sums = np.add.reduceat(np.add.reduceat(table.astype(np.float64), starts[0], 0), starts[1], 1)
        heights, widths = (np.diff([*start, end]) for start, end in zip(starts, table.shape, strict=True))
        found: Array = sums / np.outer(heights, widths)
        return found
