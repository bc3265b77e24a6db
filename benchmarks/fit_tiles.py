"""Fit the cost model of launches to measured rows: those of `tilewave/tune/data`, or of other files of such rows.

    python benchmarks/fit_tiles.py [--rows FILE.csv …] [--rounds 4000] [--keep] [--folds 5] [--neighbours]
                                   [--from ROWS.json --into FILE.csv]

Prints the parameters of `tilewave.tune.fitted.LaunchTiming`, what they leave unexplained, and for every shape with
several tiles what is lost by taking the one that is predicted best. The fit minimizes the error of times, weighted to
those near the best of their shape, and that loss. `--keep` evaluates the current parameters; `--folds` is
cross-validation: the parameters are fitted once without each part of the shapes, and evaluated on that part.
With `--neighbours` too, the parameters stay, and the residuals are predicted without the part's rows.
`--neighbours` keeps the parameters, and writes the rows' residuals (`tilewave/tune/neighbours.py`), which all other
modes leave out. `--from` converts the output of `benchmarks/tuner_h200.py` to such rows.
"""

import argparse
import csv
import json
import math
import random
import statistics
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import tilewave
from tilewave.kernels import gemm
from tilewave.kernels.products import K, M, N
from tilewave.tune.default import TunableKernel, machine_of
from tilewave.tune.fitted import HOPPER
from tilewave.tune.gpu import GpuTiles
from tilewave.tune.measured import DATA, H200, measured_launches
from tilewave.tune.neighbours import FARTHEST, Neighbours, neighbours_of
from tilewave.tune.space import NUM_STAGES, SPLIT

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
    "taken_alone",
    "scattered",
    "outside_row",
    "short_row",
    "unaligned_store",
    "held_store",
    "transposed_store",
    "unit_bytes_per_second",
    "few_units",
    "latency",
    "ring_sharpness",
    "copy_launch",
    "copy_bytes_per_second",
    "lane_gap",
    "lane_latency",
    "not_ahead",
    "lane_loads_per_second",
    "lane_line",
    "kept_bytes_per_second",
    "hbm_share",
    "unaligned_lines_copied",
    "many_sums",
    "sharpness",
    "early_sharpness",
)
MOST = {"matrix_share": 1.0, "hbm_share": 0.95, "start_hidden": 1.0, "kept_bytes_per_second": 1e13}
LEAST = {"unaligned_lines_copied": 1.0, "many_sums": 1.0}
UNSURE = 0.03
"""Times that are predicted this near each other, as a share, are taken for one another."""
BAD = 0.12
"""A shape that loses more by its choice, as a share, counts twenty times as much from there on."""


@cache
def undecided(shape, layout):
    made = gemm(shape, tilewave.f16, out=tilewave.f16, layout=layout.lower())
    sizes = {s: v for s, v in made.subs.items() if s in (M, N, K)}
    return TunableKernel.of(made.kernel, sizes, (), {}, TARGET)


def knobs(launch):
    return {
        s.name: n for s, n in {SPLIT: launch.split, NUM_STAGES: launch.num_stages}.items() if n and (s, n) != (SPLIT, 1)
    }


def cut(launch):
    open_tiles = undecided(launch.shape, launch.layout)
    point = dict(zip(open_tiles.space.tiles, launch.tile, strict=True))
    problem = replace(open_tiles.problem, in_fixed_order=launch.in_fixed_order)
    return problem.cut(point | {s: n for s, n in {SPLIT: launch.split, NUM_STAGES: launch.num_stages}.items() if n})


def shapes_of(rows):
    """The rows of each product."""
    found = {}
    for launch, work in rows:
        found.setdefault(launch.product, []).append((launch, work))
    return found


def error(machine, rows):
    logs = [math.log(machine.predict(work).seconds / launch.seconds) for launch, work in rows]
    return math.sqrt(sum(min(x * x, FARTHEST**2) for x in logs) / len(logs))


def badness(machine, by_shape):
    """What a fit makes small: errors near the best, and what choices lose."""
    off, weights, losses = 0.0, 0.0, []
    for found in by_shape.values():
        best = min(launch.seconds for launch, _ in found)
        slower = [math.log(launch.seconds / best) for launch, _ in found]
        predicted = [math.log(machine.predict(work).seconds) for _, work in found]
        near = [math.exp(-2 * min(x, 1.2)) for x in slower]
        each = 1 / math.sqrt(sum(near))  # shapes count with the root of their rows
        errors = [p - math.log(launch.seconds) for p, (launch, _) in zip(predicted, found, strict=True)]
        off += each * sum(w * min(e * e, FARTHEST**2) for w, e in zip(near, errors, strict=True))
        weights += each * sum(near)
        if len(found) > 4:
            first = min(predicted)
            taken = [math.exp((first - p) / UNSURE) for p in predicted]
            likely = sum(t * min(x, 1.5) for t, x in zip(taken, slower, strict=True)) / sum(taken)
            chosen = slower[predicted.index(first)]
            losses.append(0.5 * likely + likely**2 + 2 * max(0.0, chosen - BAD))
    return off / weights + sum(losses) / len(losses)


