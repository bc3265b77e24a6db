"""The backward pass of `ops.attention` on an NVIDIA GPU beside cuDNN's, where it is one kernel of five products.

    python benchmarks/attention_fused_backward_h200.py [--head 128 64] [--seq 4096 16384] [--rounds 11]
                                                       [--adding IN_TURNS ATOMICALLY] [--dtype bf16]

16k tokens of 2048 elements in all heads together, full and causal. Each contestant is a CUDA graph of its whole
backward pass, all helper kernels included; graphs take turns, in a new order each round. Ours are by default and under
`torch.use_deterministic_algorithms(True)`. Printed are the median ratio of cuDNN's time to each of ours with half the
distance of the quartiles (above 1: faster than cuDNN), errors against float64 in one head, whether 20 runs had the same
bits, and how much each launch of the five products adds to the time, for each way to add to the gradients of queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from attention_backward_h200 import CUDNN, DTYPES, OURS, Case, Tensors, measured, ratio

from tilewave.kernels.attention_fused_backward import Adding
from tilewave.kernels.attention_gradients import WantedGradients
from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.attending_backward import attention_backward
from tilewave.torch.tensors import LIBRARY

RUNS = 20
DETERMINISTIC = f"{OURS}, deterministic"


def fused(tensors: Tensors, adding: Adding) -> Any:
    """Return the work of a backward pass in five products, which has run."""
    q, k, v = (x.detach() for x in tensors.inputs)
    causal = tensors.case.is_causal
    y, lse = torch.ops.tilewave.attention(q, k, v, None, causal, None, None, None)
    given = q, k, v, None, y, lse, tensors.grad, None, None
    work = attention_backward.work(LIBRARY, *given, AttentionAsked(causal), WantedGradients(), adding)
    work.run()
    torch.cuda.synchronize()
    return work


def in_fixed_order(tensors: Tensors) -> Any:
    """Return the backward pass under deterministic algorithms."""

    def fixed(call: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        found = call()
        torch.use_deterministic_algorithms(False)
        return found

    torch.utils.deterministic.fill_uninitialized_memory = False
    return partial(fixed, fixed(lambda: tensors.backward(OURS)))


def has_same_bits(call: Any) -> bool:
    """Return whether the gradients of some runs have the same bits."""
    first = [x.clone() for x in call()]
    return all(torch.equal(a, b) for _ in range(RUNS) for a, b in zip(first, call(), strict=True))


def parts(work: Any, tensors: Tensors, rounds: int) -> list[tuple[str, float]]:
    """Return how much longer the pass takes with each launch: with counters that are not cleared none would wait."""
    firsts = {one.kernel.name: partial(run_all, work.launches[: i + 1]) for i, one in enumerate(work.launches)}
    until = {name: median(each) for name, each in measured(firsts, tensors.stream, rounds).items()}
    return list(zip(until, (b - a for a, b in pairwise((0.0, *until.values()))), strict=True))


def run_all(launches: Sequence[Any]) -> None:
    for one in launches:
        one()


def reported(case: Case, rounds: int, ways: list[Adding]) -> None:
    tensors = Tensors(case)
    want = tensors.in_float64()
    ours = {OURS: tensors.backward(OURS), DETERMINISTIC: in_fixed_order(tensors)}
    calls = {CUDNN: tensors.backward(CUDNN), **ours}
    errors = {name: tensors.errors(call(), want) for name, call in calls.items()}
    same = {name: has_same_bits(call) for name, call in ours.items()}
    times = measured(calls, tensors.stream, rounds)
    print(f"{case}: cuDNN {1e-6 * case.operations / median(times[CUDNN]):.0f} TFLOP/s")
    for name, each in times.items():
        faster, spread = ratio(times[CUDNN], each)
        off = " ".join(f"{x:.1e}" for x in errors[name])
        print(
            f"    {name:28} {faster:.3f} ±{spread:.3f}, off by {off}, the same bits: {same.get(name, '-')}", flush=True
        )
    for way in ways:
        found = ", ".join(f"{part} {us:.1f} µs" for part, us in parts(fused(tensors, way), tensors, rounds))
        print(f"    {way.value}: {found}", flush=True)
    most = DTYPES[case.dtype][2]
    assert max(x for each in errors.values() for x in each) < most, f"{case}: wrong"
    assert same[DETERMINISTIC], f"{case}: other bits in another run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--seq", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--adding", nargs="+", choices=[way.name for way in Adding], default=[w.name for w in Adding])
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for head in options.head:
        for seq in options.seq:
            for is_causal in (False, True):
                ways = [Adding[name] for name in options.adding]
                reported(Case(head, seq, is_causal, options.dtype, 1), options.rounds, ways)


if __name__ == "__main__":
    main()
