"""`tilewave tune`: autotune the tile and order of a kernel of a file, for sizes and a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tilewave.backend.targets import target_named
from tilewave.bench.ray_workers import RayWorkers
from tilewave.bench.tuning import timer_for, tune, want_cost_model
from tilewave.bench.workers import LocalWorkers
from tilewave.cli.diff import kernels_in, parse_sizes, want_sizes
from tilewave.cli.progress import progress
from tilewave.cli.tune_report import explain_choices, page_of, print_tuned, tuned_json
from tilewave.cli.tune_tasks import OverWorkers, TuneTask
from tilewave.errors import TilewaveError
from tilewave.files import read_text
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.symbols import Symbol
from tilewave.lang.tuning import Tune
from tilewave.machine.chips import CHIPS
from tilewave.options import want_tunable
from tilewave.records import dataclass
from tilewave.tune.records import STRENGTHS
from tilewave.tune.search import IN_TURN, Spread, Tuned
from tilewave.tune.store import tidy
from tilewave.view.save import check_place, save
from tilewave.view.tuning_page import tuning_page

MOST_FILE_BYTES = 1 << 24
"""The most bytes of a kernel file."""


def tune_command(
    *,
    file: Path,
    sizes: list[str],
    target: str,
    strength: str,
    runs: int,
    rounds: int,
    values: list[str],
    mapping: list[str],
    kernel: str,
    records: Path,
    workers: int,
    ray: str,
    html: Path | None,
    explain: bool,
    as_json: bool,
) -> None:
    check_place(html)
    within = _within(values, mapping)
    want_cost_model(target_named(target))
    found: list[Tuned] = []
    jobs = _jobs(file, sizes, kernel)
    if explain:
        chosen = [(job.text, timer_for(job.kernel, job.subs, target, within).open_tiles) for job in jobs]
        explain_choices(chosen, as_json)
        return
    how: dict[str, Any] = {"within": within, "records": records, "runs": runs, "rounds": rounds}
    with ExitStack() as stack:
        spreading = _spreading(stack, workers, ray, target)
        for one in jobs:
            task = TuneTask(str(file), _text_of(file), one.number, one.sizes, target, rounds, within)
            with progress(one.text, runs if strength == STRENGTHS[1] else 0) as advance:
                how |= {"advance": advance, "spread": spreading(task) if spreading else IN_TURN}
                found.append(tune(one.kernel, one.subs, target, strength, **how))
            if not as_json:
                print_tuned(one.text, found[-1])
    tidy(records)
    if html is not None:
        save(html, tuning_page([page_of(job.text, one) for job, one in zip(jobs, found, strict=True)]))
    if as_json:
        print(json.dumps([tuned_json(one) for one in found], indent=2))


@dataclass(frozen=True)
class _Job:
    kernel: WaveKernel
    number: int
    """The kernel's number in its file."""
    subs: dict[Symbol, Any]
    sizes: str

    @property
    def text(self) -> str:
        return f"{self.kernel.name} {self.sizes}"


def _text_of(file: Path) -> str:
    """Return the text of a kernel file, as workers receive it."""
    try:
        return read_text(file, MOST_FILE_BYTES)
    except OSError as error:
        what = f"{file} cannot be read: {error.strerror or error}"
        raise TilewaveError(what, remedy="save it as a plain file in UTF-8") from None


def _jobs(file: Path, sizes: list[str], wanted: str) -> list[_Job]:
    kernels = [(at, k) for at, k in enumerate(kernels_in(file)) if wanted in ("", k.name)]
    if not kernels:
        raise TilewaveError(f"{file} defines no kernel" + (f" {wanted!r}" if wanted else ""))
    jobs = [_Job(k, at, parse_sizes([text]), text) for text in sizes for at, k in kernels]
    for job in jobs:
        want_sizes(job.kernel, {**job.kernel.subs, **job.subs}, "--sizes")
        want_tunable(job.kernel, job.subs)
    return jobs


def _spreading(stack: ExitStack, workers: int, ray: str, target: str) -> Callable[[TuneTask], Spread] | None:
    """Return what compiles and measures in other processes; None where there are no workers."""
    if not ray:
        local = stack.enter_context(LocalWorkers(workers)) if workers else None
        return None if local is None else lambda task: OverWorkers(local, task)
    address = "" if ray == "local" else ray
    compiling = stack.enter_context(RayWorkers(address, workers or None))
    cards = compiling.gpu_count if target in CHIPS else 0
    measuring = stack.enter_context(RayWorkers(address, gpus=1)) if cards else None
    return lambda task: OverWorkers(compiling, task, measuring)


def _within(values: list[str], mapping: list[str]) -> Tune | None:
    given: dict[str, Any] = {}
    for text in values:
        name, _, numbers = text.partition("=")
        parts = numbers.split(":")
        if not name.isidentifier() or not all(part.isdecimal() for part in parts):
            raise TilewaveError(f"--try: {text!r} is no list of values", remedy="write --try BLOCK_M=64:128")
        given[name] = tuple(map(int, parts))
    return Tune(mapping=mapping or None, **given) if values or mapping else None
