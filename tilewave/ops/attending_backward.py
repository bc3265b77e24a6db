"""The backward pass of attention on arrays."""

from __future__ import annotations

from tilewave.ir.types import DType
from tilewave.kernels.attention_fused_backward import (
    Adding,
    adding_for,
    attention_fused_backward_calls,
)
from tilewave.kernels.attention_gradients import WantedGradients, attention_backward_calls
from tilewave.kernels.attentions import AttentionAsked
from tilewave.ops.arrays import Array, ArrayLibrary, Shape, broadcast
from tilewave.ops.attending import stacked
from tilewave.ops.plans import CallWork, KernelLaunch, Operated, given_only

ALIGNED_ROWS = 32
"""Statistics of a head begin at multiples of so many numbers, of 4 bytes, so that TMA loads them."""


def _attention_backward(
    lib: ArrayLibrary,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    y: Array,
    lse: Array,
    grad: Array,
    grad_lse: Array | None,
    grad_bias: Array | None,
    asked: AttentionAsked,
    wanted: WantedGradients,
    adding: Adding | None = None,
    in_any_order: bool = False,
) -> CallWork:
    inputs = {"q": q, "k": k, "v": v}
    results = {
        f"grad_{name}": lib.empty(tuple(x.shape), lib.dtype("attention", name, x), x)
        for (name, x), is_wanted in zip(inputs.items(), wanted, strict=True)
        if is_wanted
    }
    added = None if bias is None else broadcast("attention", lib, "bias", bias, (*q.shape[:-1], k.shape[-2]))
    given = given_only(**inputs, bias=added, y=y, grad=grad, grad_bias=grad_bias, **results)
    arrays = {name: stacked(x) for name, x in given.items()}
    arrays |= given_only(**{name: _rows(x, arrays["q"]) for name, x in (("lse", lse), ("grad_lse", grad_lse))})
    scratch: dict[str, Array] = {}

    def make(name: str, dtype: DType, shape: Shape) -> Array:
        if len(shape) > 3:
            scratch[name] = lib.empty(shape, dtype, q)
            return scratch[name]
        batch, heads, rows = shape
        pitch = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS
        scratch[name] = lib.empty((batch, heads, pitch), dtype, q)
        return lib.strided(scratch[name], shape, (heads * pitch, pitch, 1))

    if adding is None and all(wanted) and grad_bias is None:
        adding = adding_for(arrays, in_any_order)
    if adding is None:
        found = attention_backward_calls(arrays, make, asked, wanted)
    else:
        found = attention_fused_backward_calls(arrays, make, asked, adding)
    calls = [KernelLaunch(*call) for call in found]
    if grad_bias is not None:
        results["grad_bias"] = grad_bias
    return CallWork(results, calls[0], tuple(calls[1:]), scratch)


def _rows(x: Array | None, q: Array) -> Array | None:
    """Return numbers of rows with the axes batch, head and position of q."""
    return None if x is None else x.reshape(tuple(q.shape[:3]))


attention_backward = Operated(
    "attention_backward",
    ("q", "k", "v", "bias?", "y", "lse", "grad", "grad_lse?", "grad_bias?"),
    _attention_backward,
)
"""The gradients of q, k and v that are wanted; further arguments are the options of the call, and which those are.

With one argument more, how workgroups add, all three are computed by a kernel of five products. With a second one, that
sums may be added in any order, they are so where that is quicker; the last bits then differ from run to run.

grad_bias, if given, is the gradient of the scores, and 0 already where masks hide whole blocks.
"""
