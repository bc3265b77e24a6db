"""Softmax of rows, twice: whole rows in a workgroup, and a loop over parts of rows that are longer.

python examples/softmax.py
tilewave tune examples/softmax.py --sizes M=4096,N=1024
"""

import numpy as np

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    Register,
    TilingConstraint,
    WorkgroupConstraint,
    cast,
    exp,
    f16,
    f32,
    iterate,
    read,
    select,
    sym,
    wave,
    write,
)

M, N, ROWS, STEP = sym.M, sym.N, sym.ROWS, sym.STEP
Matrix = Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]
NOTHING = float("-inf")


@wave([WorkgroupConstraint(M, ROWS, 0)], subs={ROWS: 4})  # rows to a workgroup; no constraint cuts N, so they are whole
def softmax(x: Matrix, y: Matrix):
    numbers = cast(read(x), f32)
    powers = exp(numbers - numbers.max(dim=N))
    write(cast(powers / powers.sum(dim=N), f16), y)


@wave([WorkgroupConstraint(M, 1, 0), TilingConstraint(N, STEP)], subs={STEP: 4096})
def long_softmax(x: Matrix, y: Matrix):
    @iterate(N, init_args=[Register[M, f32](NOTHING), Register[M, f32](0.0)])
    def found(largest, total):
        """The largest number so far, and the sum of powers relative to it."""
        numbers = cast(read(x), f32)
        larger = numbers.max(dim=N, acc=largest)
        zero = select(larger == NOTHING, 0.0, larger)  # -inf - -inf would be no number
        return larger, total * exp(largest - zero) + exp(numbers - zero).sum(dim=N)

    largest, total = found

    @iterate(N)
    def each():
        write(cast(exp(cast(read(x), f32) - largest) / total, f16), y)


def check(kernel, m, n):
    """Hold a kernel against float64; how far it is off at most, in units of f16's last place."""
    x = np.random.default_rng(0).standard_normal((m, n)).astype(np.float16)
    y = np.full_like(x, np.nan)
    kernel(x, y)
    powers = np.exp(x.astype(np.float64))
    want = powers / powers.sum(axis=1, keepdims=True)
    off = np.abs(y - want) / np.spacing(want.astype(np.float16)).astype(np.float64)
    allowed = 0.5 + 128 * 2**-13  # half a unit; and f32, 2^13 times as fine, rounds fewer than 128 times
    assert off.max() <= allowed, f"{kernel.name}, {m}x{n}: off by {off.max()} units"
    return off.max()


def main():
    for kernel, m, n in ((softmax, 64, 1000), (softmax, 3, 37), (long_softmax, 2, 100_000), (long_softmax, 5, 37)):
        print(f"{kernel.name:12} {m:3} x {n:6}: off by {check(kernel, m, n):.3f} units of f16")


if __name__ == "__main__":
    main()
