"""Public calls on an H200 compared with cuDNN, torch and a copy: decode `ops.attention`, and unaligned rows.

    python benchmarks/public_calls_h200.py                         # all of it
    python benchmarks/public_calls_h200.py --only attention --rounds 15
    python benchmarks/public_calls_h200.py --attention 8x32/8x1x8192x128 --rows 65536x257 --dtypes f16

Attention is batches x heads of queries / heads of keys x queries x keys x head dim; a `c` after it means causal, a
`t` tensors that are transposed views of [batch, position, head, element]. Needs torch with CUDA. Tensors are as
torch's users have them, and each call allocates its result. Every contestant is a CUDA graph of calls on as many
buffers as hold 600 MB, so that L2 holds little; contestants take turns in every round. Printed are median
microseconds, and our speed relative to the other's: above 1, ours is faster. For attention also what a call costs the
host: the next one with equal sizes, and one with one key more than any before, as with a growing KV cache. Results are
compared with float64.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewave import ops

BUFFER_BYTES = 600 << 20
GRAPH_CALLS = 8
IDLE_SECONDS = 0.004
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20}
ATTENTION = (
    "8x32/8x1x8192x128,64x32/8x1x4096x128,1x128/8x1x65536x128,1x32/8x1x65536x128,8x32/8x1x8192x128c,8x32/8x1x8192x128t,"
    "8x32/8x4x8192x128c,8x32/8x16x8192x128c,8x32/8x4x8192x128ct,4x32/32x77x4096x64,512x12/12x128x128x64,1x16/16x64x16384x128"
)
ROWS = "65536x257,100000x769,65536x258"
Calls = list[Callable[[], Any]]


@dataclass(frozen=True)
class Attention:
    batch: int
    heads: int
    heads_kv: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    transposed: bool = False

    @staticmethod
    def of(text: str) -> Attention:
        sizes = text.rstrip("ct")
        batch, heads, queries, keys, size = sizes.split("x")
        of_q, of_k = map(int, heads.split("/"))
        flags = text[len(sizes) :]
        return Attention(int(batch), of_q, of_k, int(queries), int(keys), int(size), "c" in flags, "t" in flags)

    @property
    def moved_bytes(self) -> int:
        """Return the bytes of keys and values, in 16 bits."""
        return 4 * self.batch * self.heads_kv * self.keys * self.size

    def tensors(self, dtype: torch.dtype, keys: int = 0) -> tuple[Any, Any, Any]:
        def made(heads: int, places: int) -> Any:
            if self.transposed:
                return torch.randn(self.batch, places, heads, self.size, device="cuda", dtype=dtype).transpose(1, 2)
            return torch.randn(self.batch, heads, places, self.size, device="cuda", dtype=dtype)

        keys = keys or self.keys
        return made(self.heads, self.queries), made(self.heads_kv, keys), made(self.heads_kv, keys)

    def ours(self, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, causal=self.causal)

    def theirs(self, q: Any, k: Any, v: Any) -> Any:
        """One query at the last key sees all keys; torch's causal mask puts queries at the first ones, so it gets none:
        it has to compute a little more than we do."""
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.heads_kv)

    def error(self, q: Any, k: Any, v: Any) -> float:
        """Return the error against float64 in the heads of the last batch that share the last keys."""
        sharing = self.heads // self.heads_kv
        found = self.ours(q, k, v)[-1, -sharing:].double()
        scores = q[-1, -sharing:].double() @ k[-1, -1].double().mT / math.sqrt(self.size)
        if self.causal:
            hidden = torch.ones(self.queries, self.keys, dtype=torch.bool, device="cuda")
            scores = scores.masked_fill(hidden.triu(self.keys - self.queries + 1), -math.inf)
        want = scores.softmax(-1) @ v[-1, -1].double()
        return float((found - want).norm() / want.norm())


def graph_of(calls: Calls) -> tuple[Any, int]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    calls = calls * max(1, -(-GRAPH_CALLS // len(calls)))
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    return graph, len(calls)


def timed(contestants: dict[str, Calls], rounds: int) -> dict[str, float]:
    """Microseconds of a call of each; the first round is for nothing."""
    graphs = {name: graph_of(calls) for name, calls in contestants.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 1):
        for name, (graph, count) in graphs.items():
            torch.cuda.synchronize()
            time.sleep(IDLE_SECONDS)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                found[name].append(begin.elapsed_time(end) * 1e3 / count)
    return {name: median(times) for name, times in found.items()}


def host_microseconds(calls: Calls) -> float:
    """What a call costs the host, while the card is waited for in between."""
    found = []
    for call in calls:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e6)
    torch.cuda.synchronize()
    return median(found)


def measure_attention(text: str, dtype: torch.dtype, options: argparse.Namespace) -> None:
    case = Attention.of(text)
    torch.manual_seed(18)
    sets = [case.tensors(dtype) for _ in range(max(1, -(-BUFFER_BYTES // case.moved_bytes)))]
    error = case.error(*sets[0])
    assert error < UNITS[dtype], f"{text}: off by {error:.1e} of float64"
    contestants: dict[str, Calls] = {"ours": [partial(case.ours, *s) for s in sets]}
    try:
        case.theirs(*sets[0])
        contestants["cuDNN"] = [partial(case.theirs, *s) for s in sets]
    except RuntimeError as refusal:
        print(f"{text}: cuDNN takes no such tensors: {str(refusal).splitlines()[0][:80]}")
    found = timed(contestants, options.rounds)
    again = host_microseconds([partial(case.ours, *sets[0])] * 20)
    q, k, v = case.tensors(dtype, case.keys + 24)
    ends = range(case.keys + 1, case.keys + 24)
    grown: Calls = [partial(case.ours, q, k[:, :, :end], v[:, :, :end]) for end in ends]
    longer, theirs = host_microseconds(grown[3:]), found.get("cuDNN", math.nan)
    rate = case.moved_bytes / found["ours"] / 1e6
    print(
        f"attention {text:24} ours {found['ours']:8.1f} µs  cuDNN {theirs:8.1f}  of cuDNN {theirs / found['ours']:5.3f}"
        f"  {rate:5.2f} TB/s  host {again:5.1f} µs, {longer:6.1f} where keys grow  off {error:.1e}",
        flush=True,
    )


# rows ---------------------------------------------------------------------------------------------------------------


def row_calls(name: str, weight: Any, bias: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Ours and torch's."""
    n = (weight.shape[0],)
    return {
        "softmax": (lambda x: ops.softmax(x), lambda x: torch.softmax(x, -1)),
        "rms_norm": (lambda x: ops.rms_norm(x, weight), lambda x: functional.rms_norm(x, n, weight, 1e-5)),
        "layer_norm": (
            lambda x: ops.layer_norm(x, weight, bias),
            lambda x: functional.layer_norm(x, n, weight, bias, 1e-5),
        ),
    }[name]


