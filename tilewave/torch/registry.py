"""Torch operators in the namespace `tilewave`: implementation, shapes of results, gradients, autocast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewave.torch.autocast import AUTOCAST, Cast, is_cast
from tilewave.torch.tensors import are_plain, free_layout, is_autocast, is_grad_enabled, is_unwatched

NAMESPACE = "tilewave"
Run = Callable[..., Any]

DEFINED: set[str] = set()
"""The names of all operators so far."""
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator:
    """A torch operator; calls outside compilers, modes and profilers skip torch's dispatcher."""

    def __init__(self, registered: Any, run: Run, differentiated: Any, cast: Cast | None) -> None:
        self.registered, self.run, self.differentiated, self.cast = registered, run, differentiated, cast
        """`differentiated` runs the operator and records its backward pass; None: it has none."""

    def __call__(self, *args: Any) -> Any:
        if is_unwatched():
            args = self.cast_here(args) if is_autocast() else args
            tensors = tuple([x for x in args if isinstance(x, torch.Tensor)])
            if free_layout(tensors) is not None:
                return self.run(*args)
            if self.differentiated is not None and is_grad_enabled() and are_plain(tensors):
                return self.differentiated(*args)
        return self.registered(*args)

    def recorded(self, arrays: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """Return the results of a call that autograd records and nothing else in torch observes; None for other calls.

        `arrays` are those among the arguments, which `free_layout` has refused, and `out`.
        """
        if arrays[-1] is None and is_grad_enabled() and are_plain(arrays):
            return self.differentiated(*args)
        return None

    def cast_here(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments that the dispatcher would pass on under autocast."""
        device = next(x.device.type for x in args if isinstance(x, torch.Tensor))
        return tuple(self.cast(device, args)) if self.cast is not None and is_cast(device) else args


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
    directly: Run | None = None,
) -> Operator:
    """Define and return an operator; `save(ctx, inputs, output)` stores what `backward(ctx, *grads)` needs.

    Calls that skip torch's dispatcher run `directly`, if given: it may return None where `run` makes an empty tensor.
    """
    DEFINED.add(name)
    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=mutates, schema=schema)
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=save)
    registered = getattr(getattr(torch.ops, NAMESPACE), name)  # calls of its `.default` do not appear in profiles
    for device, key in AUTOCAST.items() if cast is not None else ():
        _LIBRARY.impl(name, _casting(registered, cast, device, key), f"Autocast{key}")
    skipping = directly or run
    differentiated = None if backward is None or save is None else _differentiated(name, skipping, save, backward)
    return Operator(registered, skipping, differentiated, cast)


def _differentiated(name: str, run: Run, save: Run, backward: Run) -> Any:
    """Return the operator as a torch.autograd.Function, which takes a fifth of the dispatcher's time.

    `Function.apply` looks for functorch's transforms before it calls the method that is returned; `is_unwatched` has.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        output = run(*args)
        save(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made = type(name, (torch.autograd.Function,), members)
    return super(torch.autograd.Function, made).apply


def free_name(wanted: str) -> str:
    """Return the name, with a number appended where an operator has it already."""
    found, count = wanted, 2
    while found in DEFINED:
        found, count = f"{wanted}_{count}", count + 1
    return found


def _casting(operator: Any, cast: Any, device: str, key: str) -> Run:
    """Return an operator's implementation under autocast: it casts the arguments and calls it without autocast."""
    mine = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{key}"))

    def under_autocast(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(mine):
            return operator(*cast(device, args))

    return under_autocast
