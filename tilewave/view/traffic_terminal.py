"""Simulated launches in a terminal: the hierarchy as a table, what limits, and candidates in their order."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewave.machine import Machine
from tilewave.sim.explain import compare, duration, explain, passed_on, size
from tilewave.sim.report import NOTHING, Report, Sensitivity
from tilewave.sim.search import Ranked


def print_report(console: Console, report: Report, sensitivity: tuple[Sensitivity, ...]) -> None:
    """One launch: levels, arrays, sentences, and what its assumptions are worth."""
    console.print(Text(f"{report.problem} on {report.machine}", style="bold"))
    console.print(Text(report.mapping, style="bold cyan"))
    console.print(_levels(report))
    console.print(_arrays(report))
    _say(console, Text(_time(report), style="bold"))
    _say(console, report.breakdown_text)
    for sentence in explain(report):
        _say(console, sentence)
    _warn(console, (report,))
    if sensitivity:
        console.print(_sensitivity(sensitivity))


def print_comparison(console: Console, reports: tuple[Report, ...]) -> None:
    """Several orders of one launch beside each other."""
    first = reports[0]
    console.print(Text(f"{first.problem} on {first.machine}", style="bold"))
    table = _table("mapping", "time", "TFLOP/s", "L2 hit", "last level", "HBM read", "where the time goes")
    for report in reports:
        last = "–" if report.llc_hit is None else f"{100 * report.llc_hit:.1f} %"
        table.add_row(
            report.mapping,
            duration(report.seconds),
            f"{report.tflops:.0f}",
            f"{100 * report.l2_hit:.1f} %",
            last,
            hbm_read(report),
            report.breakdown_text,
        )
    console.print(table)
    for report in reports[1:]:
        _say(console, f"{report.mapping}: {compare(report, first)}")
    _warn(console, reports)
    _say(console, f"Times are good to ± {100 * first.seconds_error:.0f} %; {first.fitted_on}.")


def print_ranking(console: Console, ranked: tuple[Ranked, ...], shown: int) -> None:
    """The best candidates, and why."""
    first = ranked[0].report
    console.print(Text(f"{first.problem.split(',')[0]} on {first.machine}: {len(ranked)} candidates", style="bold"))
    table = _table("", "tile", "mapping", "time", "TFLOP/s", "L2 hit", "HBM read", "why")
    for at, one in enumerate(ranked[:shown]):
        report = one.report
        table.add_row(
            str(at + 1),
            "×".join(map(str, one.tile)),
            report.mapping,
            duration(report.seconds),
            f"{report.tflops:.0f}",
            f"{100 * report.l2_hit:.1f} %",
            hbm_read(report),
            one.reason,
        )
    console.print(table)
    _warn(console, tuple(one.report for one in ranked[:shown]))
    near = sum(one.report.seconds <= first.seconds * 1.005 for one in ranked)
    _say(console, f"{near} of {len(ranked)} lie within 0.5 % of the first.")
    _say(console, f"Times are good to ± {100 * first.seconds_error:.0f} %; {first.fitted_on}.")


def hbm_read(report: Report) -> str:
    """Bytes, or the interval where the launch stands on a cliff."""
    if not report.on_cliff:
        return size(report.hbm_read_bytes)
    return f"{size(report.hbm_read_bytes)} ({size(report.hbm_read_low_bytes)}–{size(report.hbm_read_high_bytes)})"


def print_machines(console: Console, machines: tuple[Machine, ...]) -> None:
    """One line a machine."""
    table = _table("machine", "target", "XCDs", "units", "L2 of an XCD", "last level", "HBM", "f16 dense", "clock")
    for m in machines:
        f16 = m.flops("f16")
        parts = f" in {m.l2.partitions}" if m.l2.partitions > 1 else ""
        table.add_row(
            m.name,
            m.target,
            str(m.xcds),
            str(m.units),
            f"{m.l2.bytes / (1 << 20):g} MiB{parts}",
            f"{m.last_level.bytes / (1 << 20):g} MiB" if m.last_level else "–",
            f"{m.hbm.bytes / 1e9:g} GB, {m.hbm.bytes_per_second / 1e12:g} TB/s",
            f"{f16 / 1e12:.0f} TFLOP/s" if f16 else "–",
            f"{m.clock_hz / 1e9:g} GHz",
        )
    console.print(table)


def print_machine(console: Console, machine: Machine) -> None:
    """One machine, every number with its source."""
    print_machines(console, (machine,))
    table = _table("field", "value", "source")
    for name in ("xcds", "units_per_xcd", "clock_hz", "l2", "last_level", "hbm", "shared_bytes", "merging", "rates"):
        table.add_row(name, str(getattr(machine, name)), machine.source(name) or "–")
    table.add_row(
        "dispatch_order",
        f"{len(machine.dispatch_order)} runs" if machine.dispatch_order else "in turn",
        machine.source("dispatch_order"),
    )
    console.print(table)


def _say(console: Console, words: str | Text) -> None:
    """A sentence on one line, however wide: whoever reads a pipe need not put it together again."""
    console.print(words, highlight=False, markup=False, soft_wrap=True)


def _warn(console: Console, reports: tuple[Report, ...]) -> None:
    """Each warning once."""
    for words in dict.fromkeys(words for report in reports for words in report.warnings):
        _say(console, Text(f"warning: {words}", style="bold"))


def _time(report: Report) -> str:
    return f"{duration(report.seconds)} ± {100 * report.seconds_error:.0f} %, {report.tflops:.0f} TFLOP/s"


def _levels(report: Report) -> Table:
    table = _table("level", "asked", "hit", "hits", "passed on")
    for level in report.levels:
        table.add_row(
            level.name,
            size(level.asked_bytes),
            level.hit_text,
            size(level.hit_bytes) if level.is_cache else NOTHING,
            passed_on(level),
        )
    return table


def _arrays(report: Report) -> Table:
    table = _table("array", "size read", "asked", "missed in L2", "HBM read", "HBM written")
    for a in report.arrays:
        table.add_row(
            a.name, *(size(x) for x in (a.distinct_bytes, a.asked_bytes, a.l2_missed_bytes, a.hbm_read_bytes)),
            size(a.hbm_write_bytes),
        )  # fmt: skip
    return table


def _sensitivity(cases: tuple[Sensitivity, ...]) -> Table:
    table = _table("assumption", "L2 hit", "HBM read", "time")
    for case in cases:
        table.add_row(case.assumption, f"{100 * case.l2_hit:.1f} %", size(case.hbm_read_bytes), duration(case.seconds))
    return table


def _table(*names: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title_justify="left")
    for at, name in enumerate(names):
        wordy = name in ("mapping", "why", "where the time goes", "source", "value", "machine", "target", "assumption")
        table.add_column(name, justify="left" if at == 0 or wordy else "right", overflow="fold")
    return table
