"""Operations that allocate their results and choose how they are cut: `matmul(a, b)`.

They take numpy arrays, torch tensors, and what speaks DLPack, in any layout; torch differentiates and compiles them.
Each shows the kernel that a call runs, `matmul.kernel(a, b)`, and has its backward pass beside it.
"""

from __future__ import annotations

from typing import Any

from tilewave.errors import CallError, here
from tilewave.kernels.norms import layer_norm_kernel, rms_norm_kernel
from tilewave.kernels.rows import kernel_for
from tilewave.kernels.softmaxes import softmax_kernel
from tilewave.lang.kernel import WaveKernel
from tilewave.ops import products, rows
from tilewave.ops.arrays import Array, ArrayLibrary, are_torchs, taken, torch_operators
from tilewave.ops.attending import AttentionAsked, attention_kernel_of
from tilewave.ops.attending import attention as attend
from tilewave.ops.operation import Operation


def _matmul(a: Array, b: Array, *, out: Array | None = None) -> Array:
    """a · b, with batches and broadcasting as `torch.matmul` has them."""
    if are_torchs(a, b):
        return torch_operators().matmul(a, b, out)
    lib, (a, b, out) = taken("matmul", a=a, b=b, out=out)
    return products.matmul(lib, (a, b, out), lib.digits())


def _linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> Array:
    """activation(x · weightᵀ + bias) + residual; an activation is gelu, gelu_tanh, relu or silu."""
    if are_torchs(x, weight):
        return torch_operators().linear(x, weight, bias, activation, residual, out)
    lib, (x, weight, bias, residual, out) = taken("linear", x=x, weight=weight, bias=bias, residual=residual, out=out)
    return products.linear(lib, (x, weight, bias, residual, out), activation, False, lib.digits())


def _softmax(x: Array, dim: int = -1, *, out: Array | None = None) -> Array:
    """exp(x) / the sum of exp(x) along an axis."""
    if are_torchs(x):
        return torch_operators().softmax(x, dim, out)
    lib, (x, out) = taken("softmax", x=x, out=out)
    if dim in (-1, len(x.shape) - 1):
        return rows.softmax(lib, (x, out))
    if out is not None:
        what = f"softmax: out is for the last axis, and dim is {dim}"
        raise CallError(what, loc=here(), remedy="leave out away")
    return rows.softmax(lib, (x.swapaxes(dim, -1), None)).swapaxes(dim, -1)


def _rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    residual: Array | None = None,
    out: Array | None = None,
) -> Any:
    """x / sqrt(mean of x² + eps) · weight along the last axis.

    With a residual: the norm of x + residual, and that sum.
    """
    if are_torchs(x):
        return torch_operators().rms_norm(x, weight, eps, residual, out)
    lib, (x, weight, residual, out) = taken("rms_norm", x=x, weight=weight, residual=residual, out=out)
    if residual is None:
        return rows.rms_norm(lib, (x, weight, out), eps)
    return rows.add_rms_norm(lib, (x, residual, weight), eps)


def _layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *, out: Array | None = None
) -> Array:
    """(x - mean) / sqrt(variance + eps) · weight + bias along the last axis."""
    if are_torchs(x):
        return torch_operators().layer_norm(x, weight, bias, eps, out)
    lib, (x, weight, bias, out) = taken("layer_norm", x=x, weight=weight, bias=bias, out=out)
    return rows.layer_norm(lib, (x, weight, bias, out), eps)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """softmax(q · kᵀ · scale + bias) · v for every query of every head; the last query stands at the last key."""
    if are_torchs(q):
        return torch_operators().attention(q, k, v, bias, causal, window, scale, soft_cap, out)
    lib, (q, k, v, bias, out) = taken("attention", q=q, k=k, v=v, bias=bias, out=out)
    return attend(lib, (q, k, v, bias, out), AttentionAsked(causal, window, scale, soft_cap), False)


# the kernel of a call -----------------------------------------------------------------------------------------------


def _library(caller: str, **arrays: Array | None) -> tuple[ArrayLibrary, list[Array]]:
    """Of any arrays, torch's too."""
    if are_torchs(*arrays.values()):
        return torch_operators().LIBRARY, list(arrays.values())
    return taken(caller, **arrays)


def _matmul_kernel(a: Array, b: Array) -> WaveKernel:
    lib, (a, b) = _library("matmul", a=a, b=b)
    return products.matmul_kernel(lib, a, b)


def _linear_kernel(
    x: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None, residual: Array | None = None
) -> WaveKernel:
    lib, (x, weight, bias, residual) = _library("linear", x=x, weight=weight, bias=bias, residual=residual)
    return products.linear_kernel(lib, x, weight, bias, activation, residual)


def _softmax_kernel(x: Array) -> WaveKernel:
    return kernel_for(softmax_kernel, x=products.folded(x), y=products.folded(x))


def _rms_norm_kernel(x: Array, weight: Array | None = None) -> WaveKernel:
    return kernel_for(rms_norm_kernel, x=products.folded(x), y=products.folded(x), weight=weight)


def _layer_norm_kernel(x: Array, weight: Array | None = None, bias: Array | None = None) -> WaveKernel:
    return kernel_for(layer_norm_kernel, x=products.folded(x), y=products.folded(x), weight=weight, bias=bias)


def _attention_kernel(q: Array, k: Array, v: Array, *, causal: bool = False) -> WaveKernel:
    _, (q, k, v) = _library("attention", q=q, k=k, v=v)
    return attention_kernel_of(q, k, v, AttentionAsked(causal))


attention = Operation("attention", _attention, _attention_kernel)
matmul = Operation("matmul", _matmul, _matmul_kernel)
linear = Operation("linear", _linear, _linear_kernel)
softmax = Operation("softmax", _softmax, _softmax_kernel)
rms_norm = Operation("rms_norm", _rms_norm, _rms_norm_kernel)
layer_norm = Operation("layer_norm", _layer_norm, _layer_norm_kernel)
