"""The persistent GEMM of Wave's tutorial, with L2 and XCD swizzling, as printed there; only the imports differ.

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
TOTAL_TILES = sym.TOTAL_TILES
NUM_CTAS = sym.NUM_CTAS
TILE_IDX = sym.TILE_IDX
CTA_M_OFFSET = sym.CTA_M_OFFSET
CTA_N_OFFSET = sym.CTA_N_OFFSET

# L2 swizzling symbols
M_TILES = sym.M_TILES
N_TILES = sym.N_TILES
GROUP_SIZE_M = sym.GROUP_SIZE_M
NUM_CTAS_IN_GROUP = sym.NUM_CTAS_IN_GROUP

# XCD swizzling symbols
NUM_XCDS = sym.NUM_XCDS
CHUNK_SIZE = sym.CHUNK_SIZE

# Index mappings for manual offset control
i = tkw.IndexMapping.iterator(0)
j = tkw.IndexMapping.iterator(1)

a_read_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={M: i + CTA_M_OFFSET, K: j},
    outputs={M: i, K: j},
)

b_read_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={N: i + CTA_N_OFFSET, K: j},
    outputs={N: i, K: j},
)

c_write_mapping = tkw.IndexMapping(
    num_iterators=2,
    inputs={M: i, N: j},
    outputs={M: i + CTA_M_OFFSET, N: j + CTA_N_OFFSET},
)

constraints = [
    tkw.GridConstraint(NUM_CTAS),
    tkw.WorkgroupConstraint(M, BLOCK_M, 0),
    tkw.WorkgroupConstraint(N, BLOCK_N, 1),
    tkw.TilingConstraint(K, BLOCK_K),
    tkw.TilingConstraint(TILE_IDX),
    tkw.WaveConstraint(M, BLOCK_M / 2),
    tkw.WaveConstraint(N, BLOCK_N / 2),
    tkw.HardwareConstraint(
        threads_per_wave=64,
        mma_type=tkw.MMAType.F32_16x16x16_F16,
        vector_shapes={TILE_IDX: 0},
    ),
]


@tkw.wave(constraints)
def persistent_gemm(
    a: Memory[M, K, ADDRESS_SPACE, f16],
    b: Memory[N, K, ADDRESS_SPACE, f16],
    c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
):
    cta = tkw.scalar(WORKGROUP_0, i32)

    # XCD Swizzling (LLC/MALL Cache)
    xcd_id = cta % tkw.scalar(NUM_XCDS, i32)
    local_cta = cta // tkw.scalar(NUM_XCDS, i32)
    chunk_idx = local_cta // tkw.scalar(CHUNK_SIZE, i32)
    pos_in_chunk = local_cta % tkw.scalar(CHUNK_SIZE, i32)
    remapped_cta = (chunk_idx * tkw.scalar(NUM_XCDS, i32) * tkw.scalar(CHUNK_SIZE, i32)
                   + xcd_id * tkw.scalar(CHUNK_SIZE, i32) + pos_in_chunk)

    # Select: use remapped_cta if in chunked region, else use original cta
    chunked_threshold = ((tkw.scalar(TOTAL_TILES, i32)
                         // (tkw.scalar(NUM_XCDS, i32) * tkw.scalar(CHUNK_SIZE, i32)))
                        * (tkw.scalar(NUM_XCDS, i32) * tkw.scalar(CHUNK_SIZE, i32)))
    in_chunked_region = cta <= chunked_threshold
    init_tile_id = tkw.select(in_chunked_region, remapped_cta, cta)

    condition = TILE_IDX < TOTAL_TILES

    @tkw.iterate(TILE_IDX, start=init_tile_id, condition=condition, init_args=[])
    def persistent_loop():
        tile_id = tkw.self_index(TILE_IDX, tkl.i32)

        # L2 Cache Swizzling
        group_id = tile_id // tkw.scalar(NUM_CTAS_IN_GROUP, i32)
        first_cta_m = group_id * tkw.scalar(GROUP_SIZE_M, i32)
        group_size_m = tkw.minimum(
            tkw.scalar(M_TILES, i32) - first_cta_m,
            tkw.scalar(GROUP_SIZE_M, i32)
        )
        cta_m = first_cta_m + ((tile_id % tkw.scalar(NUM_CTAS_IN_GROUP, i32)) % group_size_m)
        cta_n = (tile_id % tkw.scalar(NUM_CTAS_IN_GROUP, i32)) // group_size_m

        m_offset = cta_m * tkw.scalar(BLOCK_M, i32)
        n_offset = cta_n * tkw.scalar(BLOCK_N, i32)
        tkw.set_symbol(CTA_M_OFFSET, m_offset)
        tkw.set_symbol(CTA_N_OFFSET, n_offset)

        c_reg = tkl.Register[M, N, tkl.f32](0.0)

        @tkw.iterate(axis=K, init_args=[c_reg])
        def k_loop(acc: tkl.Register[M, N, tkl.f32]) -> tkl.Register[M, N, tkl.f32]:
            a_reg = tkw.read(a, mapping=a_read_mapping)
            b_reg = tkw.read(b, mapping=b_read_mapping)
            acc = tkw.mma(a_reg, b_reg, acc)
            return acc

        tkw.write(k_loop, c, mapping=c_write_mapping)

        num_cus_scalar = tkw.scalar(NUM_CTAS, tkl.i32)
        next_idx = tile_id + num_cus_scalar
        tkw.set_symbol(TILE_IDX, next_idx)


def subs(m, n, k, block_m=128, block_n=256, block_k=64, num_ctas=None, group_size_m=4, num_xcds=8, chunk_size=2):
    """The tutorial's own hyperparameters."""
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
        NUM_XCDS: num_xcds,
        CHUNK_SIZE: chunk_size,
    }
