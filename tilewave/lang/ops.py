"""The ops of a kernel: each function adds ops to the kernel being traced and returns their results."""

from __future__ import annotations

from typing import Any

from tilewave.errors import DTypeError, SymbolError, here
from tilewave.ir import ops as ir
from tilewave.ir.build import Number
from tilewave.ir.types import BOOL, DTYPES, F32, INDEX, DType, Scalar, Tile
from tilewave.ir.types import elementwise as elementwise_type
from tilewave.lang.operands import count
from tilewave.lang.symbols import Expression, Symbol, expression, want_no_hardware
from tilewave.lang.tags import taggable
from tilewave.lang.types import want_dtype
from tilewave.lang.values import (
    Traced,
    beside,
    chosen,
    describe,
    index_of,
    literal,
    only_element,
    scalar_of,
    together,
    want_number,
)
from tilewave.lang.windows import window_of
from tilewave.trace import current

__all__ = [
    "abs_",
    "cast",
    "cos",
    "erf",
    "exp",
    "exp2",
    "first_index",
    "fma",
    "log",
    "log1p",
    "log2",
    "log10",
    "maximum",
    "minimum",
    "rsqrt",
    "scalar",
    "select",
    "self_index",
    "set_symbol",
    "sin",
    "sqrt",
    "tanh",
]

# -- numbers --------------------------------------------------------------------------------------------------------


@taggable
def scalar(x: Any, dtype: DType = INDEX) -> Traced:
    """Return a Python number, an expression of symbols, or a traced number, as a number of `dtype`."""
    trace = current("scalar")
    want_number("scalar", x, f"a tile stays a tile: write cast(x, {dtype}) for its elements in {dtype}")
    if isinstance(x, (Expression, Number)):
        return scalar_of(trace, x, dtype)
    return Traced(trace, trace.const_named(literal(x, dtype), Scalar(dtype)))


@taggable
def self_index(dim: Symbol, dtype: DType = INDEX, elements_per_thread: int = 0) -> Traced:
    """Return the index along `dim`: a number for a while loop's symbol, else a tile with the index of each element."""
    trace = current("self_index")
    count(trace, "self_index", elements_per_thread)
    if dim in trace.settable and (dim in trace.driven or dim not in trace.windows):
        return scalar_of(trace, trace.settable[dim], dtype)
    window = window_of(trace, dim, "self_index")
    places = Traced(trace, trace.emit(ir.Iota, type=Tile((window.extent,), dtype)), (dim,))
    shifted: Traced = places + scalar_of(trace, window.start, dtype)
    return shifted


def first_index(dim: Symbol) -> Traced:
    """Return the index where this workgroup's tile begins along `dim`, as one number."""
    trace = current("first_index")
    return scalar_of(trace, window_of(trace, dim, "first_index").start, INDEX)


def set_symbol(symbol: Symbol, value: Any) -> None:
    """Set the value of `symbol` from here on.

    Of a dim that the grid or a loop divides, it is the number of its elements for this workgroup: tiles end there.
    """
    trace = current("set_symbol")
    symbol, value = _symbol_of(symbol), only_element(trace, value)
    if not isinstance(symbol, Symbol):
        raise SymbolError(f"set_symbol: {symbol!r} is no symbol", loc=here(), remedy="write set_symbol(sym.ROW, …)")
    want_no_hardware("set_symbol", symbol)
    want_number("set_symbol", value, PER_ELEMENT)
    is_divided = symbol in trace.walks or symbol in trace.windows
    if is_divided and symbol not in trace.driven and symbol not in trace.unplaced:
        trace.set_end(symbol, trace.number(index_of(trace, "set_symbol", value).value))
        return
    if symbol in trace.symbols and symbol not in trace.settable:
        raise SymbolError(
            f"set_symbol: {symbol} has a value already: {_known(trace.symbols[symbol])}",
            loc=here(),
            remedy=f"leave {symbol} out of subs, or set another symbol",
        )
    trace.set_symbol(symbol, trace.number(index_of(trace, "set_symbol", value).value))


def _symbol_of(x: Any) -> Any:
    """Return sympy's symbols as tilewave's of that name."""
    return expression(x) if hasattr(x, "free_symbols") else x


PER_ELEMENT = (
    "a symbol has one value for all elements of a tile, such as scalar(WORKGROUP_0) * 64; what differs from element to "
    "element is written with the iterators of an IndexMapping, such as M - 1 - IndexMapping.iterator(0). What an array "
    "holds comes too late for it, as tiles are placed before there is data: give a length at the call, as a number"
)


def _known(x: Any) -> str:
    return "the hardware's" if isinstance(x, Number) else str(x)


@taggable
def select(condition: Any, a: Any, b: Any) -> Traced:
    """Return a where the condition holds, else b."""
    trace = current("select")
    if isinstance(condition, Expression):
        condition = condition.evaluate(trace.symbols)
        if isinstance(condition, Number):
            condition = Traced(trace, condition.value)
    if isinstance(condition, bool):
        one: Traced = a if condition else b
        return one
    return chosen(condition, *_both(a, b))


