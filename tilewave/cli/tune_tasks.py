"""Points of a kernel file that others compile and measure: what travels there, and what comes back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilewave.bench.tuning import ConfigTimer, timer_for
from tilewave.bench.workers import Killed, Workers
from tilewave.cli.diff import kernels_in, parse_sizes
from tilewave.errors import TilewaveError
from tilewave.lang.tuning import Tune
from tilewave.records import dataclass
from tilewave.runtime.cache import default_directory
from tilewave.tune.choose import TileChoice
from tilewave.tune.search import Batch, ConfigTime, Measure

ENTRY = "*.entry"
CACHE = "TILEWAVE_CACHE_DIR"
Named = tuple[tuple[tuple[str, int], ...], str]
"""A point as names and numbers, and the order of tiles."""
Entries = tuple[tuple[str, bytes], ...]
"""Files of the compile cache, by name; each says itself what it is for, and whether it is whole."""


@dataclass(frozen=True)
class TuneTask:
    """Points of one kernel of a file, and all that is needed to make them elsewhere."""

    file: str
    text: str
    kernel: int
    """The kernel's number in the file."""
    sizes: str
    target: str
    rounds: int
    within: Tune | None
    configs: tuple[Named, ...] = ()
    code: Entries = ()
    """What others have compiled of these points."""

    def of(self, configs: Sequence[TileChoice], code: Entries = ()) -> TuneTask:
        return replace(self, configs=tuple(map(named, configs)), code=code)

    @property
    def timer(self) -> ConfigTimer:
        return _timer(replace(self, configs=(), code=()))

    @property
    def choices(self) -> list[TileChoice]:
        return [self.timer.open_tiles.at(dict(values), order) for values, order in self.configs]


def named(config: TileChoice) -> Named:
    return tuple((s.name, n) for s, n in config.config.items()), config.order


@cache
def _timer(task: TuneTask) -> ConfigTimer:
    """Find the kernel by its number, because a file creates its kernels in the same order in every run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(task.file).name
        path.write_text(task.text)
        kernel = kernels_in(path)[task.kernel]
    return timer_for(kernel, parse_sizes([task.sizes]), task.target, task.within, task.rounds)


def compile_configs(task: TuneTask) -> Entries:
    """Compile configs in a worker process; return the entries they add to a temporary cache."""
    before = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        try:
            for choice in task.choices:
                _compile(task.timer, choice)
            return tuple((path.name, path.read_bytes()) for path in sorted(Path(folder).glob(ENTRY)))
        finally:
            os.environ.pop(CACHE) if before is None else os.environ.update({CACHE: before})


def _compile(timer: ConfigTimer, choice: TileChoice) -> None:
    try:
        made = timer.compiled(choice)
        made.build.code  # noqa: B018  it is compiled when somebody asks
    except TilewaveError:
        return  # the worker that measures it reports the same error


def install(entries: Entries) -> None:
    """Into the compile cache of this machine, where there is one."""
    directory = default_directory()
    if directory is None:
        return
    for name, data in entries:
        unfinished = directory / f"{name}.{os.getpid()}"
        unfinished.write_bytes(data)
        unfinished.chmod(0o600)
        unfinished.replace(directory / name)


def measure_configs(task: TuneTask) -> tuple[str, tuple[ConfigTime, ...]]:
    """On a worker with the target's device: which that is, and times."""
    install(task.code)
    return task.timer.open_tiles.machine.name, tuple(task.timer(task.choices))


@dataclass(frozen=True)
class OverWorkers:
    """Workers compile all points; who measures them is this process, one batch after the other, or `measuring`."""

    compiling: Workers
    task: TuneTask
    measuring: Workers | None = None

    @property
    def measures_here(self) -> bool:
        return self.measuring is None

    def __call__(self, measure: Measure, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Sequence[ConfigTime]]]:
        code = self.compiled(list({p.text: p for batch in batches for p in batch}.values()))
        if self.measuring is None:
            for entries in code.values():
                install(entries)
            yield from ((batch, measure(batch)) for batch in batches)
            return
        tasks = [self.task.of(batch, tuple(e for p in batch for e in code[p.text])) for batch in batches]
        for number, found in self.measuring.results(measure_configs, tasks):
            yield batches[number], self.times(batches[number], found)

    def compiled(self, configs: Sequence[TileChoice]) -> dict[str, Entries]:
        found: dict[str, Entries] = dict.fromkeys((p.text for p in configs), ())
        for number, entries in self.compiling.results(compile_configs, [self.task.of([p]) for p in configs]):
            found[configs[number].text] = () if isinstance(entries, Killed) else entries
        return found

    def times(self, batch: Batch, found: tuple[str, tuple[ConfigTime, ...]] | Killed) -> Sequence[ConfigTime]:
        """Return the measured times, and reject those of a different kind of GPU."""
        if isinstance(found, Killed):
            return [ConfigTime(None, why=f"{found.times} processes died of this batch")] * len(batch)
        machine, times = found
        own = self.task.timer.open_tiles.machine.name
        return times if machine == own else [ConfigTime(None, why=f"measured on {machine}, not on {own}")] * len(batch)
