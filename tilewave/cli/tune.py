"""`tilewave tune`: which tile and order a kernel of a file is to have, for sizes and a target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SQUARE
from rich.console import Console

from tilewave.backend.targets import DEFAULT_TARGET, TARGETS
from tilewave.bench.tuning import ROUNDS, tune
from tilewave.cli.diff import kernels_in, parse_sizes
from tilewave.cli.progress import progress
from tilewave.errors import TilewaveError
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.symbols import Symbol
from tilewave.tune.choose import seconds_text
from tilewave.tune.records import STRENGTHS
from tilewave.tune.search import RUNS, Tuned
from tilewave.tune.store import DIRECTORY, tidy
from tilewave.tune.tune import Tune
from tilewave.view.tables import names, numbers, print_table

SHOWN = 12
"""Points of a table; --json has all."""


def tune_command(
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels.", exists=True)],
    sizes: Annotated[
        list[str], typer.Option("--sizes", "-s", metavar="M=…,N=…", help="Sizes to decide for; may be given again.")
    ],
    target: Annotated[str, typer.Option(help=f"What to tune for: {', '.join(TARGETS)}.")] = DEFAULT_TARGET,
    strength: Annotated[
        str, typer.Option(help=f"{', '.join(STRENGTHS)}: nothing runs, the model's best few, every legal point.")
    ] = STRENGTHS[1],
    runs: Annotated[int, typer.Option(min=1, help="Points that run at most, where not all do.")] = RUNS,
    rounds: Annotated[int, typer.Option(min=1, help="How often each point is timed.")] = ROUNDS,
    values: Annotated[
        list[str], typer.Option("--try", metavar="BLOCK_M=64:128", help="Values for a symbol; may be given again.")
    ] = [],  # noqa: B006  typer reads the default
    mapping: Annotated[list[str], typer.Option("--map", help="An order of tiles to try; may be given again.")] = [],  # noqa: B006
    kernel: Annotated[str, typer.Option(help="This kernel alone.")] = "",
    records: Annotated[Path, typer.Option(help="The directory that decisions are written to.")] = Path(DIRECTORY),
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Decide the tiles of a file's kernels, say why, and put it on record.

    A search that was ended goes on where it stopped.

    [bold]tilewave tune kernel.py --sizes M=1024,N=1024,K=1024[/bold]

    [bold]tilewave tune kernel.py --sizes M=64,N=8192,K=8192 --target CHIP --strength model[/bold]
    """
    within = _within(values, mapping)
    found: list[Tuned] = []
    for one in _jobs(file, sizes, kernel):
        with progress(one.text, runs if strength == STRENGTHS[1] else 0) as advance:
            how: dict[str, Any] = {"within": within, "records": records, "runs": runs, "rounds": rounds}
            found.append(tune(one.kernel, one.subs, target, strength, **how, advance=advance))
        if not as_json:
            _print(one, found[-1])
    tidy(records)
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=2))


@dataclass(frozen=True)
class _Job:
    kernel: WaveKernel
    subs: dict[Symbol, Any]
    text: str


def _jobs(file: Path, sizes: list[str], wanted: str) -> list[_Job]:
    kernels = [k for k in kernels_in(file) if wanted in ("", k.name)]
    if not kernels:
        raise TilewaveError(f"{file} defines no kernel" + (f" {wanted!r}" if wanted else ""))
    return [_Job(k, parse_sizes([text]), f"{k.name} {text}") for text in sizes for k in kernels]


def _within(values: list[str], mapping: list[str]) -> Tune | None:
    given: dict[str, tuple[int, ...]] = {}
    for text in values:
        name, _, numbers = text.partition("=")
        parts = numbers.split(":")
        if not name.isidentifier() or not all(part.isdecimal() for part in parts):
            raise TilewaveError(f"--try: {text!r} is no list of values", remedy="write --try BLOCK_M=64:128")
        given[name] = tuple(map(int, parts))
    return Tune(mapping=mapping or None, **given) if values or mapping else None


def _print(job: _Job, tuned: Tuned) -> None:
    console, record = Console(highlight=False), tuned.record
    time = f"{seconds_text(record.measured)} measured, " if record.measured is not None else ""
    console.print(f"{job.text}, {record.key.chip}: {tuned.winner.text}", style="bold", markup=False)
    console.print(f"{time}{seconds_text(record.predicted)} predicted; {record.how}", markup=False)
    console.print(f"{record.considered} points, {record.illegal} of them illegal, {record.tried} timed", markup=False)
    if tuned.resumed and tuned.tried:
        console.print(f"{tuned.resumed} of these an earlier search had timed", markup=False)
    for line in (*tuned.reasons, *([record.notes] if record.notes else ())):
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
