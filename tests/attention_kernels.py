"""Attention as authors of Wave kernels type it, and its float64 reference.

    s = q · kᵀ,  p = softmax(s · scale),  o = p · v       a loop over keys carries maximum, sum and o

The bound on the error follows from sizes and dtype (`wanted`); w are the exact weights, m the largest score of a row:

    score      (head + 1) additions and products in f32, the scale's rounding and its product
    weight     exp2 of a score with this error, of score - m, rounded, and of every step's change of m, rounded
    p          rounded to the operands' dtype; what is smaller than its least number is lost
    o          a sum over the keys in f32, rescaled once a step; divided by a sum over the keys
"""

import math
from dataclasses import dataclass

import numpy as np
from kernels import MANTISSA, UNIT, poisoned, random_array

import tilewave as tkl
import tilewave as tkw
from tilewave import *

B, M, N, K1, K2, HEADS_KV = tkl.sym.B, tkl.sym.M, tkl.sym.N, tkl.sym.K1, tkl.sym.K2, tkl.sym.HEADS_KV
BLOCK_B, BLOCK_M, BLOCK_N, BLOCK_K2 = tkl.sym.BLOCK_B, tkl.sym.BLOCK_M, tkl.sym.BLOCK_N, tkl.sym.BLOCK_K2
ADDRESS_SPACE = tkl.sym.ADDRESS_SPACE
i, j, k = (tkw.IndexMapping.iterator(n) for n in range(3))

EXP2_ULPS = 3
"""The most that exp2 of any target is off, in units of the last place."""
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149}
"""The least number above 0."""


@dataclass(frozen=True)
class Attention:
    """One kernel: `heads` queries share the keys of one head; `window` 0 is none."""

    dtype: object = f16
    out: object = f32
    causal: bool = False
    window: int = 0
    v_transposed: bool = False
    ratio: int = 1
    waves: int = 4
    space: object = SHARED_ADDRESS_SPACE
    kinds: tuple = (MMAType.F32_16x16x16_F16, MMAType.F32_16x16x16_F16)

    def constraints(self):
        return [
            tkw.WorkgroupConstraint(M, BLOCK_M, 0),
            tkw.WorkgroupConstraint(N, BLOCK_N, 1),
            tkw.WorkgroupConstraint(B, BLOCK_B, 2),
            tkw.TilingConstraint(K2, BLOCK_K2),
            tkw.WaveConstraint(M, ceiling(BLOCK_M / self.waves)),
            tkw.WaveConstraint(N, BLOCK_N / 1),
            tkw.HardwareConstraint(threads_per_wave=64, mma_type=self.mma(1), vector_shapes={B: 0, M: 16, N: 16}),
        ]

    def mma(self, which):
        kind = self.kinds[which]
        return kind if self.dtype == f16 else MMAType[kind.name.replace("F16", "BF16")]


def scale_of(head):
    return math.log2(math.e) / math.sqrt(head)


