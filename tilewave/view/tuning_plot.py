"""Predicted against measured times: a mark for each point of a space; on the diagonal the model was right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewave.records import dataclass
from tilewave.view import palette
from tilewave.view.axes import legend
from tilewave.view.svg import MARGIN, Figure, element, escaped, rect, text

LEFT, TOP, SIDE, STRIP = 74.0, 10.0, 380.0, 26.0
WIDTH = LEFT + SIDE + 4 * MARGIN
TITLE = "Predicted and measured"
ROUND = (1, 2, 5)
MARKS = {"chosen": palette.fill(2), "model": palette.fill(4), "timed": palette.fill(0), "untimed": palette.EMPTY}
WORDS = {"chosen": "chosen", "model": "the model's own", "timed": "timed", "untimed": "predicted only"}


@dataclass(frozen=True)
class TuningConfig:
    """A legal point of a space: what it says, how long it was to take, and how long it took."""

    text: str
    predicted: float
    measured: float | None
    spread: float
    kind: str
    """chosen, model, timed or untimed."""
    limit: str
    """What its time was predicted to go into."""
    why: str = ""
    """The reason for having no time, if the config was tried."""


@dataclass(frozen=True)
class TimeAxis:
    """Seconds on a logarithmic scale, from 0 to 1."""

    least: float
    most: float

    @staticmethod
    def of(seconds: Sequence[float]) -> TimeAxis:
        return TimeAxis(min(seconds) / 1.15, max(seconds) * 1.15)

    def at(self, seconds: float) -> float:
        return math.log(seconds / self.least) / math.log(self.most / self.least)

    @property
    def ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.least)), math.ceil(math.log10(self.most)) + 1)
        found = [digit * 10.0**power for power in powers for digit in ROUND]
        return [seconds for seconds in found if self.least <= seconds <= self.most]


def seconds_text(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * unit:  # three digits of what is less are less than a whole one
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def tuning_plot(configs: Sequence[TuningConfig], error: float, caption: str) -> Figure:
    """Both axes are one: a point on the diagonal took as long as it was to take; the band is the model's own error."""
    axis = TimeAxis.of([t for p in configs for t in (p.predicted, p.measured) if t])
    drawn = [_band(axis, error), *_axes(axis)]
    for kind in reversed(MARKS):  # the chosen one on top
        drawn += [_mark(p, axis) for p in configs if p.kind == kind]
    kinds = [kind for kind in MARKS if any(p.kind == kind for p in configs)]
    shown = [(element("circle", cx=7, cy=7, r=5, **_look(kind)), WORDS[kind]) for kind in kinds]
    below = legend(shown, LEFT, TOP + SIDE + STRIP + 44, WIDTH)
    return Figure("tuning", TITLE, caption, WIDTH, below.bottom, "".join([*drawn, below.markup]))


def _x(axis: TimeAxis, seconds: float) -> float:
    return LEFT + SIDE * axis.at(seconds)


def _y(axis: TimeAxis, seconds: float) -> float:
    return TOP + SIDE * (1 - axis.at(seconds))


def _look(kind: str) -> dict[str, object]:
    outline = palette.SOFT_INK if kind == "untimed" else palette.LABEL
    return {"fill": MARKS[kind], "stroke": outline, "stroke_width": 1, "class_": f"mark {kind}"}


def _mark(p: TuningConfig, axis: TimeAxis) -> str:
    """Draw a config; one without a time is on a separate strip below."""
    y = _y(axis, p.measured) if p.measured else TOP + SIDE + STRIP / 2
    said = f"{p.text}: {seconds_text(p.predicted)} predicted, bottleneck: {p.limit}"
    said += f", {seconds_text(p.measured)} measured" if p.measured else f"; {p.why}" if p.why else ""
    size = 6.5 if p.kind in ("chosen", "model") else 4.5
    circle = element("circle", cx=_x(axis, p.predicted), cy=y, r=size, **_look(p.kind))
    return element("g", element("title", escaped(said)) + circle)


def _band(axis: TimeAxis, error: float) -> str:
    """Draw the band of predictions that are off by at most one standard deviation, and the line of exact ones."""
    wide = min(0.5, math.log(1 + error) / math.log(axis.most / axis.least)) * SIDE
    right, bottom = LEFT + SIDE, TOP + SIDE
    corners = f"M{LEFT} {bottom - wide}L{right - wide} {TOP}H{right}V{TOP + wide}L{LEFT + wide} {bottom}H{LEFT}Z"
    band = element("path", d=corners, fill=palette.EMPTY, class_="empty")
    line = {"stroke": palette.PATH, "stroke_width": 1.5, "class_": "key", "fill": "none"}
    return band + element("path", d=f"M{LEFT} {bottom}L{right} {TOP}", **line)


def _axes(axis: TimeAxis) -> list[str]:
    bottom = TOP + SIDE
    drawn = [
        element("path", d=f"M{LEFT} {TOP}V{bottom + STRIP}H{LEFT + SIDE}", fill="none", stroke=palette.SOFT_INK),
        rect(LEFT, bottom, SIDE, 0.5, palette.SOFT_INK, class_="soft"),
    ]
    for seconds in axis.ticks:
        x, y = _x(axis, seconds), _y(axis, seconds)
        drawn.append(_soft(x, bottom + STRIP + 14, seconds_text(seconds), text_anchor="middle"))
        drawn.append(_soft(LEFT - 8, y + 4, seconds_text(seconds), text_anchor="end"))
    drawn.append(_soft(LEFT + SIDE, bottom + STRIP + 32, "predicted", text_anchor="end"))
    along = f"translate({MARGIN + 2} {TOP}) rotate(-90)"
    return [*drawn, _soft(0, 0, "measured", text_anchor="end", transform=along)]


def _soft(x: float, y: float, words: str, **attributes: object) -> str:
    return text(x, y, words, 11, **{"fill": palette.SOFT_INK, "class_": "soft", **attributes})
