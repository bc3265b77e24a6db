"""Functions timed against each other: in turns, in random order, so that what slows the machine slows all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PAUSE_SECONDS = 0.05
"""Before each sample: the threads of the one before have stopped looking for work by then."""

SHORTEST_SECONDS = 0.01
"""A sample repeats a call for at least so long; shorter, and the clock and the waking of threads would show."""


@dataclass(frozen=True)
class Timing:
    """What one call takes, once per repeat: by the clock, and in processor time over all threads."""

    calls: int
    """In each sample, which is their mean."""
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cpu_median(self) -> float:
        return statistics.median(self.cpu_seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles; of one repeat, nothing is known."""
        if len(self.seconds) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / 2

    def differs_from(self, other: Timing) -> bool:
        """Whether the medians lie further apart than both spreads together."""
        return abs(self.median - other.median) > self.spread + other.spread


def measure(
    contestants: Mapping[str, Callable[[], object]], repeats: int, seed: int, after_each: Callable[[], object]
) -> dict[str, Timing]:
    """Time every contestant once per repeat, in an order drawn anew each time; warmed up before."""
    calls = {name: _calls(run) for name, run in contestants.items()}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    draw = random.Random(seed)
    for _ in range(repeats):
        for name in draw.sample(list(contestants), len(contestants)):
            time.sleep(PAUSE_SECONDS)
            samples[name].append(_sample(contestants[name], calls[name]))
            after_each()
    return {name: _timing(calls[name], found) for name, found in samples.items()}


def seconds_of(run: Callable[[], object]) -> float:
    """One call, by the clock."""
    return _sample(run, 1)[0]


def _calls(run: Callable[[], object]) -> int:
    """How many calls make a sample, from the fastest of a few after one that warms up; a long call is tried once."""
    run()
    fastest = seconds_of(run)
    tries = 4
    while tries and fastest < SHORTEST_SECONDS:
        fastest = min(fastest, seconds_of(run))
        tries -= 1
    return max(1, round(SHORTEST_SECONDS / max(fastest, 1e-9)))


def _sample(run: Callable[[], object], calls: int) -> tuple[float, float]:
    start, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls, (time.process_time() - used) / calls


def _timing(calls: int, found: list[tuple[float, float]]) -> Timing:
    return Timing(calls, tuple(seconds for seconds, _ in found), tuple(cpu for _, cpu in found))
