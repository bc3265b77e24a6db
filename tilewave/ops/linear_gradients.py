"""All gradients of a linear layer in one call: of its input, its weight and its bias, from that of its sums."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewave.ir.types import DType
from tilewave.ops.arrays import Array, ArrayLibrary, folded
from tilewave.ops.column_sums import column_sums
from tilewave.ops.digits import Digits
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.products import product_of, result_dtype


def _linear_gradients(
    lib: ArrayLibrary,
    x: Array,
    weight: Array,
    grad: Array,
    of_x: bool,
    of_weight: bool,
    of_bias: DType | None,
    digits: Digits,
) -> CallWork:
    rows, sums, dtype = _rows(x), _rows(grad), result_dtype(lib.dtype("linear", "grad", grad))
    results: dict[str, Array] = {}
    launches: list[KernelLaunch] = []
    if of_x:
        results["grad_x"] = lib.empty(tuple(x.shape), dtype, x)
        launches.append(product_of(lib, digits, grad=sums, weight=weight, grad_x=_rows(results["grad_x"])))
    if of_weight:
        results["grad_weight"] = lib.empty(tuple(weight.shape), dtype, x)
        transposed = sums.swapaxes(0, 1)
        launches.append(product_of(lib, digits, grad=transposed, x=rows, grad_weight=results["grad_weight"]))
    launches = [launch for launch in launches if prod([*launch.arrays.values()][-1].shape)]
    scratch: Mapping[str, Array] = {}
    if of_bias is not None:
        work = column_sums.work(lib, sums, of_bias)
        results["grad_bias"], scratch = work.results["sums"], work.scratch
        launches += [_renamed(launch, {"x": "grad", "sums": "grad_bias"}) for launch in work.launches]
    return CallWork(results, launches[0] if launches else None, tuple(launches[1:]), scratch)


linear_gradients = Operated("linear_gradients", ("x", "weight", "grad"), _linear_gradients)
"""The gradients of a linear layer's input, weight and bias from that of x · weightᵀ + bias; further arguments are
whether those of x and of weight are wanted, the dtype of that of the bias or None, and the precision of operands."""


def _rows(x: Array) -> Array:
    return x[None] if len(x.shape) == 1 else folded(x)


def _renamed(launch: KernelLaunch, names: dict[str, str]) -> KernelLaunch:
    """Return a launch whose arrays have other names, in the same order."""
    return launch._replace(arrays={names.get(name, name): array for name, array in launch.arrays.items()})
