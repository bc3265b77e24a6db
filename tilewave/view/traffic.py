"""Figures of a simulated launch: where bytes came from over time, on each XCD, and for each tile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewave.mapping import Grid
from tilewave.records import dataclass
from tilewave.sim.accesses import NO_STREAM
from tilewave.sim.explain import size
from tilewave.sim.report import Report
from tilewave.sim.simulate import SimulatedRun
from tilewave.view import palette
from tilewave.view.axes import (
    COLUMNS,
    ROWS,
    Legend,
    column_axis,
    frame,
    legend,
    paint,
    patterns,
    row_axis,
    swatch,
    width_for,
)
from tilewave.view.coarse import Coarse
from tilewave.view.drawn import LONGEST_SIDE, MOST_CELLS
from tilewave.view.svg import MARGIN, Figure, element, rect, text

Array = npt.NDArray[np.float64]

PAINTS = {"L2": 3, "last level": 0, "other partition": 0, "HBM": 11}
"""Colours by where bytes came from, as the palette numbers them: light, middle, hatched; distinguishable in grey."""
WIDE, HIGH = 560.0, 180.0
AXIS = 54.0
MOST_BARS = 240
BAR = 22.0


@dataclass(frozen=True)
class Origin:
    """Where bytes came from; the three parts add up to the requested bytes."""

    from_l2: Array
    from_between: Array
    from_hbm: Array

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        return self.from_l2, self.from_between, self.from_hbm

    @property
    def total(self) -> Array:
        return self.from_l2 + self.from_between + self.from_hbm


def names_of(report: Report) -> tuple[str, str, str]:
    """Return the names of the three parts on this machine: between L2 and HBM is a cache, or the other partition."""
    return "L2", "other partition" if report.llc_hit is None else "last level", "HBM"


def traffic_figures(run: SimulatedRun) -> list[Figure]:
    """Over time, per XCD, and the tile grid where there is one."""
    figures = [over_time(run.report), per_xcd(run.report)]
    rows, cols = run.accesses.tile_grid
    if rows and cols:
        figures.append(tile_heat(run))
    return figures


def over_time(report: Report) -> Figure:
    """Stacked bars: the bytes requested in each wave of workgroups, by where they came from."""
    launch_waves = report.over_time
    every = -(-len(launch_waves) // MOST_BARS)
    columns = [(b.asked_bytes, b.l2_missed_bytes, b.hbm_read_bytes) for b in launch_waves]
    merged = np.array([np.sum(columns[at : at + every], 0) for at in range(0, len(columns), every)])
    origin = _origin(merged)
    most = max(float(origin.total.max()), 1.0)
    step = WIDE / len(merged)
    bars = []
    for at, parts in enumerate(zip(*origin.parts, strict=True)):
        top = HIGH
        for name, value in zip(names_of(report), parts, strict=True):
            height = HIGH * float(value) / most
            top -= height
            words = f"wave {at * every}: {size(float(value))} from {name}"
            bars.append(_bar(AXIS + at * step, top, max(step - (1 if step > 3 else 0), 0.5), height, name, words))
    body = [patterns(12), *_byte_axis(most), *bars, _below("waves of workgroups", WIDE)]
    key = _legend(report, HIGH + 40, AXIS + WIDE + MARGIN)
    caption = f"{_head(report)} Bytes that workgroups request in each of {report.launch_waves} waves."
    return Figure(
        "over-time", "Traffic over time", caption, AXIS + WIDE + MARGIN, key.bottom, "".join([*body, key.markup])
    )


def per_xcd(report: Report) -> Figure:
    """A bar for each XCD: the bytes that its residents ask for, by where they came from."""
    origin = _origin(np.array([(x.asked_bytes, x.l2_missed_bytes, x.hbm_read_bytes) for x in report.xcds]))
    most = max(float(origin.total.max()), 1.0)
    bars = []
    for at, parts in enumerate(zip(*origin.parts, strict=True)):
        left, y = AXIS, at * (BAR + 6)
        bars.append(text(AXIS - 8, y + 15, f"XCD {at}", 11, text_anchor="end"))
        for name, value in zip(names_of(report), parts, strict=True):
            width = (WIDE - 130) * float(value) / most
            bars.append(_bar(left, y, width, BAR, name, f"XCD {at}: {size(float(value))} from {name}"))
            left += width
        hit = 1 - float(parts[1] + parts[2]) / max(float(sum(parts)), 1.0)
        bars.append(
            text(left + 6, y + 15, f"{100 * hit:.0f} % of bytes from L2", 11, fill=palette.SOFT_INK, class_="soft")
        )
    bottom = len(report.xcds) * (BAR + 6)
    key = _legend(report, bottom + 8, AXIS + WIDE + MARGIN)
    caption = f"{_head(report)} The longest bar is {size(most)}; %: requested bytes that L2 delivers."
    body = "".join([patterns(12), *bars, key.markup])
    return Figure("per-xcd", "Traffic of each XCD", caption, AXIS + WIDE + MARGIN, key.bottom, body)


def tile_heat(run: SimulatedRun) -> Figure:
    """Every tile in the colour of the bytes that HBM delivers for it, on a scale."""
    report, (rows, cols) = run.report, run.accesses.tile_grid
    coarse = Coarse.of(rows, cols, MOST_CELLS, LONGEST_SIDE)
    where = frame(Grid(coarse.rows, coarse.cols), coarse.every)
    names, tables = names_of(report), [coarse.means(table) for table in _by_tile(run)]
    hbm = tables[-1]
    low, high = float(hbm.min()), float(hbm.max())
    squares = []
    for row, col in np.ndindex(hbm.shape):
        parts = [float(table[row, col]) for table in tables]
        said = ", ".join(f"{size(part)} from {name}" for name, part in zip(names, parts, strict=True))
        title = element("title", f"tile ({row * coarse.every}, {col * coarse.every}): {said}")
        shade = palette.heat((parts[-1] - low) / (high - low or 1.0))
        squares.append(where.tile(row, col, shade, class_="tile").replace("/>", f">{title}</rect>"))
    width = width_for(where.right)
    key = _scale(low, high, where.left, where.bottom + 16)
    cells = f" A square is the mean of {coarse.every}×{coarse.every} tiles." if coarse.every > 1 else ""
    caption = f"{_head(report)} Each square is a tile of C; its colour is what HBM delivers for it.{cells}"
    body = [row_axis(where, where.left, ROWS), column_axis(where, where.top, COLUMNS), *squares, key.markup]
    return Figure("heat", "Bytes from HBM for each tile", caption, width, key.bottom, "".join(body))


def _by_tile(run: SimulatedRun) -> list[Array]:
    """Return each tile's bytes by where they came from."""
    order = run.accesses.tile_of_task
    assert order is not None, "it has a grid"
    tables = []
    for part in origin_of_tasks(run).parts:
        flat = np.zeros(len(part))
        flat[order] = part
        tables.append(flat.reshape(run.accesses.tile_grid))
    return tables


