"""The frame of every figure: tiles as squares, M down the left side, N along the top, and a legend below."""

from __future__ import annotations

from zlib import crc32

from tilewave.mapping import Grid
from tilewave.records import dataclass
from tilewave.view import palette
from tilewave.view.drawn import Drawn
from tilewave.view.svg import MARGIN, element, rect, text, width_of

NARROWEST = 440
"""A figure's minimum width, so that title, legend and caption have room next to the smallest grid."""

LOWEST = 64
"""A drawing's minimum height, so that the label of the M axis fits next to it."""

ROW_LABELS = 34
COLUMN_LABELS = 34
"""What the ticks and the name of an axis take."""

CELLS = ((8, 44.0), (12, 38.0), (20, 31.0), (32, 23.0), (48, 12.0), (64, 9.0), (96, 6.0), (128, 5.0))
SMALLEST_CELL = 4.0

ROWS, COLUMNS = "M (tile rows)", "N (tile columns)"

ON_TILE: dict[str, str] = {"fill": palette.LABEL, "class_": "label"}
"""How text on a coloured tile looks, by day and by night."""


@dataclass(frozen=True)
class Frame:
    """The position of a grid's tiles in a figure; `left` and `top` are the corner of tile (0, 0)."""

    grid: Grid
    cell: float
    left: float
    top: float
    every: int = 1
    """Tiles along the side of a cell."""

    @property
    def right(self) -> float:
        """The right edge of the last column."""
        return self.left + self.grid.cols * self.cell

    @property
    def bottom(self) -> float:
        """The lower edge of the last row, or of the space it would have had."""
        return self.top + max(self.grid.rows * self.cell, LOWEST)

    @property
    def gap(self) -> float:
        """The space between two tiles."""
        return 2.0 if self.cell >= 20 else 1.0 if self.cell >= 7 else 0.5

    def centre(self, row: int, col: int) -> tuple[float, float]:
        """The middle of a tile."""
        return self.left + (col + 0.5) * self.cell, self.top + (row + 0.5) * self.cell

    def tile(self, row: int, col: int, fill: str, **attributes: object) -> str:
        """The square of a tile."""
        x, y = self.left + col * self.cell, self.top + row * self.cell
        side, half = self.cell - self.gap, self.gap / 2
        rounding = {"rx": 3} if self.cell >= 20 else {}
        return rect(x + half, y + half, side, side, fill, **rounding, **attributes)


def frame(grid: Grid, every: int = 1) -> Frame:
    """A grid with its axes directly left of it and above it."""
    return Frame(grid, cell_for(grid), float(MARGIN + ROW_LABELS), float(COLUMN_LABELS), every)


def caption_for(drawn: Drawn) -> str:
    """What every caption begins with: mapping, grid, workgroups, XCDs."""
    return f"{drawn.placement.mapping} on {drawn.placement.launch}. {drawn.said}".strip()


def cell_for(grid: Grid) -> float:
    """The side of a tile, smaller on larger grids."""
    longest = max(grid.rows, grid.cols)
    return next((cell for most, cell in CELLS if longest <= most), SMALLEST_CELL)


def width_for(right: float) -> float:
    """A figure's width when its drawing ends at `right`."""
    return max(right + MARGIN, NARROWEST)


def fitting(digits: int, room: float, largest: float) -> float:
    """The size at which a number of so many digits fits into `room`; 0 where it would be too small to read."""
    size = min(largest, room / (digits * 0.62))
    return size if size >= 6.5 else 0.0


def row_axis(where: Frame, x: float, name: str) -> str:
    """Draw the numbers down the left side, and the axis' name next to them, reading upwards to the first row."""
    steps = _ticks(where.grid.rows, where.cell, 12)
    marks = [_tick(x - 6, where.centre(row, 0)[1] + 3.5, row * where.every, "end") for row in steps]
    at = f"translate({MARGIN - 4 + 10} {where.top}) rotate(-90)"
    return "".join(marks) + text(0, 0, name, 11, text_anchor="end", transform=at, fill=palette.SOFT_INK, class_="soft")


def column_axis(where: Frame, y: float, name: str) -> str:
    """Numbers along the top, and the axis' name above them, starting at the first column."""
    room = width_of(str(where.grid.cols * where.every - 1), 10) + 4
    steps = _ticks(where.grid.cols, where.cell, room)
    marks = [_tick(where.centre(0, col)[0], y - 6, col * where.every, "middle") for col in steps]
    return "".join(marks) + text(where.left, y - 21, name, 11, fill=palette.SOFT_INK, class_="soft")


def _tick(x: float, y: float, value: int, anchor: str) -> str:
    return text(x, y, str(value), 10, text_anchor=anchor, fill=palette.SOFT_INK, class_="soft")


def _ticks(count: int, cell: float, room: float) -> range:
    """Every line, or every 2nd, 5th, 10th …, so that each label has its room."""
    steps = (base * 10**power for power in range(6) for base in (1, 2, 5))
    return range(0, count, next(step for step in steps if step * cell >= room))


def pattern_id(xcd: int) -> str:
    """Return an id that depends only on the pattern, so that figures in one page may repeat the definition."""
    path = palette.pattern(xcd)
    return f"tilewave-{palette.fill(xcd)[1:]}-{crc32(path.encode()):08x}"


def paint(xcd: int) -> str:
    """What fills a tile of an XCD: its colour, or its colour under a pattern."""
    return f"url(#{pattern_id(xcd)})" if palette.pattern(xcd) else palette.fill(xcd)


def patterns(xcds: int) -> str:
    """The definitions that `paint` refers to."""
    return "".join(_pattern(xcd) for xcd in range(min(xcds, 36)) if palette.pattern(xcd))


def _pattern(xcd: int) -> str:
    line = element("path", d=palette.pattern(xcd), stroke=palette.LABEL, stroke_opacity=0.35, fill="none")
    square = rect(0, 0, 8, 8, palette.fill(xcd)) + line
    body = element("pattern", square, id=pattern_id(xcd), width=8, height=8, patternUnits="userSpaceOnUse")
    return element("defs", body)


@dataclass(frozen=True)
class Legend:
    """Swatches with words, in lines; `bottom` is where the next thing may begin."""

    markup: str
    bottom: float


def legend(entries: list[tuple[str, str]], left: float, top: float, width: float) -> Legend:
    """Draw a legend in columns, in as few lines as the width allows; an entry is (markup of a 14×14 swatch, words)."""
    step = max(width_of(words, 11) for _, words in entries) + 32
    fitting_in = max(1, int((width - MARGIN - left + 12) // step))
    lines = -(-len(entries) // fitting_in)
    per_line = -(-len(entries) // lines)
    parts = []
    for at, (swatch, words) in enumerate(entries):
        place = f"translate({left + at % per_line * step:.0f} {top + at // per_line * 20:.0f})"
        parts.append(element("g", swatch + text(20, 11, words, 11), transform=place))
    return Legend("".join(parts), top + lines * 20 + 2)


def swatch(fill: str, **attributes: object) -> str:
    """A square for a legend."""
    return rect(0, 0, 14, 14, fill, rx=3, **attributes)
