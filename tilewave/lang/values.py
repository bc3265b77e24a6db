"""What a kernel's function handles while it is traced: numbers and tiles that exist only when the kernel runs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewave.errors import DTypeError, ShapeError, TraceError, here
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import And, Broadcast, Div, Neg, Not, Or
from tilewave.ir.types import BOOL, INDEX, DType, Scalar, Tile, Type, dims
from tilewave.lang.symbols import Expression
from tilewave.trace import Trace, current


@dataclass(frozen=True, eq=False)
class Traced(Number):
    """A number (no dims) or a tile; its dims are the names of its axes."""

    dims: tuple[Hashable, ...] = ()

    @property
    def type(self) -> Type:
        return self.value.type

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    def make(self, value: Value) -> Traced:
        return Traced(self.builder, value, self.dims)

    def together(self, other: Any) -> tuple[Number, Number]:
        return together(self, other)

    def __truediv__(self, other: Any) -> Traced:
        return _divide(self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return _divide(other, self)

    def __neg__(self) -> Traced:
        return self.make(self.builder.emit(Neg, self.value, type=self.type))

    def __invert__(self) -> Traced:
        return self.make(self.builder.emit(Not, self.value, type=self.type))

    def __and__(self, other: Any) -> Traced:
        a, b = together(self, other)
        return a.make(self.builder.binary(And, a.value, b.value))

    def __or__(self, other: Any) -> Traced:
        a, b = together(self, other)
        return a.make(self.builder.binary(Or, a.value, b.value))

    def __eq__(self, other: object) -> Any:
        return self.equals(other)

    def __ne__(self, other: object) -> Any:
        return self.differs(other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        self._not_in_python("has no truth value")

    def __index__(self) -> int:
        self._not_in_python("is no Python number")

    def __float__(self) -> float:
        self._not_in_python("is no Python number")

    def __iter__(self) -> Any:
        self._not_in_python("cannot be walked in Python")

    def __len__(self) -> int:
        self._not_in_python("has no Python length")

    def _not_in_python(self, what: str) -> NoReturn:
        raise TraceError(
            f"{describe(self)} {what} while the kernel is being traced",
            loc=here(),
            remedy="`if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate",
        )


def describe(x: Traced) -> str:
    """`a tile [M, N] (64x64 f32)` or `a number (i32)`."""
    if not x.dims:
        return f"a number ({x.dtype})"
    return f"a tile [{', '.join(map(str, x.dims))}] ({dims(x.type.shape)} {x.dtype})"


def scalar_of(trace: Trace, x: Any, dtype: DType) -> Traced:
    """A Python number, an expression or a traced number, as a number of `dtype`."""
    if isinstance(x, Expression):
        x = x.evaluate(trace.symbols)
    if isinstance(x, Number):
        return Traced(trace, trace.cast(x.value, dtype))
    return Traced(trace, trace.const(literal(x, dtype), Scalar(dtype)))


def literal(x: Any, dtype: DType) -> int | float | bool:
    if not isinstance(x, (int, float)) and not hasattr(x, "__float__"):
        raise DTypeError(f"{x!r} is no number", loc=here())
    if dtype.is_float:
        return float(x)
    if dtype == BOOL or float(x) != int(x):
        if dtype == BOOL and x in (0, 1):
            return bool(x)
        raise DTypeError(f"{x!r} is no {dtype}", loc=here(), remedy="cast the other operand, or write a whole number")
    return int(x)


def together(a: Any, b: Any) -> tuple[Traced, Traced]:
    """Two operands as tiles of one shape and dtype; at least one of them is traced."""
    trace = current("arithmetic")
    like = a if isinstance(a, Traced) and (a.dims or not isinstance(b, Traced)) else b
    x, y = (_traced(trace, operand, like) for operand in (a, b))
    x, y = _one_dtype(trace, x, y)
    return _one_shape(trace, x, y)


def _traced(trace: Trace, x: Any, like: Traced) -> Traced:
    if isinstance(x, Traced):
        return x
    if isinstance(x, Number):
        return Traced(trace, x.value)
    if isinstance(x, Expression):
        return scalar_of(trace, x, INDEX)
    return Traced(trace, trace.const(literal(x, like.dtype), Scalar(like.dtype)))


def _one_dtype(trace: Trace, x: Traced, y: Traced) -> tuple[Traced, Traced]:
    if x.dtype == y.dtype:
        return x, y
    if x.dtype.is_int and y.dtype.is_int and not (x.dims and y.dims):
        wide = x.dtype if x.dims else y.dtype if y.dims else INDEX
        return x.make(trace.cast(x.value, wide)), y.make(trace.cast(y.value, wide))
    raise DTypeError(
        f"{describe(x)} and {describe(y)} do not go together",
        loc=here(),
        remedy=f"write cast(x, {x.dtype}) or cast(x, {y.dtype}) for one of them",
    )


def _one_shape(trace: Trace, x: Traced, y: Traced) -> tuple[Traced, Traced]:
    if x.dims == y.dims:
        if x.type.shape != y.type.shape:
            raise ShapeError(f"{describe(x)} and {describe(y)} do not fit", loc=here())
        return x, y
    if set(y.dims) <= set(x.dims):
        return x, spread(trace, y, x)
    if set(x.dims) <= set(y.dims):
        return spread(trace, x, y), y
    raise ShapeError(
        f"{describe(x)} and {describe(y)} do not fit",
        loc=here(),
        remedy="the dims of one must be among those of the other, so that it can be repeated along the rest",
    )


def spread(trace: Trace, x: Traced, like: Traced) -> Traced:
    """x, repeated along the dims of `like` that it does not have."""
    axes = tuple(like.dims.index(d) for d in x.dims)
    if tuple(like.type.shape[a] for a in axes) != x.type.shape:
        raise ShapeError(f"{describe(x)} cannot be repeated along {describe(like)}", loc=here())
    out = Tile(like.type.shape, x.dtype)
    return Traced(trace, trace.emit(Broadcast, x.value, axes, type=out), like.dims)


def _divide(a: Any, b: Any) -> Traced:
    x, y = together(a, b)
    if not x.dtype.is_float:
        raise DTypeError(f"/ divides floats, not {describe(x)}", loc=here(), remedy="write // for whole numbers")
    return x.make(x.builder.binary(Div, x.value, y.value))
