"""`out=`: results in the caller's tensors, by the rule of `tilewave.ops.results`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tilewave.errors import CallError, here
from tilewave.ops.arrays import ArrayArguments
from tilewave.ops.results import INSTEAD, want_apart, want_shape
from tilewave.torch.tensors import LIBRARY, bare, have_memory


def noted(found: Tensor, out: Tensor | None) -> Tensor:
    """Return a written result, after its tensor's version counter is raised for autograd."""
    if out is not None and not out.is_inference():  # inference tensors have no version counter
        torch.autograd.graph.increment_version(out)
    return found


def want_writable(of: ArrayArguments, arrays: Sequence[Tensor | None]) -> None:
    """Raise an error where `out`, the last array of a torch operator's call, cannot be written.

    The operator allocates its result, which `given` copies; checks that need memory are skipped for traced tensors.
    """
    out = arrays[-1]
    if out is None:
        return
    tensors = {name: bare(t) for name, t in zip(of.names, arrays, strict=True) if t is not None}
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arrays):
        what = f"{of.caller}: out= has no gradient, and an argument requires one"
        raise CallError(what, loc=here(), remedy="call it without out=, or within torch.no_grad()")
    if have_memory(tensors.values()):
        want_apart(of.caller, LIBRARY, tensors.pop("out"), tensors)


def given(of: ArrayArguments, found: Tensor, out: Tensor | None) -> Tensor:
    """Return the result, copied into the caller's tensor if there is one."""
    if out is None:
        return found
    want_shape(of.caller, out, found.shape)
    if not (out.is_floating_point() if found.is_floating_point() else out.dtype != torch.bool):
        kinds = [str(t.dtype).removeprefix("torch.") for t in (out, found)]
        raise CallError(f"{of.caller}: out is {kinds[0]}, but the result is {kinds[1]}", loc=here(), remedy=INSTEAD)
    return out.copy_(found)
