"""grouped_mm as a torch operator; the gradients of its forms are its other forms."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilewave.ops import grouped
from tilewave.torch.autocast import to_autocast_dtype
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor, out: Tensor | None = None) -> Tensor:
    arrays, of = (a, b, ends, out), grouped.grouped_mm.arguments
    if is_free() and (layout := free_layout(arrays)) is not None and b.dim() == 3:
        return noted(grouped.grouped_mm.known(LIBRARY, layout, arrays, ()), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    if grouped.is_transposed(a, b):
        x, y, groups, to = grouped.transposed(a, b, ends, out)
        found = given(of, _GROUPED_MM(x, y, groups), to).swapaxes(0, 1)
        return found if out is None else out
    return given(of, _GROUPED_MM(a, b, ends), out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    a, b, ends = ctx.saved_tensors
    if b.dim() == 3:  # [T, K] and [G, K, N]
        return _GROUPED_MM(grad, b.swapaxes(1, 2), ends), _GROUPED_MM(a.swapaxes(0, 1), grad, ends), None
    # [M, T] and [T, N]
    return _GROUPED_MM(b, grad.swapaxes(1, 2), ends).swapaxes(0, 1), _GROUPED_MM(a.swapaxes(0, 1), grad, ends), None


def _like(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(grouped.grouped_shape(a, b, ends))


_GROUPED_MM = define(
    "grouped_mm",
    "(Tensor a, Tensor b, Tensor ends) -> Tensor",
    lambda a, b, ends: grouped.grouped_mm(LIBRARY, (a, b, ends, None)),
    _like,
    save=_save,
    backward=_backward,
    cast=to_autocast_dtype,
)
