"""Sums of columns: over blocks of rows first, and then over the blocks, where there are several."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from tilewave.ir.types import DType
from tilewave.kernels.activations import activation_named
from tilewave.kernels.column_sums import (
    activation_gradients_kernel,
    block_sums_kernel,
    column_blocks,
    column_sums_kernel,
    summed_blocks,
)
from tilewave.kernels.rows import arithmetic_of
from tilewave.ops.arrays import Array, ArrayLibrary, folded, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated


class BlockSums(NamedTuple):
    """Where a kernel writes the sums over blocks of rows, and the launches that add them up."""

    arrays: Mapping[str, Array]
    dtypes: tuple[DType, ...]
    launches: tuple[KernelLaunch, ...] = ()

    @property
    def scratch(self) -> Mapping[str, Array]:
        return self.arrays if self.launches else {}


def block_sums(lib: ArrayLibrary, like: Array, blocks: int, of: DType, sums: Mapping[str, Array]) -> BlockSums:
    """Return how `sums`, of one number for each column, are written by a kernel with so many blocks of rows."""
    dtypes = tuple(lib.dtype("column_sums", name, array) for name, array in sums.items())
    if blocks == 1:
        return BlockSums({name: array.reshape(1, -1) for name, array in sums.items()}, dtypes)
    partial = {f"partial_{name}": lib.empty((blocks, *array.shape), of, like) for name, array in sums.items()}
    together = summed_blocks(target_of("column_sums", lib.device(like)))
    added = KernelLaunch(block_sums_kernel(together, of, *dtypes), {**partial, **sums})
    return BlockSums(partial, (of,) * len(sums), (added,))


def _column_sums(lib: ArrayLibrary, x: Array, dtype: DType) -> CallWork:
    sums = {"sums": lib.empty((x.shape[-1],), dtype, x)}
    if not x.shape[-1]:
        return CallWork(sums)
    x_dtype = lib.dtype("column_sums", "x", x)
    of = arithmetic_of("column_sums", x=x_dtype, sums=dtype)
    blocks = column_blocks(target_of("column_sums", lib.device(x)), prod(x.shape[:-1]), x.shape[-1])
    found = block_sums(lib, x, blocks, of, sums)
    launch = KernelLaunch(column_sums_kernel(x_dtype, *found.dtypes), {"x": folded(x), **found.arrays})
    return CallWork(sums, launch, found.launches, found.scratch)


column_sums = Operated("column_sums", ("x",), _column_sums)
"""The sums of the last axis's columns; a further argument is their dtype."""


def _activation_gradients(lib: ArrayLibrary, sums: Array, grad: Array, activation: str, dtype: DType) -> CallWork:
    activation_named("activation_gradients", activation)
    of_sums = lib.empty(tuple(sums.shape), lib.dtype(activation, "sums", sums), sums)
    of_bias = {"grad_bias": lib.empty((sums.shape[-1],), dtype, sums)}
    work = CallWork({"grad_sums": of_sums, **of_bias})
    if not sums.shape[-1]:
        return work
    dtypes = [lib.dtype(activation, "sums", x) for x in (sums, grad, of_sums)]
    of = arithmetic_of(f"{activation}_gradients", sums=dtypes[0], grad=dtypes[1], bias=dtype)
    blocks = column_blocks(target_of(activation, lib.device(sums)), prod(sums.shape[:-1]), sums.shape[-1])
    found = block_sums(lib, sums, blocks, of, of_bias)
    kernel = activation_gradients_kernel(activation, *dtypes, *found.dtypes)
    rows = {"sums": folded(sums), "grad": folded(grad), "grad_sums": folded(of_sums)}
    return work._replace(
        launch=KernelLaunch(kernel, {**rows, **found.arrays}), more=found.launches, scratch=found.scratch
    )


activation_gradients = Operated("activation_gradients", ("sums", "grad"), _activation_gradients)
"""slope(sums) · grad, and its sums of columns, the gradient of a bias; further arguments are the activation and the
dtype of the bias."""
