"""Functions of elements whose words serve more than tiles, or are made of other ops."""

from __future__ import annotations

from typing import Any, overload

from tilewave.errors import DTypeError, here
from tilewave.ir import ops as ir
from tilewave.ir.types import F32
from tilewave.lang import symbols
from tilewave.lang.ops import scalar
from tilewave.lang.symbols import Expression
from tilewave.lang.values import Traced, describe, rounded


@overload
def floor(x: Traced) -> Traced: ...
@overload
def floor(x: Expression) -> Expression: ...
def floor(x: Any) -> Any:
    """The greatest whole number that is not above x: of every element of a tile, or of an expression of symbols."""
    return rounded(ir.Floor, x) if isinstance(x, Traced) else symbols.floor(x)


@overload
def ceiling(x: Traced) -> Traced: ...
@overload
def ceiling(x: Expression) -> Expression: ...
def ceiling(x: Any) -> Any:
    """The least whole number that is not below x: of every element of a tile, or of an expression of symbols."""
    return rounded(ir.Ceil, x) if isinstance(x, Traced) else symbols.ceiling(x)


def round_(x: Traced | float) -> Traced:
    """The whole number nearest to every element; halves go away from 0."""
    return rounded(ir.RoundAway, _floats("round", x))


def roundeven(x: Traced | float) -> Traced:
    """The whole number nearest to every element; halves go to the even one, as Python's do."""
    return rounded(ir.RoundEven, _floats("roundeven", x))


def reciprocal(x: Traced | float) -> Traced:
    """1 / x of every element."""
    quotient: Traced = 1.0 / _floats("reciprocal", x)
    return quotient


def _floats(name: str, x: Traced | float) -> Traced:
    traced = x if isinstance(x, Traced) else scalar(x, F32)
    if not traced.dtype.is_float:
        raise DTypeError(f"{name} needs floats, not {describe(traced)}", loc=here(), remedy="write cast(x, f32) first")
    return traced
