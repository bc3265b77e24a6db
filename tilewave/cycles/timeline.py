"""What each wave of a loop does, cycle by cycle, in one steady iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal

from tilewave.cycles.compute_unit import ComputeUnitRun, Reason, WaveSpan
from tilewave.cycles.facts import SLOT_CYCLES
from tilewave.cycles.loop import LoopCycles, LoopModel
from tilewave.emulator.chips import UNITS
from tilewave.records import dataclass

Activity = Literal[
    "multiply", "issue", "wait for the matrix unit", "wait for LDS", "wait for global loads", "wait at a barrier",
    "wait for other units",
]  # fmt: skip
WAITS: dict[Reason, Activity] = {
    "matrix unit": "wait for the matrix unit",
    "lgkmcnt": "wait for LDS",
    "LDS queue": "wait for LDS",
    "vmcnt": "wait for global loads",
    "global queue": "wait for global loads",
    "barrier": "wait at a barrier",
}
ACTIVITIES: tuple[Activity, ...] = ("multiply", "issue", *dict.fromkeys(WAITS.values()), "wait for other units")


@dataclass(frozen=True)
class Activities:
    """A stretch of a wave's time, in cycles from the beginning of the timeline."""

    activity: Activity
    first: int
    after: int


@dataclass(frozen=True)
class WaveTimeline:
    """One wave of a workgroup, and its SIMD."""

    workgroup: int
    wave: int
    simd: int
    activities: tuple[Activities, ...]


@dataclass(frozen=True)
class Timeline:
    """One iteration of a loop in its steady state, all waves of a compute unit."""

    loop: LoopCycles
    waves: tuple[WaveTimeline, ...]


def loop_timeline(what: LoopModel, latency: float | None = None, workgroups: int = 1) -> Timeline:
    """Return what each wave does in a steady iteration, which begins where the first wave begins one."""
    loop = what.cycles(latency, workgroups)
    run = what.run(latency, workgroups)
    run.spans = []
    first, _, _ = run.steady()
    after = first.slot + round(loop.cycles / SLOT_CYCLES)
    painted = [_painted(run, wave, first.slot, after) for wave in range(len(run.waves))]
    return Timeline(loop, tuple(_wave(what, at, line) for at, line in enumerate(painted)))


def _wave(what: LoopModel, number: int, line: list[Activity]) -> WaveTimeline:
    return WaveTimeline(number // what.waves, number % what.waves, number % UNITS, tuple(_stretches(line)))


def _stretches(line: Iterable[Activity]) -> Iterator[Activities]:
    at = 0
    for activity, slots in groupby(line):
        after = at + SLOT_CYCLES * len(list(slots))
        yield Activities(activity, at, after)
        at = after


def _painted(run: ComputeUnitRun, wave: int, first: int, after: int) -> list[Activity]:
    """Return a wave's activity in each slot: waits, then what it issues, then the time of its own products."""
    line: list[Activity] = ["wait for other units"] * (after - first)
    own = [span for span in run.spans or () if span.wave == wave and span.first < after]
    for span in own:
        _paint(line, _activity(run, span), span.first - first, span.after - first)
    for span in own:
        if span.reason is None and run.body[span.position].kind == "matrix":
            _paint_product(line, span.first - first, run.body[span.position].slots)
    return line


def _activity(run: ComputeUnitRun, span: WaveSpan) -> Activity:
    if span.reason is None:
        return "issue"
    is_product = run.body[span.position].kind == "matrix"  # which waits for another wave's, as that issues first
    return "wait for the matrix unit" if is_product else WAITS.get(span.reason, "wait for other units")


def _paint(line: list[Activity], activity: Activity, first: int, after: int) -> None:
    for at in range(max(0, first), min(len(line), after)):
        line[at] = activity


def _paint_product(line: list[Activity], first: int, passes: int) -> None:
    """A wave that waits for the matrix unit while its own product is there multiplies."""
    for at in range(max(0, first), min(len(line), first + passes)):
        if at == first or line[at] in ("wait for the matrix unit", "wait for other units"):
            line[at] = "multiply"
