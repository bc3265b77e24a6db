"""x + residual and its rms_norm in one kernel: each is written once, and nothing is read twice.

python examples/rms_norm.py
tilewave tune examples/rms_norm.py --sizes M=4096,N=1024
"""

import numpy as np

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WorkgroupConstraint,
    cast,
    f16,
    f32,
    read,
    rsqrt,
    scalar,
    sym,
    wave,
    write,
)

M, N, ROWS = sym.M, sym.N, sym.ROWS
GLOBAL = GLOBAL_ADDRESS_SPACE
Matrix = Memory[M, N, GLOBAL, f16]
Row = Memory[N, GLOBAL, f16]


@wave([WorkgroupConstraint(M, ROWS, 0)], subs={ROWS: 4})
def add_rms_norm(x: Matrix, residual: Matrix, weight: Row, total: Matrix, y: Matrix, eps: f32):
    added = cast(cast(read(x), f32) + cast(read(residual), f32), f16)
    write(added, total)
    numbers = cast(added, f32)
    mean = (numbers * numbers).sum(dim=N) / scalar(N, f32)  # N is a number of the call
    write(cast(numbers * rsqrt(mean + eps) * cast(read(weight), f32), f16), y)


def check(m, n, eps=1e-5):
    """Hold it against float64; how far y is off at most, in units of f16's last place."""
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((m, n)).astype(np.float16) for _ in range(2))
    weight = rng.standard_normal(n).astype(np.float16)
    total, y = np.full_like(x, np.nan), np.full_like(x, np.nan)
    add_rms_norm(x, residual, weight, total, y, eps)
    assert np.array_equal(total, x + residual)
    wide = total.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + eps) * weight
    off = np.abs(y - want) / np.spacing(np.abs(want).astype(np.float16)).astype(np.float64)
    allowed = 0.5 + 128 * 2**-13  # half a unit; and f32, 2^13 times as fine, rounds fewer than 128 times
    assert off.max() <= allowed, f"{m}x{n}: off by {off.max()} units"
    return off.max()


def main():
    for m, n in ((64, 1000), (3, 37), (1, 1), (5, 4096)):
        print(f"{m:3} x {n:5}: off by {check(m, n):.3f} units of f16")


if __name__ == "__main__":
    main()
