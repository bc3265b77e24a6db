"""Reductions along dims of a tile: `x.sum(dim=N)`, or `sum(x, dim=N)` as a function of the module.

Elements past the end of a dim are never included, whatever was computed from them.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tilewave.errors import DimensionError, DTypeError, ShapeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.core import Value
from tilewave.ir.ops.reduction import COMBINED_BY, identity, reduced
from tilewave.ir.types import BF16, BOOL, F16, F32, FLOAT8, I8, I16, I32, INDEX, U8, U16, U32, DType, Tile
from tilewave.lang.tags import taggable
from tilewave.lang.windows import end_of, ends_with_a_tile, is_whole, length_of, start_of
from tilewave.trace import Trace, current

Self = TypeVar("Self", bound="Reducible")

SUMMED_IN: dict[DType, DType] = {
    **dict.fromkeys((F16, BF16, *FLOAT8), F32),
    **dict.fromkeys((I8, I16, BOOL), I32),
    **dict.fromkeys((U8, U16), U32),
}
"""The wider dtypes that sums and products of small dtypes are computed in."""


class Reducible(Number):
    """The reductions of a tile; a number is reduced to itself."""

    dims: tuple[Hashable, ...]

    if TYPE_CHECKING:  # Traced, the only subclass, has these

        def make(self, value: Value) -> Any: ...

    def sum(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return the sum of the elements along `dim`, along several dims, or of all; it starts with `acc` if given.

        f16, bf16 and f8 are added in f32, i8, i16 and bool in i32, u8 and u16 in u32.
        """
        _refuse_others(self, "sum", others)
        return _with_acc("sum", reduce(self, "sum", dim), acc)

    def prod(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return the product of the elements along `dim`, in the dtypes of `sum`."""
        _refuse_others(self, "prod", others)
        return _with_acc("prod", reduce(self, "prod", dim), acc)

    def max(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return the largest element along `dim`; NaN where there is one."""
        _refuse_others(self, "max", others)
        return _with_acc("max", reduce(self, "max", dim), acc)

    def min(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return the smallest element along `dim`; NaN where there is one."""
        _refuse_others(self, "min", others)
        return _with_acc("min", reduce(self, "min", dim), acc)

    def any(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return whether some element along `dim` is not 0."""
        _refuse_others(self, "any", others)
        return _with_acc("any", reduce(self, "any", dim), acc)

    def all(self: Self, dim: Any = None, acc: Any = None, **others: Any) -> Self:
        """Return whether all elements along `dim` are not 0."""
        _refuse_others(self, "all", others)
        return _with_acc("all", reduce(self, "all", dim), acc)

    def argmax(self: Self, dim: Any = None, **others: Any) -> Self:
        """Return the index along `dim` of the largest element, as an i32: the first of equal ones, or of NaNs."""
        _refuse_others(self, "argmax", others)
        found: Self = _first_where_found(self, "max", dim)
        return found

    def argmin(self: Self, dim: Any = None, **others: Any) -> Self:
        """Return the index along `dim` of the smallest element, as an i32: the first of equal ones, or of NaNs."""
        _refuse_others(self, "argmin", others)
        found: Self = _first_where_found(self, "min", dim)
        return found

    def cumsum(self: Self, dim: Any = None, **others: Any) -> Self:
        """Return the inclusive prefix sums along `dim`, in the dtypes of `sum`."""
        _refuse_others(self, "cumsum", others)
        found: Self = _running_sum(self, dim)
        return found


def _refuse_others(x: Reducible, how: str, others: Mapping[str, Any]) -> None:
    """Refuse keywords of numpy and torch: `axis`, `keepdims`, …"""
    for name in others:
        raise DimensionError(
            f"{how} has no {name}: it goes along a dim, by its name",
            loc=here(),
            remedy=f"write x.{how}(dim={x.dims[-1] if x.dims else 'N'}); where its result meets a tile, it is repeated",
        )


def reduce(x: Self, how: str, dim: Any) -> Self:
    """Return x reduced along some dims."""
    trace = current(how)
    want_tile(how, x)
    along = _dims(x, how, dim)
    if how in ("max", "min"):
        _want_some(trace, how, along)
    found: Self = _reduced(trace, in_its_dtype(trace, x, how), how, along)
    return found


def _reduced(trace: Trace, x: Any, how: str, along: tuple[Any, ...]) -> Any:
    for d in along:
        x = _identity_outside(trace, x, d, how)
    axes = tuple(sorted(x.dims.index(d) for d in along))
    value = trace.emit(ir.Reduce, x.value, axes, how, type=reduced(x.type, axes), name=how)
    return type(x)(trace, value, tuple(d for d in x.dims if d not in along))


def _with_acc(how: str, x: Self, acc: Any) -> Self:
    """Return acc and x combined; acc has the dims of x, or is a number."""
    if acc is None:
        return x
    if isinstance(acc, Reducible) and acc.dims != x.dims and acc.dims:
        raise ShapeError(
            f"{how}: what it begins with is {acc!r}, but {x!r} is left of the tile",
            loc=here(),
            remedy=f"give it the dims [{', '.join(map(str, x.dims))}], or leave it out",
        )
    b, a = x.together(acc)
    found: Self = x.make(x.builder.binary(COMBINED_BY[how], a.value, b.value))
    return found


def want_tile(how: str, x: object) -> None:
    if not isinstance(x, Reducible) or not x.dims:
        found = "a list of numbers" if isinstance(x, (list, tuple)) else repr(x)
        home = next((home.__name__ for home in (builtins, math) if hasattr(home, how)), "")
        python = f"; Python's own {how} is {home}.{how}" if home and not isinstance(x, Reducible) else ""
        raise TraceError(
            f"{how} reduces a tile, not {found}", loc=here(), remedy=f"give it a tile, such as read(a){python}"
        )


def _dims(x: Any, how: str, dim: Any) -> tuple[Any, ...]:
    asked = x.dims if dim is None else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    for d in asked:
        if d not in x.dims:
            raise DimensionError(
                f"{how}: {x!r} has no dim {d}",
                loc=here(),
                remedy=f"its dims are {', '.join(map(str, x.dims))}: write x.{how}(dim={x.dims[-1]})",
            )
    if not asked:
        remedy = f"write dim={x.dims[-1]}, or leave it out to reduce all: {', '.join(map(str, x.dims))}"
        raise DimensionError(f"{how}: dim=[] names no dim", loc=here(), remedy=remedy)
    twice = next((d for d in asked if asked.count(d) > 1), None)
    if twice is not None:
        listed = ", ".join(map(str, asked))
        raise DimensionError(f"{how}: dim=[{listed}] names {twice} twice", loc=here(), remedy="name each dim once")
    return asked


def one_dim(x: Any, word: str, dim: Any) -> Any:
    """Return the single dim of an op that works along one dim."""
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) != 1):
        shown = f"[{', '.join(map(str, x.dims if dim is None else dim))}]"
        remedy = f"write {word}(x, dim={x.dims[-1]})"
        raise DimensionError(f"{word} goes along one dim, not {shown}", loc=here(), remedy=remedy)
    (only,) = _dims(x, word, dim)
    return only