def changed(timing, draw):
    name, factor = draw.choice(FITTED), math.exp(draw.gauss(0, draw.choice((0.02, 0.1, 0.3))))
    value = max(LEAST.get(name, 0.0), min(MOST.get(name, math.inf), getattr(timing, name) * factor))
    return replace(timing, **{name: value})


def fit(machine, by_shape, rounds, seed=0):
    draw = random.Random(seed)
    best = badness(machine, by_shape)
    for number in range(rounds):
        timing = changed(machine.timing, draw)
        other = replace(machine, timing=changed(timing, draw) if number % 2 else timing)
        found = badness(other, by_shape)
        if found < best:
            machine, best = other, found
    return machine


def blurred(timing, draw):
    """Parameters that are off by a third, and so remember little of the rows that they were fitted on."""
    return replace(timing, **{name: getattr(timing, name) * math.exp(draw.gauss(0, 0.3)) for name in FITTED})


def losses(machine, by_shape):
    """For each shape with several tiles: the one predicted best, the best, and how much faster that is."""
    for shape, found in by_shape.items():
        if len(found) > 2:
            chosen, _ = min(found, key=lambda one: machine.predict(one[1]).seconds)
            best, _ = min(found, key=lambda one: one[0].seconds)
            yield shape, chosen, best, best.seconds / chosen.seconds


def unknown_losses(machine, by_shape, folds, rounds):
    """Yield the losses of each shape with parameters that were fitted without it."""
    shapes = sorted(by_shape)
    random.Random(folds).shuffle(shapes)
    for fold in range(folds):
        left_out = {*shapes[fold::folds]}
        begin = replace(machine, timing=blurred(machine.timing, random.Random(fold)))
        fitted = fit(begin, {s: found for s, found in by_shape.items() if s not in left_out}, rounds, fold)
        yield from losses(fitted, {s: by_shape[s] for s in shapes if s in left_out})


@dataclass(frozen=True)
class ToldTiles(GpuTiles):
    """The model, with the given neighbours."""

    neighbours: Neighbours

    def _beyond(self, cuts):
        return self.neighbours.beyond([self.traits(cut) for cut in cuts])


def untold_losses(machine, by_shape, folds):
    """Yield the losses of each shape with neighbours that were made without it."""
    shapes = sorted(by_shape)
    random.Random(folds).shuffle(shapes)
    for fold in range(folds):
        left_out = {*shapes[fold::folds]}
        known = [row for shape in shapes if shape not in left_out for row in by_shape[shape]]
        told_by = ToldTiles(machine.chip, machine.card, machine.timing, neighbours_of(machine, known))
        yield from losses(told_by, {s: by_shape[s] for s in shapes if s in left_out})


def told(launch):
    return (
        "x".join(map(str, launch.tile))
        + f" in {launch.split}" * (launch.split > 1)
        + f" {launch.num_stages}b" * (launch.num_stages > 0)
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


def without_neighbours(machine):
    return replace(machine, timing=replace(machine.timing, neighbours=""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, nargs="*", default=H200)
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--neighbours", action="store_true")
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    if asked.source:
        converted(asked.source, asked.into)
        return
    rows = [(launch, cut(launch)) for launch in measured_launches(asked.rows)]
    machine, by_shape = without_neighbours(machine_of(TARGET)), shapes_of(rows)
    if asked.neighbours and asked.folds:
        report(untold_losses(machine, by_shape, asked.folds))
        return
    if asked.neighbours:
        found = neighbours_of(machine, rows)
        found.write(DATA / HOPPER.neighbours)
        print(f"{len(found.weights)} of {len(rows)} rows are kept")
        report(losses(replace(machine, timing=HOPPER), by_shape))
        return
    print(f"{len(rows)} rows, {100 * error(machine, rows):.1f} % before")
    if asked.folds:
        report(unknown_losses(machine, by_shape, asked.folds, asked.rounds))
        return
    if not asked.keep:
        machine = fit(machine, by_shape, asked.rounds)
        print(f"{100 * error(machine, rows):.1f} % after")
    for one in fields(machine.timing):
        print(f"    {one.name}={getattr(machine.timing, one.name)!r},")
    report(losses(machine, by_shape))


def report(found):
    shares = []
    for (shape, layout, in_fixed_order), chosen, best, share in found:
        shares.append(share)
        told_shape = f"{'x'.join(map(str, shape))} {layout}" + ", one order" * in_fixed_order
        print(f"{told_shape}: {told(chosen)} at {share:.3f} of {told(best)}", flush=True)
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    print(f"{len(shares)} shapes: {mean:.3f} in the geometric mean, {min(shares):.3f} at worst")


if __name__ == "__main__":
    main()
