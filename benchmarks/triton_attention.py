"""Attention forward in Triton, for comparison: tensor descriptors, an online softmax, the best of some block sizes.

`benchmarks/attention_h200.py --ladder` takes it from here. Needs torch and Triton, and nothing of tilewave.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCKS = ((128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 3))
"""Queries, keys, waves, stages."""


@triton.jit
def attended(q, k, v, y, keys, scale, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """Compute a block of queries of one head; heads are stacked along the rows."""
    rows = tl.cdiv(keys, BM)
    block = tl.program_id(0) % rows
    if CAUSAL:
        block = rows - 1 - block
    first = tl.program_id(0) // rows * keys
    queries = q.load([first + block * BM, 0])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, HEAD), tl.float32)
    whole = block * BM // BN * BN if CAUSAL else keys
    for at in range(0, whole, BN):
        highest, total, acc = step(queries, k, v, first, at, highest, total, acc, scale, block, BM, BN, False)
    if CAUSAL:
        for at in range(whole, (block + 1) * BM, BN):
            highest, total, acc = step(queries, k, v, first, at, highest, total, acc, scale, block, BM, BN, True)
    y.store([first + block * BM, 0], (acc / total[:, None]).to(tl.float16))


@triton.jit
def step(q, k, v, first, at, highest, total, acc, scale, block, BM: tl.constexpr, BN: tl.constexpr, MASK: tl.constexpr):
    scores = tl.dot(q, k.load([first + at, 0]).T) * scale
    if MASK:
        row, col = block * BM + tl.arange(0, BM), at + tl.arange(0, BN)
        scores = tl.where(row[:, None] >= col[None, :], scores, float("-inf"))
    above = tl.maximum(highest, tl.max(scores, 1))
    shrink = tl.exp2(highest - above)
    weights = tl.exp2(scores - above[:, None])
    acc = tl.dot(weights.to(tl.float16), v.load([first + at, 0]), acc * shrink[:, None])
    return above, total * shrink + tl.sum(weights, 1), acc


def launch(q: Any, k: Any, v: Any, y: Any, is_causal: bool, blocks: tuple[int, int, int, int]) -> None:
    """All of shape [heads, keys, head]; whole blocks only."""
    heads, keys, head = q.shape
    queries, columns, waves, stages = blocks
    given = [
        TensorDescriptor.from_tensor(x.view(-1, head), [rows, head])
        for x, rows in zip((q, k, v, y), (queries, columns, columns, queries), strict=True)
    ]
    attended[(heads * triton.cdiv(keys, queries),)](
        *given,
        *(keys, math.log2(math.e) / math.sqrt(head)),
        HEAD=head,
        BM=queries,
        BN=columns,
        CAUSAL=is_causal,
        num_warps=waves,
        num_stages=stages,
    )


def best(q: Any, k: Any, v: Any, y: Any, is_causal: bool) -> tuple[int, int, int, int]:
    """Return the fastest of the block sizes that fit, by timing each."""
    found = {}
    for blocks in BLOCKS:
        try:
            found[blocks] = triton.testing.do_bench(lambda b=blocks: launch(q, k, v, y, is_causal, b), 5, 20)
        except triton.runtime.errors.OutOfResources:
            continue
    torch.cuda.synchronize()
    return min(found, key=found.__getitem__)