def _want_some(trace: Trace, how: str, along: tuple[Any, ...]) -> None:
    """Refuse the largest of no elements: a static whole dim must not be empty; a dynamic one is checked at the call."""
    for d in along:
        length = length_of(trace, d) if is_whole(trace, d) else 1
        if isinstance(length, int) and length == 0:
            what = f"{how}: {d} is 0 long, and of no elements there is no largest or smallest one"
            raise DimensionError(what, loc=here(), remedy=f"give {d} at least 1 element")
        if d in trace.limits:
            trace.limits[d] = (1, trace.limits[d][1])


def in_its_dtype(trace: Trace, x: Any, how: str) -> Any:
    """Return x in the dtype of its reduction: a wider one for sums and products, bool for `any` and `all`."""
    if how in ("any", "all"):
        if x.dtype == BOOL:
            return x
        zero = trace.const(0.0 if x.dtype.is_float else 0, x.type)
        return x.make(trace.binary(ir.NotEqual, x.value, zero))
    if how in ("sum", "prod"):
        wide = SUMMED_IN.get(x.dtype, x.dtype)
        return x if wide == x.dtype else _cast(trace, x, wide)
    if x.dtype == BOOL:
        word = "any" if how == "max" else "all"
        raise DTypeError(f"{how} compares numbers, not {x!r}", loc=here(), remedy=f"write {word}(x, dim=…)")
    return x


def _cast(trace: Trace, x: Any, dtype: DType) -> Any:
    value = trace.cast(x.value, dtype)
    if x.value in trace.zero_outside:
        trace.zero_outside[value] = trace.zero_outside[x.value]
    return x.make(value)


