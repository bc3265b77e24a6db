"""The three figures of a placement, on one sheet."""

from __future__ import annotations

from tilewave.mapping import Grid, MappingError
from tilewave.view.costs import costs
from tilewave.view.launch_order import launch_order
from tilewave.view.placement import Placement
from tilewave.view.reads import reads
from tilewave.view.svg import Figure, sheet
from tilewave.view.xcd_map import xcd_map

MOST_TILES = 128 * 128
LONGEST_SIDE = 1024


def can_be_drawn(grid: Grid) -> bool:
    """Whether a grid is small enough for figures that a browser moves through with ease."""
    return grid.size <= MOST_TILES and max(grid.rows, grid.cols) <= LONGEST_SIDE


def figures(placement: Placement, xcd: int = 0) -> list[Figure]:
    """Launch order, XCD map, and the reads of one XCD, or what tiles cost where they differ."""
    grid = placement.launch.grid
    if not can_be_drawn(grid):
        raise MappingError(
            f"a grid of {grid} is too large to draw: at most {MOST_TILES} tiles, and {LONGEST_SIDE} along a side",
            remedy="draw a smaller grid; the terminal and --json summarise this one",
        )
    third = reads(placement, xcd) if placement.work is None else costs(placement, placement.work)
    return [launch_order(placement), xcd_map(placement), third]


def figures_svg(placements: tuple[Placement, ...], xcd: int = 0) -> str:
    """One sheet with a row of three figures for each mapping."""
    return sheet([figures(placement, xcd) for placement in placements])
