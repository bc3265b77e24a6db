"""gfx950 emulated: TargetError: LLVM's code for # lacks wait states

kernel: LLVM's code for gfx950 lacks wait states: v_mov_b32_e32 v8, v16 comes 7 wait states behind
v_mfma_f32_16x16x32_f16 v[16:19], v[16:19], v[46:49], v[8:11], and must come 8 behind it

The register allocator copies the inner loop's sums at the top of the loop, where LLVM counts along the longer way. Run
it with
    python THIS_FILE
"""

import numpy as np

from tilewave import *
from tilewave.mapping import *

M, N, K, L = sym.M, sym.N, sym.K, sym.L
SIZES = {M: 16, N: 1, K: 65, L: 58}
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
lower = IndexMapping(2, inputs={L: i + 22, K: j}, outputs={L: i, K: j})
turned = IndexMapping(2, inputs={N: i, M: j}, outputs={N: i, M: 15 - j})


@wave([WorkgroupConstraint(M, 16, 1), WorkgroupConstraint(N, 32, 2), TilingConstraint(K, 32), TilingConstraint(L, 32)])
def kernel(
    a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f32],
    b: Memory[L, K, GLOBAL_ADDRESS_SPACE, f16],
    c: Memory[N, L, GLOBAL_ADDRESS_SPACE, f16],
    out: Memory[N, M, SHARED_ADDRESS_SPACE, f16],
):
    @iterate(L, init_args=[Register[M, N, f32](0.0)])
    def outer(sums):
        @iterate(K, init_args=[Register[M, L, f32](0.0)])
        def inner(sums):
            return mma(cast(read(a), f16), read(b, mapping=lower), sums)

        return mma(cast(inner, f16), read(c), sums)

    write(cast(outer, f16), out, mapping=turned)


def check():
    rng = np.random.default_rng(1992016)
    a = rng.integers(-1, 2, (16, 65)).astype(np.float32)
    b = np.asfortranarray(rng.integers(-1, 2, (58, 65)).astype(np.float16))
    c = np.asfortranarray(rng.integers(-1, 2, (1, 58)).astype(np.float16))
    out = np.asfortranarray(np.ones((1, 16), np.float16))
    options = WaveCompileOptions(subs=SIZES, schedule=SchedulingType.PREFETCH, target="gfx950")
    wave_compile(options, kernel).emulate(a, b, c, out)
    moved = np.zeros((58, 65), np.float32)
    moved[:36] = b[22:]  # out-of-bounds elements are read as zero
    sums = a @ moved.T @ c.astype(np.float32).T
    assert abs(sums).max() <= 2048, "f16 holds them exactly"
    np.testing.assert_array_equal(out, sums[::-1].T)


if __name__ == "__main__":
    check()
