"""Gradients of softmax, norms, gelu with a bias, swiglu and cross entropy on an H200 compared with torch's and a copy.

    python benchmarks/row_gradients_h200.py
    python benchmarks/row_gradients_h200.py --ops layer_norm --shapes 16384x4096 --dtypes f16,f32 --rounds 15

Every contestant is the backward pass alone, by `torch.autograd.grad` of a result that was computed before, as a CUDA
graph of calls on as many buffers as hold 600 MB, so that L2 holds little; contestants take turns in every round.
Gradients are those of the rows, and of weights and biases. The copy moves the bytes that rows need: for cross entropy
one matrix in and one out, for swiglu three in and two out, for the others two in and one out. Printed are median
microseconds, and our speed relative to the other's: above 1, ours is faster. Results are compared with float64, and
with those of a second call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tilewave import ops

BUFFER_BYTES = 600 << 20
IDLE_SECONDS = 0.004
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-19}
SHAPES = "65536x257,32768x1024,16384x4096,8192x8192,4096x16384"
EPS = 1e-5
Calls = list[Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A function of a matrix and parameters, ours and torch's, and the matrices that its backward pass moves."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    parameters: int
    moved: int = 3
    has_labels: bool = False
    matrices: int = 0
    """Further matrices."""


def _columns(x: Tensor) -> tuple[int]:
    return (x.shape[-1],)


class _BiasGelu(torch.autograd.Function):
    """gelu(x + bias), with the backward pass of a linear layer behind its products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        sums = x + bias
        ctx.save_for_backward(sums)
        return functional.gelu(sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (sums,) = ctx.saved_tensors
        found: tuple[Tensor, ...] = torch.ops.tilewave.activation_gradients(sums, *grads, "gelu", sums.dtype)
        return found


CASES = {
    "softmax": Case(ops.softmax, partial(torch.softmax, dim=-1), 0),
    "rms_norm": Case(lambda x, w: ops.rms_norm(x, w, EPS), lambda x, w: functional.rms_norm(x, _columns(x), w, EPS), 1),
    "layer_norm": Case(
        lambda x, w, b: ops.layer_norm(x, w, b, EPS),
        lambda x, w, b: functional.layer_norm(x, _columns(x), w, b, EPS),
        2,
    ),
    "gelu_bias": Case(_BiasGelu.apply, lambda x, b: functional.gelu(x + b), 1),
    "swiglu": Case(lambda x, up: ops.gated(x, up), lambda x, up: functional.silu(x) * up, 0, 5, matrices=1),
    "cross_entropy": Case(
        partial(ops.cross_entropy, reduction="sum"),  # gradients of a mean are too small for f16
        partial(functional.cross_entropy, reduction="sum"),
        0,
        2,
        has_labels=True,
    ),
}


@dataclass(frozen=True)
class Problem:
    """A case with tensors of one set of buffers."""

    case: Case
    x: Tensor
    parameters: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    grad: Tensor

    @staticmethod
    def of(case: Case, rows: int, columns: int, dtype: torch.dtype) -> Problem:
        made = partial(torch.randn, device="cuda", dtype=dtype)
        labels = (torch.randint(columns, (rows,), device="cuda"),) if case.has_labels else ()
        grad = made(()) if case.has_labels else made(rows, columns)
        matrices = tuple(made(rows, columns) for _ in range(case.matrices))
        parameters = (*matrices, *(made(columns) for _ in range(case.parameters)))
        return Problem(case, made(rows, columns), parameters, labels, grad)

    def backward(self, function: Callable[..., Tensor], dtype: torch.dtype | None = None) -> Callable[[], Any]:
        """Return the backward pass of a function, whose forward pass is done."""
        asked = [t.to(dtype or t.dtype, copy=True).requires_grad_() for t in (self.x, *self.parameters)]
        result = function(*asked, *self.labels)
        grad = self.grad.to(result.dtype)
        return lambda: torch.autograd.grad(result, asked, grad, retain_graph=True)


def graph_of(calls: Calls, side: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, int]:
    """Return a graph of calls whose forward passes ran on stream `side`."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    return graph, len(calls)


def timed(contestants: dict[str, Calls], side: torch.cuda.Stream, rounds: int) -> dict[str, float]:
    """Return the microseconds of a call of each; the first round is not counted."""
    graphs = {name: graph_of(calls, side) for name, calls in contestants.items()}
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


def error_of(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest error relative to the number or to the mean of its tensor."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, wanted, strict=True)]
    return max(float(((a - b).abs() / (b.abs() + b.abs().mean())).max()) for a, b in pairs)


def measure(name: str, shape: str, dtype: torch.dtype, rounds: int) -> None:
    case, (rows, columns) = CASES[name], map(int, shape.split("x"))
    torch.manual_seed(rows + columns)
    moved_bytes = case.moved * rows * columns * dtype.itemsize
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        problems = [Problem.of(case, rows, columns, dtype) for _ in range(max(1, -(-BUFFER_BYTES // moved_bytes)))]
        ours, theirs = ([p.backward(f) for p in problems] for f in (case.ours, case.theirs))
        copied = [torch.empty(moved_bytes // 2, device="cuda", dtype=torch.uint8) for _ in problems]
        once, again, of_64 = ours[0](), ours[0](), problems[0].backward(case.theirs, torch.float64)()
        error, same = error_of(once, of_64), all(map(torch.equal, once, again))
        del once, again, of_64
    torch.cuda.synchronize()
    assert error < 16 * UNITS[dtype], f"{name} {shape} {dtype}: off by {error:.1e} of float64"
    us = timed({"ours": ours, "torch": theirs, "copy": [x.clone for x in copied]}, side, rounds)
    print(
        f"{name:13} {shape:11} {str(dtype)[6:]:8} ours {us['ours']:8.1f} µs  torch {us['torch']:8.1f}"
        f"  copy {us['copy']:8.1f}  of torch {us['torch'] / us['ours']:6.3f}  of a copy {us['copy'] / us['ours']:5.3f}"
        f"  off {error:.1e}  {'same bits' if same else 'OTHER BITS'}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Gradients of rows beside torch's and a copy.")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--ops", default=",".join(CASES))
    parser.add_argument("--dtypes", default="f16,f32")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    ops.softmax(torch.zeros(1, 1))  # defines the operators
    for shape in options.shapes.split(","):
        for dtype in options.dtypes.split(","):
            for name in options.ops.split(","):
                measure(name, shape, DTYPES[dtype], options.rounds)


if __name__ == "__main__":
    main()
