"""y = gelu(x), as networks have it: x/2 (1 + erf(x/√2)), in f32, of f16 numbers."""

import math

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, cast, erf, f16, f32, read, sym, wave, write

M, N = sym.M, sym.N
Matrix = Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]


@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 256, 1)])
def gelu(x: Matrix, y: Matrix):
    numbers = cast(read(x), f32)
    write(cast(numbers * 0.5 * (erf(numbers * math.sqrt(0.5)) + 1.0), f16), y)


def exact(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x * math.sqrt(0.5)))


def rough(x):
    """numpy has no erf; the formula with tanh is what its users write."""
    return x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def case(m=96, n=1000):
    x = np.random.default_rng(2).standard_normal((m, n)).astype(np.float16)
    return Case(gelu, (x,), (np.empty_like(x),), exact, rough, roundings=8, size=lambda x: np.abs(x) + 1)


if __name__ == "__main__":
    present(case(), gelu.name)
