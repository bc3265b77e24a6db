"""The nets of random kernels: what a seed makes, held against the reference on a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .generate import generate
from .judge import TARGETS, Outcome, judge
from .open_sizes import generate_open
from .program import Program
from .reductions import generate_reduced


@dataclass(frozen=True)
class Kernels:
    """A net whose cases are programs, each for one target."""

    make: Callable[[int, str], Program]

    def case_on(self, seed: int, target: str) -> Outcome:
        return judge(self.make(seed, target), target)

    def case(self, seed: int) -> str | None:
        """One kernel on one target, all targets in turn."""
        outcome = self.case_on(seed // len(TARGETS), TARGETS[seed % len(TARGETS)])
        return str(outcome) if outcome.wrong else None


KERNELS = {
    "kernels": Kernels(generate),
    "open_kernels": Kernels(generate_open),
    "reduced_kernels": Kernels(generate_reduced),
}
"""With sizes that are fixed, with sizes that each call tells, and with reductions."""
