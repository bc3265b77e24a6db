"""Attention whose queries share heads of keys, over [batch, sequence, head, element] arrays, as in Wave kernels."""

import math

import tilewave as tkl
import tilewave as tkw
from tilewave import *

B, H, H_KV = tkl.sym.B, tkl.sym.H, tkl.sym.H_KV
N_Q, N_KV, D_Q, D_KV = tkl.sym.N_Q, tkl.sym.N_KV, tkl.sym.D_Q, tkl.sym.D_KV
BLOCK_B, BLOCK_H, BLOCK_N_Q, BLOCK_N_KV, BLOCK_D_KV = (
    tkl.sym.BLOCK_B,
    tkl.sym.BLOCK_H,
    tkl.sym.BLOCK_N_Q,
    tkl.sym.BLOCK_N_KV,
    tkl.sym.BLOCK_D_KV,
)
ADDRESS_SPACE = tkl.sym.ADDRESS_SPACE
i, j, k, l = (tkw.IndexMapping.iterator(n) for n in range(4))  # noqa: E741


def grouped_attention(head, ratio, is_causal, *more):
    """Return the kernel; if causal, its loop has only blocks that some query of the tile sees."""
    blocks_seen = ceiling(Min((WORKGROUP_0 + 1) * BLOCK_N_Q, N_KV) / BLOCK_N_KV)
    constraints = [
        tkw.WorkgroupConstraint(N_Q, BLOCK_N_Q, 0),
        tkw.WorkgroupConstraint(D_KV, BLOCK_D_KV, 1),
        tkw.WorkgroupConstraint(B, BLOCK_B, 2),
        tkw.WorkgroupConstraint(H, BLOCK_H, 3),
        tkw.WorkgroupConstraint(H_KV, BLOCK_H, 3, primary=False),
        tkw.TilingConstraint(N_KV, BLOCK_N_KV, iters=blocks_seen if is_causal else None),
        tkw.WaveConstraint(N_Q, BLOCK_N_Q / 4),
        tkw.WaveConstraint(D_KV, BLOCK_D_KV / 1),
        tkw.HardwareConstraint(threads_per_wave=64, mma_type=MMAType.F32_16x16x16_F16, vector_shapes={B: 0, H: 0}),
        *more,
    ]
    c_mapping = tkw.IndexMapping(
        num_iterators=4, inputs={B: i, H: j, D_KV: k, N_Q: l}, outputs={B: i, N_Q: l, H: j, D_KV: k}
    )
    q_mapping = tkw.IndexMapping(
        num_iterators=4, inputs={B: i, H: j, N_Q: k, D_Q: l}, outputs={B: i, H: j, N_Q: k, D_Q: l}
    )
    k_mapping = tkw.IndexMapping(
        num_iterators=4,
        inputs={B: i, H_KV: j // ratio, N_KV: k, D_Q: l},
        outputs={B: i, H_KV: j, N_KV: k, D_Q: l},
    )
    v_mapping = tkw.IndexMapping(
        num_iterators=4,
        inputs={B: i, H_KV: j // ratio, D_KV: k, N_KV: l},
        outputs={B: i, H_KV: j, D_KV: k, N_KV: l},
    )

    @tkw.wave(constraints)
    def grouped_attention(
        q: tkl.Memory[B, N_Q, H, D_Q, GLOBAL_ADDRESS_SPACE, tkl.f16],
        k: tkl.Memory[B, N_KV, H_KV, D_Q, ADDRESS_SPACE, tkl.f16],
        v: tkl.Memory[B, N_KV, H_KV, D_KV, ADDRESS_SPACE, tkl.f16],
        c: tkl.Memory[B, N_Q, H, D_KV, GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        scaling = tkl.Register[B, H, N_Q, N_KV, tkl.f32](math.log2(math.e) / math.sqrt(head))
        acc_begin = tkl.Register[B, H, D_KV, N_Q, tkl.f32](0.0)
        sum_begin = tkl.Register[B, H, N_Q, tkl.f32](0.0)
        max_begin = tkl.Register[B, H, N_Q, tkl.f32](-1e6)
        inside = tkl.Register[N_Q, N_KV, tkl.f32](0.0)
        outside = tkl.Register[N_Q, N_KV, tkl.f32](-1e6)

        @tkw.iterate(N_KV, init_args=[max_begin, sum_begin, acc_begin])
        def every_block(
            old_max: tkl.Register[B, H, N_Q, tkl.f32],
            old_sum: tkl.Register[B, H, N_Q, tkl.f32],
            acc: tkl.Register[B, H, D_KV, N_Q, tkl.f32],
        ):
            zero = tkl.Register[B, H, N_KV, N_Q, tkl.f32](0.0)
            scores = tkw.mma(tkw.read(k, mapping=k_mapping), tkw.read(q, mapping=q_mapping), zero)
            x = tkw.permute(scores, target_shape=[B, H, N_Q, N_KV])
            key = tkw.self_index(N_KV, tkl.i32)
            mask = tkw.broadcast(tkw.apply_expr(key, lambda n: n < N_KV), target_shape=[N_Q, N_KV])
            if is_causal:
                row = tkw.broadcast(tkw.self_index(N_Q, tkl.i32), target_shape=[N_Q, N_KV])
                mask = (row >= key) & mask
            x = x + tkw.select(tkw.cast(mask, tkw.i1), inside, outside)
            x *= scaling
            new_max = tkw.max(x, old_max, dim=N_KV)
            shrink = tkw.exp2(old_max - new_max)
            p = tkw.exp2(x - new_max)
            new_sum = tkw.sum(p, old_sum * shrink, dim=N_KV)
            v_reg = tkw.read(v, mapping=v_mapping)
            acc = tkw.mma(v_reg, tkw.cast(p, tkl.f16), acc * shrink)
            return new_max, new_sum, acc

        _, total, weighted = every_block
        tkw.write(weighted * tkw.reciprocal(total), c, mapping=c_mapping)

    return grouped_attention


def sizes(batch, heads, ratio, queries, keys, head):
    return {B: batch, H: heads, H_KV: heads // ratio, N_Q: queries, N_KV: keys, D_Q: head, D_KV: head}


def blocks(queries=64, keys=32, head=64):
    return {
        ADDRESS_SPACE: SHARED_ADDRESS_SPACE,
        BLOCK_B: 1,
        BLOCK_H: 1,
        BLOCK_N_Q: queries,
        BLOCK_N_KV: keys,
        BLOCK_D_KV: head,
    }
