"""The default tile on an NVIDIA GPU, compared with cuBLAS and with every other tile.

    python benchmarks/default_tile_h200.py [--quick] [--seed 17] [--shapes 30] [--seconds 600] [--json FILE]

Two tables. `random`: shapes drawn log-uniform from 1 to 16384, in all four layouts, with the tile that `wave_compile`
chooses. `space`: a few shapes, with every legal tile of the space, to judge the choice and to fit the cost model
(`benchmarks/fit_tiles.py`). All is f16 with sums in f32; launches are CUDA graphs on the same buffers,
interleaved with cuBLAS; printed are medians. Results are compared with cuBLAS, and a wrong one is never timed.

Kernels are compiled by as many processes as there are cores, before anything is timed. `--seconds` ends the run, with
what was measured by then; `--quick` is 85 seconds. Every row is also printed as a line of JSON.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from pathlib import Path

import tilewave
from tilewave import TilewaveError, WaveCompileOptions, f16, f32, iterate, mma, read, sym, wave, wave_compile, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.tune.default import TunableKernel, machine_of

M, N, K = sym.M, sym.N, sym.K
BLOCKS = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
TARGET = "sm_90a"
LAYOUTS = ("NT", "NN", "TT", "TN")
"""The first letter: A as [M, K] or, T, as [K, M]; the second: B as [K, N] or, T, as [N, K]."""
LONGEST = 16384
SPACE_SHAPES = [
    (1024, 1024, 1024),
    (256, 256, 256),
    (64, 8192, 8192),
    (4096, 4096, 4096),
    (512, 512, 512),
    (16, 8192, 8192),
    (2048, 2048, 2048),
    (256, 8192, 8192),
    (1, 4096, 14336),
    (512, 512, 65536),
    (128, 4096, 14336),
    (3000, 500, 1000),
    (100, 3000, 700),
    (1536, 1536, 1536),
]
BURST_SECONDS, ROUNDS = 0.001, 5
WRONG = 4e-3
"""Relative to cuBLAS: both round sums to f16, whose unit is 2 ** -10 at the most."""


def product(layout):
    """C[M, N] of operands in a layout."""

    def product(a, b, c):
        @iterate(K, init_args=[RegisterType((M, N), f32)(0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(tilewave.cast(total, f16), c)

    product.__annotations__ = {
        "a": MemoryType((K, M) if layout[0] == "T" else (M, K), GLOBAL_ADDRESS_SPACE, f16),
        "b": MemoryType((N, K) if layout[1] == "T" else (K, N), GLOBAL_ADDRESS_SPACE, f16),
        "c": MemoryType((M, N), GLOBAL_ADDRESS_SPACE, f16),
    }
    block_m, block_n, block_k = BLOCKS
    tiles = [WorkgroupConstraint(M, block_m, 0), WorkgroupConstraint(N, block_n, 1), TilingConstraint(K, block_k)]
    return wave(tiles)(product)


def compiled(shape, layout, tile):
    """With this tile, or with the one that is chosen."""
    subs = dict(zip((M, N, K), shape, strict=True)) | (dict(zip(BLOCKS, tile, strict=True)) if tile else {})
    return wave_compile(WaveCompileOptions(subs=subs, target=TARGET), product(layout))


def tile_of(one):
    return tuple(one.choice.config[s] for s in BLOCKS) if one.choice else None


def random_cells(count, seed):
    draw = random.Random(seed)
    for number in range(count):
        shape = tuple(round(math.exp(draw.uniform(0, math.log(LONGEST)))) for _ in range(3))
        yield "random", shape, LAYOUTS[number % len(LAYOUTS)], None


def space_cells():
    """Every legal tile of every shape, the best predicted first, all shapes in turn."""
    ranked = []
    for shape in SPACE_SHAPES:
        sizes = dict(zip((M, N, K), shape, strict=True))
        open_tiles = TunableKernel.of(product("NT"), sizes, (), {}, TARGET)
        tiles = dict.fromkeys(tuple(c.config[s] for s in BLOCKS) for c in open_tiles.choices())
        ranked.append([(shape, tile) for tile in tiles])
    for at in range(max(map(len, ranked))):
        for tiles in ranked:
            if at < len(tiles):
                yield "space", tiles[at][0], "NT", tiles[at][1]


def compile_ahead(cell):
    """Compile in a worker process; the result is in the cache for the process that measures."""
    _, shape, layout, tile = cell
    try:
        return len(compiled(shape, layout, tile).asm)
    except TilewaveError as error:
        return str(error).splitlines()[0]


# -- on the card ------------------------------------------------------------------------------------------------------


class Card:
    """Operands of one shape and layout, and cuBLAS on them."""

    def __init__(self, torch, shape, layout):
        self.torch = torch
        m, n, k = shape
        half = {"device": "cuda", "dtype": torch.float16}
        self.a = torch.randn((k, m) if layout[0] == "T" else (m, k), **half) / math.sqrt(math.sqrt(k))
        self.b = torch.randn((n, k) if layout[1] == "T" else (k, n), **half) / math.sqrt(math.sqrt(k))
        left = self.a.T if layout[0] == "T" else self.a
        right = self.b.T if layout[1] == "T" else self.b
        self.c, self.want = torch.empty((m, n), **half), torch.empty((m, n), **half)
        self.cublas = lambda: torch.mm(left, right, out=self.want)
        self.cublas()

    def graph(self, launch):
        """(what replays, launches of a replay): as long as a burst."""
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.synchronize()
        tried = torch.cuda.CUDAGraph()
        with torch.cuda.graph(tried, stream=stream):
            for _ in range(4):
                launch()
        count = max(4, min(500, math.ceil(BURST_SECONDS / max(1e-7, self.seconds(tried.replay) / 4))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                launch()
        graph.replay()
        return graph.replay, count

    def seconds(self, run):
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3

    def measure(self, kernel):
        self.c.fill_(math.nan)
        kernel(self.a, self.b, self.c)
        off = (self.c.float() - self.want.float()).norm() / self.want.float().norm()
        if not bool(off < WRONG):
            return {"wrong": float(off) if math.isfinite(float(off)) else "nan"}
        graphs = {"ours": self.graph(lambda: kernel(self.a, self.b, self.c)), "cublas": self.graph(self.cublas)}
        samples = {name: [] for name in graphs}
        for _ in range(ROUNDS):
            for name, (replay, count) in graphs.items():
                samples[name].append(self.seconds(replay) / count)
        ours, cublas = (statistics.median(samples[name]) for name in ("ours", "cublas"))
        return {"microseconds": round(1e6 * ours, 3), "cublas_microseconds": round(1e6 * cublas, 3)}


def measured(torch, cells, deadline):
    rows, card, at = [], None, None
    for table, shape, layout, tile in cells:
        if time.monotonic() > deadline:
            print(f"# the time is over: {len(rows)} rows", flush=True)
            break
        facts = {"table": table, **dict(zip("mnk", shape, strict=True)), "layout": layout, "dtype": "f16"}
        try:
            kernel = compiled(shape, layout, tile)
            if at != (shape, layout):
                card, at = None, None
                card, at = Card(torch, shape, layout), (shape, layout)
            chosen = {"predicted": round(1e6 * kernel.choice.prediction.seconds, 2)} if kernel.choice else {}
            facts |= {"tile": "x".join(map(str, tile or tile_of(kernel))), **chosen, **card.measure(kernel)}
        except (TilewaveError, RuntimeError) as error:
            facts |= {"tile": "x".join(map(str, tile or ())), "refused": str(error).splitlines()[0][:160]}
        rows.append(facts)
        print(json.dumps(facts), flush=True)
    return rows


def report(rows):
    timed = [row for row in rows if "microseconds" in row]
    ratios = {id(row): row["cublas_microseconds"] / row["microseconds"] for row in timed}
    chosen = [ratios[id(row)] for row in timed if row["table"] == "random"]
    if chosen:
        mean = math.exp(sum(map(math.log, chosen)) / len(chosen))
        print(f"# default tile, {len(chosen)} random shapes: {mean:.3f} of cuBLAS, worst {min(chosen):.3f}")
    shares = []
    for shape in SPACE_SHAPES:
        tiles = [row for row in timed if row["table"] == "space" and tuple(row[x] for x in "mnk") == shape]
        if tiles:
            best, first = min(row["microseconds"] for row in tiles), tiles[0]  # predicted best, so compiled first
            shares.append(best / first["microseconds"])
            print(
                f"# {shape}: {first['tile']} at {shares[-1]:.3f} of the best of {len(tiles)}, {ratios[id(first)]:.3f}"
            )
    if shares:
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        print(f"# the model's choice: {mean:.3f} of the best tile, worst {min(shares):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--shapes", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    begin = time.monotonic()
    seconds = 85 if asked.quick else asked.seconds
    cells = [*random_cells(asked.shapes, asked.seed), *space_cells()]
    if asked.quick:
        cells = cells[: asked.shapes + 14 * len(SPACE_SHAPES)]
    processes = max(1, (os.cpu_count() or 2) - 2)
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        made = pool.map_async(compile_ahead, cells, chunksize=1)
        made.wait(0.45 * seconds)
    print(f"# {len(cells)} kernels by {processes} processes: {time.monotonic() - begin:.0f} s", flush=True)

    import torch  # noqa: PLC0415  none of the processes that compile needs it

    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, {machine_of(TARGET).timing.fitted_on}")
    rows = measured(torch, _by_operands(cells), begin + seconds)
    report(rows)
    if asked.json:
        asked.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _by_operands(cells):
    """Random shapes first; then those of a shape together, whose operands are made once."""
    first = [cell for cell in cells if cell[0] == "random"]
    rest = [cell for cell in cells if cell[0] == "space"]
    return [*first, *sorted(rest, key=lambda cell: SPACE_SHAPES.index(cell[1]))]


if __name__ == "__main__":
    main()
