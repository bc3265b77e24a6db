"""Modules that call torch's `scaled_dot_product_attention`: patched ones call tilewave's where it applies."""

from __future__ import annotations

from math import inf
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tilewave.ops.arrays import constant_for_compilers
from tilewave.torch.attention_operators import attention
from tilewave.torch.autocast import product_dtype
from tilewave.torch.layers import runs_on
from tilewave.torch.tensors import device_name

NAME = "scaled_dot_product_attention"
_THEIRS = nn.functional.scaled_dot_product_attention
HALVES = (torch.float16, torch.bfloat16)


def calls_attention(module: nn.Module) -> bool:
    """Return whether the `forward` of a module's class names torch's attention."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and _names(code) and "forward" not in module.__dict__


def _names(code: CodeType) -> bool:
    return NAME in code.co_names or any(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))


class WithOurAttention:
    """The `forward` of a module, in which calls of torch's attention run tilewave's."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **named: Any) -> Any:
        with _OurAttention():
            return type(self.module).forward(self.module, *args, **named)


class _OurAttention(TorchFunctionMode):  # type: ignore[misc]
    watches_operators = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        answers = scaled_dot_product_attention if function is _THEIRS else function
        return answers(*args, **named or {})


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's function of that name; falls back to torch for dropout, or for a causal mask of another alignment."""
    if not _is_ours(query, key, value, dropout_p, is_causal, enable_gqa):
        return _THEIRS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, -inf)
    return attention(query, key, value, bias, is_causal, scale=scale)


def _is_ours(q: Tensor, k: Tensor, v: Tensor, dropped: float, causal: bool, grouped: bool) -> bool:
    """Return whether tilewave's attention serves a call; causal masks are torch's only for equally many q and k."""
    same_axes = q.dim() == k.dim() == v.dim() and q.dim() >= 2
    dtype, *others = map(product_dtype, (q, k, v))
    if dropped or not same_axes or others != [dtype] * 2 or (causal and q.shape[-2] != k.shape[-2]):
        return False
    heads = grouped or q.dim() < 3 or q.shape[-3] == k.shape[-3]
    same = q.shape[:-3] == k.shape[:-3] == v.shape[:-3]
    return bool(heads and same and takes(device_name(q.device), dtype))


@constant_for_compilers
def takes(device: str, dtype: torch.dtype) -> bool:
    """Return whether there is a kernel for a dtype on a device: GPUs take 16-bit floats, the CPU all dtypes."""
    return runs_on(device) and (dtype in HALVES or device in ("cpu", "meta"))


def where_ours(model: nn.Module) -> str:
    """Return for which calls of a model on its device tilewave's attention is taken."""
    weight = next(model.parameters(), None)
    always = weight is None or takes(device_name(weight.device), torch.float32)
    return "where nothing is dropped" if always else "in 16-bit floats, where nothing is dropped"
