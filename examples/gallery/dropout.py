"""Dropout by a seed: a random number for each position decides, the same on every target, so no mask is stored."""

import numpy as np
from presented import Case, present

import tilewave
from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WorkgroupConstraint,
    f32,
    i64,
    read,
    scalar,
    select,
    self_index,
    sym,
    wave,
    write,
)

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE
SEED, P = 42, 0.25
FACTORS, STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


@wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 128, 1)])
def dropout(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], p: f32, seed: i64):
    position = self_index(M, i64) * scalar(N, i64) + self_index(N, i64)
    is_kept = tilewave.random(seed, position) >= p
    write(select(is_kept, read(x) / (1.0 - p), 0.0), y)


def uniform(seed, index):
    """Philox 4×32-10 for counters and keys below 2 ** 32, in numpy."""
    c0, low, half = index.astype(np.uint64), np.uint64(2**32 - 1), np.uint64(32)
    c1, c2, c3 = (np.zeros_like(c0) for _ in range(3))
    for step in range(10):
        k0, k1 = (np.uint64((key + step * by) % 2**32) for key, by in zip((seed, 0), STEPS, strict=True))
        left, right = c0 * np.uint64(FACTORS[0]), c2 * np.uint64(FACTORS[1])
        c0, c1, c2, c3 = (right >> half) ^ c1 ^ k0, right & low, (left >> half) ^ c3 ^ k1, left & low
    return (c0 >> np.uint64(8)) * 2.0**-24


def dropped(x):
    kept = uniform(SEED, np.arange(x.size)).reshape(x.shape) >= P
    return np.where(kept, x / (1 - P), 0)


def case(m=37, n=300):
    x = np.random.default_rng(23).standard_normal((m, n)).astype(np.float32)
    return Case(dropout, (x,), (np.empty_like(x),), dropped, dropped, 2, numbers={"p": P, "seed": SEED})


if __name__ == "__main__":
    present(case(), dropout.name)
