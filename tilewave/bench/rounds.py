"""Rounds of a benchmark: the order of samples, and medians of ratios of adjacent samples; independent of the device."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilewave.records import dataclass

FEWEST_ROUNDS = 5
"""Quartiles of fewer say nothing."""


@dataclass(frozen=True)
class Mode:
    """How a sample is taken: a burst of launches, the idle time before it, untimed launches as a share of it."""

    name: str
    burst_seconds: float
    idle_seconds: float
    warm_up: float

    def __str__(self) -> str:
        burst = f"{self.name}: bursts of {1e3 * self.burst_seconds:.0f} ms"
        if self.idle_seconds:
            return f"{burst}, {1e3 * self.idle_seconds:.0f} ms idle between them"
        return f"{burst} back to back, each after {100 * self.warm_up:.0f} % of it untimed"


SHORT = Mode("short", 0.002, 0.012, 0.0)
SUSTAINED = Mode("sustained", 0.150, 0.0, 0.5)
MODES = {"short": (SHORT,), "sustained": (SUSTAINED,), "both": (SHORT, SUSTAINED)}


@dataclass(frozen=True)
class Sample:
    """One burst: who, and the seconds of one launch in it."""

    contestant: str
    seconds: float


Round = tuple[Sample, ...]
"""Samples in the order in which they were taken."""


@dataclass(frozen=True)
class Estimate:
    """A median, and half the distance between the quartiles."""

    median: float
    spread: float

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        """Return the median and half the interquartile range; the spread of a single value is 0."""
        if len(values) < 2:
            return Estimate(statistics.median(values), 0.0)
        first, _, third = statistics.quantiles(values, n=4)
        return Estimate(statistics.median(values), (third - first) / 2)

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "spread": self.spread}


@dataclass(frozen=True)
class Rounds:
    """All samples of one problem in one mode."""

    mode: Mode
    launches: int
    """Launches per burst, equal for all contestants."""
    rounds: tuple[Round, ...]
    baseline: str
    """Whom the others are compared with; it is timed before and after each of them."""

    @property
    def contestants(self) -> tuple[str, ...]:
        return tuple(sorted({sample.contestant for one in self.rounds for sample in one}))

    def seconds(self, name: str) -> tuple[float, ...]:
        return tuple(sample.seconds for one in self.rounds for sample in one if sample.contestant == name)

    def time(self, name: str) -> Estimate:
        """Return the duration of one launch in seconds."""
        return Estimate.of(self.seconds(name))

    def tflops(self, name: str, operations: int) -> Estimate:
        return Estimate.of([operations / seconds / 1e12 for seconds in self.seconds(name)])

    def ratios(self, name: str) -> tuple[float, ...]:
        """How many times as fast as the baseline just before and just after, once a round."""
        return tuple(ratio for one in self.rounds for ratio in _ratios(one, name, self.baseline))

    def ratio(self, name: str) -> Estimate | None:
        """Nothing for the baseline itself, and where it did not take part."""
        ratios = self.ratios(name)
        return Estimate.of(ratios) if ratios else None

    def to_json(self, operations: int) -> dict[str, Any]:
        """Every sample in the order in which it was taken; rates where it is known how much was computed."""
        return {
            "mode": self.mode.name,
            "burst_seconds": self.mode.burst_seconds,
            "idle_seconds": self.mode.idle_seconds,
            "warm_up": self.mode.warm_up,
            "launches_in_a_burst": self.launches,
            "contestants": [self._contestant_json(name, operations) for name in self.contestants],
            "rounds": [[[sample.contestant, sample.seconds] for sample in one] for one in self.rounds],
        }

    def _contestant_json(self, name: str, operations: int) -> dict[str, Any]:
        rate, ratio = self.tflops(name, operations) if operations else None, self.ratio(name)
        return {
            "name": name,
            "seconds": self.time(name).to_json(),
            "tflops": rate.to_json() if rate else None,
            "ratio": ratio.to_json() if ratio else None,
            "ratios": list(self.ratios(name)),
        }


def _ratios(one: Round, name: str, baseline: str) -> Iterable[float]:
    for before, sample, after in zip(one, one[1:], one[2:], strict=False):
        if sample.contestant == name != baseline and before.contestant == after.contestant == baseline:
            yield (before.seconds + after.seconds) / 2 / sample.seconds


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def order_of_a_round(names: Sequence[str], baseline: str, draw: random.Random) -> tuple[str, ...]:
    """The contestants in a new order, and the baseline, where it takes part, around each of them."""
    others = [name for name in names if name != baseline]
    shuffled = draw.sample(others, len(others))
    if baseline not in names:
        return tuple(shuffled)
    return (baseline, *(name for other in shuffled for name in (other, baseline)))


def play(
    names: Sequence[str],
    baseline: str,
    count: int,
    seed: int,
    take: Callable[[Sequence[str]], Sequence[float]],
    advance: Callable[[], object],
) -> tuple[Round, ...]:
    """Run `count` rounds; `take` returns the seconds per launch of each sample of one round, in order."""
    draw = random.Random(seed)
    rounds = []
    for _ in range(count):
        order = order_of_a_round(names, baseline, draw)
        rounds.append(tuple(Sample(*one) for one in zip(order, take(order), strict=True)))
        advance()
    return tuple(rounds)
