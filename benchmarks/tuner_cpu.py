"""The tuner's choices on this machine's cores, f32, by model and by eight runs, compared with every config and numpy.

    python benchmarks/tuner_cpu.py [--shapes 1x4096x4096nt,64x64x64nn,…] [--rounds 5] [--json FILE]

Twenty shapes; a batch of products has a prefix with `b`: 32b64x64x64nt. A config is a tile, and whether operands are
packed before the launch or read in place. Printed are, for each shape, the share of the best config's speed that the
model's choice and the best of its first eight reach (1: as fast), the latter against a packed tile of 56x128,
and against numpy (above 1: faster). Configs and numpy take turns; times are medians. On a busy machine the numbers are
unreliable: `load` is printed.
"""

import argparse
import json
import math
import os
import re
import statistics
import time
from pathlib import Path

import numpy as np

import tilewave as tw
from tilewave import WaveCompileOptions, wave_compile
from tilewave.bench.measure import PAUSE_SECONDS
from tilewave.kernels.linear import BATCH, ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.options import as_chosen
from tilewave.tune.default import TunableKernel
from tilewave.tune.search import RUNS

SHAPES = (
    "1x4096x4096nt,1x4096x4096nn,4096x1x4096nt,4096x1x4096nn,64x64x64nt,64x64x64nn,100x100x100nt,100x100x100nn,"
    "256x256x256nt,256x256x256nn,512x512x512nt,1024x1024x1024nt,1024x1024x1024nn,1536x1536x1536nt,32b64x64x64nt,"
    "256b64x64x64nn,512x512x16384nt,16x4096x4096nt,1000x3000x500nn,3x4097x1001nt"
)
BEFORE = {BLOCK_M: 56, BLOCK_N: 128, BLOCK_K: 64}
SECONDS = 0.02


def parsed(text):
    batch, m, n, k, layout = re.fullmatch(r"(?:(\d+)b)?(\d+)x(\d+)x(\d+)(nt|nn)", text).groups()
    return int(batch or 0), (int(m), int(n), int(k)), layout


def seconds(run):
    """Return the seconds of one call, averaged over as many as fill a short time."""
    at, count = time.perf_counter(), 0
    while time.perf_counter() - at < SECONDS or count < 1:
        run()
        count += 1
    return (time.perf_counter() - at) / count


def measured(text, rounds):
    batch, (m, n, k), layout = parsed(text)
    axes = BATCH[:1] if batch else ()
    form = ProductForm(tw.f32, tw.f32, (M, K), (N, K) if layout == "nt" else (K, N), axes)
    subs = {M: m, N: n, K: k} | ({BATCH[0]: batch} if batch else {})
    open_tiles = TunableKernel.of(product_kernel(form), subs, (), {}, "cpu")
    choices = open_tiles.predicted({})
    before = {s: min(v, dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), (m, n, k), strict=True))[s]) for s, v in BEFORE.items()}
    choices = [*choices, open_tiles.at({s.name: v for s, v in before.items()}, "")]
    lead = (batch,) if batch else ()
    draw = np.random.default_rng(0)
    a = draw.standard_normal((*lead, m, k), np.float32)
    b = draw.standard_normal((*lead, *((n, k) if layout == "nt" else (k, n))), np.float32)
    c, want = np.empty((*lead, m, n), np.float32), np.matmul(a, b.swapaxes(-1, -2) if layout == "nt" else b)
    runs = {}
    for number, choice in enumerate(choices):
        one = wave_compile(as_chosen(WaveCompileOptions(subs=subs, target="cpu"), choice), open_tiles.kernel)
        one(a, b, c)
        assert np.allclose(c, want, rtol=1e-3, atol=1e-3 * math.sqrt(k)), choice.text
        runs[number] = lambda one=one: one(a, b, c)
    right = b.swapaxes(-1, -2) if layout == "nt" else b
    runs["numpy"] = lambda: np.matmul(a, right, out=c)
    samples = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(seconds(run))
            if name == "numpy":
                time.sleep(PAUSE_SECONDS)
    times = {name: statistics.median(found) for name, found in samples.items()}
    return choices, times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"# load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    shares, rows = [], []
    for text in asked.shapes.split(","):
        choices, times = measured(text, asked.rounds)
        points = {i: t for i, t in times.items() if i != "numpy" and i < len(choices) - 1}
        best = min(points, key=points.get)
        eight = min(list(points)[:RUNS], key=points.get)
        shares.append(
            [
                times[best] / times[0],
                times[best] / times[eight],
                times[len(choices) - 1] / times[eight],
                times["numpy"] / times[eight],
            ]
        )
        told = f"{times['numpy'] / times[best]:.2f} of numpy, {choices[best].text}"
        print(text, *(f"{x:.3f}" for x in shares[-1]), told, f"{1e6 * times[best]:.1f} µs", flush=True)
        rows += [{"shape": text, "point": c.text, "seconds": times[i]} for i, c in enumerate(choices)]
    for at, name in enumerate(("the model", "eight runs", "over the tile of before", "eight runs of numpy")):
        found = [x[at] for x in shares]
        print(f"# {name}: {math.exp(sum(map(math.log, found)) / len(found)):.3f}, worst {min(found):.3f}")
    if asked.json:
        asked.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
