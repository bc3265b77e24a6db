"""Grouped products on an NVIDIA GPU through `ops.grouped_mm`, beside `torch._grouped_mm` (bf16).

    python benchmarks/grouped_h200.py [--json FILE] [--only TEXT] [--tile 128x256x64] [--order "grouped(4)"]
                                      [--without PASS]

`--tile` (rows x columns x depth), `--order` and `--without` measure ours with another tile, order or list of passes.

Weights are [G, N, K] in memory, as a mixture of experts keeps them, and both functions get them as [G, K, N] views.
Each contestant is a CUDA graph of calls on buffers that L2 does not hold; graphs take turns, in a new order each round.
Printed are medians in microseconds, half the distance of the quartiles, TFLOP/s, the bandwidth that the arrays read and
written once would need, and the ratio to torch (above 1, ours is faster). Results are compared with torch's first, rows
outside every group with what they held, and a wrong one is never timed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from tilewave import bf16, i32, ops
from tilewave.kernels.grouped import GroupedForm, GroupedTile, grouped_product_kernel, grouped_tile_for
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name

ROUNDS, CALLS, BUFFER_BYTES = 9, 6, 400_000_000


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


def measured(torch, contestants):
    """Return the median and half the distance of the quartiles of each contestant, in microseconds."""
    timed = {name: graph_of(torch, calls) for name, calls in contestants.items()}
    found: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name in random.sample(list(timed), len(timed)):
            found[name].append(timed[name]())
    return {name: (median(times), (quantiles(times)[2] - quantiles(times)[0]) / 2) for name, times in found.items()}


def grouped_by(chosen, rows, groups):
    """Return a function like `ops.grouped_mm` with the chosen tile and order; that itself where none is chosen."""
    if not chosen.tile and not chosen.order:
        return lambda x, w, ends, out: ops.grouped_mm(x, w.mT, ends, out=out)
    tile = grouped_tile_for(rows, groups, bf16)
    if chosen.tile:
        tile = GroupedTile(*map(int, chosen.tile.split("x")))
    kernel = grouped_product_kernel(tile, GroupedForm(bf16, bf16, i32))
    return kernel.ordered(chosen.order) if chosen.order else kernel


def leave_out(name):
    """Compile without a pass from now on; the cache on disk, whose keys do not know, is not used."""
    os.environ |= {"TILEWAVE_CACHE_DIR": "off", "TILEWAVE_BACKGROUND": "0"}
    listed = lists.hopper
    lists.hopper = lambda *facts: tuple(p for p in listed(*facts) if pass_name(p) != name)


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
    xs = [torch.randn(rows + 9, k, **half) for _ in range(sets)]
    ws = [torch.randn(groups, n, k, **half) / k**0.5 for _ in range(sets)]
    outs = [torch.empty(rows + 9, n, **half) for _ in range(sets)]
    multiply = grouped_by(chosen, rows, groups)
    compared(torch, multiply, xs[0], ws[0], ends, counts, outs[0])
    ours = [partial(multiply, x, w, ends, out) for x, w, out in zip(xs, ws, outs, strict=True)]
    theirs = [partial(torch._grouped_mm, x[:rows], w.mT, offs=ends) for x, w in zip(xs, ws, strict=True)]
    found = measured(torch, {"ours": ours, "torch": theirs})
    us, spread = found["ours"]
    moved = 2 * (rows * k + rows * n + sum(c > 0 for c in counts) * n * k)
    return {
        "us": us,
        "spread": spread,
        "torch": found["torch"][0],
        "tflops": 2e-6 * rows * n * k / us,
        "gbs": 1e-3 * moved / us,
        "ratio": found["torch"][0] / us,
    }


def main() -> None:
    import torch  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tile", default="")
    parser.add_argument("--order", default="")
    parser.add_argument("--without", default="")
    chosen = parser.parse_args()
    if chosen.without:
        leave_out(chosen.without)
    found = {}
    for name, (counts, n, k) in CASES.items():
        if chosen.only in name:
            found[name] = measured_case(torch, chosen, counts, n, k)
            print(f"{name:32}", " ".join(f"{key} {value:.3f}" for key, value in found[name].items()), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
