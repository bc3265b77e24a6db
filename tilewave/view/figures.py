"""The three figures of a placement, on one sheet."""

from __future__ import annotations

from tilewave.view.costs import costs
from tilewave.view.drawn import Drawn
from tilewave.view.group_map import group_map
from tilewave.view.launch_order import launch_order
from tilewave.view.placement import Placement
from tilewave.view.reads import reads
from tilewave.view.svg import Figure, sheet
from tilewave.view.xcd_map import xcd_map


def figures(placement: Placement, xcd: int = 0) -> list[Figure]:
    """Launch order, XCD map, and the reads of one XCD; or the groups of tiles, or their costs where these differ."""
    drawn = Drawn.of(placement)
    return [launch_order(drawn), xcd_map(drawn), _third(drawn, xcd)]


def _third(drawn: Drawn, xcd: int) -> Figure:
    placement = drawn.placement
    if placement.launch.groups is not None:
        return group_map(drawn, placement.launch.groups)
    return reads(drawn, xcd) if placement.work is None else costs(drawn, placement.work)


def figures_svg(placements: tuple[Placement, ...], xcd: int = 0) -> str:
    """One sheet with a row of three figures for each mapping."""
    return sheet([figures(placement, xcd) for placement in placements])