STEPS = 24


def _scale(low: float, high: float, left: float, top: float) -> Legend:
    """The colours from the least to the most, with both numbers."""
    wide = 8.0
    bar = [rect(left + 64 + at * wide, top, wide, 14, palette.heat(at / (STEPS - 1))) for at in range(STEPS)]
    soft = {"fill": palette.SOFT_INK, "class_": "soft"}
    ends = [
        text(left + 58, top + 11, size(low), 11, text_anchor="end", **soft),
        text(left + 70 + STEPS * wide, top + 11, f"{size(high)} from HBM", 11, **soft),
    ]
    return Legend("".join([*bar, *ends]), top + 22)


def origin_of_tasks(run: SimulatedRun) -> Origin:
    """Return each task's bytes by where they came from; tasks that read a stream together share its misses evenly."""
    walks, flows = run.flows.walks, run.flows
    asked = walks.size * walks.peers
    table = _origin(np.stack([asked, flows.missed, flows.hbm], 1))
    reads = walks.of_read
    parts = []
    for part in table.parts:
        share = part / walks.peers
        parts.append(np.where(reads == NO_STREAM, 0.0, share[reads]).sum(1))
    return Origin(*parts)


def _origin(asked_missed_hbm: Array) -> Origin:
    """Split the bytes of a bar; the middle may be 0 where HBM delivers to a partition what another one requested."""
    asked, missed, hbm = asked_missed_hbm.T
    missed = np.clip(missed, 0, asked)
    hbm = np.clip(hbm, 0, missed)
    return Origin(asked - missed, missed - hbm, hbm)


def _bar(x: float, y: float, width: float, height: float, name: str, words: str) -> str:
    if width <= 0 or height <= 0:
        return ""
    fill, style = paint(PAINTS[name]), f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {style} fill="{fill}">{element("title", words)}</rect>'


def _byte_axis(most: float) -> list[str]:
    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = HIGH * (1 - share)
        marks.append(rect(AXIS, y, WIDE, 0.5, palette.EMPTY, class_="empty"))
        marks.append(
            text(AXIS - 6, y + 4, size(share * most), 10, text_anchor="end", fill=palette.SOFT_INK, class_="soft")
        )
    return marks


def _below(words: str, width: float) -> str:
    return text(AXIS + width / 2, HIGH + 20, words, 11, text_anchor="middle", fill=palette.SOFT_INK, class_="soft")


def _legend(report: Report, top: float, width: float) -> Legend:
    entries = [(swatch(paint(PAINTS[name])), f"from {name}") for name in names_of(report)]
    return legend(entries, AXIS, top, width)


def _head(report: Report) -> str:
    return f"{report.problem}; {report.mapping}; {report.machine}."
