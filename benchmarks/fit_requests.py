"""Fit how requests merge on H200, with shapes left out: errors on the shapes fitted and on those held out.

The shapes of all three files of counters are shuffled once, with a seed that was fixed before anything was fitted, and
dealt into four folds. The fit is a random search over persistent launches; launches of one workgroup a tile are never
fitted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import fmean

from tilewave.machine import find
from tilewave.sim.measured import ProfilerCounters
from tilewave.sim.requests import SharedReads, Sync, shared_reads
from tilewave.sim.simulate import SimulatedRun
from tilewave.sim.validation import h200_runs, short_runs, unseen_runs

SEED, FOLDS, TRIES = 20261115, 4, 1000
START = Sync(in_l2=0.5, under_way=0.5, stalls=100.0)
"""Round numbers, lest a fold begin with what the others know of it."""
FILES = {
    "h200_l2_counters.csv": h200_runs,
    "h200_unseen_counters.csv": unseen_runs,
    "h200_short_counters.csv": short_runs,
}
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """A counted launch, and what decides how its requests merge."""

    file: str
    shape: Shape
    persistent: bool
    reads: list[SharedReads]
    written_bytes: float
    counted_bytes: int
    hit_error: float

    def error(self, sync: Sync) -> float:
        return (sum(r.requested(sync) for r in self.reads) + self.written_bytes) / self.counted_bytes - 1


def launches() -> list[Launch]:
    return [_launch(file, row, made) for file, runs in FILES.items() for row, made in runs()]


def _launch(file: str, row: ProfilerCounters, made: SimulatedRun) -> Launch:
    merging = find("H200").merging
    assert merging is not None
    return Launch(
        file,
        row.shape,
        row.persistent,
        shared_reads(made.accesses, made.placed, merging.most, made.flows),
        made.accesses.output_bytes,
        row.requests_bytes,
        made.report.l2_hit - row.l2_hit,
    )


def mean_error(rows: Sequence[Launch], sync: Sync) -> float:
    return fmean(abs(row.error(sync)) for row in rows)


def fitted(rows: Sequence[Launch]) -> Sync:
    """The best of random steps that grow smaller."""
    draw = random.Random(SEED)
    best, error = START, mean_error(rows, START)
    for at in range(TRIES):
        reach = 0.3 * (1 - at / TRIES) + 0.01
        tried = Sync(*(x * (1 + reach * draw.gauss(0, 1)) if draw.random() < 0.5 else x for x in astuple(best)))
        if min(astuple(tried)) > 0 and (new := mean_error(rows, tried)) < error:
            best, error = tried, new
    return best


def folds(rows: Sequence[Launch]) -> list[list[Shape]]:
    shapes = sorted({row.shape for row in rows})
    random.Random(SEED).shuffle(shapes)
    return [shapes[at::FOLDS] for at in range(FOLDS)]


def print_shipped(rows: Sequence[Launch]) -> None:
    """The parameters that tilewave comes with, file by file."""
    for file in FILES:
        mine = [row for row in rows if row.file == file]
        for how, chosen in (
            ("persistent", [r for r in mine if r.persistent]),
            ("a workgroup a tile", [r for r in mine if not r.persistent]),
        ):
            if chosen:
                requests, hits = mean_error(chosen, Sync()), fmean(abs(row.hit_error) for row in chosen)
                print(
                    f"shipped, {file}, {how}, {len(chosen)} launches: requests {100 * requests:.2f} %, "
                    f"hit rate {100 * hits:.2f} points"
                )


def main() -> None:
    counted = launches()
    print_shipped(counted)
    rows = [row for row in counted if row.persistent]
    held_out, trained = [], []
    for fold in folds(rows):
        inside, outside = ([r for r in rows if (r.shape in fold) == held] for held in (False, True))
        sync = fitted(inside)
        trained.append(mean_error(inside, sync))
        held_out += [(len(outside), mean_error(outside, sync))]
        print(f"{len(fold)} shapes left out: fitted {100 * trained[-1]:.2f} %, held out {100 * held_out[-1][1]:.2f} %")
    over = sum(count * error for count, error in held_out) / len(rows)
    print(f"mean error of requests: fitted {100 * fmean(trained):.2f} %, held out {100 * over:.2f} %")
    print(f"shipped, all shapes: {100 * mean_error(rows, Sync()):.2f} %; fitted on all: {fitted(rows)}")


if __name__ == "__main__":
    main()
