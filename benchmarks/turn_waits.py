"""Predicted waits of the backward pass of attention in five products, for four orders of workgroups.

    python benchmarks/turn_waits.py [--at-once 132] [--hand-over 2.2]

16k tokens of 16 heads, 64 queries a step, 128 keys a workgroup. Printed are the steps of each order, and the share of
the speed without waits.
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
    f32,
    first_index,
    i32,
    iterate,
    ordered_add,
    read,
    sym,
    wave,
)
from tilewave.sim.turns import HAND_OVER, TurnWaits, turn_waits

B, H, M, D, K2 = sym.B, sym.H, sym.M, sym.D, sym.K2
G = GLOBAL_ADDRESS_SPACE
QUERIES, KEYS, TOKENS, HEADS = 64, 128, 16384, 16
TILES = {B: 1, H: 1, K2: KEYS}
ORDERS: dict[str, tuple[tuple[Any, ...], list[Any]]] = {
    "blocks of keys": ((K2, H, B), []),
    "8 heads at a time": ((H, K2, B), [WorkgroupMapping("grouped(8)")]),
    "heads, then blocks of keys": ((H, K2, B), []),
    "heads and batches": ((H, B, K2), []),
}


def waits(name: str, seq: int, causal: bool, at_once: int, hand_over: float) -> TurnWaits:
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

    sizes = {"B": TOKENS // seq, "H": HEADS, "M": seq, "K2": seq}
    return turn_waits(added.compile(target="numpy"), at_once, hand_over, **sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=132, help="workgroups on the chip")
    parser.add_argument("--hand-over", type=float, default=HAND_OVER, help="steps until the next workgroup may add")
    options = parser.parse_args()
    for name in ORDERS:
        for seq in (4096, 16384):
            for causal in (False, True):
                found = waits(name, seq, causal, options.at_once, options.hand_over)
                what = f"{name}, {seq}{', causal' * causal}:"
                print(
                    f"{what:45} {found.steps:8.1f} of {found.without_waits:6.0f} steps, {found.share:.2f}", flush=True
                )


if __name__ == "__main__":
    main()
