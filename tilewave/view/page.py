"""One self-contained page: the three figures of each mapping, alive, and the reads as a table.

The figures are those of `figures.py`; the script in `assets/` moves through them and looks everything up in the data
that is embedded with them. Nothing is fetched: the page's own security policy forbids it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from string import Template

import numpy as np

from tilewave.mapping import Balance, Locality
from tilewave.view import palette
from tilewave.view.axes import paint, patterns, swatch
from tilewave.view.drawn import Drawn
from tilewave.view.figures import figures
from tilewave.view.placement import PicturedLaunch, Placement, counted, most, to_json
from tilewave.view.reads import sum_of, title
from tilewave.view.svg import element, escaped

COLUMNS = ("mapping", "rows", "columns", "A", "B", "A + B", "all XCDs", "× compulsory")

SIDE_BY_SIDE = 1000
"""Figures up to this width are scaled down a little so that two fit side by side."""

NOTE = (
    "Rows, columns, A, B and A + B: the XCD that reads the most. All XCDs: the sum over XCDs and waves, if the L2 of "
    "each XCD holds what its workgroups of one wave share and nothing more. Compulsory: every block once."
)

WORK_COLUMNS = ("mapping", "least work of an XCD", "most", "done after", "at best", "busy")

WORK_NOTE = (
    "Work is counted in blocks of keys. Each workgroup starts, in launch order, on the next free CU or SM of its "
    "XCD; no order ends before the evenly shared work, or before its longest tile."
)


def page(placements: tuple[Placement, ...]) -> str:
    """The whole page as text."""
    launch = placements[0].launch
    names = " | ".join(str(placement.mapping) for placement in placements)
    return _asset("page.html").substitute(
        title=escaped(f"{names} on {launch.grid}"),
        css=_asset("page.css").template,
        js=_asset("page.js").template,
        launch=escaped(_about(launch)),
        tiles=Drawn.of(placements[0]).grid.size,
        chosen="Reads of" if launch.causal is None and launch.groups is None else "Tiles of",
        chooser=_chooser(launch),
        layout="several" if len(placements) > 1 else "one",
        articles="\n".join(_article(placement) for placement in placements),
        numbers="Reads, in blocks of A and B" if launch.causal is None else "Work, in blocks of keys",
        table=_table(placements) if launch.causal is None else _work_table(placements),
        note=escaped(f"{Drawn.of(placements[0]).said} {NOTE if launch.causal is None else WORK_NOTE}".strip()),
        data=embedded(_data(placements)),
    )


def _about(launch: PicturedLaunch) -> str:
    if launch.causal is None:
        return f"{launch}, K of {counted(launch.k_blocks, 'block')}"
    return f"{launch}, causal: blocks of {launch.causal.queries} queries and {launch.causal.keys} keys"


def embedded(data: object) -> str:
    """Return JSON that is safe inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> Template:
    return Template(files("tilewave.view").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


def _data(placements: tuple[Placement, ...]) -> dict[str, object]:
    """What `--json` prints, and the few words and colours that the script changes."""
    mappings = []
    for placement in placements:
        words = [{"title": title(one.xcd), "sum": sum_of(one)} for one in placement.locality.xcds]
        mappings.append({**placement.to_json(), **_tables(Drawn.of(placement)), "said": words})
    first = Drawn.of(placements[0])
    paints = [paint(xcd) for xcd in range(placements[0].launch.xcds)]
    drawn = {"grid": {"rows": first.grid.rows, "cols": first.grid.cols}, "every": first.coarse.every}
    return {**to_json(placements), **drawn, "mappings": mappings, "paints": paints, "label": palette.LABEL}


def _tables(drawn: Drawn) -> dict[str, object]:
    """Return the tables of `--json`, but for cells: in a large grid a cell is several tiles."""
    columns = {
        "turns": np.arange(len(drawn.cells)),
        "workgroups": drawn.workgroups,
        "xcds": drawn.xcds,
        "rounds": drawn.rounds,
    }
    reads = [drawn.read_by(xcd) for xcd in range(drawn.placement.launch.xcds)]
    return {**{name: drawn.table(values).tolist() for name, values in columns.items()}, "read_by": reads}


def _chooser(launch: PicturedLaunch) -> str:
    return "\n".join(_choice(xcd) for xcd in range(launch.xcds))


def _choice(xcd: int) -> str:
    attributes = ' checked=""' if xcd == 0 else ""
    drawn = element("svg", patterns(xcd + 1) + swatch(paint(xcd)), aria_hidden="true", viewBox="0 0 14 14")
    return f'<label><input type="radio" name="xcd" value="{xcd}"{attributes}>{drawn}XCD {xcd}</label>'


def _article(placement: Placement) -> str:
    name = escaped(str(placement.mapping))
    notes = "".join(f'<p class="warning">{escaped(warning)}</p>' for warning in placement.warnings)
    found = figures(placement)
    drawn = "\n".join(f"<figure>{figure.svg()}</figure>" for figure in found)
    kind = "figures wide" if max(figure.width for figure in found) > SIDE_BY_SIDE else "figures"
    proof = f'<p class="proof">✓ {escaped(placement.proof)}</p>'
    head = f"<div><h2><code>{name}</code></h2>{proof}{notes}</div>"
    return f'<article aria-label="{name}">\n{head}\n<div class="{kind}">\n{drawn}\n</div>\n</article>'


def _table(placements: tuple[Placement, ...]) -> str:
    reports = [placement.locality for placement in placements]
    linear = placements[0].linear
    if all(report.mapping != linear.mapping for report in reports):
        reports.append(linear)
    return _rows_under(COLUMNS, [_row(report) for report in reports])


def _rows_under(names: tuple[str, ...], rows: list[str]) -> str:
    head, body = "".join(f'<th scope="col">{name}</th>' for name in names), "\n".join(rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _row(report: Locality) -> str:
    one = most(report)
    cells = (one.whole.rows, one.whole.cols, one.a_blocks, one.b_blocks, one.blocks, report.reads)
    return _cells(report.mapping, *cells, f"{report.reads / report.compulsory:.2f}")


def _work_table(placements: tuple[Placement, ...]) -> str:
    found = [placement.work for placement in placements if placement.work]
    reports = [work.balance for work in found]
    linear = found[0].linear
    if all(report.mapping != linear.mapping for report in reports):
        reports.append(linear)
    return _rows_under(WORK_COLUMNS, [_work_row(report) for report in reports])


def _work_row(report: Balance) -> str:
    work = [xcd.work for xcd in report.xcds]
    return _cells(report.mapping, min(work), max(work), report.ends, report.soonest, f"{report.busy:.0%}")


def _cells(mapping: str, *cells: object) -> str:
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row"><code>{escaped(mapping)}</code></th>{shown}</tr>'
