"""The backward pass of `ops.attention` on an NVIDIA GPU, beside cuDNN's and FlashAttention 2 in torch.

    python benchmarks/attention_backward_h200.py [--head 64 128 256] [--seq 4096 16384] [--dtype f16] [--sharing 1]
                                                 [--tiles] [--ladder] [--json FILE]

16k tokens of 2048 elements in all heads together, full and causal. Each contestant is a CUDA graph of one
`torch.autograd.grad` of the same tensors, all helper kernels included; graphs take turns, in a new order each round.
Printed are cuDNN's TFLOP/s (five products, half of them with a causal mask), the median ratio of its time to ours with
half the distance of the quartiles (above 1: faster than cuDNN), the memory that a forward and a backward pass allocate
at most, errors against float64 in one head, and then each of our launches alone. `--tiles` times other tiles,
`--ladder` our kernels with a pass left out.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tilewave import WaveCompileOptions, bf16, f16, f32, ops
from tilewave.bench.ablation import changed, without
from tilewave.compile import compile_with
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.kernels.attention_gradients import (
    WantedGradients,
    attention_keys_backward_kernel,
    attention_queries_backward_kernel,
)
from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.attending_backward import attention_backward
from tilewave.torch.tensors import LIBRARY

TOKENS, HIDDEN, ROUNDS, WARM = 16384, 2048, 11, 3
OURS, CUDNN, FLASH = "tilewave", "cuDNN", "flash"
DTYPES = {"f16": (torch.float16, f16, 2.0**-10), "bf16": (torch.bfloat16, bf16, 2.0**-7)}
"""Torch's dtype, ours, and the largest error of a gradient's norm."""
KEY_TILES = [(64, 128), (128, 128), (32, 128), (64, 64), (96, 128), (64, 192)]
QUERY_TILES = [(128, 64), (128, 128), (128, 32), (64, 128), (192, 64), (128, 80)]
"""Queries and keys of a workgroup or a step, for the kernels of keys and of queries."""
LADDER = ("pipeline_mma", "make_persistent", "drop_true_masks")
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    head: int
    seq: int
    is_causal: bool
    dtype: str
    sharing: int

    @property
    def heads(self) -> tuple[int, int]:
        return HIDDEN // self.head, HIDDEN // self.head // self.sharing

    @property
    def operations(self) -> int:
        pairs = TOKENS // self.seq * self.heads[0] * self.seq**2 // (2 if self.is_causal else 1)
        return 10 * pairs * self.head

    def __str__(self) -> str:
        groups = f", {self.sharing} heads share keys" if self.sharing > 1 else ""
        return f"{self.dtype} heads of {self.head}, {self.seq}{', causal' * self.is_causal}{groups}"


def attend(name: str, q: Any, k: Any, v: Any, case: Case) -> Any:
    if name == OURS:
        return ops.attention(q, k, v, causal=case.is_causal)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if name == CUDNN else SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=case.is_causal, enable_gqa=case.sharing > 1)


class Tensors:
    """Operands of a case, the gradient of the result, and each contestant's forward pass on the stream of its graph."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(18)
        self.case, self.stream, (heads, heads_kv) = case, torch.cuda.Stream(), case.heads
        dtype = DTYPES[case.dtype][0]
        shapes = [(TOKENS // case.seq, h, case.seq, case.head) for h in (heads, heads_kv, heads_kv, heads)]
        *inputs, self.grad = (torch.randn(shape, device="cuda").to(dtype) for shape in shapes)
        self.inputs = [x.requires_grad_() for x in inputs]

    def backward(self, name: str) -> Call:
        """Return a backward pass, after its forward pass."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            y = attend(name, *self.inputs, self.case)
            run = partial(torch.autograd.grad, y, self.inputs, self.grad, retain_graph=True)
            run()
        torch.cuda.synchronize()
        return run

    def most_bytes(self, name: str) -> int:
        """Return what a forward and a backward pass allocate at most, besides operands."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(attend(name, *self.inputs, self.case), self.inputs, self.grad)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def in_float64(self) -> list[Any]:
        """Return the gradients of the heads that share the last head of keys of the first batch."""
        case = self.case
        q, k, v, g = (x.detach()[:1, -n:].double() for x, n in zip((*self.inputs, self.grad), self.last, strict=True))
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        with sdpa_kernel(SDPBackend.MATH):
            for i in range(case.sharing):
                y = scaled_dot_product_attention(q[:, i : i + 1], k, v, is_causal=case.is_causal)
                y.backward(g[:, i : i + 1])
        return [x.grad for x in (q, k, v)]

    @property
    def last(self) -> tuple[int, ...]:
        return (self.case.sharing, 1, 1, self.case.sharing)

    def errors(self, found: Any, want: list[Any]) -> list[float]:
        mine = (x[:1, -n:].double() for x, n in zip(found, self.last, strict=False))
        return [float((x - y).norm() / y.norm()) for x, y in zip(mine, want, strict=True)]


# times ----------------------------------------------------------------------------------------------------------------


def graph_of(call: Call, stream: Any) -> Any:
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def measured(calls: dict[str, Call], stream: Any, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of each call in each round."""
    graphs = {name: graph_of(call, stream) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + WARM):
        for name in random.sample(list(graphs), len(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            if turn >= WARM:
                found[name].append(1000 * begin.elapsed_time(end))
    return found


def ratio(base: list[float], times: list[float]) -> tuple[float, float]:
    each = [a / b for a, b in zip(base, times, strict=True)]
    return median(each), (quantiles(each)[2] - quantiles(each)[0]) / 2


def launches_of(tensors: Tensors) -> list[Any]:
    """Return the launches of our call, which have run, so that each finds its inputs."""
    q, k, v = (x.detach() for x in tensors.inputs)
    asked = AttentionAsked(tensors.case.is_causal)
    y, lse = torch.ops.tilewave.attention(q, k, v, None, tensors.case.is_causal, None, None, None)
    given = q, k, v, None, y, lse, tensors.grad, None, None
    work = attention_backward.work(LIBRARY, *given, asked, WantedGradients())
    work.run()
    torch.cuda.synchronize()
    return list(work.launches)


def other_tiles(case: Case, launches: list[Any]) -> Iterator[tuple[str, Call]]:
    """Yield our kernels with other tiles; one that does not compile is printed."""
    heads, scores = Heads(case.head, case.head, case.sharing), Scores(case.head**-0.5, case.is_causal)
    dtype = DTYPES[case.dtype][1]
    for one in launches[1:]:
        of_keys = one.kernel.name == "attention_keys_backward"
        kinds = [dtype if name in one.arrays else None for name in ("grad_k", "grad_v")]
        for queries, keys in KEY_TILES if of_keys else QUERY_TILES:
            tile, facts = AttentionTile(queries, keys, 4), (heads, scores, f32, dtype)
            make = partial(attention_keys_backward_kernel, tile, *facts, None, *kinds)
            kernel = make() if of_keys else attention_queries_backward_kernel(tile, *facts, dtype)
            call = partial(kernel, *one.arguments)
            try:
                call()
                torch.cuda.synchronize()
            except Exception as error:
                print(f"    {one.kernel.name} {queries}x{keys}: {str(error).splitlines()[0]}", flush=True)
                continue
            yield f"{one.kernel.name} {queries}x{keys} {'+'.join(n for n in one.arrays if 'grad_' in n)}", call


def without_passes(launches: list[Any]) -> Iterator[tuple[str, Call]]:
    """Yield our kernels with a pass left out."""
    options = WaveCompileOptions(target="sm_90a")
    for i, one in enumerate(launches[1:], 1):
        for name in LADDER:
            made = compile_with(options, one.kernel, changed(without(name)))
            yield f"{i} {one.kernel.name} without {name}", partial(made, *one.arguments)


# a case ---------------------------------------------------------------------------------------------------------------


def contestants(tensors: Tensors) -> dict[str, Call]:
    """Return those that have a backward pass for the case."""
    found = {}
    for name in (OURS, CUDNN, FLASH):
        try:
            found[name] = tensors.backward(name)
        except Exception as error:
            print(f"    {name}: {str(error).splitlines()[0]}", flush=True)
    return found


def reported(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    tensors = Tensors(case)
    calls, want = contestants(tensors), tensors.in_float64()
    errors = {name: tensors.errors(call(), want) for name, call in calls.items()}
    same = all(torch.equal(a, b) for a, b in zip(calls[OURS](), calls[OURS](), strict=True))
    memory = {name: tensors.most_bytes(name) for name in calls}
    del want
    times = measured(calls, tensors.stream, options.rounds)
    base = CUDNN if CUDNN in times else FLASH
    tflops = {name: 1e-6 * case.operations / median(each) for name, each in times.items()}
    found, spread = ratio(times[base], times[OURS])
    print(f"{case}: {found:.3f} ±{spread:.3f} of {base}; the same bits: {same}")
    for name in times:
        off = " ".join(f"{x:.1e}" for x in errors[name])
        print(f"    {name:10} {tflops[name]:6.0f} TFLOP/s, {memory[name] / 1e9:6.2f} GB, off by {off}", flush=True)
    launches = launches_of(tensors)
    parts = {f"{i} {one.kernel.name}": one for i, one in enumerate(launches)}
    parts |= dict(other_tiles(case, launches)) if options.tiles else {}
    parts |= dict(without_passes(launches)) if options.ladder else {}
    alone = measured(parts, tensors.stream, options.rounds)
    for name, each in alone.items():
        print(f"    {name:60} {median(each):9.1f} µs", flush=True)
    most = DTYPES[case.dtype][2]
    assert max(errors[OURS]) < most, f"{case}: wrong"
    result = {"times": times, "errors": errors, "memory": memory, "launches": {n: median(x) for n, x in alone.items()}}
    return {"case": asdict(case), "ratio": found, "spread": spread, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=int, nargs="+", default=[128, 64, 256])
    parser.add_argument("--seq", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--dtype", nargs="+", choices=sorted(DTYPES), default=["f16"])
    parser.add_argument("--sharing", type=int, default=1, help="query heads that share a head of keys")
    parser.add_argument("--tiles", action="store_true", help="other tiles of each kernel, too")
    parser.add_argument("--ladder", action="store_true", help="kernels with a pass left out, too")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    whole = Case(128, 4096, False, "f16", options.sharing)
    rows = []
    for dtype in options.dtype:
        for head in options.head:
            for seq in options.seq:
                for is_causal in (False, True):
                    case = replace(whole, head=head, seq=seq, is_causal=is_causal, dtype=dtype)
                    rows.append(reported(case, options))
                    if options.json:
                        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
