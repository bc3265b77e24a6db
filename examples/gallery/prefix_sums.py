"""Running sums of each row: y[i] is x[0] + … + x[i]."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write

M, N = sym.M, sym.N
Matrix = Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]


@wave([WorkgroupConstraint(M, 4, 0)])
def prefix_sums(x: Matrix, y: Matrix):
    write(read(x).cumsum(dim=N), y)


def sums(x):
    return np.cumsum(x, axis=1)


def case(m=256, n=1000):
    x = np.random.default_rng(9).standard_normal((m, n), np.float32)
    return Case(prefix_sums, (x,), (np.empty_like(x),), sums, sums, roundings=n, size=lambda x: sums(abs(x)))


if __name__ == "__main__":
    present(case(), prefix_sums.name)
