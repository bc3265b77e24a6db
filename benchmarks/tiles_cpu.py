"""Tiles on this machine's cores: measured times compared with the cost model's, and with numpy.

    python benchmarks/tiles_cpu.py [--threads 2] [--shapes 64x64x64,…] [--seconds 0.15]

For each shape every tile of the space, the fastest first, as `rows x columns: measured (predicted)` in microseconds. A
time is the least of many calls, because other load on the machine only makes it longer.
"""

import argparse
import os
import time

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--shapes", default="64x64x64,100x100x100,256x256x256,512x512x512,1x4096x4096,16x2048x2048")
PARSER.add_argument("--seconds", type=float, default=0.15, help="that each tile is called for, at least")
ASKED = PARSER.parse_args()
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TILEWAVE_NUM_THREADS"):
    os.environ[name] = str(ASKED.threads)

import numpy as np  # noqa: E402

from tilewave import WaveCompileOptions, f32, wave_compile  # noqa: E402
from tilewave.kernels import gemm  # noqa: E402
from tilewave.kernels.products import K, M, N  # noqa: E402
from tilewave.tune.default import TunableKernel  # noqa: E402

FEWEST = 3


def least(run):
    run()
    found, end = [], time.perf_counter() + ASKED.seconds
    while len(found) < FEWEST or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def measured(shape):
    m, n, k = shape
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    c = np.empty((m, n), np.float32)
    kernel = gemm(shape, f32).kernel
    sizes = {M: m, N: n, K: k}
    rows = []
    for choice in TunableKernel.of(kernel, sizes, (), {}, "cpu").choices():
        one = wave_compile(WaveCompileOptions(subs={**sizes, **choice.config}, target="cpu"), kernel)
        tile = "x".join(map(str, [*choice.config.values()][:2]))
        rows.append((least(lambda one=one: one(a, b, c)), tile, choice.prediction.seconds))
    return least(lambda: np.matmul(a, b.T, out=c)), rows


def main():
    for text in ASKED.shapes.split(","):
        numpy, rows = measured(tuple(map(int, text.split("x"))))
        fastest, chosen = min(rows)[0], rows[0]
        told = " ".join(f"{tile}: {1e6 * s:.0f} ({1e6 * p:.0f})" for s, tile, p in sorted(rows))
        print(f"{text}: {chosen[1]} is chosen, {fastest / chosen[0]:.2f} of the best; numpy {1e6 * numpy:.0f}; {told}")


if __name__ == "__main__":
    main()
