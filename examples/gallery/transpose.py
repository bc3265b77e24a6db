"""c = aᵀ: dims have names, so writing a tile of [M, N] to a memory of [N, M] turns it."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1)])
def transpose(a: Memory[M, N, G, f32], c: Memory[N, M, G, f32]):
    write(read(a), c)


def case(m=500, n=700):
    a = np.random.default_rng(3).standard_normal((m, n), np.float32)
    return Case(transpose, (a,), (np.empty((n, m), np.float32),), np.transpose, lambda a: np.ascontiguousarray(a.T))


if __name__ == "__main__":
    present(case(), transpose.name)
