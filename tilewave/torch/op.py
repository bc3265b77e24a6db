"""`op(kernel)`: a torch operator from any kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tilewave.errors import CallError, TraceError, here
from tilewave.lang.kernel import WaveKernel, given_subs
from tilewave.lang.symbols import Symbol
from tilewave.ops.arrays import ArrayLibrary
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.torch.registry import define, free_name
from tilewave.torch.signatures import OperatorSignature, signature_of
from tilewave.torch.tensors import LIBRARY


class TorchOperator:
    """A kernel as a torch operator: called with tensors, it allocates and returns the results."""

    def __init__(
        self, kernel: WaveKernel, signature: OperatorSignature, name: str, gradients: Sequence[_Gradients]
    ) -> None:
        self.kernel, self.signature, self.name = kernel, signature, name
        self.arguments = signature.arguments
        self._calls = Operated(kernel.name, signature.arrays, self._work, len(signature.given) - len(signature.arrays))
        self._gradients = gradients
        differentiated = not signature.mutated
        self._operator = define(
            name,
            signature.schema,
            self._run,
            self._fake,
            mutates=signature.mutated,
            save=self._save if differentiated else None,
            backward=self._backward if differentiated else None,
            cast=signature.cast,
        )
        self.operator = self._operator.registered
        """The registered torch operator."""

    def __repr__(self) -> str:
        return f"<operator tilewave::{self.name}{self.signature.schema}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the results; arguments come in the kernel's order without the allocated ones, or by name."""
        if named or len(args) != len(self.arguments):
            args = self._bound(args, named)
        self.signature.want_tensors(args)
        if self.signature.mutated:
            self._want_no_gradient([x for x in args if isinstance(x, Tensor)])
            return self.operator(*args)
        return self._operator(*args)

    def _want_no_gradient(self, tensors: Sequence[Tensor]) -> None:
        """Refuse tensors that require gradients: torch would silently lose those of tensors changed in place."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            what = (
                f"{self.kernel.name} changes {self.signature.mutated[0]} in place, and an argument requires gradients"
            )
            remedy = "pass tensors without, such as x.detach(), or call it within torch.no_grad()"
            raise CallError(what, loc=here(), remedy=remedy)

    def _bound(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        later = self.arguments[len(args) :]
        if len(args) > len(self.arguments) or {*later} != {*named}:
            wanted, got = ", ".join(self.arguments), ", ".join([*map(_kind, args), *named])
            what = f"{self.name}: takes {wanted}, but got {got or 'nothing'}"
            raise CallError(what, loc=here(), remedy=f"call it with ({wanted})")
        return (*args, *(named[name] for name in later))

    def _run(self, *args: Any) -> Any:
        arrays, others = self.signature.parted(args)
        return self._calls(LIBRARY, arrays, *others)

    def _work(self, lib: ArrayLibrary, *parted: Any) -> CallWork:
        """Return the work of a call, given its tensors and then its scalar arguments."""
        signature = self.signature
        args = signature.joined(parted)
        signature.check(args)
        found = signature.allocated(args)
        every = {**dict(zip(signature.given, args, strict=False)), **found}
        arrays = {name: every[name] for name in signature.parameters if isinstance(every[name], Tensor)}
        numbers = {name: every[name] for name in signature.parameters if name not in arrays}
        names = (*arrays, *numbers)
        order = tuple(map(names.index, signature.parameters))
        return CallWork(found, KernelLaunch(self.kernel, arrays, tuple(numbers.values()), order))

    def _fake(self, *args: Any) -> Any:
        self.signature.check(args)
        return _given_back(list(self.signature.allocated(args).values()))

    # -- gradients

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        names = (*self.arguments, *self.signature.results)
        known = dict(zip(names, (*inputs, *results), strict=True))
        wanted = {name: known[name] for gradient in self._gradients for name in gradient.wanted if name in known}
        ctx.tensors = [name for name, value in wanted.items() if isinstance(value, Tensor)]
        ctx.numbers = {name: value for name, value in wanted.items() if name not in ctx.tensors}
        ctx.save_for_backward(*(wanted[name] for name in ctx.tensors))

    def _backward(self, ctx: Any, *grads: Tensor) -> Any:
        if not self._gradients:
            what = f"{self.kernel.name} has no backward pass"
            remedy = (
                f"name it: tilewave.torch.op({self.kernel.name}, backward=…); or pass tensors that need no gradient"
            )
            raise CallError(what, loc=here(), remedy=remedy)
        known = {**ctx.numbers, **dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))}
        known |= {f"grad_{name}": grad for name, grad in zip(self.signature.results, grads, strict=True)}
        found: dict[str, Any] = {}
        for gradient in self._gradients:
            found |= gradient(known)
        every = [found.get(name) for name in self.arguments]
        return every[0] if len(every) == 1 else tuple(every)


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)


def described(value: object) -> str:
    return f"{value!r}, of {type(value).__name__}"


def _given_back(results: list[Any]) -> Any:
    return tuple(results) if len(results) > 1 else results[0] if results else None


# backward passes ----------------------------------------------------------------------------------------------------


class _Gradients:
    """One part of a backward pass: the names of its inputs, and the gradients that it returns, by argument."""

    def __init__(self, wanted: Sequence[str], compute: Callable[..., Mapping[str, Any]]) -> None:
        self.wanted, self.compute = wanted, compute

    def __call__(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.compute(**{name: known[name] for name in self.wanted})


def _gradients(forward: OperatorSignature, backward: Any) -> _Gradients:
    """Return a part of the backward pass: a kernel, an operator or a function, whose parameter names say its inputs."""
    made = op(backward) if isinstance(backward, WaveKernel) else backward
    if not callable(made):
        what = f"op: backward is {described(made)}, which computes no gradients"
        raise TraceError(what, loc=here(), remedy="pass a kernel, an operator or a function, or several of them")
    known = {*forward.arguments, *forward.results, *(f"grad_{name}" for name in forward.results)}
    if not isinstance(made, TorchOperator):
        wanted = tuple(inspect.signature(made).parameters)
        _want_known(forward, getattr(made, "__name__", "backward"), wanted, known)
        return _Gradients(wanted, made)
    _want_known(forward, made.kernel.name, made.arguments, known)
    results = made.signature.results
    for name in results:
        if name.removeprefix("grad_") not in forward.given or not name.startswith("grad_"):
            what = f"op: {made.kernel.name} gives {name}, which is the gradient of no argument of {forward.kernel}"
            remedy = f"call its results {', '.join(f'grad_{n}' for n in forward.given)}, as many as it has"
            raise TraceError(what, loc=here(), remedy=remedy)

    def compute(**given: Any) -> dict[str, Any]:
        found = made(**given)
        every = found if isinstance(found, tuple) else (found,)
        return {name.removeprefix("grad_"): grad for name, grad in zip(results, every, strict=True)}

    return _Gradients(made.arguments, compute)


def _want_known(forward: OperatorSignature, name: str, wanted: Sequence[str], known: set[str]) -> None:
    for parameter in wanted:
        if parameter not in known:
            what = f"op: {name} wants {parameter}, which is nothing of {forward.kernel}"
            raise TraceError(what, loc=here(), remedy=f"it may want {', '.join(sorted(known))}")


# op -----------------------------------------------------------------------------------------------------------------


def _want_kernel(kernel: object) -> None:
    if not isinstance(kernel, WaveKernel):
        what = f"op: {described(kernel)} is no kernel"
        raise TraceError(what, loc=here(), remedy="pass a function that @wave([…]) decorates")


def _want_names(kernel: WaveKernel, results: object, name: object) -> None:
    """Raise where `results` is no list of names, or torch cannot register an operator under `name`."""
    if results is not None and not _are_names(results):
        what = f"op: results is {results!r}, no list of different names"
        raise TraceError(what, loc=here(), remedy=f'name arrays that {kernel.name} writes: results=["y"]')
    if name is not None and not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        what = f"op: an operator cannot be called {name!r}"
        raise TraceError(what, loc=here(), remedy=f"write letters, digits and _: name={kernel.name!r}")


def _are_names(results: object) -> bool:
    listed = isinstance(results, (list, tuple)) and all(isinstance(one, str) for one in results)
    return listed and len({*results}) == len(results)  # type: ignore[misc, arg-type]


_MADE: dict[Any, TorchOperator] = {}


def op(
    kernel: WaveKernel,
    *,
    results: Sequence[str] | None = None,
    backward: Any = (),
    subs: Mapping[Symbol, Any] | None = None,
    name: str | None = None,
) -> TorchOperator:
    """Return a torch operator, `torch.ops.tilewave.<name>`, for a kernel.

    `results` are the arrays that it allocates and returns: by default all that the kernel writes and does not read.
    Other arrays that the kernel writes are changed in place. `backward` is a kernel, an operator or a function, or
    several of them: each gets the arguments, results and gradients of results (`grad_c`) that its parameters are named
    after, and a kernel writes the gradients of arguments (`grad_a`); a function returns them as {"a": …}.
    """
    _want_kernel(kernel)
    _want_names(kernel, results, name)
    parts = tuple(backward) if isinstance(backward, (tuple, list)) else (backward,)
    fixed = given_subs(subs or {})
    key = kernel, None if results is None else tuple(results), parts, tuple(fixed.items()), name
    if key not in _MADE:
        kept = replace(kernel, subs={**kernel.subs, **fixed}, kept={}) if fixed else kernel
        signature = signature_of(kept, None if results is None else tuple(results))
        gradients = [_gradients(signature, part) for part in parts]
        if gradients and signature.mutated:
            what = f"op: {kernel.name} changes {signature.mutated[0]} in place, and torch differentiates results alone"
            raise TraceError(what, loc=here(), remedy=f"name it a result, or wrap {kernel.name} in a function of yours")
        _MADE[key] = TorchOperator(kept, signature, free_name(name or kernel.name), gradients)
    return _MADE[key]
