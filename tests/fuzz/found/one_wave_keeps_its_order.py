"""One wave, two steps ahead of each other: lanes look at what others stored, and LLVM must not forward the old value."""

import numpy as np

from tilewave import *

M, N, K = sym.M, sym.N, sym.K


def product(depth):
    @wave([WorkgroupConstraint(M, 16, 1), WorkgroupConstraint(N, 16, 0), TilingConstraint(K, depth)])
    def kernel(
        a: Memory[K, M, GLOBAL_ADDRESS_SPACE, f32],
        b: Memory[K, N, SHARED_ADDRESS_SPACE, f32],
        c: Memory[N, M, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[Register[N, M, f32](0.0)])
        def total(p):
            return mma(read(b), read(a), p)

        write(total, c)

    return kernel


def check():
    rng = np.random.default_rng(0)
    for target in ("gfx942", "gfx950"):
        for depth, k in ((4, 4), (4, 8), (4, 12), (8, 16), (16, 32)):
            options = WaveCompileOptions(subs={M: 16, N: 16, K: k}, target=target, schedule=SchedulingType.PREFETCH)
            a, b = (rng.integers(-4, 5, (k, 16)).astype(np.float32) for _ in range(2))
            c = np.full((16, 16), np.nan, np.float32)
            wave_compile(options, product(depth)).emulate(a, b, c)
            np.testing.assert_array_equal(c, b.T @ a)


if __name__ == "__main__":
    check()
