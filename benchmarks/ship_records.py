"""Write the tuning records that ship with tilewave: the best measured config of each f16 product on an H200.

    python benchmarks/ship_records.py

Rows are those of `tilewave/tune/data`. Batch-invariant products have separate records. Left out are shapes with too few
measured configs; and, unless batch-invariant, products with few rows that were measured without narrow tiles, or whose
N or K is not a multiple of 64. What is best for a K near the end of a size bucket is recorded for the bucket too, for
calls with dynamic shapes.
Run it again when the text of `ops.matmul`'s kernels changes; a test says so.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fit_tiles import cut

import tilewave as tw
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import K, M, N
from tilewave.tune.choose import ALIGNED, bucket
from tilewave.tune.default import TunableKernel, largest_sizes, machine_of
from tilewave.tune.measured import H200, measured_launches
from tilewave.tune.records import STRENGTHS, TileRecord
from tilewave.tune.store import FILE, SHIPPED

TARGET = "sm_90a"
FEWEST_POINTS, FEWEST_ROWS, EVEN = 8, 64, 64
REPLAY = 1.005
"""Launches within this factor of the best may rank differently on another GPU."""
NEAR_THE_END = 0.8
"""The smallest share of a bucket's largest K whose best config is recorded for the bucket."""
AXES = {"N": ((M, K), (K, N)), "T": ((K, M), (N, K))}


def undecided(sizes, layout, in_fixed_order):
    """Where sizes are left out, they are open."""
    axes = AXES[layout[0]][0], AXES[layout[1]][1]
    found = TunableKernel.of(product_kernel(ProductForm(tw.f16, tw.f16, *axes)), sizes, (), {}, TARGET)
    return found.for_all_batches() if in_fixed_order else found


def sizes_of(product):
    return dict(zip((M, N, K), product[0], strict=True))


def buckets_of(product):
    """Return the size buckets whose largest M and N the product has, since they decide wave quantization, with a K near
    the largest; empty where K is the largest too, because the product's own record serves."""
    sizes = sizes_of(product)
    buckets = {dim: bucket(n) for dim, n in sizes.items()}
    largest = largest_sizes(buckets)
    same_grid, depth = (sizes[M], sizes[N]) == (largest[M], largest[N]), sizes[K]
    near = NEAR_THE_END * largest[K] <= depth < largest[K] and depth % ALIGNED == 0
    return buckets if same_grid and near else {}


def tells(product, launches):
    (rows, *weights), _, _ = product
    is_narrow = any(one.tile[0] < FEWEST_ROWS for one in launches) and not any(n % EVEN for n in weights)
    has_narrow = rows >= FEWEST_ROWS or is_narrow or any(one.in_fixed_order for one in launches)
    return len(launches) >= FEWEST_POINTS and has_narrow


def is_in_one_order(launch):
    """Whether its workgroups share no tile, though they might."""
    machine, work = machine_of(TARGET), cut(launch)
    alike = machine.predict(work) == machine.predict(replace(work, in_fixed_order=True))
    return launch.split == 1 and alike


def record(product, launches, buckets):
    """None where too few launches have a depth that the order of sums leaves open. A bucket's has no time."""
    open_tiles = undecided({} if buckets else sizes_of(product), *product[1:])
    symbols = open_tiles.space.tiles
    told = [(dict(zip(symbols, one.tile, strict=True)), one) for one in launches]
    sized = replace(open_tiles, problem=open_tiles.largest(buckets))
    fits = [one for tile, one in told if all(tile[s] == n for s, n in open_tiles.fixed.items())]
    fitting = [one for one in fits if is_legal(one, sized)]
    if len(fitting) < FEWEST_POINTS:
        return None
    best, predicted = best_of(fitting, sized)
    ranked = open_tiles.predicted(buckets)
    facts = ranked[0].considered, sum(ranked[0].illegal.values()), len(fitting)
    times = predicted, None if buckets else best.seconds, None, 1, None
    notes = "tilewave/tune/data" + (", {}x{}x{}".format(*best.shape) if buckets else "")
    key, point = open_tiles.key(buckets), point_of(best, symbols)
    return TileRecord(key, point, ranked[0].order, STRENGTHS[1], *facts, *times, notes=notes)


def is_legal(launch, open_tiles):
    """Whether the tuner would still try it: some were measured before the space left them out."""
    point = open_tiles.at(point_of(launch, open_tiles.space.tiles), "").config
    return not open_tiles.machine.refused(open_tiles.problem.cut(point))


def point_of(launch, symbols):
    point = dict(zip((s.name for s in symbols), launch.tile, strict=True))
    point |= {"split": launch.split} if launch.split > 1 else {}
    return point | ({"buffers": launch.num_stages} if launch.num_stages else {})


def best_of(launches, open_tiles):
    """Return the fastest launch and its predicted time; the model ranks launches within `ALIKE` of the fastest."""
    quickest = min(one.seconds for one in launches)
    alike = [one for one in launches if one.seconds <= REPLAY * quickest]
    predicted = [open_tiles.at(point_of(one, open_tiles.space.tiles), "").prediction.seconds for one in alike]
    return min(zip(alike, predicted, strict=True), key=lambda told: told[1])


def of_buckets(by_product):
    """The deepest product of each, where that of its largest sizes itself was not measured."""
    deepest = {}
    for product in sorted(by_product, key=lambda product: prod(product[0])):
        if buckets := buckets_of(product):
            deepest[tuple(buckets.values()), product[1:]] = product, buckets
    for product, buckets in deepest.values():
        _, *how = product
        if (tuple(largest_sizes(buckets).values()), *how) not in by_product:
            yield product, buckets


def main():
    by_product = {}
    for launch in measured_launches(H200):
        by_product.setdefault(launch.product, []).append(launch)
    for (shape, layout, _), found in list(by_product.items()):
        by_product.setdefault((shape, layout, True), [one for one in found if is_in_one_order(one)])
    telling = {product: found for product, found in by_product.items() if tells(product, found)}
    wanted = [*((product, {}) for product in telling), *of_buckets(telling)]
    given = [product for product, _ in wanted], [telling[product] for product, _ in wanted], [b for _, b in wanted]
    with ProcessPoolExecutor() as pool:
        lines = sorted(one.line for one in pool.map(record, *given, chunksize=8) if one)
    SHIPPED.mkdir(exist_ok=True)
    (SHIPPED / FILE).write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} records in {SHIPPED / FILE}")


if __name__ == "__main__":
    main()
