"""Grouped products on an NVIDIA GPU through `ops.grouped_mm`, beside `torch._grouped_mm` (bf16).

    python benchmarks/grouped_h200.py [--json FILE] [--only TEXT] [--tile 128x256x64]... [--order "grouped(4)"]...
                                      [--without PASS]... [--static] [--rounds 9]

`--tile` (rows x columns x depth), `--order` and `--without` add ours with another tile, order or list of passes, each
as a contestant of its own; they can be given several times. `--static` adds ours compiled for the sizes of the case.
*plain* is `ops.matmul` of the same rows by one matrix: what products of as many whole tiles take where no group has to
be found and no tile is part-filled.

Weights are [G, N, K] in memory, as a mixture of experts keeps them, and both functions get them as [G, K, N] views.
Each contestant is a CUDA graph of calls on buffers that L2 does not hold; graphs take turns, in a new order each round.
Printed are medians in microseconds, half the distance of the quartiles, TFLOP/s, the bandwidth that the arrays read and
written once would need, the rows of all tiles per row of the groups, and ratios to torch (above 1, it is faster).
Results are compared with torch's first, rows outside every group with what they held, and a wrong one is never timed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import median, quantiles

from tilewave import bf16, i32, ops
from tilewave.kernels.grouped import (
    G,
    GroupedForm,
    GroupedTile,
    K,
    N,
    T,
    grouped_product_kernel,
    grouped_tile_for,
)
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name

CALLS, BUFFER_BYTES, MORE_ROWS = 6, 400_000_000, 9
FORM = GroupedForm(bf16, bf16, i32)


def uneven(groups: int, mean: int, seed: int) -> list[int]:
    """Return counts whose logarithms are spread, some of them 0, of about the given mean."""
    drawn = random.Random(seed)
    weights = [drawn.lognormvariate(0, 1) * (drawn.random() > 0.06) for _ in range(groups)]
    return [round(groups * mean * w / sum(weights)) for w in weights]


def skewed(groups: int, rows: int) -> list[int]:
    """Return counts of which a tenth of the groups has 90 % of the rows."""
    few = groups // 10
    heavy, light = round(0.9 * rows / few), round(0.1 * rows / (groups - few))
    return [heavy] * few + [light] * (groups - few)


def ranged(groups: int, low: int, high: int, seed: int) -> list[int]:
    """Return counts between two numbers."""
    return [random.Random(seed + g).randint(low, high) for g in range(groups)]


CASES = {
    "8x1024, N 14336, K 4096": ([1024] * 8, 14336, 4096),
    "8x1024, N 4096, K 14336": ([1024] * 8, 4096, 14336),
    "64 uneven, N 2048, K 7168": (uneven(64, 256, 1), 2048, 7168),
    "64 uneven, N 7168, K 2048": (uneven(64, 256, 2), 7168, 2048),
    "256 of 16-128, N 2048, K 7168": (ranged(256, 16, 128, 3), 2048, 7168),
    "256 of 0-16, N 2048, K 7168": (ranged(256, 0, 16, 4), 2048, 7168),
    "128x512, N 1536, K 2048": ([512] * 128, 1536, 2048),
    "128 skewed, N 1536, K 2048": (skewed(128, 65536), 1536, 2048),
}
"""Counts of the groups, columns, and depth."""


def graph_of(torch, calls):
    """Return a function that replays `CALLS` calls, each on the next buffers, and its microseconds a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()

    def timed() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(1000 * begin.elapsed_time(end) / CALLS)

    return timed


def measured(torch, contestants, rounds):
    """Return the median and half the distance of the quartiles of each contestant, in microseconds."""
    timed = {name: graph_of(torch, calls) for name, calls in contestants.items()}
    found: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name in random.sample(list(timed), len(timed)):
            found[name].append(timed[name]())
    return {name: (median(times), (quantiles(times)[2] - quantiles(times)[0]) / 2) for name, times in found.items()}


def ours(x, w, ends, out):
    """Multiply with the kernel that a call takes."""
    ops.grouped_mm(x, w.mT, ends, out=out)


@cache
def variant(tile, order="", without=""):
    """Return our kernel with another tile or order, or for compiling without a pass; not the one that ours takes."""
    kernel = grouped_product_kernel.__wrapped__(tile, FORM)
    return kernel.ordered(order) if order else kernel


