"""A product with open tile sizes: `tilewave tune examples/tuned_gemm.py --sizes M=512,N=512,K=512` chooses them."""

from tilewave import *

M, N, K = sym.M, sym.N, sym.K
GLOBAL = GLOBAL_ADDRESS_SPACE


@wave(
    [
        WorkgroupConstraint(M, sym.BLOCK_M, 0),
        WorkgroupConstraint(N, sym.BLOCK_N, 1),
        TilingConstraint(K, sym.BLOCK_K),
    ]
)
def product(a: Memory[M, K, GLOBAL, f32], b: Memory[N, K, GLOBAL, f32], c: Memory[M, N, GLOBAL, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)
