"""A product of rows that an index picks, and of the weights of one expert: the heart of a mixture of experts."""

import numpy as np
from presented import Case, present

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    SHARED_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    f16,
    f32,
    i32,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K, T, X, ONE = sym.M, sym.N, sym.K, sym.T, sym.X, sym.ONE  # rows picked, columns, depth, tokens, experts
G, S = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 64)])
def gathered_product(
    rows: Memory[M, G, i32],
    expert: Memory[ONE, G, i32],
    x: Memory[T, K, S, f16],
    weights: Memory[X, N, K, S, f16],
    out: Memory[M, N, G, f32],
):
    row, which = read(rows), read(expert, at={ONE: 0})

    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(x, at={T: row}), read(weights, at={X: which}), acc)

    write(total, out)


def product(rows, expert, x, weights):
    wide = (a.astype(np.float32) if a.dtype == np.float16 else a for a in (x, weights))
    tokens, of_experts = wide
    return tokens[rows.astype(int)] @ of_experts[int(expert[0])].T


def case(m=70, n=136, k=72, tokens=100):
    rng = np.random.default_rng(22)
    x, weights = (rng.standard_normal(s).astype(np.float16) for s in ((tokens, k), (3, n, k)))
    inputs = rng.integers(0, tokens, m).astype(np.int32), np.array([2], np.int32), x, weights
    out = np.empty((m, n), np.float32)
    size = lambda rows, expert, x, w: product(rows, expert, abs(x), abs(w))  # noqa: E731
    return Case(gathered_product, inputs, (out,), product, product, roundings=k, size=size)


if __name__ == "__main__":
    present(case(), gathered_product.name)
