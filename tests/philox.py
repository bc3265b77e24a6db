"""Philox 4×32-10 in numpy, with all four words of the counter, as its paper defines it."""

import numpy as np

FACTORS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
LOW, HALF = np.uint64(2**32 - 1), np.uint64(32)


def philox(counter, key):
    """Return four random words from arrays of four and two words."""
    c0, c1, c2, c3, k0, k1 = (np.asarray(word, np.uint64) for word in (*counter, *key))
    for step in range(10):
        left, right = c0 * FACTORS[0], c2 * FACTORS[1]
        key_0, key_1 = (k0 + np.uint64(step) * STEPS[0]) & LOW, (k1 + np.uint64(step) * STEPS[1]) & LOW
        c0, c1 = (right >> HALF) ^ c1 ^ key_0, right & LOW
        c2, c3 = (left >> HALF) ^ c3 ^ key_1, left & LOW
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))


def bits(seed, index):
    """Return the first word for the 64 bits of a seed and an index, integers of any dtype."""
    seed, index = (_bits_of(x) for x in (seed, index))
    zero = np.zeros_like(index)
    return philox((index & LOW, index >> HALF, zero, zero), (seed & LOW, seed >> HALF))[0]


def uniform(seed, index):
    """Return the f32 of [0, 1) for a seed and an index."""
    return ((bits(seed, index) >> np.uint32(8)) * 2.0**-24).astype(np.float32)


def _bits_of(x):
    """Return the 64 bits of integers; the sign of signed ones is extended."""
    if isinstance(x, int):
        return np.array(x % 2**64, np.uint64)
    return np.asarray(x).astype(np.int64 if np.asarray(x).dtype.kind == "i" else np.uint64).view(np.uint64)
