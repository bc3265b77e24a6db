"""The persistent GEMM of Wave's tutorial, with L2 swizzling, as printed there; only the imports differ.

Source: the documentation of Wave (Apache-2.0 WITH LLVM-exception), "Persistent GEMM Tutorial".
"""

from tilewave import *
import tilewave as tkl
import tilewave as tkw

# Standard GEMM symbols
M = sym.M
N = sym.N
K = sym.K
BLOCK_M = sym.BLOCK_M
BLOCK_N = sym.BLOCK_N
BLOCK_K = sym.BLOCK_K
ADDRESS_SPACE = sym.ADDRESS_SPACE

# Persistent kernel symbols
TOTAL_TILES = sym.TOTAL_TILES      # Total number of output tiles
NUM_CTAS = sym.NUM_CTAS            # Number of persistent workgroups
TILE_IDX = sym.TILE_IDX            # Current tile index (loop variable)
CTA_M_OFFSET = sym.CTA_M_OFFSET    # M offset for current tile
CTA_N_OFFSET = sym.CTA_N_OFFSET    # N offset for current tile
N_TILES = sym.N_TILES              # Number of tiles in N dimension

# Additional symbols for swizzling
M_TILES = sym.M_TILES
GROUP_SIZE_M = sym.GROUP_SIZE_M
NUM_CTAS_IN_GROUP = sym.NUM_CTAS_IN_GROUP

# Create iterator symbols for mappings
i = tkw.IndexMapping.iterator(0)
j = tkw.IndexMapping.iterator(1)

# Reading A: add CTA_M_OFFSET to the M dimension
a_read_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={M: i + CTA_M_OFFSET, K: j},
    outputs={M: i, K: j},
)

# Reading B: add CTA_N_OFFSET to the N dimension
b_read_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={N: i + CTA_N_OFFSET, K: j},
    outputs={N: i, K: j},
)

# Writing C: add both offsets
c_write_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={M: i, N: j},
    outputs={M: i + CTA_M_OFFSET, N: j + CTA_N_OFFSET},
)

constraints = [
    # GridConstraint specifies the number of persistent workgroups
    tkw.GridConstraint(NUM_CTAS),

    # Standard workgroup constraints (still needed for shared memory allocation)
    tkw.WorkgroupConstraint(M, BLOCK_M, 0),
    tkw.WorkgroupConstraint(N, BLOCK_N, 1),

    # K dimension tiling for the inner reduction loop
    tkw.TilingConstraint(K, BLOCK_K),

    # TILE_IDX tiling for the outer persistent loop
    tkw.TilingConstraint(TILE_IDX),

    # Wave-level parallelism
    tkw.WaveConstraint(M, BLOCK_M / 2),
    tkw.WaveConstraint(N, BLOCK_N / 2),

    # Hardware constraints
    tkw.HardwareConstraint(
        threads_per_wave=64,
        mma_type=tkw.MMAType.F32_16x16x16_F16,
        vector_shapes={TILE_IDX: 0},  # TILE_IDX is a scalar, not vectorized
    ),
]


@tkw.wave(constraints)
def persistent_gemm(
    a: Memory[M, K, ADDRESS_SPACE, f16],
    b: Memory[N, K, ADDRESS_SPACE, f16],
    c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
):
    # Loop condition: continue while tile index < total tiles
    condition = TILE_IDX < TOTAL_TILES

    # Each workgroup starts at its workgroup ID
    init_tile_id = tkw.scalar(WORKGROUP_0, tkl.i32)

    # Outer persistent loop - iterates over tiles
    @tkw.iterate(TILE_IDX, start=init_tile_id, condition=condition, init_args=[])
    def persistent_loop():
        # Get current tile index
        tile_id = tkw.self_index(TILE_IDX, tkl.i32)

        # Group tiles for L2 locality
        group_id = tile_id // tkw.scalar(NUM_CTAS_IN_GROUP, i32)
        first_cta_m = group_id * tkw.scalar(GROUP_SIZE_M, i32)
        group_size_m = tkw.minimum(
            tkw.scalar(M_TILES, i32) - first_cta_m,
            tkw.scalar(GROUP_SIZE_M, i32)
        )

        # Compute swizzled coordinates
        cta_m = first_cta_m + ((tile_id % tkw.scalar(NUM_CTAS_IN_GROUP, i32)) % group_size_m)
        cta_n = (tile_id % tkw.scalar(NUM_CTAS_IN_GROUP, i32)) // group_size_m

        m_offset = cta_m * tkw.scalar(BLOCK_M, i32)
        n_offset = cta_n * tkw.scalar(BLOCK_N, i32)

        # Set the offset symbols for index mappings
        tkw.set_symbol(CTA_M_OFFSET, m_offset)
        tkw.set_symbol(CTA_N_OFFSET, n_offset)

        # Initialize accumulator for this tile
        c_reg = tkl.Register[M, N, tkl.f32](0.0)

        # Inner K-loop (same as vanilla GEMM)
        @tkw.iterate(axis=K, init_args=[c_reg])
        def k_loop(acc: tkl.Register[M, N, tkl.f32]) -> tkl.Register[M, N, tkl.f32]:
            a_reg = tkw.read(a, mapping=a_read_mapping)
            b_reg = tkw.read(b, mapping=b_read_mapping)
            acc = tkw.mma(a_reg, b_reg, acc)
            return acc

        # Write result for this tile
        tkw.write(k_loop, c, mapping=c_write_mapping)

        # Advance to next tile: tile_id += NUM_CTAS
        num_cus_scalar = tkw.scalar(NUM_CTAS, tkl.i32)
        next_idx = tile_id + num_cus_scalar
        tkw.set_symbol(TILE_IDX, next_idx)


def subs(m, n, k, block_m=128, block_n=256, block_k=64, num_ctas=None, group_size_m=4):
    m_tiles, n_tiles = -(-m // block_m), -(-n // block_n)
    return {
        ADDRESS_SPACE: SHARED_ADDRESS_SPACE,
        BLOCK_M: block_m,
        BLOCK_N: block_n,
        BLOCK_K: block_k,
        M: m,
        N: n,
        K: k,
        TOTAL_TILES: m_tiles * n_tiles,
        M_TILES: m_tiles,
        N_TILES: n_tiles,
        GROUP_SIZE_M: group_size_m,
        NUM_CTAS_IN_GROUP: group_size_m * n_tiles,
        NUM_CTAS: num_ctas or m_tiles * n_tiles,
    }
