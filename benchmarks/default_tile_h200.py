"""`ops.matmul` with its default configs on an NVIDIA GPU, compared with `torch.matmul`.

    python benchmarks/default_tile_h200.py [--family few-rows] [--seed 17] [--count 60] [--seconds 600] [--json FILE]
    python benchmarks/default_tile_h200.py --table seeds layouts rows unaligned [--json FILE]
    python benchmarks/default_tile_h200.py --batches [--weight 4096x4096] [--json FILE]

The first measures random shapes through the public call with CUDA tensors: M, N and K log-uniform from 1 to 16384, in
all four layouts, every third rounded up to multiples of 64, f16 and bf16 in turns. Of the family `few-rows` M or N is
from 1 to 32, and the other sizes are odd. A shape is called until its best config is compiled. Each contestant is a
CUDA graph of calls on as many buffers as hold 200 MB, so that L2 holds what it would in a program; graphs take turns,
in a new order each round. A result is compared with torch's, and a wrong one is never timed. Printed are medians of
microseconds, the ratio to torch (above 1, ours is faster), the geometric mean, and how many shapes are below 0.9 and
0.75.

The second measures named shapes in the same way, table by table: `seeds` are six of GEMMs, `layouts` four of them in
all layouts, `rows` 1 to 256 rows of activations and a weight as torch keeps it, `unaligned` odd sizes.

The third calls one weight with 33 batch sizes from 1 to 8192, once each, in a process with empty caches, and in
another with the caches of the first; Python's bytecode is compiled before. Printed are the stalls, which is what these
calls take longer than calls with the same sizes later, and the host's microseconds of a call with sizes seen before and
with new sizes, beside torch.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import tilewave
from tilewave import ops
from tilewave.runtime.background import BACKGROUND_WORK

LAYOUTS = ("NT", "NN", "TT", "TN")
"""The first letter: A as [M, K] or, T, as [K, M] transposed; the second: B as [K, N] or, T, as [N, K] transposed."""
DTYPES = ("float16", "bfloat16")
LONGEST, MULTIPLE = 16384, 64
FEW, FAMILIES = 32, ("all", "few-rows")
BUFFER_BYTES, MOST_BUFFERS = 200 << 20, 32
BURST_SECONDS, ROUNDS, SETTLING_CALLS = 0.001, 7, 20
UNITS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance of neighbours: both results round sums to it once."""
BATCHES = tuple(dict.fromkeys(round(2 ** (13 * at / 34)) for at in range(35)))
assert len(BATCHES) == 33
NEW_SIZES, REPEATS = 200, 200
SEEDS = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4864, 4096, 4160),
    (4864, 8192, 4160),
    (16384, 4096, 8192),
    (8192, 8192, 8192),
)
ODD_SIZES = (493, 1023, 2047, 4097)
WEIGHTS = ((4096, 4096), (6144, 4096), (8192, 28672))
FEW_ROWS = tuple(2**at for at in range(9))


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    layout: str
    dtype: str

    @property
    def operand_bytes(self) -> int:
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)


