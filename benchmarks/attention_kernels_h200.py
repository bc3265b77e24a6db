"""`tilewave.kernels.attention` on an H200 compared with cuDNN: more dtypes, heads, lengths, masks.

    python benchmarks/attention_kernels_h200.py [--rounds 9] [--only 96,gqa] [--tiles]

Shapes are dynamic, and the log-sum-exp is written, except where noted. Sliding windows are compared with
`flex_attention`, which torch compiles, because cuDNN has none. Printed are the reference's microseconds, and ratios as
in `attention_h200.py`; `--tiles` adds other blocks of queries and keys. Results are compared with the reference's.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from attention_h200 import CUDNN, raced
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tilewave import bf16, f16, f32, kernels
from tilewave.bench.contestant import Launch
from tilewave.bench.rounds import SHORT
from tilewave.kernels.attentions import attention_tile_for

DTYPES = {torch.float16: f16, torch.bfloat16: bf16}
OTHER_TILES = {64: ((128, 128), (192, 128)), 96: ((192, 96),), 128: ((192, 80),), 192: ((128, 64),), 256: ((128, 80),)}


@dataclass(frozen=True)
class Case:
    name: str
    head: int
    seq: int
    heads: int
    heads_kv: int = 0
    """0: as many as of queries."""
    batch: int = 4
    dtype: Any = torch.float16
    window: int = 0

    def grouped(self) -> kernels.Heads:
        return kernels.Heads(self.head, self.head, self.heads // (self.heads_kv or self.heads))

    def scores(self, is_causal: bool) -> kernels.Scores:
        return kernels.Scores(self.head**-0.5, is_causal, self.window or None)


CASES = (
    Case("log-sum-exp", 64, 1024, 32, batch=16),
    Case("log-sum-exp", 64, 4096, 32),
    Case("log-sum-exp", 64, 16384, 32, batch=1),
    Case("log-sum-exp", 128, 4096, 16),
    Case("log-sum-exp", 256, 4096, 8),
    Case("bf16", 128, 4096, 16, dtype=torch.bfloat16),
    Case("bf16", 64, 4096, 32, dtype=torch.bfloat16),
    Case("gqa", 128, 4096, 32, 8, batch=2),
    Case("heads of 96", 96, 4096, 16),
    Case("heads of 192", 192, 4096, 8),
    Case("length", 128, 1000, 16, batch=16),
    Case("length", 128, 4095, 16),
    Case("length", 128, 10000, 16, batch=1),
    Case("window", 128, 16384, 16, batch=1, window=1024),
)


@dataclass
class Race:
    case: Case
    is_causal: bool
    launches: dict[str, Launch] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(18)
        case = self.case
        heads = case.heads, *[case.heads_kv or case.heads] * 2
        self.q, self.k, self.v = (
            torch.randn(case.batch, h, case.seq, case.head, device="cuda").to(case.dtype) for h in heads
        )
        self.lse = torch.empty(case.batch, case.heads, case.seq, device="cuda")
        self.launches[CUDNN] = self.flex() if case.window else self.cudnn

    def cudnn(self) -> Any:
        shared = self.q.shape[1] != self.k.shape[1]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.is_causal, enable_gqa=shared)

    def flex(self) -> Launch:
        window, seq = self.case.window, self.case.seq
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < window), None, None, seq, seq, device="cuda")
        return partial(torch.compile(flex_attention), self.q, self.k, self.v, block_mask=mask)

    def add(self, tile: kernels.AttentionTile, with_lse: bool) -> None:
        case, dtype = self.case, DTYPES[self.case.dtype]
        scores = case.scores(self.is_causal)
        kernel = kernels.attention_kernel(
            tile, case.grouped(), scores, *[dtype] * 4, None, *([f32] if with_lse else [])
        )
        name = f"{tile.queries}x{tile.keys}{'' if with_lse else ', no log-sum-exp'}"
        self.outputs[name] = torch.full_like(self.q, math.nan)
        results = self.outputs[name], *([self.lse] if with_lse else [])
        self.launches[name] = partial(kernel, self.q, self.k, self.v, *results)

    def check(self) -> None:
        want, most = self.launches[CUDNN]().float(), 2.0**-5 if self.case.dtype == torch.bfloat16 else 2.0**-8
        for name, out in self.outputs.items():
            self.launches[name]()
            off = ((out.float() - want).abs() / (1 + want.abs())).max().item()
            assert off <= most, f"{self.case}, {name}: off by {off}"


def rows(case: Case, options: argparse.Namespace) -> Iterator[str]:
    for is_causal in (True,) if case.window else (False, True):
        race = Race(case, is_causal)
        picked = attention_tile_for("sm_90a", case.grouped(), case.scores(is_causal), DTYPES[case.dtype])
        race.add(picked, True)
        if case.name == "log-sum-exp":
            race.add(picked, False)
        for queries, keys in OTHER_TILES[case.head] if options.tiles else ():
            race.add(kernels.AttentionTile(queries, keys, 4), True)
        race.check()
        taken = raced(race.launches, SHORT, options.rounds)
        found = ((name, taken.ratio(name)) for name in race.outputs)
        told = "; ".join(f"{name} {r.median:.3f} ±{r.spread:.3f}" for name, r in found if r)
        what = f"{case.name}, {case.head} x {case.seq}{', causal' * is_causal}"
        yield f"{what:34} {taken.time(CUDNN).median * 1e6:8.1f} µs  {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description="tilewave.kernels.attention beside cuDNN.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="names of cases, or sizes of heads")
    parser.add_argument("--tiles", action="store_true", help="other blocks of queries and keys, too")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    for case in CASES:
        if not only or case.name in only or str(case.head) in only:
            for row in rows(case, options):
                print(row, flush=True)


if __name__ == "__main__":
    main()
