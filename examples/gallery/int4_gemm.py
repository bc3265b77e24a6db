"""Weights of four bits: two to a byte, unpacked where they are used, with a scale for each output.

Byte k of a row holds weight k in its low half and weight k + K/2 in its high half, so that one loop over the bytes
multiplies both halves of A, which a call passes as two views of one array. The language has no dtype of
four bits: `%` and `//` by 16 split a byte.
"""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    cast,
    f16,
    f32,
    i8,
    i32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K = sym.M, sym.N, sym.K  # K counts bytes: half as many as there are weights in a row
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)]


@wave(TILES)
def int4_gemm(
    low: Memory[M, K, G, f16],
    high: Memory[M, K, G, f16],
    packed: Memory[N, K, G, i8],
    scale: Memory[N, G, f32],
    c: Memory[M, N, G, f32],
):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        pair = cast(read(packed), i32)  # 16 · high + low, of which both are 8 too large: from 0 to 15
        acc = mma(read(low), cast(pair % 16 - 8, f16), acc)
        return mma(read(high), cast((pair // 16) % 16 - 8, f16), acc)

    write(total * read(scale), c)


def unpacked(packed):
    bytes_ = packed.astype(np.int64)
    return bytes_ % 16 - 8, bytes_ // 16 % 16 - 8


def product(low, high, packed, scale):
    weights_low, weights_high = unpacked(packed)
    return (low @ weights_low.T + high @ weights_high.T) * scale


def with_numpy(low, high, packed, scale):
    wide = (x.astype(np.float32) for x in (low, high, *unpacked(packed)))
    a, b, weights_a, weights_b = wide
    return (a @ weights_a.T + b @ weights_b.T) * scale


def case(m=64, n=512, k=512):
    rng = np.random.default_rng(15)
    a = rng.standard_normal((m, k)).astype(np.float16)
    weights = rng.integers(-8, 8, (n, k))
    packed = (16 * (weights[:, k // 2 :] + 8) + weights[:, : k // 2] + 8).astype(np.uint8).view(np.int8)
    scale = rng.random(n, np.float32)

    def size(low, high, packed, scale):
        one, two = (abs(x) for x in unpacked(packed))
        return (abs(low) @ one.T + abs(high) @ two.T) * scale

    inputs = a[:, : k // 2], a[:, k // 2 :], packed, scale
    return Case(int4_gemm, inputs, (np.empty((m, n), np.float32),), product, with_numpy, k + 2, size)


if __name__ == "__main__":
    present(case(), int4_gemm.name)
