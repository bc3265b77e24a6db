"""The largest numbers along the last axis, and where they are."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import I64
from tilewave.kernels.rows import kernel_for
from tilewave.kernels.selections import checked_count, rows_together, topk_kernel
from tilewave.kernels.sums import argmax_kernel
from tilewave.ops.arrays import Array, ArrayLibrary, folded, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.results import prepared, written
from tilewave.ops.rows import want_rows


def _topk(lib: ArrayLibrary, x: Array, k: int) -> CallWork:
    want_rows("topk", x)
    dtype, shape = lib.dtype("topk", "x", x), (*x.shape[:-1], checked_count("topk", k, x.shape[-1]))
    results = {"values": lib.empty(shape, dtype, x), "indices": lib.empty(shape, I64, x)}
    if not prod(shape):
        return CallWork(results)
    rows = rows_together(target_of("topk", lib.device(x)), x.shape[-1], dtype)
    arrays = {"x": folded(x), **{name: folded(array) for name, array in results.items()}}
    return CallWork(results, KernelLaunch(topk_kernel(rows, dtype, dtype, I64, k), arrays))


topk = Operated("topk", ("x",), _topk)
"""The k largest numbers along the last axis, and their indices; a further argument is k."""


def _argmax(lib: ArrayLibrary, x: Array, out: Array | None) -> CallWork:
    want_rows("argmax", x)
    found = prepared("argmax", lib, out, tuple(x.shape[:-1]), I64, {"x": x})
    if not x.shape[-1]:
        raise CallError("argmax: rows have no numbers", loc=here(), remedy="pass rows with numbers")
    if not prod(x.shape):
        return CallWork({"out": found})
    to, after = written(lib, found, 0)
    kernel = kernel_for(argmax_kernel, x=folded(x), y=to)
    return CallWork({"out": found}, KernelLaunch(kernel, {"x": folded(x), "out": to}), after=after)


argmax = Operated("argmax", ("x", "out?"), _argmax)
"""The index of the largest number along the last axis, the first of several, or of NaNs."""
