"""Many small products: a third dimension of the grid counts them."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    f16,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

B, M, N, K = sym.B, sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), WorkgroupConstraint(B, 1, 2)]


@wave([*TILES, TilingConstraint(K, 64)])
def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
    @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


def products(a, b):
    return a @ b.transpose(0, 2, 1)


def in_f32(a, b):
    return products(a.astype(np.float32), b.astype(np.float32))


def case(count=16, m=128, n=128, k=64):
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal((count, rows, k)).astype(np.float16) for rows in (m, n))
    out = np.empty((count, m, n), np.float32)
    return Case(batched, (a, b), (out,), products, in_f32, k + 1, lambda a, b: products(abs(a), abs(b)))


if __name__ == "__main__":
    present(case(), batched.name)
