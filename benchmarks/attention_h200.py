"""Attention forward on an H200: the kernel of examples/attention.py compared with torch's cuDNN backend.

    python benchmarks/attention_h200.py [--head 64 128 256] [--seq 1024 4096 16384] [--mode both] [--fixed]
    python benchmarks/attention_h200.py --ladder --head 128 --seq 4096      # ablation of passes, with flash and Triton

f16, 16k tokens of 2048 elements in all heads together, full and causal, dynamic shapes unless --fixed. Every result is
compared with float64 in three heads of a poisoned output, and must be deterministic. Bursts of CUDA graphs, each
contestant between two of cuDNN, short (cool) or sustained (hot); printed are cuDNN's TFLOP/s by the products that the
mask leaves, the error of both, and the median of the ratios (above 1: faster than cuDNN) with half the distance of
their quartiles. `benchmarks/attention_kernels_h200.py` measures other dtypes, heads, lengths and masks.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tilewave as tw
from tilewave.bench.ablation import Change, changed, without
from tilewave.bench.contestant import Launch
from tilewave.bench.gpu import Bursts, Launching
from tilewave.bench.rounds import MODES, Mode, Rounds, play
from tilewave.compile import compile_with
from tilewave.compiled import Compiled

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))
import triton_attention
from attention import BLOCK_K2, BLOCK_M, K1, K2, B, M, N, attention

TOKENS, HIDDEN = 16384, 2048
CHECKED = 3
"""Heads whose results are held against float64."""
OURS, CUDNN = "tilewave", "cuDNN"
TILES = {64: (192, 128), 128: (128, 128), 256: (128, 64)}
"""Queries and keys, for heads of so many elements."""
SHORT_TILE, SHORT_SEQ = (128, 128), 1024
"""The tile for heads of 64 and short sequences, where the larger tile would give a small grid."""
LADDER = (
    "make_persistent",
    "defer_rescaling",
    "delay_dependent_mma",
    "stage_epilogue",
    "merge_masks",
    "drop_true_masks",
)


@dataclass(frozen=True)
class Case:
    head: int
    seq: int
    is_causal: bool

    @property
    def heads(self) -> int:
        """Return the number of heads of all sequences together."""
        return TOKENS // self.seq * (HIDDEN // self.head)

    @property
    def tile(self) -> tuple[int, int]:
        """Queries and keys."""
        return SHORT_TILE if (self.head, self.seq) == (64, SHORT_SEQ) else TILES[self.head]

    @property
    def operations(self) -> int:
        return 4 * self.heads * self.seq**2 * self.head // (2 if self.is_causal else 1)

    def __str__(self) -> str:
        queries, keys = self.tile
        return f"heads of {self.head}, sequences of {self.seq}{', causal' * self.is_causal}, {queries}x{keys}"


def as_it_is(passes: Any) -> Any:
    return passes


@cache
def compiled(head: int, is_causal: bool, tile: tuple[int, int], seq: int, change: Change) -> Compiled:
    """For sequences of that length, or of any, where it is 0."""
    fixed = {B: TOKENS // seq * (HIDDEN // head), M: seq, K2: seq} if seq else {}
    subs = {**fixed, K1: head, N: head, BLOCK_M: tile[0], BLOCK_K2: tile[1]}
    options = tw.WaveCompileOptions(subs=subs, target="sm_90a")
    return compile_with(options, attention(head, is_causal), changed(change))


@dataclass(frozen=True)
class Arrays:
    """Operands, and what float64 gives for some heads."""

    case: Case
    q: Any
    k: Any
    v: Any
    want: Any
    outputs: list[Any] = field(default_factory=list)
    """Which graphs write."""

    @staticmethod
    def of(case: Case) -> Arrays:
        torch.manual_seed(16)
        size = (case.heads, case.seq, case.head)
        q, k, v = (torch.randn(size, device="cuda").half() for _ in range(3))
        with sdpa_kernel(SDPBackend.MATH):  # one head after the other: scores of float64 are large
            want = [
                scaled_dot_product_attention(*(x[None, [i]].double() for x in (q, k, v)), is_causal=case.is_causal)[0]
                for i in Arrays.heads_of(case)
            ]
        return Arrays(case, q, k, v, torch.cat(want))

    @staticmethod
    def heads_of(case: Case) -> list[int]:
        return torch.linspace(0, case.heads - 1, CHECKED).long().tolist()

    def output(self) -> Any:
        self.outputs.append(torch.full_like(self.q, math.nan))
        return self.outputs[-1]

    def torchs(self, kind: Any) -> Any:
        with sdpa_kernel(kind):
            return scaled_dot_product_attention(self.q[None], self.k[None], self.v[None], is_causal=self.case.is_causal)

    def error(self, found: Any) -> float:
        off = found[self.heads_of(self.case)].double() - self.want
        return (off.norm() / self.want.norm()).item()

    def checked(self, launch: Callable[[], Any], out: Any) -> float:
        """Return a launch's error against float64; assert that a second launch gives bit-equal results."""
        launch()
        first = out.clone()
        out.fill_(math.nan)
        launch()
        torch.cuda.synchronize()
        assert torch.equal(first.view(torch.int16), out.view(torch.int16)), f"{self.case}: two runs differ"
        return self.error(out)


