"""Fit the time of launches on measured rows: those of `tilewave/tune/data`, or of other files of such rows.

    python benchmarks/fit_tiles.py [--rows FILE.csv …] [--rounds 4000] [--keep] [--from ROWS.json --into FILE.csv]

Prints the parameters of `tilewave.tune.fitted.LaunchTiming`, what they leave unexplained, and for every shape with
several tiles what is lost by taking the one that is predicted best. `--keep` judges the parameters as they stand.
`--from` makes such rows of what `benchmarks/tuner_h200.py` wrote.
"""

import argparse
import csv
import json
import math
import random
import statistics
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import tilewave
from tilewave.kernels import gemm
from tilewave.kernels.products import K, M, N
from tilewave.tune.default import UndecidedKernel, machine_of
from tilewave.tune.measured import H200, measured_launches
from tilewave.tune.space import BUFFERS, SPLIT

TARGET = "sm_90a"
FITTED = (
    "matrix_share",
    "group_gap",
    "step_gap",
    "least_step",
    "launch",
    "start",
    "start_per_sum",
    "start_per_byte",
    "start_hidden",
    "together",
    "no_room",
    "not_early",
    "hand_over",
    "hand_over_per_sum",
    "added_power",
    "scattered",
    "outside_line",
    "odd_write",
    "unit_bytes_per_second",
    "latency",
    "ring_sharpness",
    "copy_launch",
    "copy_bytes_per_second",
    "lane_gap",
    "lane_loads_per_second",
    "lane_turned",
    "l2_kept_bytes",
    "l2_thrashed",
    "kept_bytes_per_second",
    "crowded_bytes_per_second",
    "hbm_share",
    "off_lines",
    "many_sums",
    "sharpness",
)
MOST = {"matrix_share": 1.0, "hbm_share": 0.95, "start_hidden": 1.0}
FARTHEST = 0.5
"""A row that is further off counts as if it were so far off: what is not modelled must not bend the rest."""


@cache
def undecided(shape, layout):
    made = gemm(shape, tilewave.f16, out=tilewave.f16, layout=layout.lower())
    sizes = {s: v for s, v in made.subs.items() if s in (M, N, K)}
    return UndecidedKernel.of(made.kernel, sizes, (), {}, TARGET)


def cut(launch):
    open_tiles = undecided(launch.shape, launch.layout)
    point = dict(zip(open_tiles.space.tiles, launch.tile, strict=True))
    knobs = {SPLIT: launch.split, BUFFERS: launch.buffers}
    return open_tiles.problem.cut({**point, **{s: n for s, n in knobs.items() if n}})


def error(machine, rows):
    logs = [math.log(machine.predict(work).seconds / launch.seconds) for launch, work in rows]
    return math.sqrt(sum(min(x * x, FARTHEST**2) for x in logs) / len(logs))


def changed(timing, draw):
    name, factor = draw.choice(FITTED), math.exp(draw.gauss(0, 0.1))
    return replace(timing, **{name: min(MOST.get(name, math.inf), getattr(timing, name) * factor)})


def fit(machine, rows, rounds, seed=0):
    draw, best = random.Random(seed), error(machine, rows)
    for _ in range(rounds):
        other = replace(machine, timing=changed(changed(machine.timing, draw), draw))
        found = error(other, rows)
        if found < best:
            machine, best = other, found
    return machine, best


def losses(machine, rows):
    """For each shape with several tiles: the one predicted best, the best, and how much faster that is."""
    by_shape = {}
    for launch, work in rows:
        by_shape.setdefault((launch.shape, launch.layout), []).append((launch, work))
    for shape, found in by_shape.items():
        if len(found) > 2:
            chosen, _ = min(found, key=lambda one: machine.predict(one[1]).seconds)
            best, _ = min(found, key=lambda one: one[0].seconds)
            yield shape, chosen, best, best.seconds / chosen.seconds


def told(launch):
    return (
        "x".join(map(str, launch.tile))
        + f" in {launch.split}" * (launch.split > 1)
        + f" {launch.buffers}b" * (launch.buffers > 0)
    )


COLUMNS = ("m", "n", "k", "layout", "tile", "dtype", "microseconds", "cublas_microseconds", "split", "buffers", "order")


def converted(source, to):
    """The rows of a judged run that were timed; of those that were not in the finals, as if they had been."""
    by_shape = {}
    for row in json.loads(source.read_text()):
        if "microseconds" in row:
            by_shape.setdefault((row["m"], row["n"], row["k"], row["layout"]), []).append(row)
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for rows in by_shape.values():
            ratios = [row["final_microseconds"] / row["microseconds"] for row in rows if "final_microseconds" in row]
            warmer = statistics.median(ratios) if ratios else 1.0
            for row in rows:
                microseconds = row.get("final_microseconds", round(warmer * row["microseconds"], 3))
                writer.writerow({**row, "microseconds": microseconds})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, nargs="*", default=H200)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    if asked.source:
        converted(asked.source, asked.into)
        return
    rows = [(launch, cut(launch)) for launch in measured_launches(asked.rows)]
    machine = machine_of(TARGET)
    print(f"{len(rows)} rows, {100 * error(machine, rows):.1f} % before")
    if not asked.keep:
        machine, left = fit(machine, rows, asked.rounds)
        print(f"{100 * left:.1f} % after")
    for field in fields(machine.timing):
        print(f"    {field.name}={getattr(machine.timing, field.name)!r},")
    shares = []
    for (shape, layout), chosen, best, share in losses(machine, rows):
        shares.append(share)
        print(f"{'x'.join(map(str, shape))} {layout}: {told(chosen)} at {share:.3f} of {told(best)}")
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    print(f"{len(shares)} shapes: {mean:.3f} in the geometric mean, {min(shares):.3f} at worst")


if __name__ == "__main__":
    main()
