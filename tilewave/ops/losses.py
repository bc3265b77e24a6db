"""Cross entropy with labels, and its backward pass."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.ir.types import I64, DType
from tilewave.kernels.losses import (
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
    gradient_columns,
    mean_loss_kernel,
)
from tilewave.kernels.rows import Rows, arithmetic_of, rows_for
from tilewave.kernels.sums import sum_kernel
from tilewave.ops.arrays import Array, ArrayLibrary, folded, spelled, target_of
from tilewave.ops.indexed import want_indices
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.results import prepared, written
from tilewave.runtime.remedies import brief

REDUCTIONS = ("none", "mean", "sum")


def _cross_entropy(
    lib: ArrayLibrary, logits: Array, labels: Array, out: Array | None, ignored: int, reduction: str
) -> CallWork:
    _want_labels(lib, logits, labels)
    dtype = lib.dtype("cross_entropy", "logits", logits)
    of = arithmetic_of("cross_entropy", logits=dtype)
    shape = tuple(labels.shape) if reduction == "none" else ()
    found = prepared("cross_entropy", lib, out, shape, dtype, {"logits": logits, "labels": labels})
    count, columns = prod(labels.shape), logits.shape[-1]
    lse, (to, after) = lib.empty((count,), of, logits), written(lib, found, 0)
    results, result, label = {"out": found, "lse": lse}, lib.dtype("cross_entropy", "out", to), _label(lib, labels)
    if not count and reduction == "none":
        return CallWork(results)
    x, target = folded(logits), folded(labels, 0)
    loss, name = (to, "out") if reduction == "none" else (lib.empty((count,), of, logits), "loss")
    kernel = cross_entropy_kernel(_rows(lib, x, dtype), dtype, label, result if reduction == "none" else of, of, I64)
    arrays = {"logits": x, "labels": target, name: loss, "lse": lse}
    launch = KernelLaunch(kernel, arrays, (ignored,))
    if reduction == "none":
        return CallWork(results, launch, after=after)
    row = {"loss": loss.reshape(1, count)}
    if reduction == "sum":
        last = KernelLaunch(sum_kernel(_rows(lib, row["loss"], of), of, result), {**row, "out": to})
    else:
        mean = mean_loss_kernel(_rows(lib, row["loss"], of), of, label, result)
        last = KernelLaunch(mean, {**row, "labels": target.reshape(1, count), "out": to}, (columns, ignored))
    launches = (launch, last) if count else (last,)
    return CallWork(results, launches[0], launches[1:], {"loss": loss}, after)


cross_entropy = Operated("cross_entropy", ("logits", "labels", "out?"), _cross_entropy)
"""The loss, and the logarithm of each row's sum of exp; further arguments are the ignored label and the reduction."""


def _cross_entropy_backward(
    lib: ArrayLibrary, logits: Array, labels: Array, lse: Array, grad: Array, ignored: int
) -> CallWork:
    dtype = lib.dtype("cross_entropy", "logits", logits)
    found = lib.empty(tuple(logits.shape), dtype, logits)
    if not prod(logits.shape):
        return CallWork({"grad_logits": found})
    label, of = _label(lib, labels), lib.dtype("cross_entropy", "lse", lse)
    columns = gradient_columns(logits.shape[-1], dtype)
    kernel = cross_entropy_backward_kernel(columns, dtype, label, of, lib.dtype("cross_entropy", "grad", grad), dtype)
    arrays = {"logits": folded(logits), "labels": folded(labels, 0), "lse": lse, "grad": folded(grad, 0)}
    return CallWork({"grad_logits": found}, KernelLaunch(kernel, {**arrays, "grad_logits": folded(found)}, (ignored,)))


cross_entropy_backward = Operated(
    "cross_entropy_backward", ("logits", "labels", "lse", "grad"), _cross_entropy_backward
)
"""The gradient of logits, from that of each row's loss; a further argument is the ignored label."""


def _want_labels(lib: ArrayLibrary, logits: Array, labels: Array) -> None:
    """Raise an error where logits and labels do not fit."""
    if len(logits.shape) not in (1, 2):
        what = f"cross_entropy: logits are {spelled(logits.shape)}, but they are one row or a matrix of rows"
        raise CallError(what, loc=here(), remedy="pass logits.reshape(-1, classes) and labels.reshape(-1)")
    if tuple(labels.shape) != tuple(logits.shape[:-1]):
        what = f"cross_entropy: labels are {spelled(labels.shape)}, but logits have {spelled(logits.shape[:-1])} rows"
        raise CallError(what, loc=here(), remedy="pass a label for each row")
    if not logits.shape[-1]:
        raise CallError("cross_entropy: logits have no columns", loc=here(), remedy="pass one column at least")
    want_indices("cross_entropy", lib, labels=labels)


def _label(lib: ArrayLibrary, labels: Array) -> DType:
    return lib.dtype("cross_entropy", "labels", labels)


def _rows(lib: ArrayLibrary, x: Array, dtype: DType) -> Rows:
    return rows_for(target_of("cross_entropy", lib.device(x)), x.shape[1], dtype)


def want_reduction(reduction: object) -> None:
    """Raise an error where a reduction is none of those of cross_entropy."""
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        what = f"cross_entropy: reduction is {brief(reduction)}"
        raise CallError(what, loc=here(), remedy=f"pass one of {', '.join(map(repr, REDUCTIONS))}")
