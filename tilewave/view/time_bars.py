"""Predicted time as stacked bars: a bar for each launch, its parts along an axis of microseconds."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.sim.explain import WORDS, duration
from tilewave.sim.report import Report
from tilewave.sim.time import PARTS
from tilewave.view import palette
from tilewave.view.axes import fitting, legend, paint, patterns, swatch
from tilewave.view.scales import ticks
from tilewave.view.svg import MARGIN, Figure, element, escaped, rect, text, width_of

WIDE, BAR, BETWEEN, ROOM_ABOVE = 520.0, 34.0, 30.0, 4.0
TICKS = 6
TOGETHER = "\N{NO-BREAK SPACE}"
PAINTS = {name: at for at, name in enumerate(PARTS)}
SOFT: dict[str, object] = {"fill": palette.SOFT_INK, "class_": "soft"}


def time_bars(reports: Sequence[Report]) -> Figure:
    """Longest parts are not sorted: the same part has the same place in every bar, so that bars can be compared."""
    steps = ticks(1e6 * max(r.seconds * (1 + r.seconds_error) for r in reports), TICKS)
    scale = WIDE / steps[-1]
    bottom = ROOM_ABOVE + len(reports) * (BAR + BETWEEN)
    parts = [patterns(len(PARTS)), *_axis(steps, scale, bottom)]
    for at, report in enumerate(reports):
        parts += _bar(report, ROOM_ABOVE + at * (BAR + BETWEEN), scale)
    shown = [name for name in PARTS if any(_microseconds(r, name) * scale >= 0.5 for r in reports)]
    key = legend([(swatch(paint(PAINTS[name])), name) for name in shown], MARGIN, bottom + 34, 2 * MARGIN + WIDE)
    first = reports[0]
    caption = (
        f"{first.problem} on {first.machine}. The line below the end of a bar is one standard deviation of the "
        f"prediction, ±{TOGETHER}{100 * first.seconds_error:.0f}{TOGETHER}%."
    )
    return Figure("time", "Predicted time", caption, 2 * MARGIN + WIDE + 60, key.bottom, "".join([*parts, key.markup]))


def _microseconds(report: Report, name: str) -> float:
    return 1e6 * sum(part.seconds for part in report.breakdown if part.name == name)


def _axis(steps: list[float], scale: float, bottom: float) -> list[str]:
    marks = []
    for step in steps:
        x = MARGIN + step * scale
        marks.append(rect(x, 0, 0.5, bottom, palette.EMPTY, class_="empty"))
        marks.append(text(x, bottom + 14, f"{step:,.10g}", 10, text_anchor="middle", **SOFT))
    return [*marks, text(MARGIN + WIDE + 28, bottom + 14, "µs", 11, **SOFT)]


def _bar(report: Report, y: float, scale: float) -> list[str]:
    words = f"{report.mapping}: {duration(report.seconds)}, {report.tflops:.0f} TFLOP/s"
    drawn, left, top = [text(MARGIN, y + 12, words, 12)], float(MARGIN), y + 18
    for name in PARTS:
        wide = _microseconds(report, name) * scale
        if wide > 0:
            drawn.append(_part(report, name, left, top, wide))
        left += wide
    spread = 1e6 * report.seconds * report.seconds_error * scale
    whisker = rect(left - spread, top + BAR + 3, 2 * spread, 1.5, palette.INK, class_="ink")
    return [*drawn, whisker]


def _part(report: Report, name: str, x: float, y: float, wide: float) -> str:
    taken = _microseconds(report, name)
    said = element("title", escaped(f"{report.mapping}: {taken:.1f} µs for {WORDS[name]}"))
    box = rect(x, y, wide, BAR, paint(PAINTS[name]))
    share = f"{100 * taken / (1e6 * report.seconds):.0f} %"
    size = fitting(len(share), wide - 6, 11)
    room = width_of(share, size or 11) < wide
    label = text(x + wide / 2, y + BAR / 2 + 4, share, size, text_anchor="middle", fill=palette.LABEL, class_="label")
    return element("g", said + box + (label if size and room else ""), class_="part", data_part=name)
