"""The figure of the launch order: which workgroup comes when, and the path from tile to tile."""

from __future__ import annotations

from itertools import pairwise
from math import hypot

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
from tilewave.view.placement import Placement
from tilewave.view.svg import Figure, element, number, rect, text

LONGEST_STEP = 2.5
"""Tiles per step, on average, up to which one path through all tiles can still be followed by eye."""


def launch_order(placement: Placement) -> Figure:
    """Every tile with its workgroup, lighter where it is launched earlier, and the path through them."""
    where = frame(placement.launch.grid)
    walks = _walks(placement)
    width = width_for(where.right)
    below = _legend(where, width, walks)
    body = [
        row_axis(where, where.left, ROWS),
        column_axis(where, where.top, COLUMNS),
        *_tiles(placement, where),
        *(_path(where, placement, turns) for turns in walks),
        *_numbers(placement, where),
        below.markup,
    ]
    shown = "Each tile shows its workgroup. " if _number_size(placement, where) else ""
    lines = "The line joins" if len(walks) == 1 else "One line for each XCD joins its"
    caption = f"{caption_for(placement)} {shown}{lines} tiles in launch order, from dot to arrow."
    return Figure("order", "Launch order", caption, width, below.bottom, "\n".join(body))


def _tiles(placement: Placement, where: Frame) -> list[str]:
    return [
        where.tile(row, col, _shade(placement, turn), class_="tile", data_turn=turn)
        for turn, (row, col) in enumerate(placement.tiles.tolist())
    ]


def _shade(placement: Placement, turn: int) -> str:
    return palette.between(turn / max(placement.launch.grid.size - 1, 1))


def _number_size(placement: Placement, where: Frame) -> float:
    """0 where a tile is too small for a number beside the path."""
    return (
        fitting(len(str(placement.launch.launched - 1)), where.cell - 8, where.cell * 0.28) if where.cell >= 30 else 0.0
    )


def _numbers(placement: Placement, where: Frame) -> list[str]:
    """In the upper left corners, off the middles that the path goes through."""
    size = _number_size(placement, where)
    if not size:
        return []
    parts = []
    for turn, (row, col) in enumerate(placement.tiles.tolist()):
        x, y = (middle - where.cell / 2 + 4 for middle in where.centre(row, col))
        words = str(turn % placement.launch.launched)
        halo = {"stroke": _shade(placement, turn), "stroke_width": 3, "paint_order": "stroke"}
        parts.append(text(x, y + size * 0.8, words, size, data_label=turn, **halo, **ON_TILE))
    return parts


def _walks(placement: Placement) -> list[list[int]]:
    """One path through all tiles where it can be followed by eye, else one for each XCD."""
    tiles = placement.tiles.tolist()
    steps = [hypot(a[0] - b[0], a[1] - b[1]) for a, b in pairwise(tiles)]
    if not steps or sum(steps) / len(steps) <= LONGEST_STEP:
        return [list(range(len(tiles)))]
    launch = placement.launch
    walks: list[list[int]] = [[] for _ in range(launch.xcds)]
    for turn in range(len(tiles)):
        walks[turn % launch.launched % launch.xcds].append(turn)
    return [walk for walk in walks if walk]


def _path(where: Frame, placement: Placement, turns: list[int]) -> str:
    points = [where.centre(*placement.tiles[turn].tolist()) for turn in turns]
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
        data_turns=" ".join(map(str, turns)),
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


def _legend(where: Frame, width: float, walks: list[list[int]]) -> Legend:
    shades = "".join(rect(at * 3.5, 0, 3.5, 14, palette.between(at / 3)) for at in range(4))
    line = element("path", d="M0 7H14", stroke=palette.PATH, stroke_width=2, class_="key")
    words = "path of the launch" if len(walks) == 1 else "path of each XCD"
    return legend([(shades, "launched first to last"), (line, words)], where.left, where.bottom + 16, width)
