"""Traced values: the numbers and tiles of a kernel's function, which have values only when the kernel runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import DTypeError, NoAttribute, ShapeError, TraceError, here
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops import (
    Abs,
    And,
    Binary,
    BitAnd,
    BitNot,
    BitOr,
    Broadcast,
    Ceil,
    Div,
    Floor,
    FloorDiv,
    Mod,
    Neg,
    Not,
    NotEqual,
    Or,
    Permute,
    Reduce,
    RoundAway,
    Rounding,
    Select,
    ShiftLeft,
    ShiftRight,
    Xor,
)
from tilewave.ir.ops.reduction import reduced
from tilewave.ir.types import BOOL, I64, INDEX, U64, DType, Scalar, Tile, Type, dims
from tilewave.lang.pythons_own import (
    FUNCTIONS,
    in_place_of_a_truth,
    in_place_of_a_walk,
    in_place_of_numpys,
    of_attribute,
)
from tilewave.lang.reductions import Reducible
from tilewave.lang.symbols import LARGEST_POWER, Expression, expression, in_floats, is_small_power
from tilewave.lang.windows import length_of
from tilewave.records import dataclass
from tilewave.trace import Trace, current


@dataclass(frozen=True, eq=False)
class Traced(Reducible):
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

    def __floordiv__(self, other: Any) -> Traced:
        return _divide_whole(FloorDiv, self, other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return _divide_whole(FloorDiv, other, self)

    def __mod__(self, other: Any) -> Traced:
        return _divide_whole(Mod, self, other)

    def __rmod__(self, other: Any) -> Traced:
        return _divide_whole(Mod, other, self)

    def __pow__(self, power: Any) -> Traced:
        if not is_small_power(power):
            raise DTypeError(
                f"** takes whole powers from 1 to {LARGEST_POWER}, not {power!r}",
                loc=here(),
                remedy="write sqrt(x) for x ** 0.5, 1.0 / x for x ** -1, exp2(power * log2(x)) for the rest",
            )
        return _power(self, operator.index(power))

    def __rpow__(self, base: Any) -> Traced:
        raise DTypeError(
            f"{base!r} ** x has no op for {describe(self)}",
            loc=here(),
            remedy="write exp2(x) for 2 ** x, exp(x) for e ** x, exp2(x * log2(base)) for the rest",
        )

    def __abs__(self) -> Traced:
        return self.make(self.builder.emit(Abs, self.value, type=self.type))

    def __neg__(self) -> Traced:
        return self.make(self.builder.emit(Neg, self.value, type=self.type))

    def __invert__(self) -> Traced:
        return inverted(self)

    def __and__(self, other: Any) -> Traced:
        return of_bits("&", self, other)

    def __or__(self, other: Any) -> Traced:
        return of_bits("|", self, other)

    def __xor__(self, other: Any) -> Traced:
        return of_bits("^", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, other: Any) -> Traced:
        return of_bits("<<", self, other)

    def __rshift__(self, other: Any) -> Traced:
        return of_bits(">>", self, other)

    def __rlshift__(self, other: Any) -> Traced:
        return of_bits("<<", other, self)

    def __rrshift__(self, other: Any) -> Traced:
        return of_bits(">>", other, self)

    def choose(self, a: Any, b: Any) -> Traced:
        """Return a where this truth value holds, else b."""
        x, y = (x if isinstance(x, Traced) else scalar_of(current("select"), x, I64) for x in (a, b))
        return chosen(self, *together(x, y))

    def __eq__(self, other: object) -> Any:
        return self.equals(other)

    def __ne__(self, other: object) -> Any:
        return self.differs(other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return describe(self)

    # -- what a star import would hide Python's own for, and the order of its dims

    def floor(self) -> Traced:
        return rounded(Floor, self)

    def ceil(self) -> Traced:
        return rounded(Ceil, self)

    def round(self) -> Traced:
        """Return the nearest integer; halves are rounded away from 0."""
        return rounded(RoundAway, self)

    __floor__, __ceil__ = floor, ceil

    def __round__(self, digits: Any = None) -> Traced:
        self._refuse("is not rounded by Python's round", ROUND_HALVES)

    def permute(self, target_shape: Sequence[Hashable]) -> Traced:
        """Return the tile with its dims in this order."""
        return permuted(self, target_shape)

    def __matmul__(self, other: Any) -> Traced:
        self._refuse_product(self, other)

    def __rmatmul__(self, other: Any) -> Traced:
        self._refuse_product(other, self)

    def _refuse_product(self, a: Any, b: Any) -> NoReturn:
        first, second = (describe(x) if isinstance(x, Traced) else repr(x) for x in (a, b))
        raise TraceError(
            f"@ has no op for {first} and {second}: a product needs sums to add to", loc=here(), remedy=MMA
        )

    # -- what an array has and a traced value has not

    def __bool__(self) -> bool:
        self._refuse("has no truth value while the kernel is being traced", in_place_of_a_truth(here()))

    def __iter__(self) -> Any:
        remedy = in_place_of_a_walk(here(), self.dims)
        self._refuse("cannot be iterated over in Python while the kernel is being traced", remedy)

    def __len__(self) -> int:
        self._refuse("has no Python length while the kernel is being traced", of_attribute("shape", self.dims))

    def __index__(self) -> int:
        self._refuse("is no Python number", FUNCTIONS)

    __int__ = __float__ = __index__

    def __getitem__(self, key: Any) -> Any:
        self._refuse(
            "is handled as a whole, and cannot be indexed",
            "write read(a, mapping=IndexMapping(…)) for other elements, select(self_index(M) == 0, x, y) to mask some",
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        self._refuse(
            "is handled as a whole, and cannot be assigned to in parts",
            "write x = y for another tile, x = select(self_index(M) == 0, y, x) to replace some of its elements",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoAttribute(f"{describe(self)} has no .{name}", loc=here(), remedy=of_attribute(name, self.dims))

    def __array__(self, *args: Any, **options: Any) -> Any:
        self._refuse("is no numpy array", FUNCTIONS)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """Handle + - * / and comparisons with numpy's numbers; refuse numpy's functions."""
        name, arrays = ufunc.__name__, any(isinstance(x, np.ndarray) and x.ndim for x in operands)
        if name not in UFUNCS or method != "__call__" or arrays:
            remedy = READ_IT if arrays else in_place_of_numpys(name, self.dims)
            self._refuse(f"cannot go through numpy's {name}", remedy)
        return UFUNCS[name](*(x.item() if isinstance(x, (np.generic, np.ndarray)) else x for x in operands))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> NoReturn:
        name = function.__name__
        self._refuse(f"cannot go through numpy's {name}", in_place_of_numpys(name, self.dims))

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise TraceError(f"{describe(self)} {what}", loc=here(), remedy=remedy)


READ_IT = "arrays are given at the call: make it an argument of the kernel, a: Memory[…], and write read(a)"
ROUND_HALVES = "write x.round(), which rounds halves away from 0, or roundeven(x), which rounds them as Python does"
MMA = "write mma(a, b, acc): acc + a · bᵀ, summed over the dim that a and b share; acc may be Register[M, N, f32](0.0)"

UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
}


def describe(x: Traced) -> str:
    """Return `a tile [M, N] (64x64 f32)` or `a number (i32)`."""
    if not x.dims:
        return f"a number ({x.dtype})"
    return f"a tile [{', '.join(map(str, x.dims))}] ({dims(x.type.shape)} {x.dtype})"


def scalar_of(trace: Trace, x: Any, dtype: DType) -> Traced:
    """Return a Python number, an expression or a traced number, as a number of `dtype`."""
    if isinstance(x, Expression):
        x = x.evaluate(trace.symbols)
    if isinstance(x, Number):
        return Traced(trace, trace.cast(x.value, dtype))
    return Traced(trace, trace.const(literal(x, dtype), Scalar(dtype)))


def want_number(op: str, x: object, remedy: str) -> None:
    """Refuse a tile where one number is needed for the whole workgroup."""
    if isinstance(x, Traced) and x.dims:
        raise ShapeError(f"{op} needs one number, not {describe(x)}", loc=here(), remedy=remedy)


def only_element(trace: Trace, x: Any) -> Any:
    """Return the element of a tile that has one as a number, and anything else as it is."""
    if not isinstance(x, Traced) or not x.dims or prod(x.type.shape) > 1:
        return x
    how = "any" if x.dtype == BOOL else "max"  # a reduction of one element is that element
    axes = tuple(range(len(x.dims)))
    return Traced(trace, trace.emit(Reduce, x.value, axes, how, type=Scalar(x.dtype)))


def index_of(trace: Trace, op: str, x: Any) -> Traced:
    """Return an integer as an index; a float is refused, not truncated."""
    if isinstance(x, Traced) and x.dtype.is_float:
        raise DTypeError(f"{op} needs a whole number, not {describe(x)}", loc=here(), remedy="write cast(x, index)")
    return scalar_of(trace, x, INDEX)


def literal(x: Any, dtype: DType) -> int | float | bool:
    if not hasattr(x, "__float__") or (isinstance(x, np.ndarray) and x.ndim):
        shown = "an array" if isinstance(x, np.ndarray) else repr(x)
        raise DTypeError(f"{shown} is neither a tile nor a number", loc=here(), remedy=_made_a_tile(x))
    if dtype.is_float:
        return float(x)
    if dtype == BOOL and x in (0, 1):
        return bool(x)
    if dtype != BOOL and _is_whole(x) and not dtype.bounds[0] <= int(x) <= dtype.bounds[1]:
        least, greatest = dtype.bounds
        remedy = f"{dtype} has the numbers from {least} to {greatest}: cast the other operand to a dtype with more"
        raise DTypeError(f"{x!r} is no {dtype}", loc=here(), remedy=remedy)
    if dtype == BOOL or not _is_whole(x):
        raise DTypeError(f"{x!r} is no {dtype}", loc=here(), remedy="cast the other operand, or write a whole number")
    return int(x)


def _is_whole(x: Any) -> bool:
    """Return whether a number is an integer; it is not converted to float, which rounds integers above 2**53."""
    try:
        return bool(x == int(x))
    except (OverflowError, ValueError):  # infinity, NaN
        return False


def _made_a_tile(x: Any) -> str:
    """Return what to write for a value that is no tile: read a memory, pass an array as an argument, or a number."""
    if (name := getattr(x, "read_as", "")) and isinstance(name, str):
        return f"write {name}"
    return READ_IT if hasattr(x, "__array__") else "write a number, such as 2.0, or a tile, such as read(a)"


def together(a: Any, b: Any) -> tuple[Traced, Traced]:
    """Return two operands as tiles of one shape and dtype; at least one of them is traced."""
    trace = current("arithmetic")
    like = a if isinstance(a, Traced) and (a.dims or not isinstance(b, Traced)) else b
    x, y = (_traced(trace, operand, like) for operand in (a, b))
    x, y = _one_dtype(trace, x, y)
    return one_shape(trace, x, y)


def _traced(trace: Trace, x: Any, like: Traced) -> Traced:
    if isinstance(x, Traced):
        return x
    if isinstance(x, Number):
        return Traced(trace, x.value)
    if isinstance(x, Expression):
        _want_no_loop_symbol(trace, x)
        _want_no_floats(x, like)
        value = x.evaluate(trace.symbols)
        return value if isinstance(value, Traced) else scalar_of(trace, value, INDEX)
    return Traced(trace, trace.const(literal(x, like.dtype), Scalar(like.dtype)))


def _want_no_loop_symbol(trace: Trace, x: Expression) -> None:
    """Refuse a while loop's symbol outside the loop: a condition compares it with symbols, which may be set before."""
    for s in x.symbols():
        if s in trace.driven and s not in trace.symbols:
            raise TraceError(
                f"{s} has its values inside its loop alone, and a number of the kernel cannot be compared with it here",
                loc=here(),
                remedy=f"set_symbol(sym.LIMIT, number) before the loop, and write condition={s} < sym.LIMIT",
            )


