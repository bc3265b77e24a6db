"""Write the records that come with tilewave: for products of f16 on an H200, the best of the points that were measured.

    python benchmarks/ship_records.py

Rows are those of `tilewave/tune/data`. Shapes with too few points to tell are left out, and those of few rows: narrower
tiles than were measured then are better. Run it again when the text of `ops.matmul`'s kernels changes; a test says so.
"""

import tilewave as tw
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import K, M, N
from tilewave.tune.default import UndecidedKernel
from tilewave.tune.measured import H200, measured_launches
from tilewave.tune.records import STRENGTHS, TileRecord
from tilewave.tune.store import FILE, SHIPPED

TARGET = "sm_90a"
FEWEST_POINTS, FEWEST_ROWS = 10, 64
AXES = {"N": ((M, K), (K, N)), "T": ((K, M), (N, K))}


def undecided(shape, layout):
    axes = AXES[layout[0]][0], AXES[layout[1]][1]
    sizes = dict(zip((M, N, K), shape, strict=True))
    return UndecidedKernel.of(product_kernel(ProductForm(tw.f16, tw.f16, *axes)), sizes, (), {}, TARGET)


def record(shape, layout, launches):
    open_tiles, best = undecided(shape, layout), min(launches, key=lambda one: one.seconds)
    point = dict(zip((s.name for s in open_tiles.space.tiles), best.tile, strict=True))
    point |= {"split": best.split} if best.split > 1 else {}
    point |= {"buffers": best.buffers} if best.buffers else {}
    ranked = open_tiles.predicted({})
    facts = ranked[0].considered, sum(ranked[0].illegal.values()), len(launches)
    predicted = open_tiles.at(point, "").prediction.seconds
    times = predicted, best.seconds, None, 1, None
    return TileRecord(
        open_tiles.key({}), point, ranked[0].order, STRENGTHS[1], *facts, *times, notes="tilewave/tune/data"
    )


def main():
    by_shape = {}
    for launch in measured_launches(H200):
        by_shape.setdefault((launch.shape, launch.layout), []).append(launch)
    kept = {key: found for key, found in by_shape.items() if len(found) >= FEWEST_POINTS and key[0][0] >= FEWEST_ROWS}
    lines = sorted(record(*key, found).line for key, found in kept.items())
    SHIPPED.mkdir(exist_ok=True)
    (SHIPPED / FILE).write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} records in {SHIPPED / FILE}")


if __name__ == "__main__":
    main()
