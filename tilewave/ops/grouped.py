"""Products of groups of rows: `grouped_mm`, in the three forms that torch's has."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import DType
from tilewave.kernels.grouped import (
    GroupedForm,
    GroupedSumForm,
    T,
    grouped_product_kernel,
    grouped_sum_kernel,
    grouped_sum_tile_for,
    grouped_tile_for,
)
from tilewave.kernels.products import K, M, N
from tilewave.ops.arrays import Array, ArrayLibrary, spelled
from tilewave.ops.indexed import want_indices
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.products import common_dtype, laid, result_dtype
from tilewave.ops.results import prepared

FORMS = "a [T, K] with b [G, K, N], a [G, M, K] with b [K, T], or a [M, T] with b [T, N], and ends [G]"


def is_transposed(a: Array, b: Array) -> bool:
    """Return whether the groups are columns of b: the product is that of the transposed operands, transposed."""
    return len(a.shape) == 3 and len(b.shape) == 2


def transposed(a: Array, b: Array, ends: Array, out: Array | None) -> tuple[Array | None, ...]:
    """Return the operands of the transposed product, whose groups are rows."""
    if out is not None and len(out.shape) != 2:
        raise CallError(f"grouped_mm: out is {spelled(out.shape)}", loc=here(), remedy="pass an array [M, T]")
    return b.swapaxes(0, 1), a.swapaxes(1, 2), ends, None if out is None else out.swapaxes(0, 1)


def _grouped_mm(lib: ArrayLibrary, a: Array, b: Array, ends: Array, out: Array | None) -> CallWork:
    want_forms(a, b, ends)
    want_indices("grouped_mm", lib, ends=ends)
    dtype = result_dtype(common_dtype("grouped_mm", lib, a=a, b=b))
    inputs = {"a": a, "b": b, "ends": ends}
    found = prepared("grouped_mm", lib, out, grouped_shape(a, b, ends), dtype, inputs)
    if not prod(found.shape):
        return CallWork({"out": found})
    launch = _rows(lib, a, b, ends, found) if len(b.shape) == 3 else _sums(lib, a, b, ends, found)
    return CallWork({"out": found}, launch)


grouped_mm = Operated("grouped_mm", ("a", "b", "ends", "out?"), _grouped_mm)
"""The product of each group of rows of a with a matrix of b, or of each group of columns of a with rows of b."""


def grouped_shape(a: Array, b: Array, ends: Array) -> tuple[int, ...]:
    """Return the shape of the result."""
    return (a.shape[0], b.shape[2]) if len(b.shape) == 3 else (ends.shape[0], a.shape[0], b.shape[1])


def want_forms(a: Array, b: Array, ends: Array) -> None:
    """Raise an error unless operands have one of the forms, and equal lengths where these must agree."""
    if (len(a.shape), len(b.shape)) not in ((2, 3), (2, 2)) or len(ends.shape) != 1:
        raise CallError(f"grouped_mm: {_shapes(a, b, ends)}", loc=here(), remedy=f"pass {FORMS}")
    is_rows = len(b.shape) == 3
    depth = a.shape[1], b.shape[1] if is_rows else b.shape[0]
    groups = b.shape[0] if is_rows else ends.shape[0]
    if depth[0] != depth[1] or groups != ends.shape[0] or not groups:
        what = f"grouped_mm: {_shapes(a, b, ends)}, which do not go together"
        raise CallError(what, loc=here(), remedy=f"pass {FORMS}")


def _shapes(a: Array, b: Array, ends: Array) -> str:
    return f"a is {spelled(a.shape)}, b is {spelled(b.shape)}, ends is {spelled(ends.shape)}"


def _rows(lib: ArrayLibrary, a: Array, b: Array, ends: Array, to: Array) -> KernelLaunch:
    x, x_axes = laid(lib, a, T, K)
    w, w_axes = laid(lib, b, K, N)
    form = GroupedForm(*_dtypes(lib, x, to, ends), x_axes=x_axes, w_axes=w_axes)
    kernel = grouped_product_kernel(grouped_tile_for(a.shape[0], ends.shape[0], form.dtype), form)
    return KernelLaunch(kernel, {"a": x, "b": w, "ends": ends, "out": to})


def _sums(lib: ArrayLibrary, a: Array, b: Array, ends: Array, to: Array) -> KernelLaunch:
    x, x_axes = laid(lib, a, M, T)
    y, y_axes = laid(lib, b, T, N)
    form = GroupedSumForm(*_dtypes(lib, x, to, ends), a_axes=x_axes, b_axes=y_axes)
    return KernelLaunch(
        grouped_sum_kernel(grouped_sum_tile_for(form.dtype), form), {"a": x, "b": y, "ends": ends, "out": to}
    )


def _dtypes(lib: ArrayLibrary, a: Array, out: Array, ends: Array) -> tuple[DType, DType, DType]:
    a_dtype, out_dtype, ends_dtype = (
        lib.dtype("grouped_mm", name, array) for name, array in (("a", a), ("out", out), ("ends", ends))
    )
    return a_dtype, out_dtype, ends_dtype
