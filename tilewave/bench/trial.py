"""One GEMM in several orders of its tiles: compiled, held against float64, timed beside other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewave.backend.targets import DEFAULT_TARGET
from tilewave.bench.measure import Timing, measure, seconds_of
from tilewave.bench.problem import Array, Check, Problem, Reference
from tilewave.bench.rivals import RIVALS, Absent, Rival
from tilewave.compile import Compiled, WaveCompileOptions, grid_of, wave_compile
from tilewave.errors import NOWHERE, TilewaveError
from tilewave.kernels import gemm
from tilewave.mapping import Grid, Mapping

Advance = Callable[[], object]
"""Called after each piece of work."""

FEWEST_REPEATS = 5
"""Quartiles of fewer say nothing."""

SLOW_SECONDS, SLOW_TIMES = 1.0, 20
"""A library that takes longer, and so many times as long as we do, is not worth the wait for more repeats."""


@dataclass(frozen=True)
class Setup:
    """What is run, in which orders (the first is the baseline), how often, and beside what."""

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
    """Of the machine, before any of this ran: processes that wanted a core, on average over a minute."""

    @staticmethod
    def of(setup: Setup, advance: Advance) -> Trial:
        load, _, _ = os.getloadavg()
        kernels = tuple(_compile(setup, mapping, advance) for mapping in setup.mappings)
        a, b = setup.problem.operands(setup.seed)
        return Trial(setup, kernels, a, b, setup.problem.empty_output(), load)

    @property
    def grid(self) -> Grid:
        """The tiles of C."""
        return Grid(*grid_of(self.kernels[0].kernel))

    @property
    def launched(self) -> int:
        return self.kernels[0].kernel.workgroups

    @property
    def instruction_set(self) -> str:
        return str(self.kernels[0].build.figures["instruction_set"])

    @property
    def warnings(self) -> list[str]:
        return [text for m in self.setup.mappings for text in m.warnings(self.grid, self.setup.workgroups)]

    def checks(self, advance: Advance) -> tuple[Check, ...]:
        """Each order's result beside float64."""
        reference = Reference.of(self.setup.problem, self.a, self.b, self.setup.seed)
        return tuple(self._check(kernel, reference, advance) for kernel in self.kernels)

    def _check(self, kernel: Compiled, reference: Reference, advance: Advance) -> Check:
        self.setup.problem.poison(self.c)
        kernel(self.a, self.b, self.c)
        advance()
        return reference.check(self.c)

    def rivals(self) -> list[Rival | Absent]:
        """The libraries beside it; one that takes very long has shown enough after one call."""
        first = seconds_of(partial(self.kernels[0], self.a, self.b, self.c))
        return [self._rival(name, first) for name in self.setup.against]

    def _rival(self, name: str, first: float) -> Rival | Absent:
        rival = RIVALS[name](self.a, self.b, self.setup.problem.dtype, self.setup.threads)
        if isinstance(rival, Rival) and (slow := seconds_of(rival.run)) > max(SLOW_SECONDS, SLOW_TIMES * first):
            return Absent(name, f"one call took {slow:.1f} s, {self.setup.mappings[0]} {first:.3f} s")
        return rival

    def times(self, rivals: list[Rival], advance: Advance) -> Standings:
        """All orders and rivals, timed in turns."""
        runs: dict[str, Callable[[], object]] = {
            str(mapping): partial(kernel, self.a, self.b, self.c)
            for mapping, kernel in zip(self.setup.mappings, self.kernels, strict=True)
        }
        runs.update({rival.name: rival.run for rival in rivals})
        return Standings(measure(runs, self.setup.repeats, self.setup.seed, advance), self.setup.problem.operations)


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
class Standings:
    """Who took how long; the first is what the others are compared with."""

    timings: dict[str, Timing]
    operations: int

    @property
    def baseline(self) -> Timing:
        return next(iter(self.timings.values()))

    def gflops(self, name: str) -> float:
        return self.operations / self.timings[name].median / 1e9

    def speedup(self, name: str) -> float:
        return self.baseline.median / self.timings[name].median

    @property
    def conclusion(self) -> str:
        """What the spread allows to say, in one sentence."""
        first, *others = self.timings
        if not others:
            return f"{first} ran alone: there is nothing to compare it with."
        if len(self.baseline.seconds) < FEWEST_REPEATS:
            return f"Fewer than {FEWEST_REPEATS} repeats cannot tell a difference from chance."
        return f"In this run, beside {first}: {'; '.join(map(self._compared, others))}."

    def _compared(self, name: str) -> str:
        timing = self.timings[name]
        ratio = timing.median / self.baseline.median
        change = f"{100 * abs(ratio - 1):.1f} % {'more' if ratio > 1 else 'less'} time"
        time = f"{name} took {change}" if ratio < 2 else f"{name} took {ratio:.1f} times as long"
        beyond = timing.differs_from(self.baseline)
        return f"{time}, more than the spread" if beyond else f"{time}, and the difference is within the spread"
