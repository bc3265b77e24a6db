"""A layer in one kernel: relu(A · Bᵀ + bias). What happens to the sums is written where they are."""

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
    iterate,
    maximum,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K = sym.M, sym.N, sym.K
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 128, 1), TilingConstraint(K, 64)])
def layer(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[N, G, f32], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(cast(maximum(total + read(bias), 0.0), f16), c)


def forward(a, b, bias):
    return np.maximum(a @ b.T + bias, 0)


def case(m=256, n=512, k=256):
    rng = np.random.default_rng(11)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    bias = rng.standard_normal(n, np.float32)

    def size(a, b, bias):
        return abs(a) @ abs(b).T + abs(bias)

    def with_numpy(a, b, bias):
        return forward(a.astype(np.float32), b.astype(np.float32), bias).astype(np.float16)

    return Case(layer, (a, b, bias), (np.empty((m, n), np.float16),), forward, with_numpy, k + 2, size)


if __name__ == "__main__":
    present(case(), layer.name)
