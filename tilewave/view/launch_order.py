"""The figure of the launch order: which workgroup comes when, and the path from tile to tile."""

from __future__ import annotations

from itertools import pairwise
from math import hypot

import numpy as np

from tilewave.view import palette
from tilewave.view.axes import (
    COLUMNS,
    ON_TILE,
    ROWS,
    Frame,
    Legend,
    caption_for,
    column_axis,
    fitting,
    frame,
    legend,
    row_axis,
    width_for,
)
from tilewave.view.drawn import Drawn
from tilewave.view.svg import Figure, element, number, rect, text

LONGEST_STEP = 2.5
"""Tiles per step, on average, up to which one path through all tiles can still be followed by eye."""

FINEST_PATH, CROWDED = 9.0, 20.0
"""Sides of tiles below which no path is drawn, and below which of several only the first is."""

ROUNDS = "Lines separate the waves of workgroups."


def launch_order(drawn: Drawn) -> Figure:
    """Every tile with its workgroup, lighter where it is launched earlier, and the path through them."""
    where = frame(drawn.grid, drawn.coarse.every)
    walks = _walks(drawn) if where.cell >= FINEST_PATH else []
    shown, edges = walks[: 1 if where.cell < CROWDED else None], _edges(drawn, where)
    width = width_for(where.right)
    below = _legend(where, width, len(walks), bool(edges))
    body = [
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *_tiles(drawn, where),
        *([edges] if edges else []),
        *(_path(where, drawn, cells) for cells in shown),
        *_numbers(drawn, where),
        below.markup,
    ]
    caption = f"{caption_for(drawn)} {_shown(drawn, where, len(walks), len(shown))}{ROUNDS if edges else ''}"
    return Figure("order", "Launch order", caption.strip(), width, below.bottom, "\n".join(body))


def _shown(drawn: Drawn, where: Frame, walks: int, shown: int) -> str:
    numbers = "Each tile shows its workgroup. " if _number_size(drawn, where) else ""
    if not shown:
        return "Tiles are too small for a line that joins them. "
    lines = (
        "The line joins" if walks == 1 else "One line for each XCD joins its" if shown > 1 else "The line joins XCD 0's"
    )
    return f"{numbers}{lines} tiles in launch order, from dot to arrow. "


def _edges(drawn: Drawn, where: Frame) -> str:
    """Draw lines between tiles of different waves of workgroups; none where the waves are too scattered."""
    rounds = drawn.table(drawn.rounds)
    below, beside = np.argwhere(rounds[1:] != rounds[:-1]), np.argwhere(rounds[:, 1:] != rounds[:, :-1])
    if not 0 < len(below) + len(beside) <= rounds.size / 2:
        return ""
    side, left, top = where.cell, where.left, where.top
    marks = [f"M{number(left + c * side)} {number(top + (r + 1) * side)}h{number(side)}" for r, c in below.tolist()]
    marks += [f"M{number(left + (c + 1) * side)} {number(top + r * side)}v{number(side)}" for r, c in beside.tolist()]
    thick = 2 if where.cell >= 9 else 1
    return element("path", d="".join(marks), stroke=palette.INK, stroke_width=thick, fill="none", class_="round")


def _tiles(drawn: Drawn, where: Frame) -> list[str]:
    return [
        where.tile(row, col, _shade(drawn, at), class_="tile", data_turn=at)
        for at, (row, col) in enumerate(drawn.cells.tolist())
    ]


def _shade(drawn: Drawn, at: int) -> str:
    return palette.between(at / max(len(drawn.cells) - 1, 1))


def _number_size(drawn: Drawn, where: Frame) -> float:
    """Return the font size of a tile's number; 0 where a tile is too small for a number next to the path."""
    digits = len(str(drawn.placement.launch.launched - 1))
    return fitting(digits, where.cell - 8, where.cell * 0.28) if where.cell >= 30 else 0.0


def _numbers(drawn: Drawn, where: Frame) -> list[str]:
    """In the upper left corners, off the middles that the path goes through."""
    size = _number_size(drawn, where)
    if not size:
        return []
    parts, workgroups = [], drawn.workgroups.tolist()
    for at, (row, col) in enumerate(drawn.cells.tolist()):
        x, y = (middle - where.cell / 2 + 4 for middle in where.centre(row, col))
        halo = {"stroke": _shade(drawn, at), "stroke_width": 3, "paint_order": "stroke"}
        parts.append(text(x, y + size * 0.8, str(workgroups[at]), size, data_label=at, **halo, **ON_TILE))
    return parts


def _walks(drawn: Drawn) -> list[list[int]]:
    """One path through all tiles where it can be followed by eye, else one for each XCD."""
    cells = drawn.cells.tolist()
    steps = [hypot(a[0] - b[0], a[1] - b[1]) for a, b in pairwise(cells)]
    if not steps or sum(steps) / len(steps) <= LONGEST_STEP:
        return [list(range(len(cells)))]
    walks: list[list[int]] = [[] for _ in range(drawn.placement.launch.xcds)]
    for at, xcd in enumerate(drawn.xcds.tolist()):
        walks[xcd].append(at)
    return [walk for walk in walks if walk]


def _path(where: Frame, drawn: Drawn, cells: list[int]) -> str:
    points = [where.centre(*drawn.cells[at].tolist()) for at in cells]
    thin = max(0.8, min(2.0, where.cell / 16))
    line = element(
        "polyline",
        points=" ".join(f"{number(x)},{number(y)}" for x, y in points),
        fill="none",
        stroke=palette.PATH,
        stroke_width=thin,
        stroke_opacity=0.75 if where.cell >= 30 else 0.55,
        stroke_linejoin="round",
        class_="path",
        data_turns=" ".join(map(str, cells)),
    )
    x, y = points[0]
    dot = element("circle", cx=x, cy=y, r=thin * 1.8, fill=palette.PATH)
    return line + dot + _head(points, min(thin * 4, where.cell * 0.3))


def _head(points: list[tuple[float, float]], size: float) -> str:
    """An arrow's head at the end of a path, pointing along its last step."""
    if len(points) < 2:
        return ""
    (x0, y0), (x, y) = points[-2:]
    length = hypot(x - x0, y - y0)
    dx, dy = (x - x0) / length * size, (y - y0) / length * size
    corners = ((x + dx, y + dy), (x - dy * 0.7, y + dx * 0.7), (x + dy * 0.7, y - dx * 0.7))
    spelled = " ".join(f"{number(a)},{number(b)}" for a, b in corners)
    return element("polygon", points=spelled, fill=palette.PATH, class_="head")


def _legend(where: Frame, width: float, walks: int, has_edges: bool) -> Legend:
    shades = "".join(rect(at * 3.5, 0, 3.5, 14, palette.between(at / 3)) for at in range(4))
    entries = [(shades, "launched first to last")]
    if walks:
        words = "path of the launch" if walks == 1 else "path of each XCD" if where.cell >= CROWDED else "path of XCD 0"
        entries.append((element("path", d="M0 7H14", stroke=palette.PATH, stroke_width=2, class_="key"), words))
    if has_edges:
        line = element("path", d="M0 7H14", stroke=palette.INK, stroke_width=2, class_="round")
        entries.append((line, "between waves"))
    return legend(entries, where.left, where.bottom + 16, width)
