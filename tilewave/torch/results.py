"""`out=`: results in tensors that the caller has."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewave.errors import CallError, here


def noted(found: Tensor, out: Tensor | None) -> Tensor:
    """What was written, and torch knows that it was."""
    if out is not None:
        torch.autograd.graph.increment_version(out)
    return found


def given(caller: str, found: Tensor, out: Tensor | None, *inputs: Tensor | None) -> Tensor:
    """The result, where it is wanted."""
    if out is None:
        return found
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (out, *inputs)):
        what = f"{caller}: out= has no gradient, and an argument asks for one"
        raise CallError(what, loc=here(), remedy="leave out away, or call it within torch.no_grad()")
    return out.copy_(found)
