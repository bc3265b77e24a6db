"""Attention of a few queries: keys are split among workgroups, and a second kernel joins what they found.

The parts are an axis of the keys, [part, key]: a reshape of the array that holds them. Each part leaves its result,
already divided, and the logarithm of its sum; parts are joined in their order.
"""

import math

from tilewave import *

B, M, N, K1, K2, U = sym.B, sym.M, sym.N, sym.K1, sym.K2, sym.U
BLOCK_M, BLOCK_N, BLOCK_K2 = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K2
G = GLOBAL_ADDRESS_SPACE
PLACED = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), WorkgroupConstraint(B, 1, 2)]


def parts(head):
    @wave([*PLACED, WorkgroupConstraint(U, 1, 3), TilingConstraint(K2, BLOCK_K2)])
    def parts(
        q: Memory[B, M, K1, G, f16],
        k: Memory[B, U, K2, K1, G, f16],
        v: Memory[B, U, K2, N, G, f16],
        found: Memory[U, B, M, N, G, f32],
        weight: Memory[U, B, M, G, f32],
    ):
        begin = Register[U, B, M, f32](-1e6), Register[U, B, M, f32](0.0), Register[U, B, M, N, f32](0.0)
        own_q = Register[U, B, M, K1, f16](0.0) + read(q)

        @iterate(K2, init_args=begin)
        def blocks(old_max, old_sum, acc):
            keys, values = permute(read(k), [U, B, K2, K1]), permute(read(v), [U, B, K2, N])
            x = mma(own_q, keys, Register[U, B, M, K2, f32](0.0)) * (math.log2(math.e) / math.sqrt(head))
            new_max = maximum(x.max(dim=K2), old_max)
            shrink, p = exp2(old_max - new_max), exp2(x - new_max)
            return new_max, p.sum(dim=K2) + old_sum * shrink, mma(cast(p, f16), values, acc * shrink)

        most, total, weighted = blocks
        write(weighted / total, found)
        write(most + log2(total), weight)

    return parts


def joined():
    @wave([*PLACED, TilingConstraint(U, 1)])
    def joined(found: Memory[U, B, M, N, G, f32], weight: Memory[U, B, M, G, f32], c: Memory[B, M, N, G, f32]):
        begin = Register[U, B, M, f32](-1e6), Register[U, B, M, f32](0.0), Register[U, B, M, N, f32](0.0)

        @iterate(U, init_args=begin)
        def every_part(old_max, old_sum, acc):
            x = read(weight)
            new_max = maximum(x, old_max)
            shrink, share = exp2(old_max - new_max), exp2(x - new_max)
            return new_max, old_sum * shrink + share, acc * shrink + read(found) * share

        _, total, weighted = every_part
        write((weighted / total).sum(dim=U), c)

    return joined
