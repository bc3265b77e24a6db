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
    return rounded(ir.RoundAway, _traced(x))


def roundeven(x: Traced | float) -> Traced:
    """The whole number nearest to every element; halves go to the even one, as Python's do."""
    return rounded(ir.RoundEven, _traced(x))


def reciprocal(x: Traced | float) -> Traced:
    """1 / x of every element."""
    below = _traced(x)
    if not below.dtype.is_float:
        what = f"reciprocal needs floats, not {describe(below)}"
        raise DTypeError(what, loc=here(), remedy="write cast(x, f32) first")
    quotient: Traced = 1.0 / below
    return quotient


def _traced(x: Traced | float) -> Traced:
    return x if isinstance(x, Traced) else scalar(x, F32)
