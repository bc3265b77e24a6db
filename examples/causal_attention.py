"""Causal attention: later rows of queries visit more keys, so the order of tiles decides when the last one is done.

    python examples/causal_attention.py
    tilewave map 64x4 "xcd_contiguous(8) >> paired()" --causal 128x64 --concurrent 64
    tilewave sim examples/causal_attention.py --set M=8192,K2=8192,B=4,K1=64,N=64,BLOCK_M=128,BLOCK_K2=64

With fewer heads than an MI300X has XCDs, a contiguous range of tiles is the light half of a head for one XCD and the
heavy half for its neighbour. `paired()` takes the rows of a head from both ends, so that every range costs the same.
"""

import math

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    cast,
    exp2,
    f16,
    f32,
    iterate,
    maximum,
    mma,
    read,
    select,
    self_index,
    sym,
    wave,
    write,
)
from tilewave.mapping import Causal, Grid, balance

B, M, N, K1, K2 = sym.B, sym.M, sym.N, sym.K1, sym.K2  # heads, queries, elements of v, of q and k, keys
BLOCK_M, BLOCK_K2 = sym.BLOCK_M, sym.BLOCK_K2
G = GLOBAL_ADDRESS_SPACE
SCALE = math.log2(math.e) / 8.0  # heads of 64 elements
LOWEST = -3.4028234e38  # of f32: no score is below it, and what is hidden, -inf, is


def attention(order):
    """The kernel whose tiles, rows of queries along M and heads along N, are taken in this order."""

    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(B, 1, 1),
            TilingConstraint(K2, BLOCK_K2),
            WorkgroupMapping(order),
        ]
    )
    def causal_attention(
        q: Memory[B, M, K1, G, f16],
        k: Memory[B, K2, K1, G, f16],
        v: Memory[B, K2, N, G, f16],
        o: Memory[B, M, N, G, f16],
    ):
        begin = Register[B, M, f32](LOWEST), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)

        @iterate(K2, init_args=begin)
        def blocks(old_max, old_sum, acc):
            scores = mma(read(q), read(k), Register[B, M, K2, f32](0.0)) * SCALE
            scores = select(self_index(M) >= self_index(K2), scores, -math.inf)
            new_max = maximum(scores.max(dim=K2), old_max)
            p, shrink = exp2(scores - new_max), exp2(old_max - new_max)
            return new_max, p.sum(dim=K2) + old_sum * shrink, mma(cast(p, f16), read(v), acc * shrink)

        _, total, weighted = blocks
        write(cast(weighted / total, f16), o)

    return causal_attention


causal_attention = attention("xcd_contiguous(8) >> paired()")


def subs(m, n, k, block_m=128, block_k2=64):
    """m queries, n keys, k heads of 64 elements."""
    return {B: k, M: m, K2: n, K1: 64, N: 64, BLOCK_M: block_m, BLOCK_K2: block_k2}


if __name__ == "__main__":
    grid, causal = Grid(rows=64, cols=4), Causal(queries=128, keys=64)
    for order in (
        "linear()",
        "xcd_contiguous(8)",
        'last_first() >> linear(along="n")',
        "xcd_contiguous(8) >> paired()",
    ):
        print(balance(order, grid, causal.costs(grid), xcds=8, units=64))
