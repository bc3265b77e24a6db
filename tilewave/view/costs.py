"""The figure of the costs: every tile with the number of key blocks that it visits, darker where there are more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewave.mapping import Balance
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
    row_axis,
    width_for,
)
from tilewave.view.drawn import Drawn
from tilewave.view.placement import Work, counted
from tilewave.view.svg import MARGIN, Figure, rect, text

SUM = 26.0
"""The height of the line that says when the units are done."""


def costs(drawn: Drawn, work: Work) -> Figure:
    """Every tile with its cost, and when the units are done with all of them."""
    plain = frame(drawn.grid, drawn.coarse.every)
    where = replace(plain, top=plain.top + SUM)
    width = width_for(where.right)
    shades = "".join(rect(at * 3.5, 0, 3.5, 14, palette.between(at / 3)) for at in range(4))
    below = legend([(shades, "few blocks of keys to many")], where.left, where.bottom + 16, width)
    body = [
        text(MARGIN, 7, done(work.balance), 13, class_="ink sum"),
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *_tiles(drawn, work, where),
        below.markup,
    ]
    caption = f"{caption_for(drawn)} Each tile shows the blocks of keys that it iterates over."
    return Figure("costs", "Cost of each tile", caption, width, below.bottom, "\n".join(body))


def done(balance: Balance) -> str:
    """When the units are done, in one line."""
    units = counted(balance.units, "unit")
    return f"{units} done after {balance.ends} blocks ({balance.soonest} at best), {balance.busy:.0%} busy"


def _tiles(drawn: Drawn, work: Work, where: Frame) -> Iterator[str]:
    most, found = int(work.costs.max()), drawn.coarse.corners(work.costs)
    size = fitting(len(str(most)), where.cell - 9, 13)
    for at, (row, col) in enumerate(drawn.cells.tolist()):
        cost = int(found[row, col])
        square = where.tile(row, col, palette.between(cost / most), class_="tile", data_turn=at)
        x, y = where.centre(row, col)
        style = {"text_anchor": "middle", "data_label": at, **ON_TILE}
        yield square + (text(x, y + size * 0.35, str(cost), size, **style) if size else "")