def ours(arrays: Arrays, change: Change, is_fixed: bool) -> tuple[Launch, float]:
    case, out = arrays.case, arrays.output()
    made = compiled(case.head, case.is_causal, case.tile, case.seq if is_fixed else 0, change)
    launch = partial(made, arrays.q, arrays.k, arrays.v, out)
    return launch, arrays.checked(launch, out)


def tritons(arrays: Arrays) -> tuple[Launch, float]:
    given = arrays.q, arrays.k, arrays.v, arrays.output(), arrays.case.is_causal
    launch = partial(triton_attention.launch, *given, triton_attention.best(*given))
    return launch, arrays.checked(launch, given[3])


def contestants(arrays: Arrays, options: argparse.Namespace) -> Iterator[tuple[str, Launch, float]]:
    """Each with its error."""
    cudnn = partial(arrays.torchs, SDPBackend.CUDNN_ATTENTION)
    yield CUDNN, cudnn, arrays.error(cudnn()[0])
    yield OURS, *ours(arrays, as_it_is, options.fixed)
    if options.ladder:
        for name in LADDER:
            yield f"without {name}", *ours(arrays, without(name), options.fixed)
        flash = partial(arrays.torchs, SDPBackend.FLASH_ATTENTION)
        yield "torch's flash backend", flash, arrays.error(flash()[0])
        yield "Triton", *tritons(arrays)


def raced(launches: dict[str, Launch], mode: Mode, rounds: int) -> Rounds:
    bursts = Bursts.of(Launching.of(torch, launches), launches, mode)
    return Rounds(mode, bursts.launches, play(list(launches), CUDNN, rounds, 18, bursts.take, lambda: None), CUDNN)


def report(case: Case, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    arrays = Arrays.of(case)
    found = list(contestants(arrays, options))
    launches, errors = {name: launch for name, launch, _ in found}, {name: error for name, _, error in found}
    for mode in MODES[options.mode]:
        rounds = raced(launches, mode, options.rounds)
        print(f"{case}, {mode.name}: cuDNN {rounds.tflops(CUDNN, case.operations).median:.0f} TFLOP/s")
        for name in launches:
            ratio = rounds.ratio(name)
            told = f"{ratio.median:.3f} ±{ratio.spread:.3f} of cuDNN, " if ratio else ""
            print(f"  {name:26} {told}off by {errors[name]:.2e} of float64", flush=True)
        yield {"case": str(case), "errors": errors, **rounds.to_json(case.operations)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention forward beside cuDNN.")
    parser.add_argument("--head", type=int, nargs="+", choices=sorted(TILES), default=[128, 64, 256])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--mode", choices=sorted(MODES), default="short")
    parser.add_argument("--fixed", action="store_true", help="compile for each length of sequences")
    parser.add_argument("--ladder", action="store_true", help="with passes left out; torch's flash backend; Triton")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cases = [Case(h, s, causal) for h in options.head for s in options.seq for causal in (False, True)]
    rows = [row for case in cases for row in report(case, options)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
