"""How often each number is there: atomics add where others add. Whole numbers, so the result has one value."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, Register, WorkgroupConstraint, atomic_add, i32, read, sym, wave

N, BINS = sym.N, sym.BINS
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(N, 1024, 0)])
def histogram(x: Memory[N, G, i32], counts: Memory[BINS, G, i32]):
    atomic_add(Register[N, i32](1), counts, at={BINS: read(x)})


def counted(x):
    return np.bincount(x.astype(np.int64), minlength=256)


def case(n=10_000, bins=256):
    x = np.random.default_rng(21).integers(0, bins, n).astype(np.int32)
    return Case(histogram, (x,), (np.zeros(bins, np.int32),), counted, counted, begin=0)


if __name__ == "__main__":
    present(case(), histogram.name)
