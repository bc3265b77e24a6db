"""The figure of the XCDs: every tile in the colour of the XCD that computes it."""

from __future__ import annotations

from collections.abc import Iterator

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
from tilewave.view.drawn import Drawn
from tilewave.view.placement import PicturedLaunch
from tilewave.view.svg import Figure, text


def xcd_map(drawn: Drawn) -> Figure:
    """Every tile in the colour of its XCD, with the workgroup and the XCD as numbers where they fit."""
    launch = drawn.placement.launch
    where = frame(drawn.grid, drawn.coarse.every)
    width = width_for(where.right)
    entries = [(swatch(paint(xcd)), f"XCD {xcd}") for xcd in range(launch.xcds)]
    below = legend(entries, where.left, where.bottom + 16, width)
    body = [
        patterns(launch.xcds),
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *_tiles(drawn, where),
        below.markup,
    ]
    caption = f"{caption_for(drawn)} The hardware deals workgroup w to XCD w % {launch.xcds}. {_shown(where, launch)}"
    return Figure("xcds", "XCD map", caption.strip(), width, below.bottom, "\n".join(body))


def _shown(where: Frame, launch: PicturedLaunch) -> str:
    if _workgroup_size(where, launch):
        return "Large: the workgroup; small: its XCD."
    return "The number is the XCD." if _xcd_size(where, launch) else ""


def _workgroup_size(where: Frame, launch: PicturedLaunch) -> float:
    """0 where a tile is too small for two numbers."""
    return fitting(len(str(launch.launched - 1)), where.cell - 10, 14) if where.cell >= 30 else 0.0


def _xcd_size(where: Frame, launch: PicturedLaunch) -> float:
    """Return the font size of the XCD numbers; 0 where a tile is too small for them."""
    return fitting(len(str(launch.xcds - 1)), where.cell - 4, 11) if where.cell >= 12 else 0.0


def _tiles(drawn: Drawn, where: Frame) -> Iterator[str]:
    launch, workgroups = drawn.placement.launch, drawn.workgroups.tolist()
    for at, (row, col) in enumerate(drawn.cells.tolist()):
        square = where.tile(row, col, paint(workgroups[at] % launch.xcds), class_="tile", data_turn=at)
        yield square + _numbers(launch, where, where.centre(row, col), workgroups[at], at)


def _numbers(launch: PicturedLaunch, where: Frame, centre: tuple[float, float], workgroup: int, at: int) -> str:
    x, y = centre
    style = {"data_label": at, **ON_TILE}
    xcd = str(workgroup % launch.xcds)
    size = _workgroup_size(where, launch)
    if size:
        corner = where.cell / 2 - 4
        small = text(x + corner, y + corner, xcd, min(9.0, where.cell / 4), text_anchor="end", **style)
        return text(x, y + size * 0.2, str(workgroup), size, text_anchor="middle", **style) + small
    size = _xcd_size(where, launch)
    return text(x, y + size * 0.35, xcd, size, text_anchor="middle", **style) if size else ""
