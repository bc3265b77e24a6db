"""C = A · Bᵀ: a tile of C per workgroup, a loop over K, and a named order of tiles."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    f16,
    f32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
ORDER = "grouped(2)"


@wave(
    [
        WorkgroupConstraint(M, 64, 0),
        WorkgroupConstraint(N, 128, 1),
        TilingConstraint(K, 64),
        WorkgroupMapping(ORDER),
    ]
)
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


def product(a, b):
    return a @ b.T


def in_f32(a, b):
    return product(a.astype(np.float32), b.astype(np.float32))


def case(m=512, n=512, k=512):
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    sizes = {"roundings": k + 1, "size": lambda a, b: abs(a) @ abs(b).T}
    return Case(gemm, (a, b), (np.empty((m, n), np.float32),), product, in_f32, **sizes, mapping=ORDER)


if __name__ == "__main__":
    present(case(), gemm.name)
