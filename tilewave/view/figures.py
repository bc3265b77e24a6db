"""The three figures of a placement, on one sheet."""

from __future__ import annotations

from tilewave.view.drawn import Drawn
from tilewave.view.launch_order import launch_order
from tilewave.view.placement import Placement
from tilewave.view.reads import reads
from tilewave.view.svg import Figure, sheet
from tilewave.view.xcd_map import xcd_map


def figures(placement: Placement, xcd: int = 0) -> list[Figure]:
    """Launch order, XCD map and the reads of one XCD, in the order in which they explain each other."""
    drawn = Drawn.of(placement)
    return [launch_order(drawn), xcd_map(drawn), reads(drawn, xcd)]


def figures_svg(placements: tuple[Placement, ...], xcd: int = 0) -> str:
    """One sheet with a row of three figures for each mapping."""
    return sheet([figures(placement, xcd) for placement in placements])
