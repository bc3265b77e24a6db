"""One self-contained page about decisions of the tuner: predicted against measured, every point, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from string import Template

from tilewave.records import dataclass
from tilewave.view.page import embedded
from tilewave.view.svg import escaped
from tilewave.view.tuning_plot import TuningConfig, seconds_text, tuning_plot

HEAD = ("config", "measured", "±", "predicted", "measured / predicted", "predicted bottleneck")


@dataclass(frozen=True)
class TunedPage:
    """A decision: for what, what was chosen, why, and every legal point."""

    title: str
    machine: str
    chosen: str
    how: str
    illegal: str
    error: float
    """One standard deviation of the model, as a share."""
    fitted_on: str
    reasons: tuple[str, ...]
    configs: tuple[TuningConfig, ...]


def tuning_page(found: Sequence[TunedPage]) -> str:
    """The whole page as text."""
    return _asset("tuning.html").substitute(
        title=escaped(" | ".join(dict.fromkeys(one.title for one in found))),
        css=_asset("page.css").template,
        machines=escaped(", ".join(dict.fromkeys(one.machine for one in found))),
        layout="several" if len(found) > 1 else "one",
        articles="\n".join(map(_article, found)),
        tables="\n".join(map(_configs, found)),
        data=embedded([asdict(one) for one in found]),
    )


def _asset(name: str) -> Template:
    return Template(files("tilewave.view").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


def _article(one: TunedPage) -> str:
    timed = sum(p.measured is not None for p in one.configs)
    counted = f"{len(one.configs)} legal configs, {timed} of them timed; {one.illegal}"
    sentences = [f"{one.how}: {one.chosen}", counted, *one.reasons]
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in sentences)
    caption = (
        f"{one.title} on {one.machine}. Each mark is a config; below the line, those that were not timed. "
        f"The grey band is the model's own error, {100 * one.error:.0f} %; it was fitted on {one.fitted_on}."
    )
    figure = tuning_plot(one.configs, one.error, caption).svg()
    name = escaped(one.title)
    head = f"<div><h2>{name}</h2>{said}</div>"
    return f'<article aria-label="{name}">\n{head}\n<div class="figures"><figure>{figure}</figure></div>\n</article>'


def _configs(one: TunedPage) -> str:
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in HEAD)
    rows = "\n".join(map(_row, sorted(one.configs, key=_by_time)))
    table = f"<table><thead><tr>{top}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<h2>{escaped(one.title)}</h2>\n<div class="scroll">{table}</div>'


def _by_time(p: TuningConfig) -> tuple[bool, float]:
    return p.measured is None, p.predicted if p.measured is None else p.measured


def _row(p: TuningConfig) -> str:
    if p.measured is None:
        times = [p.why or "–", "", seconds_text(p.predicted), ""]
    else:
        ratio = f"{p.measured / p.predicted:.2f}"
        times = [seconds_text(p.measured), seconds_text(p.spread), seconds_text(p.predicted), ratio]
    cells = "".join(f"<td>{escaped(cell)}</td>" for cell in [*times, p.limit])
    name = f"{p.text}{' (chosen)' if p.kind == 'chosen' else ''}"
    return f'<tr class="{p.kind}"><th scope="row"><code>{escaped(name)}</code></th>{cells}</tr>'