def _identity_outside(trace: Trace, x: Any, dim: Any, how: str) -> Any:
    """Return x with the reduction's identity past the end of a dim, where it may have something else there."""
    if how == "sum" and dim in trace.zero_outside.get(x.value, ()):
        return x
    inside = inside_of(trace, x, dim, how)
    if inside is None:
        return x
    other = trace.const(identity(how, x.dtype), x.type)
    return x.make(trace.emit(ir.Select, inside, x.value, other, type=x.type))


def inside_of(trace: Trace, x: Any, dim: Any, what: str) -> Value | None:
    """Return which elements of x are not past the end of a dim; None where all are certainly inside."""
    want_placed(trace, dim, what)
    axis = x.dims.index(dim)
    if ends_with_a_tile(trace, dim, x.type.shape[axis]):
        return None
    holds = positions(trace, x, dim, INDEX) < end_of(trace, dim)
    return trace.emit(ir.Broadcast, holds.value, (axis,), type=Tile(x.type.shape, BOOL), name=ir.Broadcast.word())


def want_placed(trace: Trace, dim: Any, what: str) -> None:
    """Refuse a dim whose tiles the kernel's own loop places."""
    if trace.unplaced.intersection(dim.symbols()):
        raise DimensionError(
            f"{what}: the kernel's own loop places its tiles of {dim}, so which elements are past its end is not known",
            loc=here(),
            remedy=f"tile {dim} for iterate or take it whole, or leave the tiles to GridConstraint without that loop",
        )


def positions(trace: Trace, x: Any, dim: Any, dtype: DType) -> Any:
    """Return the index of each element along a dim of x."""
    extent, start = x.type.shape[x.dims.index(dim)], start_of(trace, dim)
    places = type(x)(trace, trace.emit(ir.Iota, type=Tile((extent,), dtype)), (dim,))
    if isinstance(start, int) and start == 0:
        return places
    return places + type(x)(trace, trace.cast(trace.index(start), dtype))


def _first_where_found(x: Any, how: str, dim: Any) -> Any:
    """Return the first index along a dim whose element equals the reduction, or is NaN."""
    trace, word = current(f"arg{how}"), f"arg{how}"
    want_tile(word, x)
    dim = one_dim(x, word, dim)
    _want_some(trace, word, (dim,))
    x = _cast(trace, x, I8) if x.dtype == BOOL else x
    best = _reduced(trace, x, how, (dim,))
    found = x == best
    if x.dtype.is_float:
        found = found | (x != x)
    places = positions(trace, x, dim, I32)
    there = trace.emit(ir.Broadcast, places.value, (x.dims.index(dim),), type=Tile(x.type.shape, I32))
    nowhere = trace.const(identity("min", I32), Tile(x.type.shape, I32))
    first = x.make(trace.emit(ir.Select, found.value, there, nowhere, type=nowhere.type))
    return _reduced(trace, first, "min", (dim,))


def _running_sum(x: Any, dim: Any) -> Any:
    """Return prefix sums by doubling: each element plus the one before it, then plus the sum two before, four, …"""
    trace = current("cumsum")
    want_tile("cumsum", x)
    dim = one_dim(x, "cumsum", dim)
    x = in_its_dtype(trace, x, "sum")
    axis, far = x.dims.index(dim), 1
    while far < x.type.shape[axis]:
        x = x + x.make(trace.emit(ir.Shift, x.value, axis, far, type=x.type))
        far *= 2
    return x


def _function(word: str) -> Any:
    def apply(x: Any, acc: Any = None, dim: Any = None, block: bool = False) -> Any:
        current(word)
        want_tile(word, x)
        return getattr(x, word)(dim, acc)

    apply.__name__ = apply.__qualname__ = word
    apply.__doc__ = getattr(Reducible, word).__doc__
    return taggable(apply)


sum_, prod, max_, min_, any_, all_ = (_function(word) for word in ("sum", "prod", "max", "min", "any", "all"))


@taggable
def argmax(x: Self, dim: Any = None) -> Self:
    current("argmax")
    want_tile("argmax", x)
    return x.argmax(dim)


@taggable
def argmin(x: Self, dim: Any = None) -> Self:
    current("argmin")
    want_tile("argmin", x)
    return x.argmin(dim)


@taggable
def cumsum(x: Self, dim: Any = None, block: bool = False) -> Self:
    current("cumsum")
    want_tile("cumsum", x)
    return x.cumsum(dim)


argmax.__doc__, argmin.__doc__, cumsum.__doc__ = (
    Reducible.argmax.__doc__,
    Reducible.argmin.__doc__,
    Reducible.cumsum.__doc__,
)
