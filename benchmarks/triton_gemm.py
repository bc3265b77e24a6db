"""A plain persistent GEMM in Triton, for comparison: tensor descriptors, 128x256x64, tiles in groups of rows.

`tilewave bench gemm --against triton` takes it from here. Needs torch and Triton, and nothing of tilewave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

GROUPS = (1, 4, 8, 16)
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
WAVES, STAGES = 8, 3
SPELLED = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
VERSION: str = triton.__version__


@triton.jit
def tiled_product(
    a, b, c, m, n, k, group, workgroups, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr
):
    """Each workgroup takes every `workgroups`-th tile, in groups of `group` rows."""
    rows, cols = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for t in range(tl.program_id(0), rows * cols, workgroups):
        per_group = group * cols
        first = t // per_group * group
        height = min(rows - first, group)
        row = first + (t % per_group) % height
        col = (t % per_group) // height
        acc = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            acc = tl.dot(a.load([row * BM, step * BK]), b.load([col * BN, step * BK]).T, acc)
        c.store([row * BM, col * BN], acc.to(OUT))


def launches(a: Any, b: Any, c: Any) -> dict[int, Callable[[], None]]:
    """For each group, what launches C[M, N] = A[M, K] · B[N, K]ᵀ on the current stream."""
    return {group: partial(_launch, _descriptors(a, b, c), a, b, c, group) for group in GROUPS}


def _descriptors(a: Any, b: Any, c: Any) -> list[Any]:
    blocks = ([BLOCK_M, BLOCK_K], [BLOCK_N, BLOCK_K], [BLOCK_M, BLOCK_N])
    return [TensorDescriptor.from_tensor(x, block) for x, block in zip((a, b, c), blocks, strict=True)]


def _launch(descriptors: list[Any], a: Any, b: Any, c: Any, group: int) -> None:
    (m, k), n = a.shape, b.shape[0]
    workgroups = torch.cuda.get_device_properties(a.device).multi_processor_count
    tiled_product[(min(workgroups, triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)),)](
        *descriptors,
        *(m, n, k, group, workgroups),
        BM=BLOCK_M,
        BN=BLOCK_N,
        BK=BLOCK_K,
        OUT=SPELLED[c.dtype],
        num_warps=WAVES,
        num_stages=STAGES,
    )
