"""The backward pass of a mixture of experts, up to the products that `grouped_mm` does.

Both products are computed again rather than kept: a call keeps its arguments and where its tokens went.
"""

from __future__ import annotations

from tilewave.ir.types import I32
from tilewave.kernels.gated_gradients import GatedForm, gated_backward_kernel, step_for
from tilewave.kernels.grouped import GroupedForm, grouped_product_kernel, grouped_tile_for
from tilewave.kernels.products import K, N
from tilewave.kernels.ragged import unpermute_rows_kernel, unpermute_tile_for
from tilewave.kernels.rows import kernel_for
from tilewave.ops.arrays import Array, ArrayLibrary
from tilewave.ops.experts import permuted
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.products import laid


def _backward(
    lib: ArrayLibrary,
    grad: Array,
    x: Array,
    w1: Array,
    w2: Array,
    weights: Array,
    slots: Array,
    ends: Array,
    activation: str,
) -> CallWork:
    dtype, count = lib.dtype("moe", "x", x), slots.shape[0] * slots.shape[1]
    hidden, narrow = x.shape[1], w2.shape[2]
    of_rows = {"rows": (count, hidden), "grad_rows": (count, hidden), "hidden": (count, narrow)}
    results = {name: lib.empty(shape, dtype, x) for name, shape in of_rows.items()}
    results["grad_both"] = lib.empty((count, 2 * narrow), dtype, x)
    results["grad_weights"] = lib.empty(tuple(weights.shape), lib.dtype("moe", "weights", weights), x)
    scratch = {"both": lib.empty((count, 2 * narrow), dtype, x), "grad_hidden": lib.empty((count, narrow), dtype, x)}
    arrays = {"w1": w1, "w2": w2.swapaxes(1, 2), "slots": slots, "ends": ends, "weights": weights}
    every = {**results, **scratch, **arrays}
    launches = (
        permuted(lib, "x", x, "slots", slots, "rows", every["rows"]),
        permuted(lib, "grad", grad, "slots", slots, "grad_rows", every["grad_rows"]),
        _product(lib, every, "rows", "w1", "both"),
        _product(lib, every, "grad_rows", "w2", "grad_hidden"),
        _gated(lib, every, activation),
    )
    return CallWork(results, launches[0], launches[1:], scratch)


backward = Operated("moe", ("grad", "x", "w1", "w2", "weights", "slots", "ends"), _backward)
"""Tokens and their gradients in the rows of their experts; there, the weighted hidden numbers, and the gradients of the
first product and of the weights. A further argument is the activation."""


def _product(lib: ArrayLibrary, every: dict[str, Array], of: str, by: str, to: str) -> KernelLaunch:
    matrices, axes = laid(lib, every[by], N, K)
    dtype, rows, ends = lib.dtype("moe", by, matrices), every[of], every["ends"]
    form = GroupedForm(dtype, dtype, I32, w_axes=axes)
    kernel = grouped_product_kernel(grouped_tile_for(rows.shape[0], ends.shape[0], dtype), form)
    return KernelLaunch(kernel, {of: rows, by: matrices, "ends": ends, to: every[to]})


def _gated(lib: ArrayLibrary, every: dict[str, Array], activation: str) -> KernelLaunch:
    names = ("both", "grad_hidden", "slots", "weights", "grad_both", "hidden", "grad_weights")
    arrays = {name: every[name] for name in names}
    for name in ("both", "grad_both"):
        count, wide = arrays[name].shape
        arrays[name] = arrays[name].reshape(count, 2, wide // 2)
    dtypes = lib.dtype("moe", "hidden", arrays["hidden"]), lib.dtype("moe", "weights", arrays["weights"])
    kernel = gated_backward_kernel(step_for(arrays["hidden"].shape[1]), GatedForm(activation, *dtypes))
    return KernelLaunch(kernel, arrays)


def _unpermute(lib: ArrayLibrary, rows: Array, slots: Array) -> CallWork:
    found = lib.empty((slots.shape[0], rows.shape[1]), lib.dtype("moe", "rows", rows), rows)
    kernel = kernel_for(unpermute_rows_kernel, unpermute_tile_for, x=rows, slots=slots, y=found, weights=None)
    return CallWork({"out": found}, KernelLaunch(kernel, {"rows": rows, "slots": slots, "out": found}))


unpermute = Operated("moe", ("rows", "slots"), _unpermute)
"""The sum of the rows of each token."""