def measure_rows(name: str, shape: str, dtype: torch.dtype, options: argparse.Namespace) -> None:
    m, n = map(int, shape.split("x"))
    torch.manual_seed(m + n)
    moved = 2 * m * n * dtype.itemsize
    xs = [torch.randn(m, n, device="cuda", dtype=dtype) for _ in range(max(1, -(-BUFFER_BYTES // moved)))]
    weight, bias = (torch.randn(n, device="cuda", dtype=dtype) for _ in range(2))
    ours, theirs = row_calls(name, weight, bias)
    rows = torch.cat([xs[0][:300], xs[0][-300:]])
    of_64 = row_calls(name, weight.double(), bias.double())[1](rows.double())
    found = ours(xs[0])
    found = torch.cat([found[:300], found[-300:]]).double()
    error = float(((found - of_64).abs() / (of_64.abs() + of_64.abs().mean())).max())
    assert error < 2 * UNITS[dtype], f"{name} {shape}: off by {error:.1e} of float64"
    contestants: dict[str, Calls] = {
        "ours": [partial(ours, x) for x in xs],
        "torch": [partial(theirs, x) for x in xs],
        "copy": [partial(torch.clone, x) for x in xs],
    }
    us = timed(contestants, options.rounds)
    who = f"{name:10} {shape:11} {str(dtype)[6:]:8}"
    print(
        f"{who} ours {us['ours']:8.1f} µs  torch {us['torch']:8.1f}  copy {us['copy']:8.1f}"
        f"  of torch {us['torch'] / us['ours']:6.3f}  of a copy {us['copy'] / us['ours']:5.3f}  off {error:.1e}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Public calls beside cuDNN, torch and a copy.")
    parser.add_argument("--only", choices=["attention", "rows"])
    parser.add_argument("--attention", default=ATTENTION)
    parser.add_argument("--attention-dtype", default="bf16", choices=["f16", "bf16"])
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--ops", default="softmax,rms_norm,layer_norm")
    parser.add_argument("--dtypes", default="f16,f32", help="of rows")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with torch.no_grad():
        for text in options.attention.split(",") if options.only != "rows" else ():
            measure_attention(text, DTYPES[options.attention_dtype], options)
        for shape in options.rows.split(",") if options.only != "attention" else ():
            for dtype in options.dtypes.split(","):
                for name in options.ops.split(","):
                    measure_rows(name, shape, DTYPES[dtype], options)


if __name__ == "__main__":
    main()
