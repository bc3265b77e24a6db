"""One self-contained page about simulated launches: figures, the hierarchy as a table, what limits and why."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from string import Template

from tilewave.ir.types import dims
from tilewave.sim.explain import HITS, duration, explain, passed_on, size
from tilewave.sim.report import Report
from tilewave.sim.search import Ranked
from tilewave.sim.simulate import SimulatedRun
from tilewave.view.page import embedded
from tilewave.view.svg import escaped
from tilewave.view.time_bars import time_bars
from tilewave.view.traffic import traffic_figures

RANKED = ("order", "tile", "time", "TFLOP/s", "L2 hits", "HBM read", "why")
COMPARED = (
    "mapping",
    "time",
    "TFLOP/s",
    "L2 hits",
    "last-level hits",
    "HBM read",
    "HBM written",
    "breakdown of time",
)


def traffic_page(runs: tuple[SimulatedRun, ...], ranked: Sequence[Ranked] = ()) -> str:
    """Return the page of one launch, or of several side by side; of a search, its candidates from the fastest."""
    reports = [run.report for run in runs]
    first = reports[0]
    return _asset("traffic.html").substitute(
        title=escaped(f"{first.problem} on {first.machine}"),
        css=_asset("page.css").template,
        launch=escaped(f"{first.problem} on {first.machine}"),
        layout="several" if len(runs) > 1 else "one",
        articles="\n".join(_article(run) for run in runs),
        table=_table(COMPARED, [_compared(report) for report in reports]),
        time=f"<figure>{time_bars(reports).svg()}</figure>",
        note=escaped(HITS),
        ranking=_ranking(ranked) if ranked else "",
        data=embedded([report.to_json() for report in reports]),
    )


def _ranking(ranked: Sequence[Ranked]) -> str:
    rows = [
        (
            f"{at + 1}. {one.report.mapping}",
            dims(one.tile),
            duration(one.report.seconds),
            f"{one.report.tflops:.0f}",
            f"{100 * one.report.l2_hit:.1f} %",
            size(one.report.hbm_read_bytes),
            one.reason,
        )
        for at, one in enumerate(ranked)
    ]
    title = f"<h2>The best {len(ranked)}</h2>" if len(ranked) > 1 else "<h2>The best</h2>"
    return f'{title}\n<div class="scroll">{_table(RANKED, rows)}</div>'


def _asset(name: str) -> Template:
    return Template(files("tilewave.view").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


def _article(run: SimulatedRun) -> str:
    report = run.report
    name = escaped(report.mapping)
    drawn = "\n".join(f"<figure>{figure.svg()}</figure>" for figure in traffic_figures(run))
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in explain(report))
    head = f"<div><h2><code>{name}</code></h2>{said}{_levels(report)}</div>"
    return f'<article aria-label="{name}">\n{head}\n<div class="figures">\n{drawn}\n</div>\n</article>'


def _levels(report: Report) -> str:
    rows = [(level.name, size(level.asked_bytes), level.hit_text, passed_on(level)) for level in report.levels]
    return f'<div class="scroll">{_table(("level", "asked", "hit", "passed on"), rows)}</div>'


def _compared(report: Report) -> tuple[str, ...]:
    last = "–" if report.llc_hit is None else f"{100 * report.llc_hit:.1f} %"
    return (
        report.mapping,
        f"{duration(report.seconds)} ± {100 * report.seconds_error:.0f} %",
        f"{report.tflops:.0f}",
        f"{100 * report.l2_hit:.1f} %",
        last,
        size(report.hbm_read_bytes),
        size(report.hbm_write_bytes),
        report.breakdown_text,
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row"><code>{escaped(row[0])}</code></th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
