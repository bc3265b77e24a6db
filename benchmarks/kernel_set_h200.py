"""Times of every config of a kernel set on an NVIDIA GPU, on many shapes: what the cost model is fitted to.

    python benchmarks/kernel_set_h200.py [--seed 61] [--shapes 240] [--seconds 300] [--json FILE]

Each config is one kernel of f16 with open sizes, as `ops.matmul` runs it. Shapes are drawn log-uniform from 1 to
16384, in four layouts, every other one rounded to multiples of 8 or 64, and batches of 1 to 4096 rows with common
weights. Launches are CUDA graphs on the same buffers, and cuBLAS is timed before and after the configs of a shape.
Configs that the model predicts to take `HOPELESS` times as long as the best are left out. A wrong result is never
timed. Every row is a line of JSON.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
os.environ.setdefault("CUDA_CACHE_PATH", tempfile.mkdtemp(prefix="set_"))

from tilewave import TilewaveError, WaveCompileOptions, f16, wave_compile
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.lang.constraints import SplitConstraint
from tilewave.tune.default import TunableKernel
from tilewave.tune.space import NUM_STAGES, SPLIT

LAYOUTS = ("NT", "NN", "TT", "TN")
LONGEST = 16384
BURST_SECONDS, SAMPLES, HOPELESS = 0.0003, 3, 1.7
WRONG = 4e-3
WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 8192))
BATCHES = (1, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048)
CONFIGS = """
128x256x64/4 256x128x64/4 128x192x64/4 192x128x64/4 128x160x64/5 192x160x64/4 160x256x64/4 128x224x64/4
128x128x64/6 128x128x128/3 128x128x16/8 64x128x16/8 64x256x64/5 64x192x64/6 192x64x64/5 256x64x64/4 96x256x64/4
96x192x64/5
64x128x64/8 64x128x64/4 64x128x128/4 128x64x64/8 128x64x128/4 96x128x64/7 96x128x128/3 96x64x128/5 80x128x64/7
64x64x64/12 64x64x64/6 64x64x128/6 64x64x256/3 48x64x128/7 48x128x64/8 48x128x128/4 24x64x128/8
32x64x64/12 32x64x64/6 32x64x128/8 32x64x128/4 32x64x256/4 32x128x64/8 32x128x128/5
16x64x128/8 16x64x128/4 16x64x256/5 16x128x64/10 16x128x128/5 16x64x64/8
8x64x128/12 8x64x128/5 8x64x64/10 8x64x256/6 8x128x128/6
64x32x128/8 64x32x64/8 64x16x128/8 64x16x64/8 64x8x128/12 64x8x64/10
128x256x64/4:2 128x128x64/6:2 128x128x64/6:4 64x128x128/4:2 64x128x128/4:4 128x64x128/4:2
64x64x128/6:2 64x64x128/6:4 64x64x128/6:8 48x64x128/7:2 48x128x64/8:2 32x64x128/8:2 32x64x128/8:4 32x64x128/8:8
16x64x128/8:2 16x64x128/8:4 16x64x128/8:8 8x64x128/8:2 8x64x128/8:4 8x64x128/8:8
64x16x128/8:4 64x8x128/8:4 64x8x128/8:8 64x32x128/8:4 64x32x128/4:4 32x64x128/4:4
1x4x1024 4x1x1024 4x8x1024 8x4x1024 4x8x512 8x4x512 1x64x256 64x1x256
1x4x4096 4x1x4096 1x4x4096:4 4x1x4096:4
"""


def configs():
    """(tile, stages, split) of each."""
    for text in CONFIGS.split():
        tile, _, split = text.partition(":")
        tile, _, stages = tile.partition("/")
        yield tuple(map(int, tile.split("x"))), int(stages or 0), int(split or 1)


@cache
def form(layout):
    return ProductForm(f16, f16, (K, M) if layout[0] == "T" else (M, K), (N, K) if layout[1] == "T" else (K, N))


@cache
def compiled(layout, config):
    (m, n, k), stages, split = config
    kernel = product_kernel(form(layout)).ordered("grouped(8)")
    if split > 1:
        kernel = replace(kernel, constraints=(*kernel.constraints, SplitConstraint(K, split)), kept={})
    subs = {BLOCK_M: m, BLOCK_N: n, BLOCK_K: k}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", num_stages=stages or None), kernel)


def shapes(count, seed, aligned):
    """Log-uniform shapes in all layouts, half of them in multiples of 64, and common weights with many batches."""
    for n, k in WEIGHTS if aligned else ():
        for m in BATCHES:
            yield (m, n, k), "NT"
    draw = random.Random(seed)
    for number in range(count):
        shape = tuple(round(math.exp(draw.uniform(0, math.log(LONGEST)))) for _ in range(3))
        grain = (8, 64)[number % 2] if aligned else 1
        yield tuple(-(-x // grain) * grain for x in shape), LAYOUTS[number // 2 % 4]


def operands(torch, shape, layout):
    m, n, k = shape
    half = {"device": "cuda", "dtype": torch.float16}
    scale = k**-0.25
    a = torch.randn((k, m) if layout[0] == "T" else (m, k), **half) * scale
    b = torch.randn((n, k) if layout[1] == "T" else (k, n), **half) * scale
    return a, b, torch.empty((m, n), **half)


def warm(cell):
    """Compile in a worker process, and run once with arrays of each class of alignment: the driver keeps its code."""
    import torch  # noqa: PLC0415  each worker has its own

    layout, config, sizes = cell
    try:
        kernel = compiled(layout, config)
        for shape in sizes:
            kernel(*operands(torch, shape, layout))
        torch.cuda.synchronize()
    except (TilewaveError, RuntimeError) as error:
        return f"{layout} {config}: {str(error).splitlines()[0][:140]}"
    return ""


class Card:
    def __init__(self, torch, shape, layout):
        self.torch = torch
        self.a, self.b, self.c = operands(torch, shape, layout)
        left = self.a.T if layout[0] == "T" else self.a
        right = self.b.T if layout[1] == "T" else self.b
        self.want = torch.empty_like(self.c)
        self.cublas = lambda: torch.mm(left, right, out=self.want)
        self.cublas()
        self.norm = self.want.float().norm()

    def graph(self, launch, seconds):
        torch = self.torch
        count = max(4, min(300, math.ceil(BURST_SECONDS / seconds)))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                launch()
        graph.replay()
        return lambda: self.seconds(graph.replay) / count

    def seconds(self, run):
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3

    def time(self, launch, seconds=5e-6):
        sample = self.graph(launch, seconds)
        return statistics.median(sample() for _ in range(SAMPLES))

    def measure(self, kernel, seconds):
        self.c.fill_(math.nan)
        kernel(self.a, self.b, self.c)
        off = (self.c.float() - self.want.float()).norm() / self.norm
        if not bool(off < WRONG):
            return {"wrong": str(float(off))}
        return {"microseconds": round(1e6 * self.time(lambda: kernel(self.a, self.b, self.c), seconds), 3)}


def worth_timing(shape, layout, every):
    """The configs that the model does not predict to take `HOPELESS` times as long as the best, and their times."""
    tiles, found = tunable(layout), {}
    problem = tiles.problem.sized(dict(zip((M, N, K), shape, strict=True)))
    for config in every:
        (m, n, k), stages, split = config
        work = problem.cut({BLOCK_M: m, BLOCK_N: n, BLOCK_K: k, NUM_STAGES: stages, SPLIT: split})
        found[config] = tiles.machine.picoseconds(work) / 1e12
    least = min(found.values())
    return {config: t for config, t in found.items() if t < HOPELESS * least}


@cache
def tunable(layout):
    return TunableKernel.of(product_kernel(form(layout)), {}, (), {}, "sm_90a")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--shapes", type=int, default=240)
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--json", type=Path, default=Path(os.environ.get("OUT", ".")) / "kernel_set.json")
    asked = parser.parse_args()
    begin = time.monotonic()
    every = list(configs())
    sizes = [(515, 517, 4099)] if asked.unaligned else [(512, 512, 4096), (520, 520, 4104)]
    cells = [(layout, config, sizes) for config in every for layout in LAYOUTS]
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        made = pool.map_async(warm, cells, chunksize=1)
        drawn = list(shapes(asked.shapes, asked.seed, not asked.unaligned))
        todo = [(shape, layout, worth_timing(shape, layout, every)) for shape, layout in drawn]
        refused = {line for line in made.get() if line}
    print(f"# {len(cells)} kernels: {time.monotonic() - begin:.0f} s", flush=True)
    print("\n".join(sorted(refused)[:12]), len(refused), flush=True)

    import torch  # noqa: PLC0415  the processes that compile have their own

    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    bad = set()
    with asked.json.open("w") as file:
        for at, (shape, layout, worth) in enumerate(todo):
            if time.monotonic() - begin > asked.seconds:
                print(f"# the time is over: {at} of {len(todo)} shapes", flush=True)
                break
            facts = {**dict(zip("mnk", shape, strict=True)), "layout": layout}
            card = Card(torch, shape, layout)
            before = card.time(card.cublas)
            rows = []
            for (tile, stages, split), predicted in worth.items():
                config = tile, stages, split
                if (layout, config) in bad:
                    continue
                row = {"tile": "x".join(map(str, tile)), "stages": stages, "split": split}
                try:
                    row |= card.measure(compiled(layout, config), max(2e-6, predicted))
                except (TilewaveError, RuntimeError) as error:
                    row |= {"refused": str(error).splitlines()[0][:140]}
                    bad.add((layout, config))
                rows.append(row)
            after = card.time(card.cublas)
            cublas = round(5e5 * (before + after), 3)
            for row in rows:
                file.write(json.dumps({**facts, **row, "cublas": cublas}) + "\n")
            wrong = [row for row in rows if "wrong" in row]
            if wrong:
                print("WRONG", facts, wrong[:3], flush=True)
            timed = [row for row in rows if "microseconds" in row]
            if timed and at % 8 == 0:
                best = min(timed, key=lambda row: row["microseconds"])
                print(
                    at,
                    shape,
                    layout,
                    len(timed),
                    best["tile"],
                    best["stages"],
                    best["split"],
                    best["microseconds"],
                    cublas,
                    flush=True,
                )
            file.flush()


if __name__ == "__main__":
    main()
