"""topk and argmax as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.numbers import checked_axis
from tilewave.ops import rows, selections
from tilewave.torch.registry import define
from tilewave.torch.results import given, want_writable
from tilewave.torch.tensors import LIBRARY, want_tensors


def topk(x: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
    want_tensors(selections.topk.arguments, (x,))
    rows.want_rows("topk", x)
    axis = checked_axis("topk", dim, x.dim())
    values, indices = _TOPK(x.movedim(axis, -1), k)
    return values.movedim(-1, axis), indices.movedim(-1, axis)


def argmax(x: Tensor, dim: int = -1, out: Tensor | None = None) -> Tensor:
    of = selections.argmax.arguments
    want_tensors(of, (x, out))
    want_writable(of, (x, out))
    rows.want_rows("argmax", x)
    return given(of, _ARGMAX(x.movedim(checked_axis("argmax", dim, x.dim()), -1)), out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.shape = inputs[0].shape
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    (indices,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).scatter(-1, indices, grad), None


_TOPK = define(
    "topk",
    "(Tensor x, int k) -> (Tensor, Tensor)",
    lambda x, k: selections.topk(LIBRARY, (x,), k),
    lambda x, k: (x.new_empty((*x.shape[:-1], k)), x.new_empty((*x.shape[:-1], k), dtype=torch.int64)),
    save=_save,
    backward=_backward,
)

_ARGMAX = define(
    "argmax",
    "(Tensor x) -> Tensor",
    lambda x: selections.argmax(LIBRARY, (x, None)),
    lambda x: x.new_empty(x.shape[:-1], dtype=torch.int64),
)
