"""Attention forward: softmax(q · kᵀ / √head) · v in blocks of keys; maximum, sum and result are loop-carried."""

import math

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    cast,
    exp2,
    f16,
    f32,
    fma,
    iterate,
    maximum,
    mma,
    read,
    reciprocal,
    select,
    self_index,
    sym,
    wave,
    write,
)

B, M, N, K1, K2 = sym.B, sym.M, sym.N, sym.K1, sym.K2  # heads, queries, elements of v, of q and k, keys
BLOCK_M, BLOCK_K2 = sym.BLOCK_M, sym.BLOCK_K2
G = GLOBAL_ADDRESS_SPACE
LOWEST = -3.4028234e38  # of f32: no score is below it, and what is hidden, -inf, is


def attention(head, is_causal=False, v_dims=(K2, N), waves=4):
    """Return the kernel for heads of `head` elements; blocks that the causal mask empties are skipped."""
    scale = math.log2(math.e) / math.sqrt(head)

    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, head, 1),
            WorkgroupConstraint(B, 1, 2),
            TilingConstraint(K2, BLOCK_K2),
            WaveConstraint(M, BLOCK_M / waves),
            *([WorkgroupMapping("last_first()")] if is_causal else []),  # the longest first
        ]
    )
    def attention(
        q: Memory[B, M, K1, G, f16],
        k: Memory[B, K2, K1, G, f16],
        v: Memory[(B, *v_dims, G, f16)],
        c: Memory[B, M, N, G, f16],
    ):
        begin = Register[B, M, f32](LOWEST), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)

        @iterate(K2, init_args=begin)
        def blocks(old_max, old_sum, acc):
            x = mma(read(q), read(k), Register[B, M, K2, f32](0.0))
            if is_causal:
                x = select(self_index(M) >= self_index(K2), x, -math.inf)
            new_max = maximum(x.max(dim=K2), old_max)
            shrink = exp2((old_max - new_max) * scale, flush=True)
            p = exp2(fma(x, scale, -new_max * scale), flush=True)
            new_sum = p.sum(dim=K2) + old_sum * shrink
            return new_max, new_sum, mma(cast(p, f16), read(v), acc * shrink)

        _, total, weighted = blocks
        write(cast(weighted * reciprocal(total), f16), c)

    return attention


plain = attention(64)
causal = attention(64, is_causal=True)


def subs(m, n, k, block_m=128, block_k2=64):
    """m queries, n keys, k heads of 64 elements."""
    return {B: k, M: m, K2: n, K1: 64, N: 64, BLOCK_M: block_m, BLOCK_K2: block_k2}
