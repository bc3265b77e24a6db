"""The tiles of a placement as figures draw them: each a cell, or, of a large grid, a square of them."""

from __future__ import annotations

import numpy as np

from tilewave.mapping import Grid
from tilewave.records import dataclass
from tilewave.view.coarse import Coarse
from tilewave.view.placement import Array, Placement

MOST_CELLS = 128 * 128
LONGEST_SIDE = 1024
"""What a browser moves through with ease."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Cells in the order in which their first tiles are launched."""

    placement: Placement
    coarse: Coarse
    cells: Array
    """(row, column) of each, among cells."""
    turns: Array
    """The turn of each cell's first tile, the one in its upper left corner."""

    @staticmethod
    def of(placement: Placement) -> Drawn:
        grid = placement.launch.grid
        coarse = Coarse.of(grid.rows, grid.cols, MOST_CELLS, LONGEST_SIDE)
        corners = coarse.corners(placement.turns).ravel()
        order = np.argsort(corners, kind="stable")
        cells = np.stack(np.divmod(order, coarse.cols), 1)
        return Drawn(placement, coarse, cells, corners[order])

    @property
    def grid(self) -> Grid:
        """Return the grid of cells."""
        return Grid(self.coarse.rows, self.coarse.cols)

    @property
    def workgroups(self) -> Array:
        found: Array = self.turns % self.placement.launch.launched
        return found

    @property
    def xcds(self) -> Array:
        found: Array = self.workgroups % self.placement.launch.xcds
        return found

    @property
    def rounds(self) -> Array:
        found: Array = self.turns // self.placement.launch.together
        return found

    def table(self, values: Array) -> Array:
        """What belongs to each cell, indexed [row, column]."""
        found = np.empty((self.coarse.rows, self.coarse.cols), np.int64)
        found[self.cells[:, 0], self.cells[:, 1]] = values
        return found

    def read_by(self, xcd: int) -> tuple[list[int], list[int]]:
        """The rows and columns of cells in which an XCD has tiles, whether or not it has their corners."""
        tiles = self.placement.tiles[self.placement.xcd_of_turn == xcd] // self.coarse.every
        rows, cols = (np.unique(tiles[:, axis]).tolist() for axis in (0, 1))
        return rows, cols

    @property
    def said(self) -> str:
        """Return a caption on how many tiles a cell shows; empty where a cell is one tile."""
        every = self.coarse.every
        return f"Each cell is {every}×{every} tiles and shows the first of them." if every > 1 else ""
