"""c = a + b: the smallest kernel. A workgroup takes 4096 neighbours; the last may be a boundary tile."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, read, sym, wave, write

N = sym.N
Vector = Memory[N, GLOBAL_ADDRESS_SPACE, f32]


@wave([WorkgroupConstraint(N, 4096, 0)])
def add(a: Vector, b: Vector, c: Vector):
    write(read(a) + read(b), c)


def case(n=100_000):
    a, b = np.random.default_rng(0).standard_normal((2, n), np.float32)
    return Case(add, (a, b), (np.empty_like(a),), np.add, np.add)


if __name__ == "__main__":
    present(case(), add.name)
