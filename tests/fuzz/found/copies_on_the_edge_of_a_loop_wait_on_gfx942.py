"""gfx942 emulated: TargetError: LLVM's code for # lacks wait states

kernel: LLVM's code for gfx942 lacks wait states: v_mov_b32_e32 v14, v26 comes 6 wait states behind
v_mfma_f32_16x16x16_bf16 v[26:29], v[104:105], v[28:29], v[96:99], and must come 7 behind it

The register allocator copies the inner loop's sums at the top of the loop, where LLVM counts along the longer way. Run
it with
    python THIS_FILE
"""

import ml_dtypes
import numpy as np

from tilewave import *

M, N, K, L = sym.M, sym.N, sym.K, sym.L
SIZES = {M: 62, N: 5, K: 159, L: 79}


@wave(
    [
        WorkgroupConstraint(M, 16, 2),
        WorkgroupConstraint(N, 16, 0),
        TilingConstraint(K, 32),
        TilingConstraint(L, 16),
        GridConstraint(2),
    ]
)
def kernel(
    a: Memory[M, K, GLOBAL_ADDRESS_SPACE, bf16],
    b: Memory[L, K, SHARED_ADDRESS_SPACE, f32],
    c: Memory[N, L, SHARED_ADDRESS_SPACE, bf16],
    out: Memory[N, M, SHARED_ADDRESS_SPACE, i64],
):
    @iterate(L, init_args=[Register[M, N, f32](0.0)])
    def outer(sums):
        @iterate(K, init_args=[Register[M, L, f32](0.0)])
        def inner(sums):
            return mma(read(a), cast(read(b), bf16), sums)

        return mma(cast(inner, bf16), read(c), sums)

    write(cast(outer, i64), out)


def check():
    rng = np.random.default_rng(1991508)
    few = rng.integers(-1, 2, (62, 318)) * (rng.random((62, 318)) < 0.1)
    a = few.astype(ml_dtypes.bfloat16)[:, :159]
    b = rng.integers(-2, 3, (79, 159)).astype(np.float32)
    c = np.asfortranarray(rng.integers(-4, 5, (5, 79)).astype(ml_dtypes.bfloat16))
    out = np.ones((62, 5), np.int64).T
    options = WaveCompileOptions(subs=SIZES, schedule=SchedulingType.PREFETCH, target="gfx942")
    wave_compile(options, kernel).emulate(a, b, c, out)
    products = a.astype(np.int64) @ b.astype(np.int64).T
    assert abs(products).max() < 256, "bf16 holds them exactly"
    np.testing.assert_array_equal(out, (products @ c.astype(np.int64).T).T)


if __name__ == "__main__":
    check()
