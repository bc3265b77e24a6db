"""Dropout: elements that are zeroed at random, by a seed and their position, so that the mask is never stored."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.ir.types import F32, F64, I64, DType
from tilewave.kernels.indexed import RowTile, scatter_tile_for
from tilewave.kernels.numbers import checked_probability, checked_seed
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import M, N, arithmetic_of, kernel_for, matrix
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, scalar, select, self_index
from tilewave.lang.random_numbers import random

dropout_tile_for = scatter_tile_for


def dropout(x: Any, y: Any, p: float, seed: int) -> None:
    """y = x / (1 - p) where random(seed, position) is at least p, else 0; element (m, n) of N columns is at m · N + n.

    The mask depends on the seed, p and the position alone, on every target.
    """
    kernel = kernel_for(dropout_kernel, dropout_tile_for, x=x, y=y)
    kernel(x, y, checked_probability("dropout", p), checked_seed("dropout", seed))


@cache
def dropout_kernel(tile: RowTile, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, N]; two further numbers are p and the seed."""
    of = arithmetic_of("dropout", x=x_dtype, y=y_dtype)

    def drop(to: Any) -> None:
        position = self_index(M, I64) * scalar(N, I64) + self_index(N, I64)
        is_kept = random(to.seed, position) >= cast(to.p, F32)
        scale = cast(1.0 / (1.0 - to.p), of)
        write(cast(select(is_kept, cast(read(to.x), of) * scale, 0.0), y_dtype), to.y)

    constraints = [WorkgroupConstraint(M, tile.rows, 0), WorkgroupConstraint(N, tile.columns, 1)]
    parameters = given(x=matrix(x_dtype), y=matrix(y_dtype), p=F64, seed=I64)
    return kernel_of("dropout", constraints, parameters, drop)
