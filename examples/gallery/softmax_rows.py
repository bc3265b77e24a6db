"""Softmax of rows that fit in a workgroup; `examples/softmax.py` loops over longer ones."""

import numpy as np
from presented import Case, present

from tilewave import GLOBAL_ADDRESS_SPACE, Memory, WorkgroupConstraint, cast, exp, f16, f32, read, sym, wave, write

M, N = sym.M, sym.N
Matrix = Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]


@wave([WorkgroupConstraint(M, 4, 0)])  # no constraint cuts N, so rows are whole
def softmax(x: Matrix, y: Matrix):
    numbers = cast(read(x), f32)
    powers = exp(numbers - numbers.max(dim=N))
    write(cast(powers / powers.sum(dim=N), f16), y)


def of_rows(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def case(m=256, n=1000):
    x = np.random.default_rng(5).standard_normal((m, n)).astype(np.float16)
    return Case(softmax, (x,), (np.empty_like(x),), of_rows, lambda x: of_rows(x.astype(np.float32)), roundings=32)


if __name__ == "__main__":
    present(case(), softmax.name)
