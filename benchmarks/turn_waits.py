"""Predicted waits of the backward pass of attention in five products, for orders of workgroups.

    python benchmarks/turn_waits.py [--at-once 132] [--hand-over 2.2]

16k tokens of 16 heads, 64 queries a step, 128 keys a workgroup. Printed are the steps of each order, and the share of
the speed without waits. The last order is the one of `attention_fused_backward` on an H200: its turns descend along
keys where the pass is causal, so that the longest workgroups of the last heads start last.
"""

from __future__ import annotations

import argparse
from typing import Any

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    TilingConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    f16,
    f32,
    first_index,
    i32,
    iterate,
    ordered_add,
    read,
    sym,
    wave,
)
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.kernels.attention_fused_backward import Adding, TurnOrder, attention_fused_backward_kernel
from tilewave.sim.turns import HAND_OVER, TurnWaits, turn_waits

B, H, M, D, K2 = sym.B, sym.H, sym.M, sym.D, sym.K2
G = GLOBAL_ADDRESS_SPACE
QUERIES, KEYS, TOKENS, HIDDEN, SIZE = 64, 128, 16384, 2048, 128
HEADS = HIDDEN // SIZE
SMS = 132
TILES = {B: 1, H: 1, K2: KEYS}
ORDERS: dict[str, tuple[tuple[Any, ...], list[Any]]] = {
    "blocks of keys": ((K2, H, B), []),
    "8 heads at a time": ((H, K2, B), [WorkgroupMapping("grouped(8)")]),
    "heads, then blocks of keys": ((H, K2, B), []),
    "heads and batches": ((H, B, K2), []),
}


KERNEL = "half of L2, descending if causal"


def waits(name: str, seq: int, causal: bool, at_once: int, hand_over: float) -> TurnWaits:
    sizes = {"B": TOKENS // seq, "M": seq, "K2": seq}
    if name == KERNEL:
        return kernel_waits(SIZE, seq, causal, at_once, hand_over)
    return turn_waits(in_order(name, causal).compile(target="numpy"), at_once, hand_over, H=HEADS, **sizes)


def kernel_waits(
    size: int, seq: int, causal: bool, at_once: int, hand_over: float = HAND_OVER, *order: TurnOrder | None
) -> TurnWaits:
    """Return the waits of `attention_fused_backward` with heads of this size, in its own order or a given one."""
    heads, sizes = HIDDEN // size, {"B": TOKENS // seq, "M": seq, "K2": seq}
    found = order[0] if order else TurnOrder.of("sm_90a", Heads(size, size), TOKENS // seq, heads, seq, f16)
    facts = AttentionTile(QUERIES, KEYS), Heads(size, size), Scores(1.0, causal=causal), f32, f16, Adding.IN_TURNS
    kernel = attention_fused_backward_kernel(*facts, whole=True, turns=found)
    return turn_waits(kernel.compile(target="numpy"), at_once, hand_over, H_KV=heads, **sizes)


def in_order(name: str, causal: bool) -> Any:
    axes, mapping = ORDERS[name]
    each = [WorkgroupConstraint(dim, TILES[dim], i) for i, dim in enumerate(axes)]

    @wave([*each, *mapping, TilingConstraint(M, QUERIES)], subs={D: 16})
    def added(
        x: Memory[B, H, M, D, G, f32],
        k: Memory[B, H, K2, D, G, f32],
        y: Memory[B, H, M, D, G, f32],
        turns: Memory[B, H, M, G, i32],
    ) -> None:
        @iterate(M, start=first_index(K2) if causal else None)
        def step() -> None:
            ordered_add(read(x), y, turns=turns, turn=first_index(K2) // KEYS)

    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=SMS, help="workgroups on the chip")
    parser.add_argument("--hand-over", type=float, default=HAND_OVER, help="steps until the next workgroup may add")
    options = parser.parse_args()
    for name in (*ORDERS, KERNEL):
        for seq in (4096, 16384):
            for causal in (False, True):
                found = waits(name, seq, causal, options.at_once, options.hand_over)
                what = f"{name}, {seq}{', causal' * causal}:"
                print(
                    f"{what:45} {found.steps:8.1f} of {found.without_waits:6.0f} steps, {found.share:.2f}", flush=True
                )


if __name__ == "__main__":
    main()
