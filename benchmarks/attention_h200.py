"""Attention forward on an H200: the kernel of examples/attention.py beside torch's cuDNN and flash backends.

    python benchmarks/attention_h200.py                        # heads of 128, sequences of 4096, 16k tokens
    python benchmarks/attention_h200.py --head 64 --seq 1024 --block-m 128 --block-k 64 --schedule NONE

Needs torch with CUDA. Every contestant is recorded into a CUDA graph; rounds go through all of them in turn, so that
heat and clocks are the same for each. Printed are the median of the rounds, their spread (from the tenth to the
ninetieth percentile), TFLOP/s by the products that the mask leaves, the share of cuDNN's speed, and how far the
result lies from float64. `--transposed` also measures the kernel with V as [N, K2].
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import tilewave as tw

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from attention import BLOCK_K2, BLOCK_M, K1, K2, B, M, N, attention

HIDDEN = 2048
"""Elements of a token in all heads."""
CHECKED = 3
"""Heads whose results are held against float64."""


def ours(options: argparse.Namespace, is_causal: bool, v_dims: tuple[Any, Any]) -> Any:
    shape = {B: heads_of(options), M: options.seq, K2: options.seq, K1: options.head, N: options.head}
    subs = {} if options.open else shape
    blocks = {BLOCK_M: options.block_m, BLOCK_K2: options.block_k, K1: options.head}
    schedule = tw.SchedulingType[options.schedule]
    kernel = attention(options.head, is_causal, v_dims)
    return tw.wave_compile(tw.WaveCompileOptions(subs={**subs, **blocks}, target="sm_90a", schedule=schedule), kernel)


def heads_of(options: argparse.Namespace) -> int:
    """Of all sequences together."""
    return options.tokens // options.seq * (HIDDEN // options.head)


def contestants(options: argparse.Namespace, is_causal: bool) -> dict[str, tuple[Callable[[], Any], Any]]:
    """What each launches, and where its result is; None: what the launch gives."""
    torch.manual_seed(16)
    size = (1, heads_of(options), options.seq, options.head)
    q, k, v = (torch.randn(size, device="cuda").half() for _ in range(3))
    found: dict[str, tuple[Callable[[], Any], Any]] = {}

    def backend(kind: Any) -> Callable[[], Any]:
        def launch() -> Any:
            with sdpa_kernel(kind):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return launch

    found["cuDNN"] = backend(SDPBackend.CUDNN_ATTENTION), None
    found["flash"] = backend(SDPBackend.FLASH_ATTENTION), None
    ways = {"tilewave": ((K2, N), v[0])}
    if options.transposed:
        ways["tilewave, V as [N, K2]"] = ((N, K2), v[0].transpose(1, 2).contiguous())
    for name, (v_dims, values) in ways.items():
        compiled, out = ours(options, is_causal, v_dims), torch.full(size[1:], math.nan, device="cuda").half()
        found[name] = (lambda c=compiled, o=out, w=values: c(q[0], k[0], w, o)), out[None]
    check(found, q, k, v, is_causal)
    return found


def check(found: dict[str, tuple[Callable[[], Any], Any]], q: Any, k: Any, v: Any, is_causal: bool) -> None:
    """Print how far each lies from float64 in some heads."""
    heads = torch.linspace(0, q.shape[1] - 1, CHECKED, device=q.device).long()
    wide = (x[:, heads].double() for x in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        want = scaled_dot_product_attention(*wide, is_causal=is_causal)
    for name, (launch, out) in found.items():
        given = launch()
        torch.cuda.synchronize()
        got = (given if out is None else out)[:, heads].double()
        error = ((got - want).norm() / want.norm()).item()
        print(f"  {name:24} off by {error:.2e} of float64, {(got - want).abs().max().item():.2e} at most")
        assert error < 2**-9, f"{name} is wrong"  # p and the result have 11 bits each


def graph_of(launch: Callable[[], Any], times: int) -> Any:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            launch()
    return graph


def measured(options: argparse.Namespace, is_causal: bool) -> dict[str, list[float]]:
    """Milliseconds of one launch, for every contestant and round."""
    graphs = {name: graph_of(launch, options.times) for name, (launch, _) in contestants(options, is_causal).items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(options.rounds + options.warm):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn >= options.warm:
                found[name].append(begin.elapsed_time(end) / options.times)
    return found


def report(options: argparse.Namespace, is_causal: bool) -> None:
    print(f"head {options.head}, sequences of {options.seq}, {options.tokens} tokens, causal: {is_causal}")
    found = measured(options, is_causal)
    products = 4 * heads_of(options) * options.seq**2 * options.head / (2 if is_causal else 1)
    best = median(found["cuDNN"])
    for name, times in found.items():
        middle, parts = median(times), quantiles(times, n=10)
        print(
            f"  {name:24} {middle:8.3f} ms  ({parts[0]:.3f} to {parts[-1]:.3f})  {products / middle / 1e9:6.0f} TFLOP/s"
            f"  {best / middle:5.2f} of cuDNN"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Attention forward beside torch's backends.")
    parser.add_argument("--head", type=int, default=128)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--block-m", type=int, default=128)
    parser.add_argument("--block-k", type=int, default=64)
    parser.add_argument("--schedule", default="PREFETCH", choices=[s.name for s in tw.SchedulingType])
    parser.add_argument("--open", action="store_true", help="leave sizes open")
    parser.add_argument("--transposed", action="store_true", help="also with V as [N, K2]")
    parser.add_argument("--times", type=int, default=4, help="launches in a graph")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10, help="rounds that do not count")
    options = parser.parse_args()
    for is_causal in (False, True):
        report(options, is_causal)


if __name__ == "__main__":
    main()
