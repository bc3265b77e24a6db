"""One GEMM in several orders of its tiles: compiled, checked against float64, and timed against libraries."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewave._version import __version__
from tilewave.backend.names import DEFAULT_TARGET
from tilewave.bench.baselines import BASELINES
from tilewave.bench.contestant import Advance, Contestant, Launch, LeftOut
from tilewave.bench.measure import CallTimes, measure, seconds_of
from tilewave.bench.measured_on import busy, commit, load
from tilewave.bench.problem import Array, Check, Problem, Reference
from tilewave.bench.rounds import FEWEST_ROUNDS
from tilewave.compile import wave_compile
from tilewave.compiled import Compiled, grid_of
from tilewave.errors import NOWHERE, TilewaveError
from tilewave.kernels import gemm
from tilewave.mapping import Grid, Mapping
from tilewave.options import WaveCompileOptions
from tilewave.records import dataclass

SLOW_SECONDS, SLOW_TIMES = 1.0, 20
"""A library that takes longer, and so many times as long as we do, is not worth the wait for more repeats."""


@dataclass(frozen=True)
class Setup:
    """The problem, its orders (the first is the baseline), the number of repeats, and the libraries to compare with."""

    problem: Problem
    tile: tuple[int, int, int]
    mappings: tuple[Mapping, ...]
    workgroups: int | None
    instruction_set: str | None
    threads: int
    repeats: int
    seed: int
    against: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """The kernels of a setup, ready to run, and their operands."""

    setup: Setup
    kernels: tuple[Compiled, ...]
    a: Array
    b: Array
    c: Array
    load: float
    """The load average of the machine before the benchmark."""

    @staticmethod
    def of(setup: Setup, advance: Advance) -> Trial:
        before = load()
        kernels = tuple(_compile(setup, mapping, advance) for mapping in setup.mappings)
        a, b = setup.problem.operands(setup.seed)
        return Trial(setup, kernels, a, b, setup.problem.empty_output(), before)

    @property
    def grid(self) -> Grid:
        """The tiles of C."""
        return Grid(*grid_of(self.kernels[0].kernel))

    @property
    def launched(self) -> int:
        return self.kernels[0].kernel.workgroup_count

    @property
    def instruction_set(self) -> str:
        return str(self.kernels[0].build.metrics["instruction_set"])

    def to_json(self) -> dict[str, Any]:
        setup, problem = self.setup, self.setup.problem
        return {
            "tilewave": __version__,
            "commit": commit(),
            "machine": f"{platform.system()} {platform.machine()}",
            "kernel": "gemm",
            "shape": [problem.m, problem.n, problem.k],
            "dtype": problem.dtype.name,
            "out": problem.out.name,
            "tile": list(setup.tile),
            "workgroups": self.launched,
            "instruction_set": self.instruction_set,
            "threads": setup.threads,
            "repeats": setup.repeats,
            "seed": setup.seed,
            "load": self.load,
            "checked_rows": problem.checked_rows,
        }

    @property
    def warnings(self) -> list[str]:
        return [text for m in self.setup.mappings for text in m.warnings(self.grid, self.setup.workgroups)]

    def checks(self, advance: Advance) -> tuple[Check, ...]:
        """Compare each order's result with float64."""
        reference = Reference.of(self.setup.problem, self.a, self.b, self.setup.seed)
        return tuple(self._check(kernel, reference, advance) for kernel in self.kernels)

    def _check(self, kernel: Compiled, reference: Reference, advance: Advance) -> Check:
        self.setup.problem.poison(self.c)
        kernel(self.a, self.b, self.c)
        advance()
        return reference.check(self.c)

    def baselines(self) -> list[Contestant | LeftOut]:
        """Return the libraries to compare with; one whose first call is very slow is left out."""
        first = seconds_of(partial(self.kernels[0], self.a, self.b, self.c))
        return [self._baseline(name, first) for name in self.setup.against]

    def _baseline(self, name: str, first: float) -> Contestant | LeftOut:
        found = BASELINES[name](self.a, self.b, self.setup.problem.dtype, self.setup.threads)
        if isinstance(found, Contestant) and (slow := seconds_of(found.launch)) > max(SLOW_SECONDS, SLOW_TIMES * first):
            why = f"one call took {slow:.1f} s, {self.setup.mappings[0]} {first:.3f} s"
            return LeftOut(name, why, is_ours=False)
        return found

    def times(self, found: Sequence[Contestant | LeftOut], advance: Advance) -> TimedInTurn:
        """All orders and those libraries that take part, timed in turns."""
        runs: dict[str, Launch] = {
            str(mapping): partial(kernel, self.a, self.b, self.c)
            for mapping, kernel in zip(self.setup.mappings, self.kernels, strict=True)
        }
        runs.update({library.name: library.launch for library in found if isinstance(library, Contestant)})
        return TimedInTurn(measure(runs, self.setup.repeats, self.setup.seed, advance), self.setup.problem.operations)

    def notes(self, found: Sequence[Contestant | LeftOut]) -> list[str]:
        """What a reader must know of the machine, of the libraries, and of those that are not there."""
        notes = busy(self.load)
        for library in found:
            if isinstance(library, LeftOut):
                notes.append(f"{library.contestant} is left out: {library.why}")
            elif library.writes != self.setup.problem.out:
                notes.append(f"{library.name} writes {library.writes}, not {self.setup.problem.out}")
            if isinstance(library, Contestant) and library.note:
                notes.append(library.note)
        return notes


