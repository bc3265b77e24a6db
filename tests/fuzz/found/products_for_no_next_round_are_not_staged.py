"""With one step, a sum that only the next step uses is dead: the product is removed, and so are its operands' loads."""

import numpy as np

from tilewave import *

M, N, K = sym.M, sym.N, sym.K


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
def kernel(
    a: Memory[K, M, SHARED_ADDRESS_SPACE, f16],
    b: Memory[K, N, SHARED_ADDRESS_SPACE, f16],
    c: Memory[N, M, GLOBAL_ADDRESS_SPACE, i32],
):
    @iterate(K, init_args=[Register[N, M, f32](0.0), Register[N, M, i32](2)])
    def total(acc, before):
        return mma(read(b), abs(read(a)), acc), cast(acc, i32)

    write(total[1], c)


def check():
    for target in ("gfx942", "sm_90a"):
        for k in (32, 64):
            made = wave_compile(WaveCompileOptions(subs={M: 64, N: 64, K: k}, target=target), kernel)
            a, b, c = np.ones((k, 64), np.float16), np.ones((k, 64), np.float16), np.full((64, 64), 7, np.int32)
            made.interpret(a, b, c, level="lane")
            assert (c == k - 32).all()


if __name__ == "__main__":
    check()
