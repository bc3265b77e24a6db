"""Run the backward pass of attention many times on a busy NVIDIA GPU, and compare the bits of all runs with the first.

    python benchmarks/attention_repeats_h200.py [--runs 1000] [--head 128] [--seq 4096] [--causal]

`ops.attention` runs under `torch.use_deterministic_algorithms(True)`. Another stream multiplies matrices of random
sizes meanwhile, so that workgroups start in another order, and on other SMs, each time. Printed are the number of runs
whose bits differ, of each gradient, and the time.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import torch
from attention_backward_h200 import Case, Tensors
from attention_fused_backward_h200 import in_fixed_order
from torch import Tensor

NAMES = ("q", "k", "v")
BUSY_SIZES = (256, 384, 640, 1024, 1536)


class Load:
    """Products of random sizes in a stream of their own."""

    def __init__(self, seed: int) -> None:
        self.random, self.stream = random.Random(seed), torch.cuda.Stream()
        self.matrices = {n: torch.randn(n, n, device="cuda", dtype=torch.float16) for n in BUSY_SIZES}

    def start(self) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(self.random.randint(1, 4)):
                x = self.matrices[self.random.choice(BUSY_SIZES)]
                torch.mm(x, x)


def differing(run: Callable[[], Sequence[Tensor]], runs: int) -> list[int]:
    """Return, for each gradient, the number of runs whose bits are not those of the first."""
    first, load = [x.clone() for x in run()], Load(runs)
    counts = torch.zeros(len(first), dtype=torch.int64, device="cuda")
    for _ in range(runs):
        load.start()
        found = run()
        pairs = zip(found, first, strict=True)
        counts += torch.stack([(a.view(torch.int16) != b.view(torch.int16)).any() for a, b in pairs])
    found_counts: list[int] = counts.tolist()
    return found_counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the bits of many backward passes of attention.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--causal", action="store_true")
    asked = parser.parse_args()
    tensors = Tensors(Case(asked.head, asked.seq, asked.causal, "f16", 1))
    begin = time.perf_counter()
    with torch.cuda.stream(tensors.stream):
        counts = dict(zip(NAMES, differing(in_fixed_order(tensors), asked.runs), strict=True))
    seconds = time.perf_counter() - begin
    print(f"{tensors.case}: {asked.runs} runs in {seconds:.1f} s, with other bits: {counts}", flush=True)


if __name__ == "__main__":
    main()
