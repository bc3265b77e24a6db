"""The GEMM of Wave's document on global load minimization, with the constraints it leaves to the reader.

Source: the documentation of Wave (Apache-2.0 WITH LLVM-exception), "Global Load Minimization".
"""

from tilewave import *
import tilewave as tkl
import tilewave as tkw

M = sym.M
N = sym.N
K = sym.K
BLOCK_M = sym.BLOCK_M
BLOCK_N = sym.BLOCK_N
BLOCK_K = sym.BLOCK_K
ADDRESS_SPACE = sym.ADDRESS_SPACE
ADDRESS_SPACE_0 = sym.ADDRESS_SPACE_0

constraints = [
    tkw.WorkgroupConstraint(M, BLOCK_M, 0),
    tkw.WorkgroupConstraint(N, BLOCK_N, 1),
    tkw.TilingConstraint(K, BLOCK_K),
    tkw.WaveConstraint(M, BLOCK_M / 2),
    tkw.WaveConstraint(N, BLOCK_N / 2),
    tkw.HardwareConstraint(threads_per_wave=64, mma_type=tkw.MMAType.F32_16x16x16_F16),
]


@tkw.wave(constraints)
def gemm(
    a: Memory[M, K, ADDRESS_SPACE_0, f16],  # Global memory
    b: Memory[N, K, ADDRESS_SPACE_0, f16],  # Global memory
    c: Memory[M, N, ADDRESS_SPACE, f32],    # Output
):
    c_reg = Register[M, N, f32](0.0)

    @tkw.iterate(K, init_args=[c_reg])
    def repeat(acc: Register[M, N, f32]) -> Register[M, N, f32]:
        # Direct global memory loads
        a_reg = tkw.read(a, elements_per_thread=4)
        b_reg = tkw.read(b, elements_per_thread=4)
        acc = tkw.mma(a_reg, b_reg, acc)
        return acc

    tkw.write(repeat, c)


def subs(m, n, k, block_m=64, block_n=64, block_k=32):
    return {
        M: m, N: n, K: k, BLOCK_M: block_m, BLOCK_N: block_n, BLOCK_K: block_k,
        ADDRESS_SPACE_0: GLOBAL_ADDRESS_SPACE, ADDRESS_SPACE: GLOBAL_ADDRESS_SPACE,
    }
