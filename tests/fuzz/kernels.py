"""The net of random kernels: what a seed makes, held against the reference on a target."""

from __future__ import annotations

from .generate import generate
from .judge import TARGETS, Outcome, judge


def case_on(seed: int, target: str) -> Outcome:
    return judge(generate(seed, target), target)


def case(seed: int) -> str | None:
    """One kernel on one target, all targets in turn."""
    outcome = case_on(seed // len(TARGETS), TARGETS[seed % len(TARGETS)])
    return str(outcome) if outcome.wrong else None
