"""The largest number of each row and its index: two results of one read."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, i32, read, sym, wave, write

M, N = sym.M, sym.N
G = GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 4, 0)])
def argmax(x: Memory[M, N, G, f32], largest: Memory[M, G, f32], where: Memory[M, G, i32]):
    numbers = read(x)
    write(numbers.max(dim=N), largest)
    write(numbers.argmax(dim=N), where)


def both(x):
    return x.max(axis=1), x.argmax(axis=1)


def case(m=256, n=1000):
    x = np.random.default_rng(8).standard_normal((m, n), np.float32)
    return Case(argmax, (x,), (np.empty(m, np.float32), np.empty(m, np.int32)), both, both, roundings=0)


if __name__ == "__main__":
    present(case(), argmax.name)
