"""`patch(model)`: run the layers of a model as tilewave kernels, and report which ones and why not others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tilewave.errors import CallError, TilewaveError, here
from tilewave.ops.arrays import target_of
from tilewave.records import dataclass
from tilewave.torch.attention_calls import NAME as ATTENTION
from tilewave.torch.attention_calls import WithOurAttention, calls_attention, where_ours
from tilewave.torch.layers import OURS, THEIRS_OF, OurLinear, Passed, activation_of, is_multiplied, why_no_products
from tilewave.torch.tensors import LIBRARY, device_name

ROUNDS, BURST = 5, 10
"""Timing of a layer: alternating repetitions, and the calls in each."""


@dataclass(frozen=True)
class Layer:
    """A layer of a model, by its name there, and whether it was patched."""

    name: str
    kind: str
    is_ours: bool
    why: str

    def __str__(self) -> str:
        whose, why = "ours " if self.is_ours else "torch", f", {self.why}" if self.why else ""
        return f"{whose}  {self.name or '(the model)'}: {self.kind}{why}"


@dataclass(frozen=True)
class PatchReport:
    """Which layers of a model run as tilewave kernels, and why others do not; prints as a list."""

    layers: tuple[Layer, ...]

    @property
    def ours(self) -> list[str]:
        return [layer.name for layer in self.layers if layer.is_ours]

    @property
    def torchs(self) -> dict[str, str]:
        """The names of layers that torch still runs, and the reason for each."""
        return {layer.name: layer.why for layer in self.layers if not layer.is_ours}

    def __str__(self) -> str:
        return "\n".join(map(str, self.layers))


def patch(model: nn.Module, *inputs: Any, **named: Any) -> PatchReport:
    """Run a model's linear layers, norms, softmaxes and attention as tilewave kernels; its parameters do not change.

    Modules whose `forward` names `scaled_dot_product_attention` call tilewave's instead. A call whose dtype has no
    kernel, such as f32 products on Hopper, runs torch's layer; under autocast the dtype is autocast's. With inputs for
    the model, each other layer is timed as they use it, and is left to torch where that is faster.
    """
    _want_model("patch", model)
    found = {name: _considered(name, module) for name, module in _layers(model)}
    for name, module in _layers(model):
        if found[name].is_ours:
            module.__class__ = OURS[type(module)]
    for name, module in model.named_modules():
        if calls_attention(module):
            module.forward = WithOurAttention(module)
            found[f"{name}.{ATTENTION}" if name else ATTENTION] = Layer(name, ATTENTION, True, where_ours(model))
    for name, linear, activation in _pairs(model):
        if name in found and found[name].is_ours:
            linear.activation = activation
            found[name] = replace(found[name], why=_joined(f"with the {activation} after it", found[name].why))
    if inputs or named:
        found |= _measured(model, inputs, named, found)
    return PatchReport(tuple(found.values()))


def unpatch(model: nn.Module) -> None:
    """Change a patched model's layers back into torch's."""
    _want_model("unpatch", model)
    for module in list(model.modules()):
        _turn_back(module)
        if isinstance(module.__dict__.get("forward"), WithOurAttention):
            del module.forward
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Passed):
                setattr(parent, name, child.activation)


def _joined(*reasons: str) -> str:
    return ", ".join(filter(None, reasons))


def _want_model(caller: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        what = f"{caller}: this is of {type(model).__name__}, and no model of torch's"
        raise CallError(what, loc=here(), remedy="pass a torch.nn.Module")


def _turn_back(module: nn.Module) -> None:
    theirs = THEIRS_OF.get(type(module))
    if theirs is not None:
        module.__class__ = theirs
        module.__dict__.pop("activation", None)


# which layers -------------------------------------------------------------------------------------------------------


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that tilewave has a kernel for, and subclasses of these, which are reported but not patched."""
    for name, module in model.named_modules():
        if isinstance(module, tuple(OURS)) and type(module) not in THEIRS_OF:
            yield name, module


