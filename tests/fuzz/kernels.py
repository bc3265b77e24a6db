"""The nets of random kernels: what a seed makes, held against the reference on a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .generate import generate
from .judge import TARGETS, Outcome, judge
from .open_sizes import generate_open
from .program import Program
from .reductions import generate_reduced
from .reproduction import reproduction
from .shrink import Wanted, shrink
from .text import program_of, text_of


@dataclass(frozen=True)
class Kernels:
    """A net whose cases are programs, each for one target."""

    generated: Callable[[int, str], Program]

    def make(self, seed: int, target: str) -> Program:
        return self.generated(seed, target)

    def judged(self, program: Program, target: str, only: str = "") -> Outcome:
        return judge(program, target, only)

    def case_on(self, seed: int, target: str) -> Outcome:
        return self.judged(self.make(seed, target), target)

    def case(self, seed: int) -> str | None:
        """One kernel on one target, all targets in turn."""
        outcome = self.case_on(seed // len(TARGETS), TARGETS[seed % len(TARGETS)])
        return str(outcome) if outcome.wrong else None

    def text(self, program: Program) -> str:
        return text_of(program)

    def of_text(self, text: str) -> Program:
        return program_of(text)

    def shrunk(self, program: Program, still_wrong: Wanted) -> Program:
        return shrink(program, still_wrong)

    def reproduction(self, program: Program, target: str, outcome: Outcome) -> str:
        return reproduction(program, target, outcome)


KERNELS = {
    "kernels": Kernels(generate),
    "open_kernels": Kernels(generate_open),
    "reduced_kernels": Kernels(generate_reduced),
}
"""Kernels with fixed sizes, with dynamic shapes, and with reductions."""
