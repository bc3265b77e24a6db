"""dropout as a torch operator: its gradient draws the mask again, from the seed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilewave.ops import dropouts
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def dropout(x: Tensor, p: float, seed: int, out: Tensor | None = None) -> Tensor:
    arrays, of = (x, out), dropouts.dropout.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(dropouts.dropout.known(LIBRARY, layout, arrays, (p, seed)), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    return given(of, _DROPOUT(x, p, seed), out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.p, ctx.seed = inputs


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _DROPOUT(grad, ctx.p, ctx.seed), None, None


_DROPOUT = define(
    "dropout",
    "(Tensor x, float p, int seed) -> Tensor",
    lambda x, p, seed: dropouts.dropout(LIBRARY, (x, None), p, seed),
    lambda x, p, seed: x.new_empty(x.shape),
    save=_save,
    backward=_backward,
)
