"""C[M, N] = A[M, K] · B[N, K]ᵀ as you would write it; the explorer shows its passes and its assembly by these lines."""

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    SHARED_ADDRESS_SPACE,
    GridConstraint,
    Memory,
    Register,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
    cast,
    ceiling,
    iterate,
    mma,
    read,
    sym,
    wave,
    write,
)

M, N, K = sym.M, sym.N, sym.K
BLOCK_M, BLOCK_N, BLOCK_K = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
SHARED, GLOBAL = SHARED_ADDRESS_SPACE, GLOBAL_ADDRESS_SPACE


def kernel(dtype, sums, out, mapping, workgroups=None):
    """For operands, sums and a result of these dtypes; `workgroups` makes it persistent."""
    constraints = [
        WorkgroupConstraint(M, BLOCK_M, 0),
        WorkgroupConstraint(N, BLOCK_N, 1),
        TilingConstraint(K, BLOCK_K),
        WaveConstraint(M, ceiling(BLOCK_M / 2)),
        WaveConstraint(N, ceiling(BLOCK_N / 2)),
        WorkgroupMapping(mapping),
    ]
    if workgroups:
        constraints.append(GridConstraint(workgroups))

    @wave(constraints)
    def gemm(a: Memory[M, K, SHARED, dtype], b: Memory[N, K, SHARED, dtype], c: Memory[M, N, GLOBAL, out]):
        @iterate(K, init_args=[Register[M, N, sums](0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(cast(total, out), c)

    return gemm
