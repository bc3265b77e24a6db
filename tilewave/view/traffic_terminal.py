"""Simulated launches in a terminal: the hierarchy as a table, what limits, and candidates in their order."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from tilewave.sim.explain import compare, duration, explain, passed_on, size
from tilewave.sim.report import NOTHING, Report, Sensitivity
from tilewave.sim.search import Ranked
from tilewave.view.tables import names, numbers, print_table, words


def print_report(console: Console, report: Report, sensitivity: tuple[Sensitivity, ...]) -> None:
    """One launch: levels, arrays, sentences, and what its assumptions are worth."""
    console.print(Text(f"{report.problem} on {report.machine}", style="bold"))
    console.print(Text(report.mapping, style="bold cyan"))
    _print_levels(console, report)
    _print_arrays(console, report)
    _say(console, Text(_time(report), style="bold"))
    _say(console, report.breakdown_text)
    for sentence in explain(report):
        _say(console, sentence)
    _warn(console, (report,))
    if sensitivity:
        _print_sensitivity(console, sensitivity)


def print_comparison(console: Console, reports: tuple[Report, ...]) -> None:
    """Print several orders of one launch side by side."""
    first = reports[0]
    console.print(Text(f"{first.problem} on {first.machine}", style="bold"))
    columns = (
        *names("mapping"),
        *numbers("time", "TFLOP/s", "L2 hit", "last level", "HBM read"),
        *words("breakdown of time"),
    )
    print_table(console, columns, [_compared(report) for report in reports])
    for report in reports[1:]:
        _say(console, f"{report.mapping}: {compare(report, first)}")
    _warn(console, reports)
    _say(console, f"Times are good to ± {100 * first.seconds_error:.0f} %; {first.fitted_on}.")


def print_ranking(console: Console, ranked: tuple[Ranked, ...], shown: int) -> None:
    """The best candidates, and why."""
    first = ranked[0].report
    same = all(one.report.problem == first.problem for one in ranked)
    name = first.problem if same else first.problem.partition(",")[0]  # each candidate has its own tile
    console.print(Text(f"{name} on {first.machine}: {len(ranked)} candidates", style="bold"))
    columns = (
        *names("mapping", "tile"),
        *numbers("time", "TFLOP/s", "L2 hit", "HBM read"),
        *words("why"),
    )
    rows = [
        (
            f"{at + 1}. {one.report.mapping}",
            "×".join(map(str, one.tile)),
            duration(one.report.seconds),
            f"{one.report.tflops:.0f}",
            f"{100 * one.report.l2_hit:.1f} %",
            hbm_read(one.report),
            one.reason,
        )
        for at, one in enumerate(ranked[:shown])
    ]
    print_table(console, columns, rows)
    _warn(console, tuple(one.report for one in ranked[:shown]))
    near = sum(one.report.seconds <= first.seconds * 1.005 for one in ranked)
    _say(console, f"{near} of {len(ranked)} are within 0.5 % of the first.")
    _say(console, f"Times are good to ± {100 * first.seconds_error:.0f} %; {first.fitted_on}.")


def hbm_read(report: Report) -> str:
    """Return the bytes read from HBM, with their interval where the launch is close to a cliff of the cache."""
    if not report.on_cliff:
        return size(report.hbm_read_bytes)
    return f"{size(report.hbm_read_bytes)} ({size(report.hbm_read_low_bytes)}–{size(report.hbm_read_high_bytes)})"


def _say(console: Console, words: str | Text) -> None:
    """Print a sentence on one line, however wide, because a program that reads a pipe cannot join lines."""
    console.print(words, highlight=False, markup=False, soft_wrap=True)


def _warn(console: Console, reports: tuple[Report, ...]) -> None:
    """Each warning once."""
    for warning in dict.fromkeys(found for report in reports for found in report.warnings):
        _say(console, Text(f"warning: {warning}", style="bold"))


def _time(report: Report) -> str:
    return f"{duration(report.seconds)} ± {100 * report.seconds_error:.0f} %, {report.tflops:.0f} TFLOP/s"


def _compared(report: Report) -> tuple[str, ...]:
    return (
        report.mapping,
        duration(report.seconds),
        f"{report.tflops:.0f}",
        f"{100 * report.l2_hit:.1f} %",
        NOTHING if report.llc_hit is None else f"{100 * report.llc_hit:.1f} %",
        hbm_read(report),
        report.breakdown_text,
    )


def _print_levels(console: Console, report: Report) -> None:
    rows = [
        (
            level.name,
            size(level.asked_bytes),
            level.hit_text,
            size(level.hit_bytes) if level.is_cache else NOTHING,
            passed_on(level),
        )
        for level in report.levels
    ]
    print_table(console, (*names("level"), *numbers("asked", "hit", "hits", "passed on")), rows)


def _print_arrays(console: Console, report: Report) -> None:
    rows = [
        (
            a.name,
            size(a.distinct_bytes),
            size(a.asked_bytes),
            size(a.l2_missed_bytes),
            size(a.hbm_read_bytes),
            size(a.hbm_write_bytes),
        )
        for a in report.arrays
    ]
    titles = numbers("size read", "asked", "missed in L2", "HBM read", "HBM written")
    print_table(console, (*names("array"), *titles), rows)


def _print_sensitivity(console: Console, cases: tuple[Sensitivity, ...]) -> None:
    rows = [
        (case.assumption, f"{100 * case.l2_hit:.1f} %", size(case.hbm_read_bytes), duration(case.seconds))
        for case in cases
    ]
    print_table(console, (*names("assumption"), *numbers("L2 hit", "HBM read", "time")), rows)