def variants(chosen, rows, groups, n, k):
    """Return the kernels to measure beside ours, and the pass that each is compiled without."""
    tile = grouped_tile_for(rows, groups, bf16)
    found = {f"tile {text}": (variant(GroupedTile(*map(int, text.split("x")))), "") for text in chosen.tile}
    found |= {text: (variant(tile, text), "") for text in chosen.order}
    if chosen.static:
        sizes = {T: rows + MORE_ROWS, G: groups, N: n, K: k}
        found["static"] = variant(tile).compile("sm_90a", sizes), ""
    return found | {f"without {name}": (variant(tile, without=name), name) for name in chosen.without}


@contextmanager
def left_out(name):
    """Compile without a pass inside."""
    listed = lists.hopper
    lists.hopper = lambda *facts: tuple(p for p in listed(*facts) if pass_name(p) != name)
    try:
        yield
    finally:
        lists.hopper = listed


def compared(torch, multiply, x, w, ends, counts, out):
    """Raise unless our product is torch's, within the rounding of bf16, and rows after the last group are kept."""
    rows = sum(counts)
    out.fill_(float("nan"))
    multiply(x, w, ends, out)
    theirs = torch._grouped_mm(x[:rows], w.mT, offs=ends).double()
    apart = (out[:rows].double() - theirs).norm() / theirs.norm()
    assert apart < 4e-3, f"apart by {apart:.2e}"
    assert out[rows:].isnan().all(), "rows after the last group were written"


def measured_case(torch, chosen, counts, n, k):
    """Return what one case took."""
    rows, groups, half = sum(counts), len(counts), {"device": "cuda", "dtype": torch.bfloat16}
    ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
    sets = max(1, min(6, BUFFER_BYTES // (2 * groups * n * k)))
    xs = [torch.randn(rows + MORE_ROWS, k, **half) for _ in range(sets)]
    ws = [torch.randn(groups, n, k, **half) / k**0.5 for _ in range(sets)]
    outs = [torch.empty(rows + MORE_ROWS, n, **half) for _ in range(sets)]
    multiplied = {"ours": (ours, "")} | variants(chosen, rows, groups, n, k)
    contestants = {}
    for name, (multiply, left) in multiplied.items():
        with left_out(left):
            compared(torch, multiply, xs[0], ws[0], ends, counts, outs[0])
        contestants[name] = [partial(multiply, x, w, ends, out) for x, w, out in zip(xs, ws, outs, strict=True)]
    plain = [partial(ops.matmul, x[:rows], w[0].mT, out=out[:rows]) for x, w, out in zip(xs, ws, outs, strict=True)]
    theirs = [partial(torch._grouped_mm, x[:rows], w.mT, offs=ends) for x, w in zip(xs, ws, strict=True)]
    found = measured(torch, contestants | {"torch": theirs, "plain": plain}, chosen.rounds)
    (us, spread), tile = found["ours"], grouped_tile_for(rows, groups, bf16)
    moved = 2 * (rows * k + rows * n + sum(c > 0 for c in counts) * n * k)
    return {
        "us": us,
        "spread": spread,
        "tflops": 2e-6 * rows * n * k / us,
        "gbs": 1e-3 * moved / us,
        "padding": sum(-(-c // tile.rows) for c in counts) * tile.rows / rows,
        **{name: taken for name, (taken, _) in found.items() if name != "ours"},
        "ratio": found["torch"][0] / us,
        **{f"ratio of {name}": found["torch"][0] / found[name][0] for name in found if name not in ("ours", "torch")},
    }


def main() -> None:
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--static", action="store_true")
    for name in ("tile", "order", "without"):
        parser.add_argument(f"--{name}", action="append", default=[])
    chosen = parser.parse_args()
    if chosen.without:  # the cache on disk does not know which passes ran
        os.environ |= {"TILEWAVE_CACHE_DIR": "off", "TILEWAVE_BACKGROUND": "0"}
    found = {}
    for name, (counts, n, k) in CASES.items():
        if chosen.only in name:
            found[name] = measured_case(torch, chosen, counts, n, k)
            print(f"{name:32}", ", ".join(f"{key} {value:.3f}" for key, value in found[name].items()), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
