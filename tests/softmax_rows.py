"""Kernels of rows that are reduced and used again, which tests share."""

import numpy as np

from tilewave import *

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE


def softmax_of(rows, columns=0, waves=(1, 1), dtype=f32):
    """Rows whole, or in tiles that are cut among waves."""
    tiles = [WorkgroupConstraint(M, rows, 0), *([WorkgroupConstraint(N, columns, 1)] if columns else [])]
    cut = [WaveConstraint(d, n // w) for d, n, w in zip((M, N), (rows, columns), waves, strict=True) if w > 1]

    @wave([*tiles, *cut])
    def softmax(x: Memory[M, N, G, dtype], y: Memory[M, N, G, dtype]):
        row = cast(read(x), f32)
        powers = exp(row - row.max(dim=N))
        write(cast(powers / powers.sum(dim=N), dtype), y)

    return softmax


def softmax_in_float64(x):
    powers = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
