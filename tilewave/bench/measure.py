"""Functions timed against each other: in turns, in random order, so that what slows the machine slows all of them."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewave.bench.contestant import Advance, Launch
from tilewave.bench.rounds import Estimate
from tilewave.records import dataclass
from tilewave.runtime.pool import default_threads

PAUSE_SECONDS = 0.2
"""The pause before each sample: OpenBLAS's threads spin for 100 to 130 ms after a product and would slow the next
sample."""

SHORTEST_SECONDS = 0.01
"""A sample repeats a call for at least so long; shorter, and the clock and the waking of threads would show."""


@dataclass(frozen=True)
class CallTimes:
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
        return Estimate.of(self.seconds).spread

    def differs_from(self, other: CallTimes) -> bool:
        """Return whether the medians differ by more than the sum of both spreads."""
        return abs(self.median - other.median) > self.spread + other.spread


def measure(
    contestants: Mapping[str, Launch], repeats: int, seed: int = 0, after_each: Advance = lambda: None
) -> dict[str, CallTimes]:
    """Time every contestant once per repeat, in a new random order each time, after a warm-up.

    Contestants are functions without arguments, by name: kernels, or what a library has.
    """
    clock = Calls.of(contestants)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    draw = random.Random(seed)
    for _ in range(repeats):
        for name in draw.sample(list(contestants), len(contestants)):
            samples[name].append(clock.sample(name))
            after_each()
    return {name: _timing(clock.calls[name], found) for name, found in samples.items()}


@dataclass(frozen=True, eq=False)
class Calls:
    """The clock of a CPU: as many calls of each contestant as make a sample long enough."""

    launches: Mapping[str, Launch]
    calls: dict[str, int]

    @staticmethod
    def of(launches: Mapping[str, Launch]) -> Calls:
        """Each is called a few times, to warm up and to see how long it takes."""
        return Calls(launches, {name: _calls(run) for name, run in launches.items()})

    def take(self, order: Sequence[str]) -> list[float]:
        """The seconds of a call, for each contestant in turn."""
        return [self.sample(name)[0] for name in order]

    def sample(self, name: str) -> tuple[float, float]:
        """Return the wall-clock and the processor time of one call."""
        time.sleep(PAUSE_SECONDS)
        return _sample(self.launches[name], self.calls[name])


def seconds_of(run: Launch) -> float:
    """One call, by the clock."""
    return _sample(run, 1)[0]


def _calls(run: Launch) -> int:
    """How many calls make a sample, from the fastest of a few after one that warms up; a long call is tried once."""
    run()
    fastest = seconds_of(run)
    tries = 4
    while tries and fastest < SHORTEST_SECONDS:
        fastest = min(fastest, seconds_of(run))
        tries -= 1
    return max(1, round(SHORTEST_SECONDS / max(fastest, 1e-9)))


def _sample(run: Launch, calls: int) -> tuple[float, float]:
    start, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls, (time.process_time() - used) / calls


def _timing(calls: int, found: list[tuple[float, float]]) -> CallTimes:
    return CallTimes(calls, tuple(seconds for seconds, _ in found), tuple(cpu for _, cpu in found))


@contextmanager
def threads_of(wanted: int | None) -> Iterator[int]:
    """Set the number of threads within the context; None: the number from the environment or the machine."""
    before = os.environ.get("TILEWAVE_NUM_THREADS")
    if wanted is not None:
        os.environ["TILEWAVE_NUM_THREADS"] = str(wanted)
    try:
        yield default_threads()
    finally:
        os.environ.pop("TILEWAVE_NUM_THREADS", None)
        if before is not None:
            os.environ["TILEWAVE_NUM_THREADS"] = before
