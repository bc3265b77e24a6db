"""A roofline: how much a launch computes for each byte of HBM, and how close it comes to what the machine allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewave.machine import Machine
from tilewave.records import dataclass
from tilewave.sim.simulate import SimulatedRun
from tilewave.view import palette
from tilewave.view.axes import legend, paint, patterns
from tilewave.view.scales import decades
from tilewave.view.svg import MARGIN, Figure, element, escaped, number, rect, text

AXIS, WIDE, HIGH, ROOM_ABOVE = 66.0, 500.0, 250.0, 16.0
SOFT: dict[str, object] = {"fill": palette.SOFT_INK, "class_": "soft"}
POINTS = (2, 0, 4, 5)
"""Colours of launches, as the palette numbers them."""


@dataclass(frozen=True)
class Point:
    """A launch: operations for each byte that HBM moves, and operations a second."""

    name: str
    intensity: float
    flops: float

    @staticmethod
    def of(run: SimulatedRun) -> Point:
        report = run.report
        moved = report.hbm_read_bytes + report.hbm_write_bytes
        return Point(report.mapping, report.flops / moved, report.flops / report.seconds)


@dataclass(frozen=True)
class Plane:
    """Both axes, logarithmic; from the first to the last power of ten of each."""

    across: list[float]
    up: list[float]

    def place(self, intensity: float, flops: float) -> tuple[float, float]:
        right = (math.log10(intensity) - math.log10(self.across[0])) / math.log10(self.across[-1] / self.across[0])
        above = (math.log10(flops) - math.log10(self.up[0])) / math.log10(self.up[-1] / self.up[0])
        return AXIS + WIDE * right, ROOM_ABOVE + HIGH * (1 - above)


def roofline(machine: Machine, runs: Sequence[SimulatedRun]) -> Figure | None:
    """None where nothing is multiplied, or the machine says no rate for it."""
    rate = machine.flops(runs[0].accesses.dtype)
    points = [Point.of(run) for run in runs]
    if rate is None or any(point.flops <= 0 for point in points):
        return None
    bandwidth = machine.hbm.bytes_per_second
    ridge = rate / bandwidth
    plane = Plane(
        decades(min(1.0, *(p.intensity for p in points)), max(2 * ridge, *(p.intensity for p in points))),
        decades(min(bandwidth * 10, *(p.flops for p in points)), rate),
    )
    parts = [patterns(8), *_grid(plane), _roof(plane, bandwidth, rate), *_labels(plane, machine, rate, runs[0])]
    parts += [_point(plane, at, point) for at, point in enumerate(points)]
    entries = [(element("circle", cx=7, cy=7, r=6, fill=paint(POINTS[at % 4])), p.name) for at, p in enumerate(points)]
    key = legend(entries, AXIS, ROOM_ABOVE + HIGH + 44, AXIS + WIDE + MARGIN)
    caption = (
        f"{runs[0].report.problem} on {machine.name}. Below the slope HBM limits, below the flat roof the matrix "
        f"units; they meet at {ridge:.0f} FLOP/byte. The points are predicted."
    )
    return Figure("roofline", "Roofline", caption, AXIS + WIDE + 2 * MARGIN, key.bottom, "".join([*parts, key.markup]))


def _grid(plane: Plane) -> list[str]:
    marks = []
    for x_value in plane.across:
        x, _ = plane.place(x_value, plane.up[0])
        marks.append(rect(x, ROOM_ABOVE, 0.5, HIGH, palette.EMPTY, class_="empty"))
        marks.append(text(x, ROOM_ABOVE + HIGH + 14, f"{x_value:,.10g}", 10, text_anchor="middle", **SOFT))
    for y_value in plane.up:
        _, y = plane.place(plane.across[0], y_value)
        marks.append(rect(AXIS, y, WIDE, 0.5, palette.EMPTY, class_="empty"))
        marks.append(text(AXIS - 6, y + 4, f"{y_value / 1e12:,.10g}", 10, text_anchor="end", **SOFT))
    middle = AXIS + WIDE / 2
    below = {"text_anchor": "middle", **SOFT}
    marks.append(text(middle, ROOM_ABOVE + HIGH + 32, "FLOP per byte of HBM", 11, **below))
    at = f"translate({MARGIN + 2} {ROOM_ABOVE}) rotate(-90)"
    return [*marks, text(0, 0, "TFLOP/s", 11, text_anchor="end", transform=at, **SOFT)]


def _roof(plane: Plane, bandwidth: float, rate: float) -> str:
    """The slope begins where it enters the drawing: at its left side, or at its bottom."""
    first = max(plane.across[0], plane.up[0] / bandwidth)
    corners = [(first, first * bandwidth), (rate / bandwidth, rate), (plane.across[-1], rate)]
    spelled = " ".join(f"{number(x)},{number(y)}" for x, y in (plane.place(*corner) for corner in corners))
    return element("polyline", points=spelled, fill="none", stroke=palette.PATH, stroke_width=2, class_="key")


def _labels(plane: Plane, machine: Machine, rate: float, run: SimulatedRun) -> list[str]:
    x, y = plane.place(plane.across[-1], rate)
    flat = f"{rate / 1e12:,.0f} TFLOP/s, {run.accesses.dtype} dense"
    bandwidth = machine.hbm.bytes_per_second
    low = 2 * max(plane.across[0], plane.up[0] / bandwidth)
    slope_x, slope_y = plane.place(low, low * bandwidth)
    slope = f"HBM {bandwidth / 1e12:g} TB/s"
    return [text(x, y - 6, flat, 11, text_anchor="end", **SOFT), text(slope_x + 10, slope_y + 8, slope, 11, **SOFT)]


def _point(plane: Plane, at: int, point: Point) -> str:
    x, y = plane.place(point.intensity, point.flops)
    said = f"{point.name}: {point.flops / 1e12:.0f} TFLOP/s at {point.intensity:.0f} FLOP/byte"
    dot = element(
        "circle", element("title", escaped(said)), cx=x, cy=y, r=6, fill=paint(POINTS[at % 4]), stroke=palette.LABEL
    )
    return element("g", dot, class_="launch")
