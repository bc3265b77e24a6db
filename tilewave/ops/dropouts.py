"""Dropout of arrays of any shape."""

from __future__ import annotations

from math import prod

from tilewave.kernels.dropouts import dropout_kernel, dropout_tile_for
from tilewave.kernels.rows import kernel_for
from tilewave.ops.arrays import Array, ArrayLibrary, folded
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.results import prepared, written


def _dropout(lib: ArrayLibrary, x: Array, out: Array | None, p: float, seed: int) -> CallWork:
    found = prepared("dropout", lib, out, tuple(x.shape), lib.dtype("dropout", "x", x), {"x": x})
    if not prod(x.shape):
        return CallWork({"out": found})
    rows, (to, after) = folded(_with_axis(x)), written(lib, _with_axis(found))
    kernel = kernel_for(dropout_kernel, dropout_tile_for, x=rows, y=to)
    return CallWork({"out": found}, KernelLaunch(kernel, {"x": rows, "out": to}, (p, seed)), after=after)


dropout = Operated("dropout", ("x", "out?"), _dropout, numbers=2)
"""x / (1 - p), with elements zeroed at random; further arguments are p and the seed."""


def _with_axis(x: Array) -> Array:
    return x if len(x.shape) else x.reshape(1)
