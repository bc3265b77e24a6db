"""One iteration of a K loop on a compute unit: a row for each wave, what it does along an axis of cycles."""

from __future__ import annotations

from tilewave.cycles.timeline import ACTIVITIES, Activities, Activity, Timeline, WaveTimeline
from tilewave.view import palette
from tilewave.view.axes import legend, swatch
from tilewave.view.scales import ticks
from tilewave.view.svg import MARGIN, Figure, element, escaped, rect, text

WIDE, ROW, GAP, BETWEEN_SIMDS = 860.0, 16.0, 3.0, 10.0
LABELS = 118.0
"""Room for the names of waves."""
TICKS = 8
SOFT: dict[str, object] = {"fill": palette.SOFT_INK, "class_": "soft"}
FILLS: dict[Activity, str] = {
    "multiply": palette.FILLS[4],
    "issue": palette.FILLS[0],
    "wait for the matrix unit": palette.FILLS[7],
    "wait for LDS": palette.FILLS[1],
    "wait for global loads": palette.FILLS[2],
    "wait at a barrier": palette.FILLS[5],
    "wait for other units": palette.FILLS[8],
}
"""Products are the darkest in grey."""


def cycles_timeline(timeline: Timeline) -> Figure:
    """Rows are sorted by SIMD, so that waves that share a matrix unit are neighbours."""
    loop = timeline.loop
    rows = sorted(timeline.waves, key=lambda wave: (wave.simd, wave.workgroup, wave.wave))
    end = max(stretch.after for wave in rows for stretch in wave.activities)
    scale = WIDE / end
    parts, y, simd = [], 8.0, rows[0].simd
    for wave in rows:
        y += BETWEEN_SIMDS if wave.simd != simd else 0
        simd = wave.simd
        parts.append(_row(wave, y, scale, loop.workgroups))
        y += ROW + GAP
    axis = _axis(end, scale, y)
    shown = {stretch.activity for wave in rows for stretch in wave.activities}
    entries: list[tuple[str, str]] = [(swatch(FILLS[name]), name) for name in ACTIVITIES if name in shown]
    key = legend(entries, MARGIN, y + 44, MARGIN + LABELS + WIDE)
    width = 2 * MARGIN + LABELS + WIDE
    body = "".join([*axis, *parts, key.markup])
    return Figure("cycles", f"K loop of {loop.kernel}: one iteration", _caption(timeline), width, key.bottom + 4, body)


def _row(wave: WaveTimeline, y: float, scale: float, workgroups: int) -> str:
    group = f"workgroup {wave.workgroup}, " if workgroups > 1 else ""
    name = f"{group}wave {wave.wave}" if workgroups > 1 else f"SIMD {wave.simd}, wave {wave.wave}"
    left = MARGIN + LABELS
    label = text(left - 8, y + ROW - 4, name, 10, text_anchor="end", **SOFT)
    boxes = "".join(_box(stretch, left, y, scale) for stretch in wave.activities)
    return element("g", label + boxes, class_="wave", data_wave=wave.wave)


def _box(stretch: Activities, left: float, y: float, scale: float) -> str:
    said = element("title", escaped(f"{stretch.activity}: cycles {stretch.first} to {stretch.after}"))
    wide = (stretch.after - stretch.first) * scale
    left += stretch.first * scale
    return element("rect", said, x=left, y=y, width=wide, height=ROW, fill=FILLS[stretch.activity])


def _axis(end: int, scale: float, bottom: float) -> list[str]:
    left = MARGIN + LABELS
    marks = []
    for step in (step for step in ticks(end, TICKS) if step <= end):
        x = left + step * scale
        marks.append(rect(x, 4, 0.5, bottom - 4, palette.EMPTY, class_="empty"))
        marks.append(text(x, bottom + 14, f"{step:,.10g}", 10, text_anchor="middle", **SOFT))
    return [*marks, text(left, bottom + 30, "cycles of the compute unit since the iteration began", 11, **SOFT)]


def _caption(timeline: Timeline) -> str:
    loop = timeline.loop
    groups = f"{loop.workgroups} workgroups of {loop.waves} waves" if loop.workgroups > 1 else f"{loop.waves} waves"
    return (
        f"{loop.chip}, one compute unit, {groups}, global loads with a latency of {loop.latency_cycles:g} cycles. "
        f"{loop.cycles:,.0f} cycles per iteration, the matrix units busy for {100 * loop.utilization:.0f} %. "
        f"{'. '.join(loop.notes)}."
    )
