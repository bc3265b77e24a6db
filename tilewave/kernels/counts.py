"""How often each number occurs: bincount, of which a histogram of whole numbers is made."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.errors import DTypeError, here
from tilewave.ir.types import DType
from tilewave.kernels.indexed import T, V, array_of, want_indices, want_sums
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import looked_at
from tilewave.lang.accesses import atomic_add, read
from tilewave.lang.constraints import WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast
from tilewave.lang.types import RegisterType

COUNTED = 1024
"""The numbers that a workgroup counts."""


def bincount(x: Any, y: Any, weights: Any = None) -> None:
    """y[v] += 1 for each number v in x, or its weight; those that are no index of y are left out.

    x, y and weights have one axis. y is i32 or i64, with weights f32 or f64, which are added in any order.
    """
    dtypes = [looked_at("bincount", name, array).dtype for name, array in (("x", x), ("y", y))]
    if weights is None:
        bincount_kernel(*dtypes)(x, y)
    else:
        bincount_kernel(*dtypes, looked_at("bincount", "weights", weights).dtype)(x, y, weights)


@cache
def bincount_kernel(x_dtype: DType, y_dtype: DType, weights_dtype: DType | None = None) -> WaveKernel:
    """Return the kernel that counts x[T], with weights[T] where they have a dtype, in y[V]."""
    want_indices("bincount", x=x_dtype)
    want_sums("bincount", weights_dtype or y_dtype, y_dtype)
    if weights_dtype is None and not y_dtype.is_int:
        what = f"bincount: y is {y_dtype}, but counts are integers"
        raise DTypeError(what, loc=here(), remedy="pass an array of i64 as y")

    def count(to: Any) -> None:
        each = cast(read(to.weights), y_dtype) if weights_dtype else RegisterType((T,), y_dtype)(1)
        atomic_add(each, to.y, at={V: read(to.x)})

    arrays = {"x": array_of(x_dtype, T), "y": array_of(y_dtype, V)}
    weights = given(weights=weights_dtype and array_of(weights_dtype, T))
    return kernel_of("bincount", [WorkgroupConstraint(T, COUNTED, 0)], {**arrays, **weights}, count)
