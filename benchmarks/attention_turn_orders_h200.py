"""Orders of workgroups that add in turns, in the backward pass of attention in five products on an NVIDIA GPU.

    python benchmarks/attention_turn_orders_h200.py [--head 128 64] [--seq 4096 16384] [--rounds 7]
                                                    [--at-once 1 2 4 8 16 32]

16k tokens of 2048 elements in all heads together, full and causal. Each contestant is a CUDA graph of the kernels that
clear sums and counters, and add; graphs take turns, in a new order each round. Printed are medians in microseconds, the
speed relative to atomics, and the speed that `tilewave.sim.turns` predicts for it: for so many heads at a time, and for
heads and batches as the first axes (`first`). A prediction counts steps and waits, and knows no cache.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

from attention_backward_h200 import Case, Tensors, measured
from attention_fused_backward_h200 import fused, run_all
from turn_waits import SMS, kernel_waits

from tilewave.kernels.attention_fused_backward import Adding, TurnOrder
from tilewave.kernels.attentions import H_KV, K2, B
from tilewave.sim.turns import HAND_OVER

ATOMICALLY = Adding.ATOMICALLY.value


def in_order(tensors: Tensors, order: TurnOrder | None) -> Any:
    """Return the launches that clear and add, which have run."""
    with patch.object(TurnOrder, "of", staticmethod(lambda *_: order)):
        return fused(tensors, Adding.IN_TURNS).launches[:-1]


def reported(case: Case, rounds: int, at_once: list[int]) -> None:
    tensors = Tensors(case)
    heads, _ = case.heads
    launches = {ATOMICALLY: fused(tensors, Adding.ATOMICALLY).launches[:-1], "first": in_order(tensors, None)}
    launches["chosen"] = fused(tensors, Adding.IN_TURNS).launches[:-1]
    facts = case.head, case.seq, case.is_causal, SMS, HAND_OVER
    steps = {"first": kernel_waits(*facts, None).steps, "chosen": kernel_waits(*facts).steps}
    # in this order those that add atomically start, and wait for none
    steps[ATOMICALLY] = kernel_waits(*facts, TurnOrder((K2, H_KV, B), None)).without_waits
    for count in (count for count in at_once if count <= heads):
        order = TurnOrder((H_KV, K2, B), count if count < heads else None)
        launches[f"{count} at a time"] = in_order(tensors, order)
        steps[f"{count} at a time"] = kernel_waits(*facts, order).steps
    times = measured({name: partial(run_all, own) for name, own in launches.items()}, tensors.stream, rounds)
    print(f"{case}:", flush=True)
    for name, each in times.items():
        found, predicted = median(times[ATOMICALLY]) / median(each), steps[ATOMICALLY] / steps[name]
        print(f"    {name:14} {median(each):7.0f} µs, {found:.2f} of the speed, predicted {predicted:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--seq", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    options = parser.parse_args()
    for head in options.head:
        for seq in options.seq:
            for is_causal in (False, True):
                reported(Case(head, seq, is_causal, options.dtype, 1), options.rounds, options.at_once)


if __name__ == "__main__":
    main()