def _want_no_floats(x: Expression, like: Traced) -> None:
    """Refuse an expression of sizes among floats: it is an index, which is cast like any other number."""
    if like.dtype.is_float:
        what = f"{describe(like)} and the index {x} do not go together"
        raise DTypeError(what, loc=here(), remedy=f"write {in_floats(x, str(like.dtype))}")


def _one_dtype(trace: Trace, x: Traced, y: Traced) -> tuple[Traced, Traced]:
    if x.dtype == y.dtype:
        return x, y
    if x.dtype.is_int and y.dtype.is_int and not (x.dims and y.dims) and _has_common(x, y):
        wide = x.dtype if x.dims else y.dtype if y.dims else INDEX
        return x.make(trace.cast(x.value, wide)), y.make(trace.cast(y.value, wide))
    raise DTypeError(
        f"{describe(x)} and {describe(y)} do not go together",
        loc=here(),
        remedy=f"write cast(x, {x.dtype}) or cast(x, {y.dtype}) for one of them",
    )


def _has_common(x: Traced, y: Traced) -> bool:
    """Return whether a number takes the other's dtype, or both become indices, which not every u64 fits."""
    return bool(x.dims or y.dims) or U64 not in (x.dtype, y.dtype)


def one_shape(trace: Trace, x: Traced, y: Traced) -> tuple[Traced, Traced]:
    """Return both with the dims of both; where one has all of them, in its order."""
    if x.dims == y.dims:
        if x.type.shape != y.type.shape:
            raise ShapeError(f"{describe(x)} and {describe(y)} do not fit", loc=here())
        return x, y
    if set(y.dims) <= set(x.dims):
        return x, spread(trace, y, x)
    if set(x.dims) <= set(y.dims):
        return spread(trace, x, y), y
    extents = {**extents_of(x), **extents_of(y)}
    both = {d: extents[d] for d in _merged(x.dims, y.dims)}
    return repeated(trace, x, both), repeated(trace, y, both)


