"""The figure of the groups: every tile of a ragged grid in the colour of its group, and those without rows pale."""

from __future__ import annotations

from collections.abc import Iterator

from tilewave.view import palette
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
from tilewave.view.groups import PicturedGroups
from tilewave.view.svg import Figure, text

MOST_ENTRIES = 16
"""Groups in the legend: more are numbers on their tiles alone."""


def group_map(drawn: Drawn, groups: PicturedGroups) -> Figure:
    """Every tile in the colour of its group, with its number where that fits."""
    where = frame(drawn.grid, drawn.coarse.every)
    width = width_for(where.right)
    below = legend(_entries(groups), where.left, where.bottom + 16, width)
    body = [
        patterns(len(groups.ends)),
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *_tiles(drawn, groups, where),
        below.markup,
    ]
    caption = f"{caption_for(drawn)} {_shown(groups, where)}"
    return Figure("groups", "Groups of rows", caption, width, below.bottom, "\n".join(body))


def _shown(groups: PicturedGroups, where: Frame) -> str:
    numbers = "The number is the group. " if _size(groups, where) else ""
    return f"{numbers}Tiles without a colour have no rows, and do nothing."


def _entries(groups: PicturedGroups) -> list[tuple[str, str]]:
    known = [(swatch(paint(g)), f"group {g}: {count:,} rows") for g, count in enumerate(groups.counts[:MOST_ENTRIES])]
    return [*known, (swatch(palette.EMPTY, class_="empty"), "no rows")]


def _size(groups: PicturedGroups, where: Frame) -> float:
    """The font size of the numbers; 0 where tiles are too small for them."""
    return fitting(len(str(len(groups.ends) - 1)), where.cell - 4, 11) if where.cell >= 12 else 0.0


def _tiles(drawn: Drawn, groups: PicturedGroups, where: Frame) -> Iterator[str]:
    found, size = groups.of_rows()[:: drawn.coarse.every].tolist(), _size(groups, where)
    for at, (row, col) in enumerate(drawn.cells.tolist()):
        group = found[row]
        if group < 0:
            yield where.tile(row, col, palette.EMPTY, class_="tile empty", data_turn=at)
            continue
        x, y = where.centre(row, col)
        style = {"text_anchor": "middle", "data_label": at, **ON_TILE}
        square = where.tile(row, col, paint(group), class_="tile", data_turn=at)
        yield square + (text(x, y + size * 0.35, str(group), size, **style) if size else "")
