"""Fit how requests merge on H200, with shapes left out: errors on the shapes fitted and on those held out.

The 17 shapes of both files of counters are shuffled once, with a seed that was fixed before anything was fitted, and
dealt into four folds. Launches are persistent; the fit is a random search.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple
from statistics import fmean

from tilewave.machine import find
from tilewave.sim.requests import SharedReads, Sync, shared_reads
from tilewave.sim.validation import h200_runs, unseen_runs

SEED, FOLDS, TRIES = 20261115, 4, 3000
START = Sync(steps=100.0, floor=0.1, in_l2=0.5, neighbours_in_l2=0.9, own_misses=100.0)
"""Round numbers, lest a fold begin with what the others know of it."""
Shape = tuple[int, int, int]
Launch = tuple[Shape, list[SharedReads], float, float]
"""Shape, reads, bytes written, bytes counted."""


def launches() -> list[Launch]:
    merging = find("H200").merging
    assert merging is not None
    return [
        (
            row.shape,
            shared_reads(m.accesses, m.placed, merging.most, m.flows),
            m.accesses.output_bytes,
            row.requests_bytes,
        )
        for row, m in (*h200_runs(), *unseen_runs())
        if row.persistent
    ]


def mean_error(rows: Sequence[Launch], sync: Sync) -> float:
    return fmean(abs((sum(r.requested(sync) for r in reads) + out) / counted - 1) for _, reads, out, counted in rows)


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
    shapes = sorted({row[0] for row in rows})
    random.Random(SEED).shuffle(shapes)
    return [shapes[at::FOLDS] for at in range(FOLDS)]


def main() -> None:
    rows = launches()
    held_out, trained = [], []
    for fold in folds(rows):
        inside, outside = ([r for r in rows if (r[0] in fold) == held] for held in (False, True))
        sync = fitted(inside)
        trained.append(mean_error(inside, sync))
        held_out += [(len(outside), mean_error(outside, sync))]
        print(f"{len(fold)} shapes left out: fitted {100 * trained[-1]:.2f} %, held out {100 * held_out[-1][1]:.2f} %")
    over = sum(count * error for count, error in held_out) / len(rows)
    print(f"mean error of requests: fitted {100 * fmean(trained):.2f} %, held out {100 * over:.2f} %")
    print(f"shipped, all shapes: {100 * mean_error(rows, Sync()):.2f} %; fitted on all: {fitted(rows)}")


if __name__ == "__main__":
    main()
