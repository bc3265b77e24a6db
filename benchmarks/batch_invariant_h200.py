"""Batch-invariant products on an H200: a check that every row is bit-equal in every batch, and what it costs.

    python benchmarks/batch_invariant_h200.py [--weights 8192x8192 4096x4096 4096x14336] [--rounds 5] [--steps 40]

`batch_invariant=True` with dynamic shapes and autotuned tiles, B as [N, K], f16. For each of the weights N x K the
rows of M = 1 are compared bit by bit with the same rows of larger products, M from 2 to 8192 in `--steps` steps, at the
beginning, in the middle and at the end of each. Then CUDA graphs are timed, ours between two of torch.mm's (weights
that fit in L2 are warm), and compared with our product without the option.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Any

from default_tile_h200 import settle

from tilewave import WaveCompileOptions, f16, wave_compile
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Bursts, Launching, torch_on_the_gpu
from tilewave.bench.rounds import SHORT, Rounds, geometric_mean, play
from tilewave.kernels.linear import ProductForm, product_kernel

LARGEST = 8192
TIMED = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192)
CUBLAS, OURS, FREE = "torch.mm", "one order", "any order"


def products() -> dict[str, Any]:
    kernel = product_kernel(ProductForm(f16, f16))
    return {
        name: wave_compile(WaveCompileOptions(target="sm_90a", batch_invariant=name == OURS), kernel)
        for name in (OURS, FREE)
    }


def steps(count: int) -> list[int]:
    """From 2 to the largest, each by the same factor more."""
    return sorted({round(2 * (LARGEST / 2) ** (i / (count - 1))) for i in range(count)})


def rows_that_differ(torch: Any, kernel: Any, a: Any, b: Any, count: int) -> tuple[int, int]:
    """(how many of the rows that were compared, of how many)."""
    rows = sorted({0, 1, 5, 63, 64, 127, 200, 1000, 4095, 8191})
    alone = {}
    for row in rows:
        c = torch.full((1, b.shape[0]), math.nan, dtype=a.dtype, device="cuda")
        kernel(a[row : row + 1], b, c)
        alone[row] = c[0].view(torch.int16)
    differ = compared = 0
    for m in steps(count):
        c = torch.full((m, b.shape[0]), math.nan, dtype=a.dtype, device="cuda")
        kernel(a[:m], b, c)
        for row in (row for row in rows if row < m):
            differ += int((c[row].view(torch.int16) != alone[row]).any())
            compared += 1
    exact = a[:64].double() @ b.double().T
    assert float((c[:64].double() - exact).norm() / exact.norm()) < 1e-3
    return differ, compared


def timed(torch: Any, kernels: dict[str, Any], a: Any, b: Any, rounds: int) -> dict[str, float]:
    """How many times as fast as torch."""
    c = torch.empty((a.shape[0], b.shape[0]), dtype=a.dtype, device="cuda")
    launches: dict[str, Launch] = {CUBLAS: partial(torch.mm, a, b.T, out=c)}
    launches |= {name: partial(kernel, a, b, c) for name, kernel in kernels.items()}
    for launch in launches.values():
        settle(launch)
    bursts = Bursts.of(Launching.of(torch, launches), launches, SHORT)
    taken = Rounds(SHORT, bursts.launches, play(list(launches), CUBLAS, rounds, 17, bursts.take, lambda: None), CUBLAS)
    found = {name: taken.ratio(name) for name in kernels}
    return {name: ratio.median for name, ratio in found.items() if ratio is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description="Same bits whatever the batch: that they are, and what it costs.")
    parser.add_argument("--weights", nargs="+", default=["8192x8192", "4096x4096", "4096x14336"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch, kernels = torch_on_the_gpu(), products()
    torch.manual_seed(17)
    for text in options.weights:
        n, k = map(int, text.split("x"))
        b, a = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (n, LARGEST))
        b = b / math.sqrt(k)
        for name, kernel in kernels.items():
            differ, compared = rows_that_differ(torch, kernel, a, b, options.steps)
            print(f"{text}, {name}: {differ} of {compared} rows differ from the same alone", flush=True)
        found = {m: timed(torch, kernels, a[:m], b, options.rounds) for m in TIMED}
        for m, ratios in found.items():
            print(f"{m:6} " + "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()), flush=True)
        means = [geometric_mean([ratios[name] for ratios in found.values()]) for name in kernels]
        print(f"  mean of torch.mm: {', '.join(f'{x:.3f}' for x in means)}", flush=True)


if __name__ == "__main__":
    main()
