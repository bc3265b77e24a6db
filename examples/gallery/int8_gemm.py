"""A quantised layer: i8 times i8 in i32, exactly, and a scale for each row of A and each row of B at the end."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    cast,
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

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 128, 1), TilingConstraint(K, 64)]


@wave(TILES)
def int8_gemm(
    a: Memory[M, K, G, i8],
    b: Memory[N, K, G, i8],
    scale_a: Memory[M, G, f32],
    scale_b: Memory[N, G, f32],
    c: Memory[M, N, G, f32],
):
    @iterate(K, init_args=[Register[M, N, i32](0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(total, f32) * read(scale_a) * read(scale_b), c)


def scaled(a, b, scale_a, scale_b):
    return (a @ b.T) * scale_a[:, None] * scale_b


def with_numpy(a, b, scale_a, scale_b):
    return scaled(a.astype(np.float32), b.astype(np.float32), scale_a, scale_b)


def case(m=256, n=512, k=256):
    rng = np.random.default_rng(14)
    a, b = (rng.integers(-127, 128, (rows, k)).astype(np.int8) for rows in (m, n))
    scale_a, scale_b = (rng.random(rows, np.float32) for rows in (m, n))
    out = np.empty((m, n), np.float32)
    return Case(int8_gemm, (a, b, scale_a, scale_b), (out,), scaled, with_numpy, roundings=3)


if __name__ == "__main__":
    present(case(), int8_gemm.name)
