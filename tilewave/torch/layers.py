"""torch layers with tilewave's forward passes: subclasses that override `forward`, and can be changed back."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn

from tilewave.errors import SlowCodeWarning, TargetError, levels_to_author
from tilewave.ops.arrays import constant_for_compilers, target_of
from tilewave.ops.digits import Digits, instruction_for
from tilewave.torch.autocast import product_dtype
from tilewave.torch.operators import layer_norm, linear, rms_norm, softmax
from tilewave.torch.tensors import DTYPES_OF, LIBRARY, device_name, has_function_modes, is_compiling, is_unwatched

ACTIVATIONS = {nn.GELU: "gelu", nn.SiLU: "silu", nn.ReLU: "relu"}


def activation_of(module: nn.Module) -> str | None:
    """Return the activation that a layer computes, if a linear layer can apply it in its epilogue."""
    name = ACTIVATIONS.get(type(module))
    return "gelu_tanh" if name == "gelu" and module.approximate == "tanh" else name


Forward = Callable[[Any, Tensor], Tensor]


def unobserved(forward: Forward) -> Forward:
    """Return a layer's forward pass that does not call torch's function modes, where none of them observes operators.

    Otherwise a mode, such as that of a default device, is called for each attribute of a tensor that is read.
    """

    @wraps(forward)
    def run(layer: Any, x: Tensor) -> Tensor:
        if is_compiling() or not has_function_modes() or not is_unwatched():
            return forward(layer, x)
        with torch._C.DisableTorchFunction():
            return forward(layer, x)

    return run


class OurLinear(nn.Linear):  # type: ignore[misc]
    activation: str | None = None
    """The activation of the following layer, fused into this one; that layer is then the identity."""

    @unobserved
    def forward(self, x: Tensor) -> Tensor:
        if is_multiplied(x):
            return linear(x, self.weight, self.bias, self.activation)
        found = super().forward(x)
        return found if self.activation is None else THEIRS[self.activation](found)


THEIRS = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
}


class OurLayerNorm(nn.LayerNorm):  # type: ignore[misc]
    @unobserved
    def forward(self, x: Tensor) -> Tensor:
        if not runs_on(device_name(x.device)):
            return super().forward(x)
        axes = len(self.normalized_shape)
        weight, bias = (None if t is None else t.flatten() for t in (self.weight, self.bias))
        return layer_norm(_rows(x, axes), weight, bias, self.eps).reshape(x.shape)


class OurRmsNorm(nn.RMSNorm):  # type: ignore[misc]
    @unobserved
    def forward(self, x: Tensor) -> Tensor:
        if not runs_on(device_name(x.device)):
            return super().forward(x)
        weight = None if self.weight is None else self.weight.flatten()
        eps = default_eps(x.dtype) if self.eps is None else self.eps
        found: Tensor = rms_norm(_rows(x, len(self.normalized_shape)), weight, eps).reshape(x.shape)
        return found


@constant_for_compilers
def default_eps(dtype: torch.dtype) -> float:
    """Return what torch adds to an RMS norm's mean square by default: the eps of the dtype that it computes in."""
    return float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps)


def _rows(x: Tensor, axes: int) -> Tensor:
    """Return a tensor with its last axes collapsed into one."""
    return x if axes == 1 else x.flatten(-axes)


class OurSoftmax(nn.Softmax):  # type: ignore[misc]
    @unobserved
    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, self.dim) if runs_on(device_name(x.device)) else super().forward(x)


class Passed(nn.Module):  # type: ignore[misc]
    """An activation layer whose work the preceding linear layer does."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return x


OURS = {nn.Linear: OurLinear, nn.LayerNorm: OurLayerNorm, nn.RMSNorm: OurRmsNorm, nn.Softmax: OurSoftmax}
THEIRS_OF = {ours: theirs for theirs, ours in OURS.items()}


def is_multiplied(x: Tensor) -> bool:
    """Return whether tilewave has products in the dtype that a linear layer computes in for an input."""
    return _has_products(device_name(x.device), product_dtype(x))


@constant_for_compilers
def _has_products(device: str, dtype: torch.dtype) -> bool:
    return runs_on(device) and not why_no_products(device, dtype, LIBRARY.digits())


@cache
def why_no_products(device: str, dtype: torch.dtype, digits: Digits) -> str:
    """Return why no product of a dtype runs on a device that tilewave has code for; empty where one does."""
    if device == "meta" or dtype not in DTYPES_OF:
        return ""  # `linear` refuses other dtypes
    try:
        instruction_for(target_of("a linear layer", device), DTYPES_OF[dtype], digits)
    except TargetError as error:
        return error.what
    return ""


@constant_for_compilers
def runs_on(device: str) -> bool:
    """Return whether tilewave has code for a device; where it has none, warn once and let torch run the layer."""
    return has_target(device)


@cache
def has_target(device: str) -> bool:
    if device == "meta":
        return True
    try:
        target_of("a patched layer", device)
    except TargetError as error:
        what = f"{error.what}; torch's own layers run there"
        warnings.warn(what, SlowCodeWarning, stacklevel=levels_to_author())
        return False
    return True