def cases(seed: int, count: int) -> Iterator[Case]:
    draw = random.Random(seed)
    for at in range(count):
        sizes = [round(math.exp(draw.uniform(0, math.log(LONGEST)))) for _ in range(3)]
        if at % 3 == 0:
            sizes = [-(-n // MULTIPLE) * MULTIPLE for n in sizes]
        yield Case(*sizes, LAYOUTS[at % 4], DTYPES[at // 4 % 2])


def named_cases(table: str) -> list[Case]:
    """Return the shapes of a table, in f16."""
    f16 = DTYPES[0]
    return {
        "seeds": [Case(*shape, "NT", f16) for shape in SEEDS],
        "layouts": [Case(*shape, layout, f16) for layout in LAYOUTS for shape in SEEDS[1:5]],
        "rows": [Case(m, n, k, "NT", f16) for n, k in WEIGHTS for m in FEW_ROWS],
        "unaligned": [Case(n, n, n, layout, f16) for n in ODD_SIZES for layout in LAYOUTS[:2]],
    }[table]


TABLES = ("seeds", "layouts", "rows", "unaligned")


def few_rows(seed: int, count: int) -> Iterator[Case]:
    """Yield unaligned shapes of few rows and of few columns in turns, in each layout."""
    draw = random.Random(seed)
    for at in range(count):
        few, *others = (round(math.exp(draw.uniform(0, math.log(most)))) for most in (FEW, LONGEST, LONGEST))
        long, k = (n // 2 * 2 + 1 for n in others)
        m, n = (few, long) if at % 2 else (long, few)
        yield Case(m, n, k, LAYOUTS[at // 2 % 4], DTYPES[at // 8 % 2])


# -- random shapes ----------------------------------------------------------------------------------------------------


class Card:
    """Graphs of calls on a CUDA device, timed by events."""

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self.torch, self.device = torch, device

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def random(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.torch.randn(shape, device=self.device, dtype=getattr(self.torch, dtype))

    def operands(self, case: Case) -> tuple[Any, Any]:
        first, second = case.layout
        a = self.random((case.k, case.m) if first == "T" else (case.m, case.k), case.dtype) * case.k**-0.25
        b = self.random((case.n, case.k) if second == "T" else (case.k, case.n), case.dtype) * case.k**-0.25
        return a.T if first == "T" else a, b.T if second == "T" else b

    def seconds(self, run: Callable[[], object]) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        self.torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def graph(self, calls: list[Callable[[], object]], each: float) -> tuple[Callable[[], object], int]:
        """Return what replays a graph of about a burst's calls, and their number."""
        torch, rounds = self.torch, max(1, math.ceil(BURST_SECONDS / max(each, 1e-6) / len(calls)))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        graph.replay()
        return graph.replay, rounds * len(calls)


def settle(call: Callable[[], object]) -> None:
    """Call until nothing better is left to compile."""
    for _ in range(SETTLING_CALLS):
        call()
        if not BACKGROUND_WORK.threads:
            break
        BACKGROUND_WORK.wait()
    call()


def is_right(found: Any, want: Any, case: Case) -> bool:
    return bool((found.float() - want.float()).norm() < 2 * UNITS[case.dtype] * want.float().norm())


def measure(card: Card, case: Case, draw: random.Random) -> dict[str, Any]:
    torch, facts = card.torch, vars(case).copy()
    count = max(1, min(MOST_BUFFERS, BUFFER_BYTES // case.operand_bytes))
    sets = [card.operands(case) for _ in range(count)]
    a, b = sets[0]
    settle(lambda: ops.matmul(a, b))
    if not is_right(ops.matmul(a, b), torch.matmul(a, b), case):
        return {**facts, "wrong": True}
    # The calls' results are the graphs': they keep what they allocate.
    contestants = {
        name: [lambda a=a, b=b, f=f: f(a, b) for a, b in sets]
        for name, f in (("ours", ops.matmul), ("torch", torch.matmul))
    }
    graphs = {}
    for name, calls in contestants.items():
        for call in calls:
            call()
        each = card.seconds(lambda calls=calls: [call() for call in calls]) / count
        graphs[name] = card.graph(calls, each)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name in draw.sample([*graphs], len(graphs)):
            replay, calls_of = graphs[name]
            samples[name].append(card.seconds(replay) / calls_of)
    times = {name: round(1e6 * median(found), 3) for name, found in samples.items()}
    ratio = round(times["torch"] / times["ours"], 4)
    return {**facts, "microseconds": times["ours"], "torch_microseconds": times["torch"], "ratio": ratio}


def report(rows: list[dict[str, Any]]) -> str:
    """Return the table's last line: the geometric mean, the worst, and the counts below 0.9 and 0.75."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    wrong = sum("wrong" in row for row in rows)
    if not ratios:
        return f"no shape was timed, {wrong} wrong"
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = [sum(ratio < limit for ratio in ratios) for limit in (0.9, 0.75)]
    return (
        f"{len(ratios)} shapes: geometric mean {mean:.3f}, worst {min(ratios):.3f}, "
        f"{below[0]} below 0.9, {below[1]} below 0.75, {wrong} wrong"
    )


def measured(card: Card, asked: argparse.Namespace, shapes: list[Case]) -> list[dict[str, Any]]:
    rows, draw, end = [], random.Random(asked.seed), time.monotonic() + asked.seconds
    for case in shapes:
        if time.monotonic() > end:
            print(f"# the time is over: {len(rows)} of {len(shapes)} shapes")
            break
        rows.append(measure(card, case, draw))
        row = rows[-1]
        times = "WRONG" if "wrong" in row else "{microseconds:>10} {torch_microseconds:>10} {ratio:>7.3f}".format(**row)
        print(f"{case.m:>6} {case.n:>6} {case.k:>6} {case.layout} {case.dtype:<8} {times}", flush=True)
    print(report(rows))
    return rows


# -- batch sizes ------------------------------------------------------------------------------------------------------


def first_calls(card: Card, weight: Any, matmul: Callable[..., Any]) -> list[float]:
    """Return the seconds of the first call of each batch size, with what the device takes."""
    found = []
    for m in BATCHES:
        a = card.random((m, weight.shape[1]), DTYPES[0])
        card.synchronize()
        begin = time.perf_counter()
        matmul(a, weight.T)
        card.synchronize()
        found.append(time.perf_counter() - begin)
    return found


def host_microseconds(card: Card, weight: Any, matmul: Callable[..., Any], sizes: list[int], repeats: int) -> float:
    """Return the median time until a call returns; sizes follow each other, so that the device's queue stays short."""
    arrays = [card.random((m, weight.shape[1]), DTYPES[0]) for m in sizes]
    found = []
    for _ in range(repeats):
        for a in arrays:
            begin = time.perf_counter()
            matmul(a, weight.T)
            found.append(time.perf_counter() - begin)
        card.synchronize()
    return round(1e6 * median(found), 2)


def batches_here(card: Card, weight_shape: tuple[int, int]) -> dict[str, Any]:
    """Return what this process measures of the batch sizes, with the caches that it finds."""
    weight = card.random(weight_shape, DTYPES[0])
    card.torch.matmul(weight[:8], weight[:8].T)  # starts the device and its libraries
    first = first_calls(card, weight, ops.matmul)
    for _ in range(SETTLING_CALLS):
        BACKGROUND_WORK.wait()
        later = first_calls(card, weight, ops.matmul)
        if not BACKGROUND_WORK.threads:
            break
    usual = [min(one, two) for one, two in zip(later, first_calls(card, weight, ops.matmul), strict=True)]
    stalls = [max(0.0, one - two) for one, two in zip(first, usual, strict=True)]
    new = [16 * at + 3 for at in range(1, NEW_SIZES + 1)]
    contestants = (("ours", ops.matmul), ("torch", card.torch.matmul))
    return {
        "stall_seconds": round(sum(stalls), 4),
        "longest_stall_seconds": round(max(stalls), 4),
        "stalls": [{"m": m, "seconds": round(s, 4)} for m, s in zip(BATCHES, stalls, strict=True) if s > 0.01],
        "host_new": {name: host_microseconds(card, weight, f, new, 1) for name, f in contestants},
        "host_seen": {name: host_microseconds(card, weight, f, [*BATCHES], REPEATS) for name, f in contestants},
    }


def batches(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure in two processes, the second of which has the caches of the first."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        caches = {"TILEWAVE_CACHE_DIR": f"{directory}/tilewave", "CUDA_CACHE_PATH": f"{directory}/cuda"}
        caches["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = f"{directory}/python"
        compileall.compile_dir(Path(tilewave.__file__).parent, quiet=2, workers=0)  # as an installation does
        for cache in ("cold", "warm"):
            words = [sys.executable, __file__, "--batches-here", "--weight", asked.weight]
            done = subprocess.run(words, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
            found[cache] = json.loads(done.stdout.splitlines()[-1])
            print_batches(cache, found[cache])
    return found


def print_batches(cache: str, found: dict[str, Any]) -> None:
    stalled = ", ".join(f"{one['m']}: {one['seconds']:.2f} s" for one in found["stalls"]) or "none above 10 ms"
    print(f"{cache} cache: stalls {found['stall_seconds']:.3f} s in all ({stalled})")
    for name, key in (("seen", "host_seen"), ("new", "host_new")):
        print(f"  host, {name} sizes: {found[key]['ours']} µs, torch {found[key]['torch']} µs")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="all")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--table", nargs="+", choices=TABLES)
    parser.add_argument("--batches", action="store_true")
    parser.add_argument("--batches-here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--weight", default="4096x4096", metavar="NxK")
    parser.add_argument("--json", type=Path)
    return parser


def main() -> None:
    asked = arguments().parse_args()
    if asked.batches:
        found: object = batches(asked)
    else:
        if asked.batches_here:
            n, k = map(int, asked.weight.split("x"))
            print(json.dumps(batches_here(Card(torch), (n, k))))
            return
        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, seed {asked.seed}")
        drawn = few_rows if asked.family == "few-rows" else cases
        tables = [named_cases(table) for table in asked.table or ()] or [list(drawn(asked.seed, asked.count))]
        found = [row for shapes in tables for row in measured(Card(torch), asked, shapes)]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
