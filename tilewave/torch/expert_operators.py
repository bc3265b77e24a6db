"""moe and counting_sort as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewave.kernels.selections import Routing
from tilewave.ops import experts, sorts
from tilewave.torch.registry import define
from tilewave.torch.results import given, noted, want_writable
from tilewave.torch.tensors import LIBRARY, free_layout, is_free, want_tensors


def counting_sort(x: Tensor, length: int) -> tuple[Tensor, Tensor]:
    want_tensors(sorts.counting_sort.arguments, (x,))
    places, ends = _COUNTING_SORT(x, length)
    return places, ends


_COUNTING_SORT = define(
    "counting_sort",
    "(Tensor x, int length) -> (Tensor, Tensor)",
    lambda x, length: sorts.counting_sort(LIBRARY, (x,), length),
    lambda x, length: (x.new_empty(x.shape, dtype=torch.int32), x.new_empty((length,), dtype=torch.int32)),
)


def moe(
    x: Tensor,
    logits: Tensor,
    w1: Tensor,
    w2: Tensor,
    top_k: int,
    routing: Routing,
    activation: str,
    out: Tensor | None = None,
) -> Tensor:
    arrays, of = (x, logits, w1, w2, out), experts.moe.arguments
    if is_free() and (layout := free_layout(arrays)) is not None:
        return noted(experts.moe.known(LIBRARY, layout, arrays, (top_k, routing, activation)), out)
    want_tensors(of, arrays)
    want_writable(of, arrays)
    experts.want_experts(x, logits, w1, w2)
    return given(of, _MOE(x, logits, w1, w2, top_k, routing.scoring, routing.renormalize, activation), out)


def _run(
    x: Tensor, logits: Tensor, w1: Tensor, w2: Tensor, top_k: int, scoring: str, renormalize: bool, activation: str
) -> Any:
    return experts.moe(LIBRARY, (x, logits, w1, w2, None), top_k, Routing(scoring, renormalize), activation)


_MOE = define(
    "moe",
    "(Tensor x, Tensor router_logits, Tensor w1, Tensor w2, int top_k, str scoring, bool renormalize, str activation)"
    " -> Tensor",
    _run,
    lambda x, *_: x.new_empty(x.shape),
)