@taggable
def minimum(a: Any, b: Any) -> Traced:
    """Return the smaller of both, element by element; NaN where one of them is."""
    return _binary(ir.Min, a, b)


@taggable
def maximum(a: Any, b: Any) -> Traced:
    """Return the larger of both, element by element; NaN where one of them is."""
    return _binary(ir.Max, a, b)


def elementwise(cls: type[ir.Elementwise], *operands: Any) -> Traced:
    """Return an elementwise op of tiles and numbers, each broadcast to the dims of the largest."""
    current(cls.word())
    traced = [x for x in operands if isinstance(x, Traced)] or [scalar(operands[0], F32)]
    like = max(traced, key=lambda x: len(x.dims))
    taken = [x if x is like else beside(x, like) for x in operands]
    return like.make(like.builder.elementwise(cls, *(x.value for x in taken)))


def _binary(cls: type[ir.Binary], a: Any, b: Any) -> Traced:
    x, y = _both(a, b)
    return x.make(x.builder.binary(cls, x.value, y.value))


def _both(a: Any, b: Any) -> tuple[Traced, Traced]:
    if not isinstance(a, Traced) and not isinstance(b, Traced):
        a = scalar(a, F32 if isinstance(a, float) or isinstance(b, float) else INDEX)
    return together(a, b)


def fma(a: Any, b: Any, c: Any) -> Traced:
    """Return a · b + c of f32, rounded once."""
    for x in (a, b, c):
        if isinstance(x, Traced) and x.dtype != F32:
            remedy = "write cast(x, f32) first"
            raise DTypeError(f"fma takes f32, not {describe(x)}", loc=here(), remedy=remedy)
    return elementwise(ir.Fma, a, b, c)


@taggable
def cast(x: Traced, dtype: DType) -> Traced:
    """Return x in another dtype: floats are rounded to nearest even, floats to integers towards zero."""
    want_dtype(dtype)
    if not isinstance(x, Traced):
        return scalar(x, dtype)
    value = x.builder.cast(x.value, dtype)
    trace = current("cast")
    if x.value in trace.zero_outside:
        trace.zero_outside[value] = trace.zero_outside[x.value]
    return x.make(value)


@taggable
def bitcast(x: Traced, dtype: DType) -> Traced:
    """Return the numbers of another dtype that have the bits of x: bitcast(x, u32) are the bits of an f32."""
    want_dtype(dtype)
    current("bitcast")
    if not isinstance(x, Traced):
        remedy = f"write scalar(x, {dtype}) for a number of the kernel"
        raise DTypeError(f"bitcast needs a tile or a number of the kernel, not {x!r}", loc=here(), remedy=remedy)
    for one in (x.dtype, dtype):
        if one in (BOOL, INDEX):
            remedy = "write cast(x, i8) for 0 and 1" if one == BOOL else "write cast(x, i64) for a number of 64 bits"
            raise DTypeError(f"bitcast: {one} has no bits of its own", loc=here(), remedy=remedy)
    if x.dtype.bits != dtype.bits:
        same = " or ".join(d.name for d in DTYPES.values() if d.bits == x.dtype.bits and d not in (x.dtype, INDEX))
        what = f"bitcast: {dtype} has {dtype.bits} bits, and {describe(x)} has {x.dtype.bits}"
        raise DTypeError(what, loc=here(), remedy=f"write {same}; cast(x, {dtype}) converts the numbers")
    if x.dtype == dtype:
        return x
    return x.make(x.builder.emit(ir.Bitcast, x.value, type=elementwise_type(x.type, dtype)))


def _function(cls: type[ir.Unary], name: str) -> Any:
    def apply(x: Traced) -> Traced:
        trace = current(name)
        x = x if isinstance(x, Traced) else scalar(x, F32)
        if not x.dtype.is_float and cls is not ir.Abs:
            raise DTypeError(f"{name} needs floats, not {describe(x)}", loc=here(), remedy="write cast(x, f32) first")
        return x.make(trace.emit(cls, x.value, type=x.type))

    apply.__name__ = name
    apply.__doc__ = f"{name} of every element."
    return taggable(apply)


flushed_reciprocal = _function(ir.ReciprocalFlushed, "reciprocal")
_power, _flushed_power = _function(ir.Exp2, "exp2"), _function(ir.Exp2Flushed, "exp2")


@taggable
def exp2(x: Traced, flush: bool = False) -> Traced:
    """Return 2 to the power of every element; `flush` gives 0 below -126, which is faster on GPUs."""
    result: Traced = _flushed_power(x) if flush else _power(x)
    return result


exp, log, log2, log10 = (_function(c, c.word()) for c in (ir.Exp, ir.Log, ir.Log2, ir.Log10))
log1p = _function(ir.Log1p, "log1p")
sqrt, rsqrt, tanh, erf = (_function(c, c.word()) for c in (ir.Sqrt, ir.Rsqrt, ir.Tanh, ir.Erf))
sin, cos, abs_ = (_function(c, c.word()) for c in (ir.Sin, ir.Cos, ir.Abs))
