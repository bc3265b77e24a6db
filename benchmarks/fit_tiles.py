"""Fit the time of launches on measured rows: `tilewave/tune/data/h200_tiles.csv`, or another file of such rows.

    python benchmarks/fit_tiles.py [--rows FILE.csv …] [--rounds 4000] [--keep]

Prints the parameters of `tilewave.tune.fitted.LaunchTiming`, what they leave unexplained, and for every shape with
several tiles what is lost by taking the one that is predicted best. `--keep` judges the parameters as they stand.
"""

import argparse
import csv
import math
import random
from dataclasses import fields, replace
from pathlib import Path

import tilewave
from tilewave.kernels import gemm
from tilewave.kernels.products import K, M, N
from tilewave.tune.default import UndecidedKernel, machine_of

ROWS = Path(tilewave.__file__).parent / "tune" / "data" / "h200_tiles.csv"
TARGET = "sm_90a"
FITTED = (
    "matrix_share",
    "launch",
    "start",
    "start_per_sum",
    "start_hidden",
    "together",
    "hand_over",
    "outside_line",
    "l2_bytes_per_second",
    "l2_kept_bytes",
    "hbm_share",
    "off_lines",
    "sharpness",
)
MOST = {"matrix_share": 1.0, "hbm_share": 0.95, "start_hidden": 1.0}
FARTHEST = 0.5
"""A row that is further off counts as if it were so far off: what is not modelled must not bend the rest."""


def read_rows(paths):
    found = []
    for path in paths:
        for row in csv.DictReader(path.read_text().splitlines()):
            shape, tile = tuple(int(row[x]) for x in "mnk"), tuple(map(int, row["tile"].split("x")))
            if row["layout"] == "NT" and shape[2] % 8 == 0 and shape[1] % 8 == 0:
                found.append((shape, tile, float(row["microseconds"]) * 1e-6))
    return found


def cut(shape, tile):
    made = gemm(shape, tilewave.f16, out=tilewave.f16, tile=tile)
    sizes = {s: v for s, v in made.subs.items() if s in (M, N, K)}
    open_tiles = UndecidedKernel.of(made.kernel, sizes, (), {}, TARGET)
    return open_tiles.problem.cut({s: made.subs[s] for s in open_tiles.space.symbols})


def error(machine, rows):
    logs = [math.log(machine.predict(work).seconds / seconds) for work, seconds in rows]
    return math.sqrt(sum(min(x * x, FARTHEST**2) for x in logs) / len(logs))


def changed(timing, draw):
    name = draw.choice([*FITTED, "gap 0", "gap 1"])
    factor = math.exp(draw.gauss(0, 0.1))
    if name.startswith("gap"):
        at, gaps = int(name[-1]), list(timing.step_gaps)
        gaps[at] *= factor
        return replace(timing, step_gaps=tuple(gaps))
    return replace(timing, **{name: min(MOST.get(name, math.inf), getattr(timing, name) * factor)})


def fit(machine, rows, rounds, seed=0):
    draw, best = random.Random(seed), error(machine, rows)
    for _ in range(rounds):
        other = replace(machine, timing=changed(changed(machine.timing, draw), draw))
        found = error(other, rows)
        if found < best:
            machine, best = other, found
    return machine, best


def losses(machine, measured, cuts):
    """For each shape with several tiles: the one predicted best, the best, and how much faster that is."""
    by_shape = {}
    for shape, tile, seconds in measured:
        by_shape.setdefault(shape, []).append((tile, seconds))
    for shape, tiles in by_shape.items():
        if len(tiles) > 2:
            chosen = min(tiles, key=lambda one: machine.predict(cuts[shape, one[0]]).seconds)
            best = min(tiles, key=lambda one: one[1])
            yield shape, chosen[0], best[0], best[1] / chosen[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, nargs="*", default=[ROWS])
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    measured = read_rows(asked.rows)
    cuts = {(shape, tile): cut(shape, tile) for shape, tile, _ in measured}
    rows = [(cuts[shape, tile], seconds) for shape, tile, seconds in measured]
    machine = machine_of(TARGET)
    print(f"{len(rows)} rows, {100 * error(machine, rows):.1f} % before")
    if not asked.keep:
        machine, left = fit(machine, rows, asked.rounds)
        print(f"{100 * left:.1f} % after")
    for field in fields(machine.timing):
        print(f"    {field.name}={getattr(machine.timing, field.name)!r},")
    for shape, tile, seconds in measured:
        predicted = machine.predict(cuts[shape, tile]).seconds
        if abs(math.log(predicted / seconds)) > 0.2:
            print(f"far off: {shape} {tile} measured {1e6 * seconds:.1f} us, predicted {1e6 * predicted:.1f}")
    found = list(losses(machine, measured, cuts))
    for shape, chosen, best, share in found:
        print(f"{shape}: {chosen} is chosen, {best} is best: {share:.3f}")
    if found:
        mean = math.exp(sum(math.log(share) for *_, share in found) / len(found))
        print(f"geometric mean {mean:.3f}, worst {min(share for *_, share in found):.3f}")


if __name__ == "__main__":
    main()
