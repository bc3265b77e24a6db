"""Few rows and a long K: the sums are cut into four parts, which workgroups of a GPU add up together."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    SplitConstraint,
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

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE
TILES = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)]


@wave([*TILES, SplitConstraint(K, 4)])
def in_parts(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)


def product(a, b):
    return a @ b.T


def in_f32(a, b):
    return product(a.astype(np.float32), b.astype(np.float32))


def case(m=16, n=512, k=2048):
    rng = np.random.default_rng(13)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    size = {"roundings": k + 4, "size": lambda a, b: abs(a) @ abs(b).T}
    return Case(in_parts, (a, b), (np.empty((m, n), np.float32),), product, in_f32, **size)


if __name__ == "__main__":
    present(case(), in_parts.name)
