"""Matrix products: a GEMM of any shape, dtype and order of tiles, and one with an epilogue."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewave.ir.types import F32, F64, I8, I32, DType
from tilewave.kernels.activations import gelu
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import (
    GridConstraint,
    HardwareConstraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.mma_types import MMAType
from tilewave.lang.ops import cast
from tilewave.lang.products import mma
from tilewave.lang.symbols import Symbol, ceiling, sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, MemoryType, RegisterType
from tilewave.machine.matrix import WISHES
from tilewave.records import dataclass

M, N, K = sym.M, sym.N, sym.K
BLOCK_M, BLOCK_N, BLOCK_K = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
LAYOUTS = {
    "nt": ((M, K), (N, K)),
    "nn": ((M, K), (K, N)),
    "tt": ((K, M), (N, K)),
    "tn": ((K, M), (K, N)),
}
"""The layouts of A and B in memory; the last dimension is contiguous."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GemmKernel:
    """C[M, N] = A · B, both in the kernel's layout: a kernel and the sizes to compile it with."""

    m: int
    n: int
    k: int
    tile: tuple[int, int, int]
    kernel: WaveKernel

    @property
    def subs(self) -> dict[Symbol, Any]:
        block_m, block_n, block_k = self.tile
        return {M: self.m, N: self.n, K: self.k, BLOCK_M: block_m, BLOCK_N: block_n, BLOCK_K: block_k}


def gemm(
    shape: tuple[int, int, int],
    dtype: DType,
    out: DType | None = None,
    tile: tuple[int, int, int] = (128, 256, 64),
    mapping: str = "linear()",
    workgroups: int | None = None,
    mma_type: MMAType | None = None,
    layout: str = "nt",
) -> GemmKernel:
    """Return a GEMM of any shape and dtype, in any order of tiles; `workgroups` makes it persistent.

    `layout`: "n" or "t" for A, which is [M, K] or [K, M], and for B, [K, N] or [N, K].
    """
    acc = accumulator(dtype)
    a_dims, b_dims = LAYOUTS[layout]
    written = out or acc

    def gemm(a: Any, b: Any, c: Any) -> None:
        zero = RegisterType((M, N), acc)(0)

        @iterate(K, init_args=[zero])
        def total(sums: Any) -> Any:
            return mma(read(a), read(b), sums)

        write(cast(total, written), c)

    gemm.__annotations__ = {
        "a": MemoryType(a_dims, SHARED_ADDRESS_SPACE, dtype),
        "b": MemoryType(b_dims, SHARED_ADDRESS_SPACE, dtype),
        "c": MemoryType((M, N), GLOBAL_ADDRESS_SPACE, written),
    }
    return GemmKernel(*shape, tile, wave(_constraints(mapping, workgroups, mma_type))(gemm))


def gemm_bias_gelu(
    shape: tuple[int, int, int],
    dtype: DType,
    out: DType,
    tile: tuple[int, int, int] = (128, 256, 64),
    mapping: str = "linear()",
) -> GemmKernel:
    """Return C = gelu(A · Bᵀ + bias) of floats; bias[N] has C's dtype, sums and epilogue are f32, only C is written."""

    def gemm_bias_gelu(a: Any, b: Any, bias: Any, c: Any) -> None:
        zero = RegisterType((M, N), F32)(0)

        @iterate(K, init_args=[zero])
        def total(sums: Any) -> Any:
            return mma(read(a), read(b), sums)

        write(cast(gelu(total + cast(read(bias), F32), out), out), c)

    gemm_bias_gelu.__annotations__ = {
        "a": MemoryType((M, K), SHARED_ADDRESS_SPACE, dtype),
        "b": MemoryType((N, K), SHARED_ADDRESS_SPACE, dtype),
        "bias": MemoryType((N,), GLOBAL_ADDRESS_SPACE, out),
        "c": MemoryType((M, N), GLOBAL_ADDRESS_SPACE, out),
    }
    return GemmKernel(*shape, tile, wave(_constraints(mapping))(gemm_bias_gelu))


def _constraints(mapping: str, workgroups: int | None = None, mma_type: MMAType | None = None) -> list[Any]:
    return [
        WorkgroupConstraint(M, BLOCK_M, 0),
        WorkgroupConstraint(N, BLOCK_N, 1),
        TilingConstraint(K, BLOCK_K),
        WaveConstraint(M, ceiling(BLOCK_M / 2)),
        WaveConstraint(N, ceiling(BLOCK_N / 2)),
        WorkgroupMapping(mapping),
        *([GridConstraint(workgroups)] if workgroups else []),
        *([HardwareConstraint(mma_type=mma_type)] if mma_type else []),
    ]


def accumulator(dtype: DType) -> DType:
    """Return the dtype that products of this dtype are accumulated in."""
    return I32 if dtype == I8 else F64 if dtype == F64 else F32


def error_bound(
    want: Floats, magnitude: Floats, k: int, dtype: DType, out: DType, mma_type: MMAType | None = None
) -> Floats:
    """Return how far a correct gemm may be from `want`, which is a · bᵀ in float64; `magnitude` is |a| · |b|ᵀ.

    In any order, k products and sums err by at most gamma · |a| · |b|ᵀ, gamma = nu / (1 - nu) with n = k + 1 roundings
    of half a unit each (u): the kernel's in the accumulator's dtype, those of `want` in float64. Storing in a narrower
    dtype adds half a unit of its last place. Integers err only by that. Where `mma_type` ignores bits of both
    operands, each product is off by those besides.
    """
    acc = accumulator(dtype)
    total = sum(_gamma(k + 1, x) for x in (acc, F64)) * magnitude if acc.is_float else np.zeros_like(magnitude)
    if mma_type and (ignored := WISHES[mma_type.value].ignored_bits):
        total = total + 2 * 2**ignored * float(np.finfo(dtype.numpy).eps) * magnitude
    if out.is_float and (acc.is_int or out.bits < acc.bits):
        info = ml_dtypes.finfo(out.numpy)  # type: ignore[no-untyped-call]
        total = total + (np.abs(want) + total) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
    return total


def _gamma(roundings: int, dtype: DType) -> float:
    share = roundings * float(np.finfo(dtype.numpy).eps) / 2
    return share / (1 - share) if share < 1 else math.inf
