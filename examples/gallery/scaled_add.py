"""z = alpha x + y: alpha is a number of the call, and `fma` rounds once."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, f32, fma, read, sym, wave, write

N = sym.N
Vector = Memory[N, GLOBAL_ADDRESS_SPACE, f32]


@wave([WorkgroupConstraint(N, 4096, 0)])
def scaled_add(x: Vector, y: Vector, z: Vector, alpha: f32):
    write(fma(read(x), alpha, read(y)), z)


def case(n=100_000):
    x, y = np.random.default_rng(1).standard_normal((2, n), np.float32)
    alpha = 0.75
    return Case(
        scaled_add,
        (x, y),
        (np.empty_like(x),),
        lambda x, y: alpha * x + y,
        lambda x, y: np.float32(alpha) * x + y,
        numbers={"alpha": alpha},
    )


if __name__ == "__main__":
    present(case(), scaled_add.name)
