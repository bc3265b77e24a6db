"""The reordered GEMM of Wave's document on workgroup reordering: its formulas as printed, in its test configuration.

Source: the documentation of Wave (Apache-2.0 WITH LLVM-exception), "Workgroup Reordering in Wave".
"""

from tilewave import *
import tilewave as tkw

M = sym.M
N = sym.N
K = sym.K
BLOCK_M = sym.BLOCK_M
BLOCK_N = sym.BLOCK_N
BLOCK_K = sym.BLOCK_K
GROUP_SIZE_M = sym.GROUP_SIZE_M
ADDRESS_SPACE = sym.ADDRESS_SPACE

constraints = [
    tkw.WorkgroupConstraint(M, BLOCK_M, 0),
    tkw.WorkgroupConstraint(N, BLOCK_N, 1),
    tkw.TilingConstraint(K, BLOCK_K),
    tkw.WaveConstraint(M, BLOCK_M // 4),
    tkw.WaveConstraint(N, BLOCK_N // 2),
    tkw.HardwareConstraint(threads_per_wave=64, mma_type=tkw.MMAType.F32_16x16x16_F16),
]

wg0, wg1 = WORKGROUP_0, WORKGROUP_1
num_wg_0 = ceiling(M / BLOCK_M)
num_wg_1 = ceiling(N / BLOCK_N)
num_wgs_total = num_wg_0 * num_wg_1
num_xcds = 8

# Flatten 2D workgroup indices (column-major)
flat_wg_index = wg1 * num_wg_0 + wg0

# Compute logical index for XCD-based reordering
extra_wgs = num_wgs_total % num_xcds
xcd_wg_index = (
    (flat_wg_index % num_xcds) * (num_wgs_total // num_xcds)
    + Min(flat_wg_index % num_xcds, extra_wgs)
    + (flat_wg_index // num_xcds)
)

# Determine grouping along M dimension
num_wg_group = GROUP_SIZE_M * num_wg_1
group_id = xcd_wg_index // num_wg_group
first_wg_id_0 = group_id * GROUP_SIZE_M
group_size_m = Min(num_wg_0 - first_wg_id_0, GROUP_SIZE_M)

# Compute new coordinates
new_wg0 = first_wg_id_0 + ((xcd_wg_index % num_wg_group) % group_size_m)
new_wg1 = (xcd_wg_index % num_wg_group) // group_size_m

# Add reordering constraints
constraints += [tkw.ReorderingConstraint(new_wg0, 0)]
constraints += [tkw.ReorderingConstraint(new_wg1, 1)]


@tkw.wave(constraints)
def gemm(
    a: Memory[M, K, ADDRESS_SPACE, f16],
    b: Memory[N, K, ADDRESS_SPACE, f16],
    c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
):
    c_reg = Register[M, N, f32](0.0)

    @tkw.iterate(K, init_args=[c_reg])
    def repeat(acc: Register[M, N, f32]) -> Register[M, N, f32]:
        a_reg = tkw.read(a)
        b_reg = tkw.read(b)
        acc = tkw.mma(a_reg, b_reg, acc)
        return acc

    tkw.write(repeat, c)


def subs(m, n, k, block_m=128, block_n=256, block_k=64, group_size_m=8):
    return {
        M: m, N: n, K: k, BLOCK_M: block_m, BLOCK_N: block_n, BLOCK_K: block_k,
        GROUP_SIZE_M: group_size_m, ADDRESS_SPACE: SHARED_ADDRESS_SPACE,
    }