def _considered(name: str, module: nn.Module) -> Layer:
    kind = next(theirs for theirs in OURS if isinstance(module, theirs)).__name__
    if type(module) not in OURS:
        return Layer(name, kind, False, f"of another class, {type(module).__name__}")
    weight = getattr(module, "weight", None)
    if weight is None:
        return Layer(name, kind, True, "")
    try:
        LIBRARY.dtype(kind, "weight", weight)
        device = device_name(weight.device)
        if not weight.is_meta:
            target_of("a layer", device)
    except TilewaveError as error:
        return Layer(name, kind, False, error.what)
    return Layer(name, kind, True, _only_under_autocast(device, weight) if isinstance(module, nn.Linear) else "")


def _only_under_autocast(device: str, weight: Any) -> str:
    """Return what to say of a linear layer whose own dtype has no products; empty where it has."""
    missing = why_no_products(device, weight.dtype, LIBRARY.digits())
    return missing and f"under autocast; otherwise torch's, since {missing}"


def _pairs(model: nn.Module) -> Iterator[tuple[str, OurLinear, str]]:
    """Fuse activations into the linear layers that they follow, and yield each: name, layer, activation."""
    for name, parent in list(model.named_modules()):
        if type(parent) is not nn.Sequential:
            continue
        for (first, one), (second, other) in zip(
            parent.named_children(), list(parent.named_children())[1:], strict=False
        ):
            activation = activation_of(other)
            if type(one) is OurLinear and activation and not _is_watched(one) and not _is_watched(other):
                setattr(parent, second, Passed(other))
                yield f"{name}.{first}" if name else first, one, activation


def _is_watched(module: nn.Module) -> bool:
    """Return whether a module has hooks on its inputs, outputs or gradients."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


# which are faster ---------------------------------------------------------------------------------------------------


@dataclass
class _Calls:
    """The arguments of each layer's first call."""

    given: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def hook(self, name: str) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.given.setdefault(name, args)

        return keep


def _measured(
    model: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], found: Mapping[str, Layer]
) -> dict[str, Layer]:
    """Return the layers with their times; those that torch computes faster are changed back."""
    calls, modules = _Calls(), dict(model.named_modules())
    ours = [name for name, layer in found.items() if layer.is_ours and layer.kind != ATTENTION]
    hooks = [modules[name].register_forward_pre_hook(calls.hook(name)) for name in ours]
    with torch.no_grad():
        model(*inputs, **named)
        for hook in hooks:
            hook.remove()
        return {name: _judged(found[name], modules[name], args) for name, args in calls.given.items()}


def _judged(layer: Layer, module: nn.Module, args: tuple[Any, ...]) -> Layer:
    if isinstance(module, OurLinear) and not is_multiplied(args[0]):
        return replace(layer, why=_joined(layer.why, "and not timed, since these inputs are not under autocast"))
    fused = getattr(module, "activation", None)
    ours, theirs = _in_turns(module, THEIRS_OF[type(module)], args)
    times = f"{ours:.0f} µs compared with torch's {theirs:.0f}"
    why = _joined(layer.why, times)
    if ours <= theirs or fused:  # without the fusion torch would need another pass for the activation
        return replace(layer, why=why)
    _turn_back(module)
    return replace(layer, is_ours=False, why=f"torch is faster: ours takes {times}")


def _in_turns(module: nn.Module, theirs: Any, args: tuple[Any, ...]) -> tuple[float, float]:
    """Return the microseconds of tilewave's and of torch's layer, medians of alternating repetitions."""
    calls = (lambda: module(*args)), (lambda: theirs.forward(module, *args))
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for call, times in zip(calls, found, strict=True):
            times.append(_burst(call))
    ours, others = (float(np.median(times[1:])) for times in found)  # the first repetition compiles and warms up
    return ours, others


def _burst(call: Any) -> float:
    _wait()
    start = time.perf_counter()
    for _ in range(BURST):
        call()
    _wait()
    return (time.perf_counter() - start) / BURST * 1e6


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
