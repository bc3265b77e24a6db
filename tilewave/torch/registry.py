"""Operators of torch in the namespace `tilewave`: what runs, what their results look like, gradients, autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewave.torch.tensors import bare

NAMESPACE = "tilewave"
AUTOCAST = {"cpu": "CPU", "cuda": "CUDA"}
Run = Callable[..., Any]
Cast = Callable[[str, Sequence[Any]], Sequence[Any]]
"""Of a kind of device and the arguments of a call under autocast, what the operator gets."""

DEFINED: set[str] = set()
"""The names of all operators so far."""
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def define(
    name: str,
    schema: str,
    run: Run,
    fake: Run,
    *,
    mutates: Sequence[str] = (),
    save: Run | None = None,
    backward: Run | None = None,
    cast: Cast | None = None,
) -> Any:
    """The operator; `save(ctx, inputs, output)` keeps for `backward(ctx, *grads)` what that needs."""

    def bare_run(*args: Any) -> Any:
        return run(*map(bare, args))

    DEFINED.add(name)
    made = torch.library.custom_op(f"{NAMESPACE}::{name}", bare_run, mutates_args=mutates, schema=schema)
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=save)
    operator = getattr(getattr(torch.ops, NAMESPACE), name)  # its `.default` would be no event of a profile
    for device, key in AUTOCAST.items() if cast is not None else ():
        _LIBRARY.impl(name, _casting(operator, cast, device, key), f"Autocast{key}")
    return operator


def free_name(wanted: str) -> str:
    """The name, or one like it where an operator has it already."""
    found, count = wanted, 2
    while found in DEFINED:
        found, count = f"{wanted}_{count}", count + 1
    return found


def _casting(operator: Any, cast: Any, device: str, key: str) -> Run:
    """What stands in front of an operator under autocast: its arguments are cast, and autocast has done its part."""
    mine = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{key}"))

    def under_autocast(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(mine):
            return operator(*cast(device, args))

    return under_autocast


def to_autocast_dtype(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Floats in the dtype that autocast asks for: products are faster in it."""
    return _cast(args, torch.get_autocast_dtype(device))


def to_float32(device: str, args: Sequence[Any]) -> Sequence[Any]:
    """Floats in f32: sums and exponents need its digits."""
    return _cast(args, torch.float32)


def _cast(args: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    return [
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in args
    ]
