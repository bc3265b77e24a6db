"""Searches over rows that were measured before: what the model alone and a search of eight runs would have decided.

    python benchmarks/replay_tuner.py [--rows FILE.csv …] [--runs 8]

No card is needed: the points of a shape that `benchmarks/tuner_h200.py` timed are the space, their times the clock. The
model and the rule by which runs are spent are those of today, so a change of either is judged in seconds. The rows are
those that the model is fitted on (`tilewave/tune/data`), unless others are named: how it does on shapes that it does
not know, `benchmarks/fit_tiles.py --folds 5` says.
"""

import argparse
import math
from pathlib import Path

from fit_tiles import knobs, told, undecided

from tilewave.tune.measured import JUDGED, measured_launches
from tilewave.tune.search import unlike_each_other

LEAST_POINTS = 10
"""The fewest measured configs with which a shape is evaluated."""


def choices(shape, layout, launches):
    """The measured points as a search sees them, the best predicted first, each with its time."""
    open_tiles, found = undecided(shape, layout), []
    for launch in launches:
        values = dict(zip((s.name for s in open_tiles.space.tiles), launch.tile, strict=True)) | knobs(launch)
        found.append((open_tiles.at(values, launch.order), launch))
    return open_tiles, sorted(found, key=lambda one: one[0].prediction.seconds)


def decided(shape, layout, launches, runs):
    """(the model's launch, the best of so many runs, the best)."""
    open_tiles, found = choices(shape, layout, launches)
    times = {choice.text: launch for choice, launch in found}
    taken = unlike_each_other(open_tiles, [choice for choice, _ in found], runs)
    picked = min((times[choice.text] for choice in taken), key=lambda x: x.seconds)
    return found[0][1], picked, min(launches, key=lambda x: x.seconds)


def mean(shares):
    return math.exp(sum(map(math.log, shares)) / len(shares))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, nargs="*", default=JUDGED)
    parser.add_argument("--runs", type=int, default=8)
    asked = parser.parse_args()
    by_shape = {}
    for launch in measured_launches(asked.rows):
        by_shape.setdefault((launch.shape, launch.layout), []).append(launch)
    model, searched = [], []
    for (shape, layout), launches in by_shape.items():
        if len(launches) < LEAST_POINTS:
            continue
        first, picked, best = decided(shape, layout, launches, asked.runs)
        model.append(best.seconds / first.seconds)
        searched.append(best.seconds / picked.seconds)
        name = "x".join(map(str, shape))
        print(f"{name} {layout}: {told(first)} {model[-1]:.3f}; {told(picked)} {searched[-1]:.3f}; best {told(best)}")
    print(f"{len(model)} shapes: the model {mean(model):.3f} of the best point, {min(model):.3f} at worst;", end=" ")
    print(f"{asked.runs} runs {mean(searched):.3f}, {min(searched):.3f} at worst")


if __name__ == "__main__":
    main()
