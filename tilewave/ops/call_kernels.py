"""The kernel that a call of an operation launches, as `matmul.kernel(a, b)` returns it."""

from __future__ import annotations

from typing import Any

from tilewave.errors import CallError, here
from tilewave.kernels.attentions import AttentionAsked
from tilewave.kernels.norms import layer_norm_for, rms_norm_kernel
from tilewave.kernels.numbers import checked_causal
from tilewave.kernels.rows import kernel_for
from tilewave.kernels.softmaxes import softmax_kernel
from tilewave.lang.kernel import WaveKernel
from tilewave.ops import dropouts, gates, grouped, indexed, losses, products, rows, selections
from tilewave.ops.arrays import Array, ArrayArguments, ArrayLibrary, are_torchs, folded, taken, torch_operators
from tilewave.ops.attending import attention as attend
from tilewave.ops.attending import attention_kernel_of
from tilewave.ops.indexed import axis_of
from tilewave.ops.plans import Operated


def _library(of: ArrayArguments, *arrays: Array | None) -> tuple[ArrayLibrary, list[Array]]:
    """Return the library of a call's arrays, torch included, and the arrays; missing ones at the end are None."""
    given = (*arrays, *[None] * (len(of.names) - len(arrays)))
    if not are_torchs(*given):
        return taken(of, *given)
    torch_operators().want_tensors(of, given)
    return torch_operators().LIBRARY, list(given)


def of_matmul(a: Array, b: Array) -> WaveKernel:
    lib, (a, b, _) = _library(products.matmul.arguments, a, b)
    return products.matmul_kernel(lib, a, b)


def of_linear(
    x: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None, residual: Array | None = None
) -> WaveKernel:
    lib, (x, weight, bias, residual, _) = _library(products.linear.arguments, x, weight, bias, residual)
    return products.linear_kernel(lib, x, weight, bias, activation, residual)


def of_softmax(x: Array) -> WaveKernel:
    given, _ = _rows_of(rows.softmax.arguments, x)
    return kernel_for(softmax_kernel, x=given, y=given)


def of_cumsum(x: Array) -> WaveKernel:
    lib, arrays = _library(rows.cumsum.arguments, x)
    return _run_by(rows.cumsum, lib, arrays)


def of_topk(x: Array, k: int) -> WaveKernel:
    lib, arrays = _library(selections.topk.arguments, x)
    return _run_by(selections.topk, lib, arrays, k)


def of_argmax(x: Array) -> WaveKernel:
    lib, arrays = _library(selections.argmax.arguments, x)
    return _run_by(selections.argmax, lib, arrays)


def of_rms_norm(x: Array, weight: Array | None = None) -> WaveKernel:
    given, (weight, _) = _rows_of(rows.rms_norm.arguments, x, weight)
    return kernel_for(rms_norm_kernel, x=given, y=given, weight=weight)


def of_layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None) -> WaveKernel:
    given, (weight, bias, _) = _rows_of(rows.layer_norm.arguments, x, weight, bias)
    return layer_norm_for(given, given, weight, bias)


def _rows_of(of: ArrayArguments, *arrays: Array | None) -> tuple[Array, list[Array]]:
    """Return the rows of x, the first of a call's arrays, and the other arrays."""
    lib, (x, *others) = _library(of, *arrays)
    rows.want_rows(of.caller, x)
    lib.dtype(of.caller, "x", x)
    return folded(x), others


def of_gated(gate: Array, up: Array, activation: str = "silu") -> WaveKernel:
    lib, arrays = _library(gates.gated.arguments, gate, up)
    return _run_by(gates.gated, lib, arrays, activation)


def of_dropout(x: Array, p: float = 0.5, *, seed: int = 0) -> WaveKernel:
    lib, arrays = _library(dropouts.dropout.arguments, x)
    return _run_by(dropouts.dropout, lib, arrays, p, seed)


def of_grouped_mm(a: Array, b: Array, ends: Array) -> WaveKernel:
    if grouped.is_transposed(a, b):
        return of_grouped_mm(b.swapaxes(0, 1), a.swapaxes(1, 2), ends)
    lib, arrays = _library(grouped.grouped_mm.arguments, a, b, ends)
    return _run_by(grouped.grouped_mm, lib, arrays)


def of_embedding(weight: Array, ids: Array) -> WaveKernel:
    lib, arrays = _library(indexed.embedding.arguments, weight, ids)
    return _run_by(indexed.embedding, lib, arrays)


def of_index_select(x: Array, dim: int, index: Array) -> WaveKernel:
    lib, arrays = _library(indexed.index_select.arguments, x, index)
    return _run_by(indexed.index_select, lib, arrays, axis_of("index_select", dim, x))


def of_index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> WaveKernel:
    lib, arrays = _library(indexed.index_add.arguments, x, index, source)
    return _run_by(indexed.index_add, lib, arrays, axis_of("index_add", dim, x), alpha)


def of_bincount(x: Array, length: int, weights: Array | None = None) -> WaveKernel:
    lib, arrays = _library(indexed.bincount.arguments, x, weights)
    return _run_by(indexed.bincount, lib, arrays, length)


def of_cross_entropy(logits: Array, labels: Array) -> WaveKernel:
    lib, arrays = _library(losses.cross_entropy.arguments, logits, labels)
    return _run_by(losses.cross_entropy, lib, arrays, -100, "none")


def _run_by(of: Operated, lib: ArrayLibrary, arrays: list[Array], *said: Any) -> WaveKernel:
    """Return the kernel of an operation's name among those that a call launches."""
    name = of.arguments.caller
    kernels = [launch.kernel for launch in of.work(lib, *arrays, *said).launches]
    kernels = [kernel for kernel in kernels if kernel.name == name] or kernels
    if not kernels:
        raise CallError(f"{name}: there is nothing to compute", loc=here(), remedy="pass arrays with elements")
    return kernels[0]


def of_attention(q: Array, k: Array, v: Array, *, causal: bool = False) -> WaveKernel:
    lib, (q, k, v, *_) = _library(attend.arguments, q, k, v)
    return attention_kernel_of(lib, q, k, v, AttentionAsked(checked_causal("attention", causal)))
