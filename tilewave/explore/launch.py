"""The launch: which workgroup computes which tile and when, its reads, its time; and another order to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.kernels import Explored
from tilewave.explore.tiles import tiles_of
from tilewave.machine import Machine
from tilewave.machine.cards import find_among
from tilewave.sim.explain import HITS, compare, duration, explain, passed_on, size
from tilewave.sim.report import Report
from tilewave.sim.simulate import SimulatedRun
from tilewave.view.roofline import roofline
from tilewave.view.time_bars import time_bars
from tilewave.view.traffic import over_time, per_xcd


def machine_of(choice: ExplorerChoice, machines: Mapping[str, Machine]) -> Machine:
    """One of those that the page offers, by name: an address never names a file."""
    return find_among(choice.machine, machines)


def launch_json(explored: Explored, choice: ExplorerChoice, machine: Machine) -> dict[str, Any]:
    """Return everything that the page shows for one order, or for two."""
    found = [explored.run(choice, order, machine) for order in choice.orders]
    runs = [one for one, _ in found]
    reports = [one.report for one in runs]
    figures = [time_bars(reports), roofline(machine, runs)]
    return {
        "problem": reports[0].problem,
        "machine": machine.name,
        "xcds": machine.xcds,
        "runs": [_run_json(one, problem) for one, problem in found],
        "figures": [figure.svg() for figure in figures if figure],
        "note": HITS,
        "difference": difference(reports) if len(reports) > 1 else [],
        "said": compare(reports[1], reports[0]) if len(reports) > 1 else "",
    }


def _run_json(one: SimulatedRun, problem: object) -> dict[str, Any]:
    report, tiles = one.report, tiles_of(one, problem)
    return {
        "mapping": report.mapping,
        "launched": report.workgroups,
        "tasks": report.tasks,
        "rounds": report.launch_waves,
        "warnings": list(report.warnings),
        "said": explain(report),
        "levels": [
            {"name": level.name, "asked": size(level.asked_bytes), "hit": level.hit_text, "passed": passed_on(level)}
            for level in report.levels
        ],
        "figures": [figure.svg() for figure in (over_time(report), per_xcd(report))],
        "tiles": tiles.to_json() if tiles else None,
    }


ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("time", lambda r: r.seconds, duration),
    ("TFLOP/s", lambda r: r.tflops, lambda x: f"{x:.0f}"),
    ("HBM read", lambda r: r.hbm_read_bytes, size),
    ("HBM written", lambda r: r.hbm_write_bytes, size),
    ("L2 hits", lambda r: r.l2_hit, lambda x: f"{100 * x:.1f} %"),
    ("last-level hits", lambda r: r.llc_hit, lambda x: f"{100 * x:.1f} %"),
    ("waves", lambda r: r.launch_waves, str),
)
"""What two orders are compared by: a name, the number, and how it is written."""


def difference(reports: Sequence[Report]) -> list[dict[str, str]]:
    """A row for each number: the first, the second, and how far apart they are."""
    first, second = reports[:2]
    rows = []
    for name, number, written in ROWS:
        a, b = number(first), number(second)
        if a is None or b is None:
            continue
        share = name.endswith("hits")
        apart = f"{100 * (b - a):+.1f} points" if share else f"{100 * (b / a - 1):+.1f} %" if a else "–"
        rows.append({"name": name, "first": written(a), "second": written(b), "difference": apart})
    return rows
