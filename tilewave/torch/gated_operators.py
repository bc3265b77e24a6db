"""activation(gate) · up as a torch operator."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tilewave.ops import gates
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def gated(gate: Tensor, up: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    arrays, of = (gate, up, out), gates.gated.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(gates.gated.known(LIBRARY, layout, arrays, (activation,)), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    return given(of, _GATED(gate, up, activation), out)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return (*_GATED_GRADIENTS(*ctx.saved_tensors, grad, ctx.activation), None)


_GATED = define(
    "gated",
    "(Tensor gate, Tensor up, str activation) -> Tensor",
    lambda gate, up, activation: gates.gated(LIBRARY, (gate, up, None), activation),
    lambda gate, up, activation: gate.new_empty(gate.shape),
    save=_save,
    backward=_backward,
)

_GATED_GRADIENTS = define(
    "gated_gradients",
    "(Tensor gate, Tensor up, Tensor grad, str activation) -> (Tensor, Tensor)",
    lambda gate, up, grad, activation: gates.gated_gradients(LIBRARY, (gate, up, grad), activation),
    lambda gate, up, grad, activation: (gate.new_empty(gate.shape), up.new_empty(up.shape)),
)
