"""What `tilewave tune` shows of a decision: lines and a table, or a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SQUARE
from rich.console import Console

from tilewave.tune.choose import TileChoice, illegal_text, seconds_text
from tilewave.tune.default import TunableKernel
from tilewave.tune.search import NO_TIME, Tried, Tuned
from tilewave.view.tables import names, numbers, print_table
from tilewave.view.tuning_page import TunedPage
from tilewave.view.tuning_plot import TuningConfig

SHOWN = 12
"""Points of a table; --json has all."""


def print_tuned(what: str, tuned: Tuned) -> None:
    """The decision, why, and the table of what was timed."""
    console, record = Console(highlight=False), tuned.record
    time = f"{seconds_text(record.measured)} measured, " if record.measured is not None else ""
    console.print(f"{what}, {record.key.chip}: {tuned.winner.text}", style="bold", markup=False)
    console.print(f"{time}{seconds_text(record.predicted)} predicted; {record.how}", markup=False)
    console.print(f"{record.considered} configs, {record.illegal} of them illegal, {record.tried} timed", markup=False)
    if tuned.resumed and tuned.tried:
        console.print(f"{tuned.resumed} of these were timed by an earlier search", markup=False)
    for line in (*reasons_for(tuned), *([record.notes] if record.notes else ())):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if tuned.tried:
        _print_tried(console, tuned)
    for one in (one for one in tuned.tried if one.time.seconds is None):
        console.print(f"{one.text} has no time: {one.time.why}", markup=False, soft_wrap=True)


def _print_tried(console: Console, tuned: Tuned) -> None:
    timed = [(one, one.time.seconds) for one in tuned.tried if one.time.seconds is not None]
    rows = []
    for one, seconds in timed[:SHOWN]:
        times = seconds, one.time.spread, one.choice.prediction.seconds
        rows.append((one.text, *map(seconds_text, times)))
    if len(timed) > SHOWN:
        rows.append((f"{len(timed) - SHOWN} more", "", "", ""))
    print_table(console, (*names("Point"), *numbers("Time", "±", "Predicted")), rows, box=SQUARE)


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """Return the decision and all that was timed, as --json prints it."""
    configs = [
        {
            "point": one.choice.values,
            "order": one.choice.order,
            "predicted": one.choice.prediction.seconds,
            "seconds": one.time.seconds,
            "spread": one.time.spread,
            "why": one.time.why,
        }
        for one in tuned.tried
    ]
    record = json.loads(tuned.record.line)
    return {"record": record, "resumed": tuned.resumed, "reasons": reasons_for(tuned), "tried": configs}


def reasons_for(tuned: Tuned) -> tuple[str, ...]:
    """Return why the winner won, compared with the slowest config that ran and the cost model's choice."""
    winner, first = tuned.winner.text, tuned.legal[0].text
    times = {one.text: (one.time.seconds, one.choice) for one in tuned.tried if one.time.seconds is not None}
    texts = [*times]  # the fastest first
    given = [f"{winner}: {_facts(tuned.winner, tuned)}"]
    if first != winner and first in times:
        given.append(f"the model's {first} took {seconds_text(times[first][0])}")
    if texts and texts[0] != winner:
        given.append(f"{texts[0]} took {seconds_text(times[texts[0]][0])}, within noise of the winner")
    if texts and texts[-1] != winner:
        seconds, slowest = times[texts[-1]]
        given.append(f"slowest {slowest.text}, {seconds_text(seconds)}: {_facts(slowest, tuned)}")
    return tuple(given)


def _facts(choice: TileChoice, tuned: Tuned) -> str:
    """Return the tiles, waves, size of the last wave, bytes requested, and bottleneck of a config, as text."""
    cut, units = tuned.tiles.problem.cut(choice.config), tuned.tiles.machine.units
    rounds, left = divmod(cut.tasks, units)
    last = f" and one of {left} tiles" if left else ""
    repeats = cut.asked_bytes / max(1.0, cut.distinct_bytes)
    return (
        f"{cut.tasks} tiles, {units} concurrent: {rounds} full waves{last}; {cut.asked_bytes / 1e6:.3g} MB requested, "
        f"each byte {repeats:.1f} times; predicted bottleneck: {tuned.tiles.machine.predict(cut).limit}"
    )


def explain_choices(jobs: Sequence[tuple[str, TunableKernel]], as_json: bool) -> None:
    """Print for each kernel and sizes which config a call takes, why, what follows it, and what would be faster."""
    console, found = Console(highlight=False), []
    for what, tiles in jobs:
        choices = tiles.choices()
        if not choices:
            raise tiles.nothing_fits()
        first, rows = choices[0], [_explained(one, tiles) for one in choices[:SHOWN]]
        configs = [dict(zip(EXPLAINED, row, strict=True)) for row in rows]
        facts = {"kernel": what, "machine": tiles.machine.name, "reason": first.reason, "configs": configs}
        found.append({**facts, "faster": first.prediction.advice})
        if not as_json:
            console.print(f"{what}, {tiles.machine.name}: {first.text}", style="bold", markup=False)
            console.print(f"  {first.reason}", markup=False, soft_wrap=True)
            columns = (*names("Config"), *numbers("Predicted"), *names("Bottleneck", "Tiles"))
            print_table(console, columns, rows, box=SQUARE)
    if as_json:
        print(json.dumps(found, indent=2))


EXPLAINED = ("config", "predicted", "bottleneck", "tiles")


def _explained(one: TileChoice, tiles: TunableKernel) -> tuple[str, str, str, str]:
    work = tiles.problem.cut(one.config)
    tasks = f"{work.tasks * work.split} on {tiles.machine.units}"
    return one.text, seconds_text(one.prediction.seconds), one.prediction.limit, tasks


def page_of(what: str, tuned: Tuned) -> TunedPage:
    """Return the page of a tuning run, with every legal config."""
    record, first = tuned.record, tuned.legal[0]
    how = f"{record.how}: {seconds_text(record.measured or record.predicted)}"
    illegal = f"of {record.considered} configs {illegal_text(tuned.winner.illegal)}"
    reasons = (*reasons_for(tuned), *([record.notes] if record.notes else ()))
    facts = illegal, first.prediction.error, first.prediction.fitted_on, reasons, tuple(_configs(tuned))
    return TunedPage(what, record.key.chip, tuned.winner.text, how, *facts)


def _configs(tuned: Tuned) -> list[TuningConfig]:
    tried = {one.text: one for one in tuned.tried}
    return [_config(choice, tuned, tried.get(choice.text)) for choice in tuned.legal]


def _config(choice: TileChoice, tuned: Tuned, tried: Tried | None) -> TuningConfig:
    kind = "chosen" if choice.text == tuned.winner.text else "model" if choice is tuned.legal[0] else "timed"
    time, p = tried.time if tried else NO_TIME, choice.prediction
    kind = "untimed" if kind == "timed" and time.seconds is None else kind
    return TuningConfig(choice.text, p.seconds, time.seconds, time.spread, kind, p.limit, time.why)