def _merged(mine: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[Hashable]:
    """Return the first dims in their order, with each dim of only the second before the next common one, or last.

    [H, N] and [B, H] are [B, H, N]; [M] and [N] are [M, N].
    """
    found, waiting = list(mine), list[Hashable]()
    for d in theirs:
        if d in mine:
            at = found.index(d)
            found[at:at], waiting = waiting, []
        else:
            waiting.append(d)
    return found + waiting


def chosen(condition: Traced, x: Traced, y: Traced) -> Traced:
    """Return x where the condition holds, else y; both are tiles of one shape and dtype."""
    trace = current("select")
    if condition.dims != x.dims:
        z, condition = one_shape(trace, x, condition)
        x, y = (z, spread(trace, y, z)) if z.dims != x.dims else (x, y)
    return x.make(trace.emit(Select, condition.value, x.value, y.value, type=x.type))


def extents_of(x: Traced) -> dict[Hashable, int]:
    """Return the length of a tile along each of its dims."""
    return dict(zip(x.dims, x.type.shape, strict=True)) if x.dims else {}


def spread(trace: Trace, x: Traced, like: Traced) -> Traced:
    """Return x broadcast to the dims of `like`."""
    return repeated(trace, x, extents_of(like))


def repeated(trace: Trace, x: Traced, extents: Mapping[Hashable, int]) -> Traced:
    """Return x broadcast to dims of these lengths, some of which it has."""
    order = tuple(extents)
    axes = tuple(order.index(d) for d in x.dims)
    out = Tile(tuple(extents.values()), x.dtype)
    if tuple(out.shape[a] for a in axes) != x.type.shape:
        along = f"[{', '.join(map(str, order))}] ({dims(out.shape)})"
        raise ShapeError(f"{describe(x)} cannot be repeated along a tile {along}", loc=here())
    value = trace.emit(Broadcast, x.value, axes, type=out, name=Broadcast.word())  # not the author's variable's name
    if x.value in trace.zero_outside:
        trace.zero_outside[value] = trace.zero_outside[x.value]
    return Traced(trace, value, order)


def without_single_dims(trace: Trace, x: Traced, dims: Sequence[Hashable]) -> Traced:
    """Return x without some dims, if it has one element along each; else x itself."""
    extents = extents_of(x)
    if not dims or any(extents[d] > 1 or _is_empty(trace, d) for d in dims):
        return x
    kept = tuple(d for d in x.dims if d not in dims)
    axes = tuple(x.dims.index(d) for d in x.dims if d in dims)
    how = "any" if x.dtype == BOOL else "max"  # a reduction of one element is that element
    value = trace.emit(Reduce, x.value, axes, how, type=reduced(x.type, axes), name=how)
    if x.value in trace.zero_outside:
        trace.zero_outside[value] = trace.zero_outside[x.value].difference(dims)
    return Traced(trace, value, kept)


def _is_empty(trace: Trace, dim: Any) -> bool:
    """Return whether a dim is empty, so that the one element of its tile is out of bounds."""
    length = length_of(trace, dim)
    return isinstance(length, int) and length == 0


def with_dims_of(trace: Trace, x: Traced, like: Traced) -> Traced:
    """Return x with the dims of another tile, where they differ in dims of one element only."""
    wanted = extents_of(like)
    fewer = without_single_dims(trace, x, [d for d in x.dims if d not in wanted])
    missing = [d for d in wanted if d not in fewer.dims]
    in_its_order = fewer.dims == tuple(d for d in wanted if d in fewer.dims)
    if not missing or not in_its_order or any(wanted[d] > 1 for d in missing):
        return fewer
    return repeated(trace, fewer, wanted)


def permuted(x: Traced, order: Sequence[Hashable]) -> Traced:
    """Return the tile with its dims in this order."""
    wanted = dims_of("permute", order)
    if sorted(map(str, wanted)) != sorted(map(str, x.dims)):
        raise ShapeError(
            f"permute: {describe(x)} has no order [{', '.join(map(str, wanted))}]",
            loc=here(),
            remedy="target_shape names each of its dims once",
        )
    return in_order(x, wanted)


def dims_of(op: str, given: Any) -> tuple[Expression, ...]:
    """Return a list of dims, as an author writes it, as expressions."""
    if isinstance(given, (Expression, str)) or not isinstance(given, Sequence):
        what = f"{op}: target_shape is {given!r}, no list of dims"
        raise ShapeError(what, loc=here(), remedy=f"write {op}(x, target_shape=[M, N])")
    return tuple(expression(d) for d in given)


def in_order(x: Traced, order: tuple[Hashable, ...]) -> Traced:
    """Return x with its dims in this order; out-of-bounds zeros stay known."""
    if x.dims == order:
        return x
    trace = current("permute")
    axes = tuple(x.dims.index(d) for d in order)
    kind = Tile(tuple(x.type.shape[a] for a in axes), x.dtype)
    mirrored = trace.emit(
        Permute, x.value, axes, type=kind, name=Permute.word()
    )  # not named after the author's variable
    if x.value in trace.zero_outside:
        trace.zero_outside[mirrored] = trace.zero_outside[x.value]
    return Traced(trace, mirrored, order)


def rounded(cls: type[Rounding], x: Traced) -> Traced:
    """Return each element rounded to an integer."""
    if not x.dtype.is_float:
        remedy = "whole numbers are rounded already: leave it out"
        name = cls.word().replace("round_away", "round").replace("_", "")
        raise DTypeError(f"{name} needs floats, not {describe(x)}", loc=here(), remedy=remedy)
    return x.make(x.builder.emit(cls, x.value, type=x.type))


def beside(x: Any, like: Traced) -> Traced:
    """Return x as a tile with the dims and dtype of `like`; a number becomes any dtype of its kind."""
    trace = current("arithmetic")
    mine, other = _one_dtype(trace, _traced(trace, x, like), like)
    if other.dtype != like.dtype:  # the common dtype of two numbers is a third one
        mine = mine.make(trace.cast(mine.value, like.dtype))
    if mine.dims == like.dims and mine.type.shape == like.type.shape:
        return mine
    if not set(mine.dims) <= set(like.dims):
        raise ShapeError(f"{describe(mine)} and {describe(like)} do not fit", loc=here())
    return spread(trace, mine, like)


def _divide(a: Any, b: Any) -> Traced:
    x, y = together(a, b)
    if not x.dtype.is_float:
        raise DTypeError(f"/ divides floats, not {describe(x)}", loc=here(), remedy="write // for whole numbers")
    return x.make(x.builder.binary(Div, x.value, y.value))


def _divide_whole(cls: type[Binary], a: Any, b: Any) -> Traced:
    x, y = together(a, b)
    if x.dtype.is_float:
        sign = "//" if cls is FloorDiv else "%"
        raise DTypeError(
            f"{sign} is for whole numbers, not {describe(x)}",
            loc=here(),
            remedy="write / for the quotient of floats, or cast(x, i32) first",
        )
    return x.make(x.builder.binary(cls, x.value, y.value))


OF_BITS: dict[str, type[Binary]] = {"&": BitAnd, "|": BitOr, "^": Xor, "<<": ShiftLeft, ">>": ShiftRight}
OF_TRUTHS: dict[str, type[Binary]] = {"&": And, "|": Or, "^": NotEqual}


def of_bits(sign: str, a: Any, b: Any) -> Traced:
    """Return an op on the bits of integers; `&`, `|` and `^` join truth values too."""
    for x in (a, b):
        if isinstance(x, Traced):
            _want_bits(sign, x)
    x, y = together(a, b)
    cls = OF_TRUTHS.get(sign) if x.dtype == BOOL else OF_BITS[sign]
    if cls is None:
        raise DTypeError(f"{sign} shifts integers, not {describe(x)}", loc=here(), remedy="write cast(x, i32) first")
    return x.make(x.builder.binary(cls, x.value, y.value))


def inverted(x: Traced) -> Traced:
    """Return an integer with its bits inverted, or the opposite of a truth value."""
    _want_bits("~", x)
    return x.make(x.builder.emit(Not if x.dtype == BOOL else BitNot, x.value, type=x.type))


def _want_bits(sign: str, x: Traced) -> None:
    if x.dtype.is_float:
        what = f"{sign} is for integers and truth values, not {describe(x)}"
        remedy = f"write bitcast(x, u{x.dtype.bits}) for the bits of the floats, cast(x, i32) for whole numbers"
        raise DTypeError(what, loc=here(), remedy=remedy)


def _power(x: Traced, n: int) -> Traced:
    """Return x to the n-th power, by repeated squaring."""
    if n == 1:
        return x
    half = _power(x, n // 2)
    square: Traced = half * half
    return square * x if n % 2 else square
