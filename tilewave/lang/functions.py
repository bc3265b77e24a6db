"""Elementwise functions that also take expressions of symbols, or are composed of other ops."""

from __future__ import annotations

import math
from typing import Any, overload

from tilewave.errors import DTypeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.types import F32
from tilewave.lang import symbols
from tilewave.lang.ops import abs_, flushed_reciprocal, scalar, tanh
from tilewave.lang.symbols import Expression
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe, rounded


@overload
def floor(x: Traced) -> Traced: ...
@overload
def floor(x: Expression) -> Expression: ...
def floor(x: Any) -> Any:
    """Return the greatest integer not above x: of every element of a tile, or of an expression of symbols."""
    return rounded(ir.Floor, x) if isinstance(x, Traced) else symbols.floor(x)


@overload
def ceiling(x: Traced) -> Traced: ...
@overload
def ceiling(x: Expression) -> Expression: ...
def ceiling(x: Any) -> Any:
    """Return the least integer not below x: of every element of a tile, or of an expression of symbols."""
    return rounded(ir.Ceil, x) if isinstance(x, Traced) else symbols.ceiling(x)


@taggable
def round_(x: Traced | float) -> Traced:
    """Return the integer nearest to every element; halves are rounded away from 0."""
    return rounded(ir.RoundAway, _traced(x))


@taggable
def roundeven(x: Traced | float) -> Traced:
    """Return the integer nearest to every element; halves are rounded to even, as in Python."""
    return rounded(ir.RoundEven, _traced(x))


@taggable
def reciprocal(x: Traced | float, flush: bool = False) -> Traced:
    """Return 1 / x for every element; `flush` gives 0 below 2**-126, to a unit in the last place, which is faster on
    GPUs."""
    below = _traced(x)
    if not below.dtype.is_float:
        what = f"reciprocal needs floats, not {describe(below)}"
        raise DTypeError(what, loc=here(), remedy="write cast(x, f32) first")
    quotient: Traced = flushed_reciprocal(below) if flush else 1.0 / below
    return quotient


@taggable
def tanh_approx(x: Traced | float) -> Traced:
    """Return tanh of every element, as exact as `tanh`; Wave has a less exact formula under this name."""
    result: Traced = tanh(x)
    return result


@taggable
def softsign(
    x: Traced | float, logit_cap: float = 30.0, apply_scaling: bool = False, head_dim: int | None = None
) -> Traced:
    """Return x / (1 + |x| / cap) for every element; `apply_scaling` divides the cap by the root of `head_dim`."""
    if apply_scaling and head_dim is None:
        what = "softsign: apply_scaling divides the cap by the root of head_dim, which is not given"
        raise TraceError(what, loc=here(), remedy="write head_dim=128, say, or leave apply_scaling out")
    cap = logit_cap / math.sqrt(head_dim) if apply_scaling and head_dim is not None else logit_cap
    above = _traced(x)
    result: Traced = above / (abs_(above) * (1.0 / cap) + 1.0)
    return result


def _traced(x: Traced | float) -> Traced:
    return x if isinstance(x, Traced) else scalar(x, F32)
