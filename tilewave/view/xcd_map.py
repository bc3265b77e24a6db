"""The figure of the XCDs: every tile in the colour of the XCD that computes it."""

from __future__ import annotations

from tilewave.view.axes import (
    COLUMNS,
    ON_TILE,
    ROWS,
    Frame,
    caption_for,
    column_axis,
    fitting,
    frame,
    legend,
    paint,
    patterns,
    row_axis,
    swatch,
    width_for,
)
from tilewave.view.placement import PicturedLaunch, Placement
from tilewave.view.svg import Figure, text


def xcd_map(placement: Placement) -> Figure:
    """Every tile in the colour of its XCD, with the workgroup and the XCD as numbers where they fit."""
    launch = placement.launch
    where = frame(launch.grid)
    width = width_for(where.right)
    entries = [(swatch(paint(xcd)), f"XCD {xcd}") for xcd in range(launch.xcds)]
    below = legend(entries, where.left, where.bottom + 16, width)
    body = [
        patterns(launch.xcds),
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *(_tile(placement, where, turn) for turn in range(launch.grid.size)),
        below.markup,
    ]
    caption = (
        f"{caption_for(placement)} The hardware deals workgroup w to XCD w % {launch.xcds}. {_shown(where, launch)}"
    )
    return Figure("xcds", "XCD map", caption.strip(), width, below.bottom, "\n".join(body))


def _shown(where: Frame, launch: PicturedLaunch) -> str:
    if _workgroup_size(where, launch):
        return "Large: the workgroup; small: its XCD."
    return "The number is the XCD." if _xcd_size(where, launch) else ""


def _workgroup_size(where: Frame, launch: PicturedLaunch) -> float:
    """0 where a tile is too small for two numbers."""
    return fitting(len(str(launch.launched - 1)), where.cell - 10, 14) if where.cell >= 30 else 0.0


def _xcd_size(where: Frame, launch: PicturedLaunch) -> float:
    return fitting(len(str(launch.xcds - 1)), where.cell - 4, 11)


def _tile(placement: Placement, where: Frame, turn: int) -> str:
    row, col = placement.tiles[turn].tolist()
    xcd = turn % placement.launch.launched % placement.launch.xcds
    square = where.tile(row, col, paint(xcd), class_="tile", data_turn=turn)
    return square + _numbers(placement.launch, where, where.centre(row, col), turn)


def _numbers(launch: PicturedLaunch, where: Frame, centre: tuple[float, float], turn: int) -> str:
    x, y = centre
    style = {"data_label": turn, **ON_TILE}
    workgroup = turn % launch.launched
    xcd = str(workgroup % launch.xcds)
    size = _workgroup_size(where, launch)
    if size:
        corner = where.cell / 2 - 4
        small = text(x + corner, y + corner, xcd, min(9.0, where.cell / 4), text_anchor="end", **style)
        return text(x, y + size * 0.2, str(workgroup), size, text_anchor="middle", **style) + small
    size = _xcd_size(where, launch)
    return text(x, y + size * 0.35, xcd, size, text_anchor="middle", **style) if size else ""