def _compile(setup: Setup, mapping: Mapping, advance: Advance) -> Compiled:
    p = setup.problem
    made = gemm((p.m, p.n, p.k), p.dtype, p.out, setup.tile, str(mapping), setup.workgroups)
    options = WaveCompileOptions(subs=made.subs, target=DEFAULT_TARGET, instruction_set=setup.instruction_set)
    try:
        compiled = wave_compile(options, made.kernel)
    except TilewaveError as error:
        raise error.at(NOWHERE) from None  # no line of an author's led here
    advance()
    return compiled


@dataclass(frozen=True)
class TimedInTurn:
    """Who took how long; the first is what the others are compared with."""

    timings: dict[str, CallTimes]
    operations: int

    @property
    def baseline(self) -> CallTimes:
        return next(iter(self.timings.values()))

    def gflops(self, name: str) -> float:
        return self.operations / self.timings[name].median / 1e9

    def speedup(self, name: str) -> float:
        return self.baseline.median / self.timings[name].median

    def to_json(self, mappings: set[str]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "kind": "mapping" if name in mappings else "library",
                "median_seconds": timing.median,
                "spread_seconds": timing.spread,
                "median_cpu_seconds": timing.cpu_median,
                "gflops": self.gflops(name),
                "speedup": self.speedup(name),
                "calls_per_repeat": timing.calls,
                "seconds": timing.seconds,
                "cpu_seconds": timing.cpu_seconds,
            }
            for name, timing in self.timings.items()
        ]

    @property
    def conclusion(self) -> str:
        """What the spread allows to say, in one sentence."""
        first, *others = self.timings
        if not others:
            return f"{first} ran alone: there is nothing to compare it with."
        if len(self.baseline.seconds) < FEWEST_ROUNDS:
            return f"Fewer than {FEWEST_ROUNDS} repeats cannot separate a difference from noise."
        return f"In this run, compared with {first}: {'; '.join(map(self._compared, others))}."

    def _compared(self, name: str) -> str:
        timing = self.timings[name]
        ratio = timing.median / self.baseline.median
        change = f"{100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else 'less'} time"
        time = f"{name} took {change}" if ratio < 2 else f"{name} took {ratio:.1f} times as long"
        beyond = timing.differs_from(self.baseline)
        return f"{time}, more than noise" if beyond else f"{time}, within noise"


@dataclass(frozen=True)
class TrialReport:
    """What a trial found."""

    trial: Trial
    checks: tuple[Check, ...]
    found: tuple[Contestant | LeftOut, ...] = ()
    comparison: TimedInTurn | None = None
    """Nothing where a result is wrong, which has no speed."""

    @staticmethod
    def of(setup: Setup, advance: Advance) -> TrialReport:
        """Compile, check, and time what is right."""
        trial = Trial.of(setup, advance)
        return TrialReport(trial, trial.checks(advance)).timed(advance)

    def timed(self, advance: Advance) -> TrialReport:
        if not self.passed:
            return self
        found = tuple(self.trial.baselines())
        return replace(self, found=found, comparison=self.trial.times(found, advance))

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        trial, mappings = self.trial, self.trial.setup.mappings
        return {
            **trial.to_json(),
            "libraries": {one.name: one.version for one in self.found if isinstance(one, Contestant)},
            "passed": self.passed,
            "warnings": trial.warnings,
            "notes": trial.notes(self.found),
            "correctness": [{"mapping": str(m), **c.to_json()} for m, c in zip(mappings, self.checks, strict=True)],
            "performance": self.comparison.to_json(set(map(str, mappings))) if self.comparison else [],
            "conclusion": self.comparison.conclusion if self.comparison else None,
        }
