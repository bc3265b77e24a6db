"""Direct-to-shared loads of an inner loop are waited for even where the loop around it prefetches."""

import numpy as np

from tilewave import *

M, N, K, L, GLOBAL = sym.M, sym.N, sym.K, sym.L, GLOBAL_ADDRESS_SPACE


@wave([WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, 32), TilingConstraint(L, 16)])
def chain(
    a: Memory[M, K, GLOBAL, f32],
    b: Memory[L, K, GLOBAL, f32],
    c: Memory[L, N, GLOBAL, f32],
    o: Memory[M, N, GLOBAL, f32],
):
    @iterate(L, init_args=[Register[M, N, f32](0.0)])
    def outer(acc):
        @iterate(K, init_args=[Register[M, L, f32](0.0)])
        def inner(s):
            return mma(read(a), read(b), s)

        return mma(inner, read(c), acc)

    write(outer, o)


def check():
    rng = np.random.default_rng(0)
    for chip in ("gfx942", "gfx950"):
        for k, l in ((64, 17), (96, 48), (32, 33)):
            a, b, c = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((5, k), (l, k), (l, 3)))
            subs = {M: 5, N: 3, K: k, L: l}
            options = WaveCompileOptions(subs=subs, target=chip, schedule=SchedulingType.PREFETCH)
            compiled = wave_compile(options, chain)
            for run in (lambda *x: compiled.interpret(*x, level="lane", order="random"), compiled.emulate):
                o = np.full((5, 3), np.nan, np.float32)
                run(a, b, c, o)
                np.testing.assert_array_equal(o, a @ b.T @ c)


if __name__ == "__main__":
    check()
