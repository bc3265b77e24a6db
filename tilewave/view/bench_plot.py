"""Ratios of a benchmark as bars: a group for each shape, a bar for each contestant, a line for the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewave.records import dataclass
from tilewave.view import palette
from tilewave.view.axes import legend, paint, patterns, swatch
from tilewave.view.scales import round_up
from tilewave.view.svg import MARGIN, Figure, element, escaped, rect, text, width_of

AXIS, HIGH, BAR, BETWEEN = 58.0, 220.0, 26.0, 26.0
ROOM_ABOVE = 14.0
NARROWEST = 560.0
TICKS = 5


@dataclass(frozen=True)
class Bar:
    """How many times as fast as the baseline a contestant is on a shape; `spread` to either side."""

    shape: str
    contestant: str
    ratio: float
    spread: float


@dataclass(frozen=True)
class Scale:
    """Ratios from `low`, at the bottom of the drawing, to `high`, at its top."""

    low: float
    high: float
    step: float

    @staticmethod
    def of(bars: Sequence[Bar]) -> Scale:
        """Round limits that hold every bar and 1; bars that differ by a percent must look different."""
        least = min([1.0, *(bar.ratio - bar.spread for bar in bars)])
        most = max([1.0, *(bar.ratio + bar.spread for bar in bars)])
        step = round_up((most - least) / TICKS or 0.01)
        return Scale(max(0.0, (math.ceil(least / step) - 2) * step), (math.floor(most / step) + 1) * step, step)

    def y(self, ratio: float) -> float:
        return ROOM_ABOVE + HIGH * (self.high - ratio) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [self.low + at * self.step for at in range(round((self.high - self.low) / self.step) + 1)]


def bench_plot(bars: Sequence[Bar], caption: str) -> str:
    """Return the plot as a standalone SVG."""
    return plot(bars, caption).svg()


def plot(bars: Sequence[Bar], caption: str) -> Figure:
    """Bars begin at the axis' lowest ratio, seldom 0, so that a percent shows; the number above each is its ratio."""
    title = "Speed compared with cuBLAS"
    if not bars:
        return Figure("bench", title, f"Nothing was compared. {caption}", NARROWEST, 0.0, "")
    scale = Scale.of(bars)
    shapes = list(dict.fromkeys(bar.shape for bar in bars))
    names = list(dict.fromkeys(bar.contestant for bar in bars))
    group = max(BAR * len(names), *(width_of(shape, 10) for shape in shapes)) + BETWEEN
    width = max(NARROWEST, AXIS + group * len(shapes) + MARGIN)
    parts = [patterns(len(names)), *_ratio_axis(scale, width)]
    for at, shape in enumerate(shapes):
        parts.append(_soft(AXIS + group * (at + 0.5), ROOM_ABOVE + HIGH + 16, shape, "middle"))
    places = {bar: _left(bar, shapes, names, group) for bar in bars}
    parts += [_bar(bar, x, scale, paint(names.index(bar.contestant))) for bar, x in places.items()]
    parts.append(_line(scale, width))
    parts += [_number(bar, x, scale) for bar, x in places.items()]
    key = legend([(swatch(paint(at)), name) for at, name in enumerate(names)], AXIS, ROOM_ABOVE + HIGH + 30, width)
    if scale.low:
        caption = f"{caption} The axis begins at {scale.low:g}, not at 0."
    return Figure("bench", title, caption, width, key.bottom, "".join([*parts, key.markup]))


def _left(bar: Bar, shapes: Sequence[str], names: Sequence[str], group: float) -> float:
    middle = AXIS + group * (shapes.index(bar.shape) + 0.5)
    return middle + BAR * (names.index(bar.contestant) - len(names) / 2)


def _bar(bar: Bar, x: float, scale: Scale, fill: str) -> str:
    top, bottom = scale.y(bar.ratio), scale.y(scale.low)
    box = rect(x + 1, top, BAR - 2, bottom - top, fill, stroke=palette.LABEL, stroke_width=0.5)
    up, down = scale.y(bar.ratio + bar.spread), scale.y(bar.ratio - bar.spread)
    whisker = rect(x + BAR / 2 - 0.5, up, 1, down - up, palette.LABEL, class_="whisker")
    return element("g", element("title", _said(bar)) + box + whisker, class_="bar")


def _number(bar: Bar, x: float, scale: Scale) -> str:
    """Above the bar, with a rim that keeps it legible where a line runs through."""
    rim = {"stroke": palette.PAPER, "stroke_width": 2, "paint_order": "stroke"}
    y = scale.y(bar.ratio + bar.spread) - 3
    return text(x + BAR / 2, y, f"{bar.ratio:.3f}", 8.5, text_anchor="middle", **rim)


def _said(bar: Bar) -> str:
    return escaped(f"{bar.shape}, {bar.contestant}: {bar.ratio:.3f} ± {bar.spread:.3f}")


def _ratio_axis(scale: Scale, width: float) -> list[str]:
    digits = max(1, -math.floor(math.log10(scale.step) + 1e-9))
    marks = []
    for tick in scale.ticks:
        y = scale.y(tick)
        marks.append(rect(AXIS, y, width - AXIS - MARGIN, 0.5, palette.EMPTY, class_="empty"))
        marks.append(_soft(AXIS - 6, y + 4, f"{tick:.{digits}f}", "end"))
    at = f"translate({MARGIN + 2} {ROOM_ABOVE}) rotate(-90)"
    name = "speed, × cuBLAS"
    soft = {"fill": palette.SOFT_INK, "class_": "soft"}
    return [*marks, text(0, 0, name, 11, text_anchor="end", transform=at, **soft)]


def _line(scale: Scale, width: float) -> str:
    """Draw the baseline at 1.0, which is cuBLAS."""
    return rect(AXIS, scale.y(1.0) - 0.5, width - AXIS - MARGIN, 1, palette.PATH, class_="baseline")


def _soft(x: float, y: float, words: str, anchor: str) -> str:
    return text(x, y, words, 10, text_anchor=anchor, fill=palette.SOFT_INK, class_="soft")
