"""The figure of the reads: the tiles of C that one XCD computes, and the blocks of A and B that it reads for them."""

from __future__ import annotations

from tilewave.mapping import MappingError, XcdReads
from tilewave.records import dataclass
from tilewave.view import palette
from tilewave.view.axes import (
    COLUMN_LABELS,
    COLUMNS,
    ON_TILE,
    ROW_LABELS,
    ROWS,
    Frame,
    caption_for,
    cell_for,
    column_axis,
    fitting,
    legend,
    paint,
    patterns,
    row_axis,
    swatch,
    width_for,
)
from tilewave.view.drawn import Drawn
from tilewave.view.placement import Placement, counted
from tilewave.view.svg import MARGIN, Figure, element, rect, text

MOST_K_BLOCKS = 8
"""Blocks along K that are drawn; a longer K looks the same."""

BLOCK = 18.0
"""The side of a block along K, or more where there are few blocks, because the axis' name needs room."""

SHORTEST_K = 76.0

SUM = 26.0
"""The height of the line with the sum."""

GAP = 24.0
"""Space between C and the matrices left of and above it, which contains their names."""


@dataclass(frozen=True)
class _Look:
    """How a tile or block is drawn: its class, its fill, and the text on it."""

    name: str
    fill: str
    label: dict[str, str]


OTHER = _Look("empty", palette.EMPTY, {"fill": palette.SOFT_INK, "class_": "soft"})


def _look_of(xcd: int) -> _Look:
    return _Look("used", paint(xcd), ON_TILE)


def reads(drawn: Drawn, xcd: int = 0) -> Figure:
    """C with the tiles of one XCD, A to the left of it and B above it with the blocks that these tiles need."""
    placement, launch = drawn.placement, drawn.placement.launch
    if not 0 <= xcd < launch.xcds:
        raise MappingError(f"there is no XCD {xcd}; the launch has {counted(launch.xcds, 'XCD')}, from 0")
    deep = max(min(launch.k_blocks, MOST_K_BLOCKS) * BLOCK, SHORTEST_K)
    corner = MARGIN + ROW_LABELS + deep + GAP, SUM + COLUMN_LABELS + deep + GAP
    where = Frame(drawn.grid, cell_for(drawn.grid), *corner, drawn.coarse.every)
    width = width_for(where.right)
    below = legend(_entries(xcd), MARGIN + ROW_LABELS, where.bottom + 16, width)
    body = [
        patterns(launch.xcds),
        text(MARGIN, 7, sum_of(placement.locality.xcds[xcd]), 13, class_="ink sum"),
        row_axis(where, where.left - GAP - deep, ROWS),
        column_axis(where, where.top - GAP - deep, COLUMNS),
        *_rows_of_a(drawn, where, xcd, deep),
        *_columns_of_b(drawn, where, xcd, deep),
        *_tiles_of_c(drawn, where, xcd),
        _names(where, deep),
        below.markup,
    ]
    caption = f"{caption_for(drawn)} {_depth(launch.k_blocks)}"
    return Figure("reads", title(xcd), caption, width, below.bottom, "\n".join(body))


def title(xcd: int) -> str:
    """The figure's title."""
    return f"Blocks of A and B that XCD {xcd} reads"


def sum_of(one: XcdReads) -> str:
    """What an XCD reads and for what, in one line."""
    a, b = counted(one.a_blocks, "block"), one.b_blocks
    return f"{a} of A + {b} of B = {one.blocks} for {counted(one.whole.tiles, 'tile')} of C"


def _entries(xcd: int) -> list[tuple[str, str]]:
    return [
        (swatch(paint(xcd), class_="used"), "its tiles and blocks"),
        (swatch(palette.EMPTY, class_="empty"), "others"),
    ]


def _depth(k_blocks: int) -> str:
    words = "Rows of A and columns of B are what the coloured tiles of C need."
    if k_blocks <= MOST_K_BLOCKS:
        return f"{words} K is {counted(k_blocks, 'block')} deep."
    return f"{words} K is {k_blocks} blocks deep, of which {MOST_K_BLOCKS} are drawn."


def _rows_of_a(drawn: Drawn, where: Frame, xcd: int, deep: float) -> list[str]:
    read = {*drawn.read_by(xcd)[0]}
    left, side = where.left - GAP - deep, where.cell - where.gap
    parts, mine = [], _look_of(xcd)
    for row in range(where.grid.rows):
        y = where.top + row * where.cell + where.gap / 2
        look = mine if row in read else OTHER
        parts.append(rect(left, y, deep, side, look.fill, class_=look.name, data_row=row))
    height = where.grid.rows * where.cell
    return parts + [_cut(left + at, where.top, 0, height) for at in _cuts(drawn.placement, deep)]


def _columns_of_b(drawn: Drawn, where: Frame, xcd: int, deep: float) -> list[str]:
    read = {*drawn.read_by(xcd)[1]}
    top, side = where.top - GAP - deep, where.cell - where.gap
    parts, mine = [], _look_of(xcd)
    for col in range(where.grid.cols):
        x = where.left + col * where.cell + where.gap / 2
        look = mine if col in read else OTHER
        parts.append(rect(x, top, side, deep, look.fill, class_=look.name, data_col=col))
    width = where.grid.cols * where.cell
    return parts + [_cut(where.left, top + at, width, 0) for at in _cuts(drawn.placement, deep)]


def _tiles_of_c(drawn: Drawn, where: Frame, xcd: int) -> list[str]:
    size = fitting(len(str(drawn.placement.launch.launched - 1)), where.cell - 9, 13)
    parts, mine, owners, workgroups = [], _look_of(xcd), drawn.xcds.tolist(), drawn.workgroups.tolist()
    for at, (row, col) in enumerate(drawn.cells.tolist()):
        look = mine if owners[at] == xcd else OTHER
        parts.append(where.tile(row, col, look.fill, class_=f"tile {look.name}", data_turn=at))
        if size:
            x, y = where.centre(row, col)
            words = str(workgroups[at])
            parts.append(text(x, y + size * 0.35, words, size, text_anchor="middle", data_label=at, **look.label))
    return parts


def _cuts(placement: Placement, deep: float) -> list[float]:
    blocks = min(placement.launch.k_blocks, MOST_K_BLOCKS)
    return [at * deep / blocks for at in range(1, blocks)]


def _cut(x: float, y: float, dx: float, dy: float) -> str:
    """The line between two blocks along K."""
    way = f"M{x:.1f} {y:.1f}h{dx:.1f}" if dx else f"M{x:.1f} {y:.1f}v{dy:.1f}"
    return element("path", d=way, stroke=palette.PAPER, stroke_width=2, class_="cut")


def _names(where: Frame, deep: float) -> str:
    """A, B and C, each at the upper left corner of its matrix, with K where it runs."""
    a = text(where.left - GAP - deep, where.top - 7, "A", 13, font_weight="600")
    b = text(where.left - 8, where.top - GAP - deep + 11, "B", 13, font_weight="600", text_anchor="end")
    c = text(where.left, where.top - 7, "C", 13, font_weight="600")
    soft = {"fill": palette.SOFT_INK, "class_": "soft"}
    along_a = text(where.left - GAP - deep + 14, where.top - 7, "K (blocks)", 11, **soft)
    place = f"translate({where.left - 10:.1f} {where.top - GAP - deep + 20:.1f}) rotate(-90)"
    along_b = text(0, 0, "K (blocks)", 11, text_anchor="end", transform=place, **soft)
    return a + b + c + along_a + along_b
