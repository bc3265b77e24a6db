"""Write the records that come with tilewave: for products of f16 on an H200, the best of the points that were measured.

    python benchmarks/ship_records.py

Rows are those of `tilewave/tune/data`. Products whose sums are in one order have records of their own. Shapes with too
few points to tell are left out, and of those in any order such of few rows: narrower tiles than were measured then are
better. Run it again when the text of `ops.matmul`'s kernels changes; a test says so.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fit_tiles import cut

import tilewave as tw
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import K, M, N
from tilewave.tune.default import UndecidedKernel, machine_of
from tilewave.tune.measured import H200, measured_launches
from tilewave.tune.records import STRENGTHS, TileRecord
from tilewave.tune.store import FILE, SHIPPED

TARGET = "sm_90a"
FEWEST_POINTS, FEWEST_ROWS = 8, 64
AXES = {"N": ((M, K), (K, N)), "T": ((K, M), (N, K))}


def undecided(shape, layout, in_one_order):
    axes = AXES[layout[0]][0], AXES[layout[1]][1]
    sizes = dict(zip((M, N, K), shape, strict=True))
    found = UndecidedKernel.of(product_kernel(ProductForm(tw.f16, tw.f16, *axes)), sizes, (), {}, TARGET)
    return found.for_all_batches() if in_one_order else found


def tells(product, launches):
    has_narrow = product[0][0] >= FEWEST_ROWS or any(one.in_one_order for one in launches)
    return len(launches) >= FEWEST_POINTS and has_narrow


def is_in_one_order(launch):
    """Whether its workgroups share no tile, though they might."""
    machine, work = machine_of(TARGET), cut(launch)
    alike = machine.predict(work) == machine.predict(replace(work, in_one_order=True))
    return launch.split == 1 and alike


def record(product, launches):
    """Of the best; None where too few have a depth that the order of sums leaves open."""
    open_tiles = undecided(*product)
    symbols = open_tiles.space.tiles
    told = [(dict(zip(symbols, one.tile, strict=True)), one) for one in launches]
    fitting = [one for tile, one in told if all(tile[s] == n for s, n in open_tiles.fixed.items())]
    if len(fitting) < FEWEST_POINTS:
        return None
    best = min(fitting, key=lambda one: one.seconds)
    point = dict(zip((s.name for s in symbols), best.tile, strict=True))
    point |= {"split": best.split} if best.split > 1 else {}
    point |= {"buffers": best.buffers} if best.buffers else {}
    ranked = open_tiles.predicted({})
    facts = ranked[0].considered, sum(ranked[0].illegal.values()), len(fitting)
    predicted = open_tiles.at(point, "").prediction.seconds
    times = predicted, best.seconds, None, 1, None
    return TileRecord(
        open_tiles.key({}), point, ranked[0].order, STRENGTHS[1], *facts, *times, notes="tilewave/tune/data"
    )


def main():
    by_product = {}
    for launch in measured_launches(H200):
        by_product.setdefault(launch.product, []).append(launch)
    for (shape, layout, _), found in list(by_product.items()):
        by_product.setdefault((shape, layout, True), [one for one in found if is_in_one_order(one)])
    kept = {product: found for product, found in by_product.items() if tells(product, found)}
    made = [record(product, found) for product, found in kept.items()]
    lines = sorted(one.line for one in made if one)
    SHIPPED.mkdir(exist_ok=True)
    (SHIPPED / FILE).write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} records in {SHIPPED / FILE}")


if __name__ == "__main__":
    main()
