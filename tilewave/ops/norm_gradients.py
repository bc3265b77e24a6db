"""Gradients of norms together with those of their weights: in one pass over the rows where these are short enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from tilewave.kernels.gradients import (
    layer_norm_backward_kernel,
    layer_norm_weights_kernel,
    rms_norm_backward_kernel,
    rms_norm_weights_kernel,
)
from tilewave.kernels.norm_gradients import (
    RowBlocks,
    layer_norm_gradients_kernel,
    rms_norm_gradients_kernel,
)
from tilewave.lang.kernel import WaveKernel
from tilewave.ops.arrays import Array, ArrayLibrary, folded, target_of
from tilewave.ops.column_sums import block_sums
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.rows import backward_rows, dtypes_of, norm_dtype
from tilewave.records import dataclass


@dataclass(frozen=True)
class _Norm:
    """A norm's kernels: for all gradients, for those of rows, and for sums of columns from numbers of each row."""

    name: str
    together: Callable[..., WaveKernel]
    of_rows: Callable[..., WaveKernel]
    of_weights: Callable[..., WaveKernel]
    row_numbers: tuple[str, ...]
    parameters: tuple[str, ...]


def _gradients(norm: _Norm, lib: ArrayLibrary, x: Array, grad: Array, weight: Array, *numbers: Array) -> CallWork:
    weight_dtype, of = lib.dtype(norm.name, "weight", weight), norm_dtype(lib, x, grad, weight)
    sums = {f"grad_{name}": lib.empty(tuple(weight.shape), weight_dtype, x) for name in norm.parameters}
    grad_x = lib.empty(tuple(x.shape), lib.dtype(norm.name, "x", x), x)
    work, kept = CallWork({"grad_x": grad_x, **sums}), dict(zip(norm.row_numbers, numbers, strict=True))
    rows, columns = prod(x.shape[:-1]), x.shape[-1]
    if not columns:
        return work
    dtypes = dtypes_of(norm.name, lib, x, grad, grad_x, kept["scale"], weight)
    read = {"x": folded(x), "grad": folded(grad)}
    inputs = {**read, "weight": weight, **kept, "grad_x": folded(grad_x)}
    blocks = RowBlocks.of(target_of(norm.name, lib.device(x)), rows, columns, of)
    if blocks is not None:
        found = block_sums(lib, x, blocks.blocks, of, sums)
        kernel = norm.together(blocks.together, *dtypes, *found.dtypes)
        launch = KernelLaunch(kernel, {**inputs, **found.arrays})
        return work._replace(launch=launch, more=found.launches, scratch=found.scratch)
    weights = norm.of_weights(dtypes[0], dtypes[1], dtypes[3], *[weight_dtype] * len(sums))
    last = KernelLaunch(weights, {**read, **kept, **sums})
    if not rows:
        return work._replace(launch=last)
    return work._replace(
        launch=KernelLaunch(norm.of_rows(backward_rows(norm.name, lib, x), *dtypes), inputs), more=(last,)
    )


_RMS_NORM = _Norm(
    "rms_norm",
    rms_norm_gradients_kernel,
    rms_norm_backward_kernel,
    rms_norm_weights_kernel,
    ("scale",),
    ("weight",),
)
_LAYER_NORM = _Norm(
    "layer_norm",
    layer_norm_gradients_kernel,
    layer_norm_backward_kernel,
    layer_norm_weights_kernel,
    ("mean", "scale"),
    ("weight", "bias"),
)

rms_norm_gradients = Operated("rms_norm_gradients", ("x", "grad", "weight", "scale"), partial(_gradients, _RMS_NORM))
"""The gradients of x and of the weights."""
layer_norm_gradients = Operated(
    "layer_norm_gradients", ("x", "grad", "weight", "mean", "scale"), partial(_gradients, _LAYER_NORM)
)
"""The gradients of x, of the weights, and of a bias of their dtype."""
