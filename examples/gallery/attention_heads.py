"""Attention forward in blocks of keys: the maximum score, the sum and the result so far are loop-carried.

`examples/attention.py` has masks and other layouts, `examples/causal_attention.py` orders for masks.
"""

import math

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    cast,
    exp,
    f16,
    f32,
    iterate,
    maximum,
    mma,
    read,
    sym,
    wave,
    write,
)

B, M, N, D, K = sym.B, sym.M, sym.N, sym.D, sym.K  # heads, queries, elements of v, of q and k, keys
HEAD = 64
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, HEAD, 1), WorkgroupConstraint(B, 1, 2)]


@wave([*TILES, TilingConstraint(K, 64)])
def attention(
    q: Memory[B, M, D, G, f16],
    k: Memory[B, K, D, G, f16],
    v: Memory[B, K, N, G, f16],
    c: Memory[B, M, N, G, f16],
):
    begin = Register[B, M, f32](-math.inf), Register[B, M, f32](0.0), Register[B, M, N, f32](0.0)

    @iterate(K, init_args=begin)
    def blocks(old_max, old_sum, acc):
        scores = mma(read(q), read(k), Register[B, M, K, f32](0.0)) * (1 / math.sqrt(HEAD))
        new_max = maximum(scores.max(dim=K), old_max)
        shrink = exp(old_max - new_max)
        weights = exp(scores - new_max)
        return new_max, weights.sum(dim=K) + old_sum * shrink, mma(cast(weights, f16), read(v), acc * shrink)

    _, total, weighted = blocks
    write(cast(weighted / total, f16), c)


def attended(q, k, v):
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(HEAD)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return weights / weights.sum(axis=2, keepdims=True) @ v


def case(heads=4, queries=192, keys=320):
    rng = np.random.default_rng(16)
    q, k, v = (rng.standard_normal((heads, rows, HEAD)).astype(np.float16) for rows in (queries, keys, keys))
    out = np.empty((heads, queries, HEAD), np.float16)

    def with_numpy(q, k, v):
        return attended(*(x.astype(np.float32) for x in (q, k, v)))

    weights_of_f16 = 2**13  # weights are rounded to f16 before they are multiplied: so many roundings of f32
    return Case(
        attention, (q, k, v), (out,), attended, with_numpy, weights_of_f16, lambda q, k, v: attended(q, k, abs(v))
    )


if __name__ == "__main__":
    present(case(), attention.name)