def attention(head_size, a):
    """The kernel for heads of so many elements."""
    mapping = tkw.IndexMapping(num_iterators=3, inputs={B: i, N: j, M: k}, outputs={B: i, M: k, N: j})
    heads, head = (HEADS_KV, i // a.ratio) if a.ratio > 1 else (B, i)
    k_mapping = tkw.IndexMapping(num_iterators=3, inputs={heads: head, K2: j, K1: k}, outputs={B: i, K2: j, K1: k})
    v_mapping = tkw.IndexMapping(num_iterators=3, inputs={heads: head, N: j, K2: k}, outputs={B: i, N: j, K2: k})
    v_dims = (N, K2) if a.v_transposed else (K2, N)

    @tkw.wave(a.constraints())
    def attention(
        q: tkl.Memory[B, M, K1, GLOBAL_ADDRESS_SPACE, a.dtype],
        k: tkl.Memory[heads, K2, K1, ADDRESS_SPACE, a.dtype],
        v: tkl.Memory[(heads, *v_dims, ADDRESS_SPACE, a.dtype)],
        c: tkl.Memory[B, M, N, GLOBAL_ADDRESS_SPACE, a.out],
    ):
        acc_begin = tkl.Register[B, N, M, tkl.f32](0.0)
        sum_begin = tkl.Register[B, M, tkl.f32](0.0)
        max_begin = tkl.Register[B, M, tkl.f32](-1e6)
        scaling = tkl.Register[B, M, K2, tkl.f32](scale_of(head_size))
        inside = tkl.Register[B, M, K2, tkl.f32](0.0)
        outside = tkl.Register[B, M, K2, tkl.f32](-1e6)
        window = tkl.Register[M, K2, tkl.i64](a.window)

        @tkw.iterate(K2, init_args=[max_begin, sum_begin, acc_begin])
        def every_block(
            old_max: tkl.Register[B, M, tkl.f32],
            old_sum: tkl.Register[B, M, tkl.f32],
            acc: tkl.Register[B, N, M, tkl.f32],
        ):
            zero = tkl.Register[B, K2, M, tkl.f32](0.0)
            q_reg = tkw.read(q)
            k_reg = tkw.read(k, mapping=k_mapping) if a.ratio > 1 else tkw.read(k)
            scores = tkw.mma(k_reg, q_reg, zero, a.mma(0))
            x = tkw.permute(scores, target_shape=[B, M, K2])
            key = tkw.self_index(K2, tkl.i64)
            mask = tkw.apply_expr(key, lambda n: n < K2)
            mask = tkw.broadcast(mask, target_shape=[B, M, K2])
            if a.causal:
                row = tkw.self_index(M, tkl.i64)
                row = tkw.broadcast(row, target_shape=[B, M, K2])
                mask = (row >= key) & mask
                if a.window:
                    mask = (row - key <= window) & mask
            mask = tkw.cast(mask, tkw.i1)
            x = x + tkw.select(mask, inside, outside)
            x *= scaling
            new_max = tkw.max(x, old_max, dim=K2)
            shrink = tkw.exp2(old_max - new_max)
            p = tkw.exp2(x - new_max)
            new_sum = tkw.sum(p, old_sum * shrink, dim=K2)
            p = tkw.cast(p, a.dtype)
            v_reg = tkw.read(v) if a.v_transposed and a.ratio == 1 else tkw.read(v, mapping=v_mapping)
            acc = tkw.mma(v_reg, p, acc * shrink, a.mma(1))
            return new_max, new_sum, acc

        _, total, weighted = every_block
        result = weighted * tkw.reciprocal(total)
        tkw.write(result if a.out == tkl.f32 else tkw.cast(result, a.out), c, mapping=mapping)

    return attention


def blocks(block_m=128, block_n=64, block_k2=64, space=SHARED_ADDRESS_SPACE):
    return {ADDRESS_SPACE: space, BLOCK_B: 1, BLOCK_M: block_m, BLOCK_N: block_n, BLOCK_K2: block_k2}


@dataclass(frozen=True)
class Shape:
    heads: int
    queries: int
    keys: int
    head: int
    head_v: int = 0

    def sizes(self, a):
        return {
            B: self.heads,
            HEADS_KV: self.heads // a.ratio,
            M: self.queries,
            K2: self.keys,
            K1: self.head,
            N: self.head_v or self.head,
        }

    def arrays(self, a, seed=16):
        """q, k, v as the kernel takes them."""
        rng = np.random.default_rng(seed)
        n, kv = self.head_v or self.head, self.heads // a.ratio
        q, ks, v = (
            random_array(rng, shape, a.dtype)
            for shape in ((self.heads, self.queries, self.head), (kv, self.keys, self.head), (kv, self.keys, n))
        )
        return q, ks, np.ascontiguousarray(v.swapaxes(1, 2)) if a.v_transposed else v

    def output(self, a):
        return poisoned((self.heads, self.queries, self.head_v or self.head), a.out)


def masked(a, queries, keys):
    """Which keys each query does not see."""
    row, key = np.arange(queries)[:, None], np.arange(keys)
    hidden = np.zeros((queries, keys), bool)
    if a.causal:
        hidden |= row < key
        if a.window:
            hidden |= row - key > a.window
    return hidden


def gamma(count, unit=UNIT):
    return count * unit / (1 - count * unit)


def wanted(a, q, k, v, block_k2):
    """Attention in float64, and what may differ; rows that see nothing are no part of either (NaN)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, a.ratio, axis=0) for x in (k, v))
    v = v.swapaxes(1, 2) if a.v_transposed else v
    head, keys, scale = q.shape[-1], k.shape[1], scale_of(q.shape[-1])
    hidden = masked(a, q.shape[1], keys)
    x = np.where(hidden, -np.inf, q @ k.swapaxes(1, 2) * scale)
    magnitude = np.abs(q) @ np.abs(k).swapaxes(1, 2) * scale
    blind = hidden.all(axis=1)
    with np.errstate(invalid="ignore"):
        below = x.max(axis=2, keepdims=True) - x
    below = np.where(hidden, 0, below)
    w = np.where(hidden, 0, np.exp2(-below))
    total = w.sum(axis=2, keepdims=True)
    steps = -(-keys // block_k2)
    off_x = gamma(head + 3) * magnitude + UNIT * below
    off_w = np.log(2) * off_x + gamma((steps + 1) * (2 * EXP2_ULPS + 1))
    p_unit, lost = 2.0 ** -(MANTISSA[a.dtype.name] + 1), SMALLEST[a.dtype.name]
    below_line = (w * (off_w + p_unit + gamma(keys + steps)) + np.where(hidden, 0, lost)) @ np.abs(v)
    off_total = ((w * off_w).sum(axis=2, keepdims=True)) / np.where(total == 0, 1, total) + gamma(keys + steps + 3)
    with np.errstate(invalid="ignore", divide="ignore"):
        exact = w @ v / total
        off = (below_line / total + np.abs(exact) * off_total) / (1 - off_total)
    if a.out != f32:
        off = off + (np.abs(exact) + off) * 2.0 ** -(MANTISSA[a.out.name] + 1) + SMALLEST[a.out.name]
    exact[:, blind] = np.nan
    return exact, off


def check(a, arrays, c, block_k2):
    exact, off = wanted(a, *arrays, block_k2)
    seen = ~np.isnan(exact)
    c = np.asarray(c, np.float64)
    assert np.isfinite(c).all(), f"{(~np.isfinite(c)).sum()} elements were not written, or are no numbers"
    excess = np.where(seen, np.abs(c - exact) - off, -1)
    assert excess.max(initial=-1) <= 0, f"off by {np.nanmax(np.abs(c - exact))}, {excess.max()} too much"
