"""Fit the parameters of the cost model of launches, and say what the choice among a kernel set loses.

    python benchmarks/fit_cost.py [--fit] [--parts 4] [--unaligned] [--worst 20] [FILE.csv …]

Rows are those of `benchmarks/kernel_set_h200.py`, by default benchmarks/data/h200_kernel_set.csv. Without `--fit` the
parameters of `tilewave/cost/parameters.py` are judged: for each shape the config of the set that is predicted to be the
quickest, relative to the quickest that was measured. `--fit` moves one parameter after the other by a few percent as
long as the errors shrink; launches that take far longer than the best of their shape count less. With `--parts` each
part of the shapes is judged by what is fitted to the others.
"""

import argparse
import csv
import math
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path

from tilewave import f16
from tilewave.cost.parameters import HOPPER
from tilewave.cost.work import CutWork
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.tune.configs import kernel_set
from tilewave.tune.default import TunableKernel
from tilewave.tune.machines import machine_of
from tilewave.tune.space import NUM_STAGES, SPLIT

ROWS = Path(__file__).parent / "data" / "h200_kernel_set.csv"
FITTED = [f.name for f in fields(HOPPER) if f.name not in ("error", "fitted_on")]
STEPS = (1.3, 1.1, 1.03)
CONTIGUOUS = {"NT": ("depth", "depth"), "NN": ("depth", "side"), "TT": ("side", "depth"), "TN": ("side", "side")}
"""The axes along which the operands of each layout are contiguous."""
LEAST_SHARE = 0.5
"""Launches that are slower than this, relative to the best of their shape, are left out of a fit."""
ROUGH = 0.1
"""Errors beyond which a launch counts less."""


@dataclass(frozen=True)
class Row:
    shape: tuple
    config: tuple
    work: CutWork
    seconds: float
    share: float
    """Of the speed of the best of its shape."""


def form(layout):
    return ProductForm(f16, f16, (K, M) if layout[0] == "T" else (M, K), (N, K) if layout[1] == "T" else (K, N))


def config_of(one):
    return one["rows"], one["cols"], one["depth"], one["num_stages"], one["split"] or 1


def read_rows(paths, unaligned):
    found, kernels = defaultdict(list), {}
    for path in paths:
        for row in csv.DictReader(path.read_text().splitlines()):
            m, n, k, stages, split = (int(row[name]) for name in ("m", "n", "k", "stages", "split"))
            layout, tile = row["layout"], tuple(map(int, row["tile"].split("x")))
            lengths = (m if layout[0] == "T" else k), (k if layout[1] == "T" else n)
            if any(x % 8 for x in lengths) != unaligned:
                continue
            if layout not in kernels:
                kernels[layout] = TunableKernel.of(product_kernel(form(layout)), {}, (), {}, "sm_90a").problem
            config = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)) | {NUM_STAGES: stages, SPLIT: split}
            work = kernels[layout].sized({M: m, N: n, K: k}).cut(config)
            found[m, n, k, layout].append(((*tile, stages, split), work, float(row["microseconds"]) / 1e6))
    rows = []
    for shape, every in found.items():
        best = min(seconds for *_, seconds in every)
        rows += [Row(shape, config, work, seconds, best / seconds) for config, work, seconds in every]
    return rows


def predictions(rows, parameters):
    machine = replace(machine_of("sm_90a"), parameters=parameters)
    return [machine.picoseconds(row.work) / 1e12 for row in rows]


def loss(rows, parameters):
    errors = (row.share * math.log(p / row.seconds) for row, p in zip(rows, predictions(rows, parameters), strict=True))
    return sum(math.hypot(1.0, error / ROUGH) - 1.0 for error in errors) / len(rows)


def fitted(rows, parameters):
    best = loss(rows, parameters)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in FITTED:
                for factor in (step, 1 / step):
                    tried = replace(parameters, **{name: max(1, round(getattr(parameters, name) * factor))})
                    found = loss(rows, tried)
                    if found < best * 0.9995:
                        best, parameters, moved = found, tried, True
    return parameters


def judged(rows, parameters, configs):
    """The share of the best speed that the choice among a layout's `configs` has, by shape; and what was chosen."""
    by_shape = defaultdict(list)
    for row, predicted in zip(rows, predictions(rows, parameters), strict=True):
        if row.config in configs[row.shape[-1]]:
            by_shape[row.shape].append((predicted, row))
    return {shape: (min(found, key=lambda one: one[0]), found) for shape, found in by_shape.items()}


def report(name, found):
    shares = sorted(one[1].share for one, _ in found.values())
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    most = [max(row.share for _, row in every) for _, every in found.values()]
    held = math.exp(sum(map(math.log, most)) / len(most))
    fifth = shares[len(shares) // 20]
    print(
        f"{name}: {len(shares)} shapes; the set holds {held:.3f} of the best, the choice has {mean:.3f}, "
        f"one in twenty below {fifth:.2f}, worst {shares[0]:.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=[ROWS])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--worst", type=int, default=0)
    asked = parser.parse_args()
    rows = read_rows(asked.files, asked.unaligned)
    configs = {layout: set(map(config_of, kernel_set("nvidia", 2, axes))) for layout, axes in CONTIGUOUS.items()}
    parameters = HOPPER
    if asked.fit:
        parameters = fitted([row for row in rows if row.share > LEAST_SHARE], parameters)
        for name in FITTED:
            print(f"    {name}={getattr(parameters, name):_},")
    errors = [math.log(p / row.seconds) for row, p in zip(rows, predictions(rows, parameters), strict=True)]
    mean = sum(errors) / len(errors)
    spread = math.sqrt(sum((e - mean) ** 2 for e in errors) / len(errors))
    print(f"{len(rows)} launches: bias {mean:+.3f}, one standard deviation {spread:.3f}")
    found = judged(rows, parameters, configs)
    report("all", found)
    for (predicted, row), every in sorted(found.values(), key=lambda one: one[0][1].share)[: asked.worst]:
        other, best = max(every, key=lambda one: one[1].share)
        print(
            f"{row.share:.2f} {row.shape} took {row.config} {1e6 * row.seconds:.1f} ({1e6 * predicted:.1f}), "
            f"best {best.config} {1e6 * best.seconds:.1f} ({1e6 * other:.1f})"
        )
    shapes = sorted({row.shape for row in rows})
    left = {}
    for part in range(asked.parts):
        out = set(shapes[part :: asked.parts])
        known = fitted([row for row in rows if row.shape not in out], HOPPER)
        left |= judged([row for row in rows if row.shape in out], known, configs)
    if left:
        report("left out of the fit", left)


if __name__ == "__main__":
    main()
