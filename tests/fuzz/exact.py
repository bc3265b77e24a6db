"""The reference's arithmetic: numbers in float64 or int64, each with a bound on how far a machine may be off.

A bound of 0 means that the language leaves no choice, and the machine's bits are decided. Integers and every IEEE
operation on exact operands stay at 0. Functions and sums whose order is free give a bound, which is carried along.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .program import BITS, FLOATS

NUMPY = {
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
    "bool": np.bool_,
}


@dataclass(frozen=True)
class Format:
    """A float: digits with the leading one, the exponent of its smallest normal number, its largest number."""

    digits: int
    smallest: int
    largest: float
    has_infinity: bool = True
    has_negative_zero: bool = True


FORMATS = {
    "f8e4m3fn": Format(4, -6, 448.0, has_infinity=False),
    "f8e5m2": Format(3, -14, 57344.0),
    "f8e4m3fnuz": Format(4, -7, 240.0, has_infinity=False, has_negative_zero=False),
    "f8e5m2fnuz": Format(3, -15, 57344.0, has_infinity=False, has_negative_zero=False),
    "f16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, float((2 - 2.0**-7) * 2.0**127)),
    "f32": Format(24, -126, float((2 - 2.0**-23) * 2.0**127)),
}


@dataclass(frozen=True)
class Value:
    """The value of a name: the number of each element, how far a machine may be off, the dims, the dtype."""

    x: np.ndarray
    err: np.ndarray
    dims: tuple[str, ...]
    dtype: str


def quantum(x: np.ndarray, dtype: str) -> np.ndarray:
    """The exponent of the last place of a number of this size."""
    digits, smallest = (53, -1022) if dtype == "f64" else (FORMATS[dtype].digits, FORMATS[dtype].smallest)
    _, exponent = np.frexp(x)
    return np.maximum(exponent - 1, smallest) - (digits - 1)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Float64 numbers, to the nearest of `dtype`, ties to even, once."""
    x = np.asarray(x, np.float64)
    if dtype == "f64":
        return x
    f = FORMATS[dtype]
    last = np.where(np.isfinite(x), quantum(np.where(np.isfinite(x), x, 0), dtype), 0)
    y = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(np.where(np.isfinite(x), x, 0), -last)), last), x)
    beyond = np.copysign(np.inf, y) if f.has_infinity else np.full_like(y, np.nan)
    y = np.where(np.abs(y) > f.largest, beyond, y)
    return y if f.has_negative_zero else np.where(y == 0, 0.0, y)


def wrapped(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(NUMPY[dtype]).astype(np.int64)


def finish(exact: np.ndarray, spread: np.ndarray, dims: tuple[str, ...], dtype: str) -> Value:
    """A float result: `exact` to its nearest; a machine rounds something within `spread` of it."""
    x = rounded(exact, dtype)
    exact, spread = np.broadcast_arrays(exact, spread)
    ends = [np.abs(rounded(exact + side * spread, dtype) - x) for side in (-1, 1)]
    off = np.where(np.isfinite(x), np.maximum(*ends), np.inf)
    off = np.where(np.isnan(off), np.inf, off)
    return Value(x, np.where(spread == 0, 0.0, off), dims, dtype)


def whole(x: np.ndarray, certain: np.ndarray, dims: tuple[str, ...], dtype: str) -> Value:
    """An integer or a truth value: exact, or nothing is known of it."""
    return Value(x, np.broadcast_to(np.where(certain, 0.0, np.inf), x.shape), dims, dtype)


# -- casts ----------------------------------------------------------------------------------------------------------


def cast(v: Value, dtype: str) -> Value:
    if dtype == v.dtype:
        return v
    sure = v.err == 0
    if dtype == "bool":
        return whole(v.x != 0, sure | (np.abs(v.x.astype(np.float64)) > v.err), v.dims, dtype)
    if dtype in FLOATS:
        if v.dtype == "bool":
            return Value(v.x.astype(np.float64), np.where(sure, 0.0, 1.0), v.dims, dtype)
        return finish(v.x, v.err, v.dims, dtype) if v.dtype in FLOATS else from_integers(v, dtype)
    if v.dtype in FLOATS:
        return to_integers(v, dtype)
    return whole(wrapped(v.x.astype(np.int64), dtype), sure, v.dims, dtype)


def from_integers(v: Value, dtype: str) -> Value:
    """Rounded once: what float64 cannot hold is made odd first, so that no tie comes of it."""
    if dtype == "f64":
        return Value(v.x.astype(np.float64), v.err, v.dims, dtype)
    shifted = (v.x >> 12) | ((v.x & 0xFFF) != 0)
    wide = np.where(np.abs(v.x.astype(np.float64)) < 2.0**52, v.x.astype(np.float64), shifted.astype(np.float64) * 4096)
    return Value(rounded(wide, dtype), np.where(v.err == 0, 0.0, np.inf), v.dims, dtype)


def to_integers(v: Value, dtype: str) -> Value:
    """Towards zero, the ends of the type for what is beyond them, 0 for NaN."""
    x, low, high = (truncated(v.x + side * v.err, dtype) for side in (0, -1, 1))
    off = np.maximum(np.abs(high.astype(np.float64) - x), np.abs(x - low.astype(np.float64)))
    return Value(x, np.where(v.err == 0, 0.0, np.where(np.isfinite(v.x), off, np.inf)), v.dims, dtype)


def truncated(x: np.ndarray, dtype: str) -> np.ndarray:
    ends = np.iinfo(NUMPY[dtype])
    inside = np.isfinite(x) & (x >= float(ends.min)) & (x < float(ends.max) + (0 if dtype == "i64" else 1))
    beyond = np.where(np.isnan(x), 0, np.where(x > 0, ends.max, ends.min))
    return np.where(inside, np.where(inside, x, 0).astype(np.int64), beyond)


# -- elementwise ----------------------------------------------------------------------------------------------------


def compute(op: str, args: list[Value]) -> Value:
    """An op on values of one shape and dtype; of select, the first is the condition."""
    with np.errstate(all="ignore"):
        if op == "select":
            return select(*args)
        if args[0].dtype == "bool":
            return on_truth(op, args)
        return on_floats(op, args) if args[0].dtype in FLOATS else on_integers(op, args)


def select(c: Value, a: Value, b: Value) -> Value:
    x = np.where(c.x, a.x, b.x)
    err = np.where(c.x, a.err, b.err)
    either = np.abs(a.x.astype(np.float64) - b.x) + np.maximum(a.err, b.err)
    either = np.where(np.isnan(either) | (a.dtype not in FLOATS), np.inf, either)
    return Value(x, np.where(c.err == 0, err, either), a.dims, a.dtype)


def on_truth(op: str, args: list[Value]) -> Value:
    meaning = {"&": np.logical_and, "|": np.logical_or, "~": np.logical_not, "==": np.equal, "!=": np.not_equal}
    sure = np.logical_and.reduce([v.err == 0 for v in args])
    return whole(meaning[op](*(v.x for v in args)), sure, args[0].dims, "bool")


COMPARE = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def on_integers(op: str, args: list[Value]) -> Value:
    dims, dtype = args[0].dims, args[0].dtype
    sure = np.logical_and.reduce([v.err == 0 for v in args])
    x = [v.x for v in args]
    if op in COMPARE:
        return whole(COMPARE[op](*x), sure, dims, "bool")
    match op:
        case "//" | "%":
            found = divided(op, *x)
        case "minimum" | "maximum":
            found = getattr(np, op)(*x)
        case "neg" | "abs":
            found = np.where((x[0] < 0) | (op == "neg"), -x[0], x[0])
        case _ if op.startswith("**"):
            found = power(x[0], int(op[2:]), lambda a, b: wrapped(a * b, dtype))
        case _:
            found = {"+": np.add, "-": np.subtract, "*": np.multiply}[op](*x)
    return whole(wrapped(found, dtype), sure, dims, dtype)


def overflows(op: str, args: list[Value]) -> bool:
    """Whether an index does not fit: all other integers wrap, and an index must not."""
    if args[0].dtype != "index" or not (op in ("+", "-", "*", "neg", "abs") or op.startswith("**")):
        return False
    x = [v.x.astype(object) for v in args]
    match op:
        case "neg" | "abs":
            found = np.abs(x[0])
        case _ if op.startswith("**"):
            found = x[0] ** int(op[2:])
        case _:
            found = {"+": np.add, "-": np.subtract, "*": np.multiply}[op](*x)
    return any(not -(2**63) <= n < 2**63 for n in np.ravel(found))


def divided(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded down; 0 by zero. By -1 it is a change of sign, which wraps."""
    plain = np.where((b == 0) | (b == -1), 1, b)
    if op == "//":
        return np.where(b == 0, 0, np.where(b == -1, -a, np.floor_divide(a, plain)))
    return np.where((b == 0) | (b == -1), 0, np.remainder(a, plain))


def power(x, n: int, times):
    if n == 1:
        return x
    half = power(x, n // 2, times)
    square = times(half, half)
    return times(square, x) if n % 2 else square


def on_floats(op: str, args: list[Value]) -> Value:
    dims, dtype = args[0].dims, args[0].dtype
    if op in COMPARE:
        return compared(op, *args)
    match op:
        case "neg":
            return Value(rounded(-args[0].x, dtype), args[0].err, dims, dtype)
        case "abs":
            return Value(np.abs(args[0].x), args[0].err, dims, dtype)
        case "minimum" | "maximum":
            a, b = args
            found = getattr(np, op)(a.x, b.x)
            lower = np.signbit(a.x) | np.signbit(b.x) if op == "minimum" else np.signbit(a.x) & np.signbit(b.x)
            zero = np.where(lower, -0.0, 0.0)  # -0 is below 0
            return Value(np.where(found == 0, zero, found), np.maximum(a.err, b.err), dims, dtype)
        case "+" | "-" | "*" | "/":
            return arithmetic(op, *args)
        case _ if op.startswith("**"):
            return power(args[0], int(op[2:]), lambda a, b: arithmetic("*", a, b))
        case _:
            return function(op, args[0])


def compared(op: str, a: Value, b: Value) -> Value:
    slack = a.err + b.err
    apart = np.abs(a.x - b.x) > slack
    return whole(COMPARE[op](a.x, b.x), (slack == 0) | apart, a.dims, "bool")


def arithmetic(op: str, a: Value, b: Value) -> Value:
    x, y = a.x, b.x
    match op:
        case "+" | "-":
            exact, spread = (x + y if op == "+" else x - y), a.err + b.err
        case "*":
            exact, spread = x * y, np.abs(x) * b.err + np.abs(y) * a.err + a.err * b.err
        case _:
            exact, room = x / y, np.abs(y) - b.err
            spread = np.where(room > 0, (a.err + np.abs(exact) * b.err) / room, np.inf)
    spread = np.where((a.err == 0) & (b.err == 0), 0.0, np.where(np.isnan(spread), np.inf, spread))
    return finish(exact, spread, a.dims, a.dtype)


# -- functions ------------------------------------------------------------------------------------------------------


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


FUNCTION = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
}
UNITS = 4
"""In units in the last place of f32, or of f64 for f64, how far a function may be off."""


def function(op: str, v: Value) -> Value:
    """Computed in f32 (f64 for f64), a few units off, and rounded once."""
    f = FUNCTION[op]
    exact = f(v.x)
    eps, tiny = (2.0**-52, 2.0**-1022) if v.dtype == "f64" else (2.0**-23, 2.0**-126)
    scale = np.maximum(np.abs(exact), 1.0) if op in ("sin", "cos", "log", "log2") else np.abs(exact)
    ends = [np.abs(f(v.x + side * v.err) - exact) for side in (-1, 1)]
    moved = np.where(v.err == 0, 0.0, v.err if op in ("sin", "cos") else np.maximum(*ends))
    spread = np.where(np.isfinite(exact), UNITS * eps * scale + tiny + moved, np.where(v.err == 0, 0.0, np.inf))
    return finish(exact, np.where(np.isnan(spread), np.inf, spread), v.dims, v.dtype)


# -- products -------------------------------------------------------------------------------------------------------


def product(a: Value, b: Value, acc: Value, spec: str, unit: float) -> Value:
    """acc + a · b; `spec` is einsum's, `unit` half a unit in the last place of a sum, relative."""
    with np.errstate(all="ignore"):
        if acc.dtype == "i32":
            sure = np.einsum(spec, (a.err > 0) * 1.0, np.ones_like(b.err)) + np.einsum(
                spec, np.ones_like(a.err), (b.err > 0) * 1.0
            )
            return whole(
                wrapped(np.einsum(spec, a.x, b.x) + acc.x, "i32"), (sure == 0) & (acc.err == 0), acc.dims, "i32"
            )
        exact = np.einsum(spec, a.x, b.x) + acc.x
        magnitude = np.einsum(spec, np.abs(a.x), np.abs(b.x)) + np.abs(acc.x)
        widest = np.einsum(spec, np.abs(a.x) + a.err, np.abs(b.x) + b.err) + np.abs(acc.x) + acc.err
        terms = int(np.einsum(spec, np.ones_like(a.x), np.ones_like(b.x)).max(initial=0)) + 2
        if not (a.err.any() or b.err.any() or acc.err.any()) and no_sum_is_rounded(a, b, acc, magnitude, unit):
            return Value(rounded(exact, acc.dtype), np.zeros_like(exact), acc.dims, acc.dtype)
        gamma = terms * unit / (1 - terms * unit)
        spread = widest - magnitude + gamma * widest + terms * 2.0**-126
        spread = np.where(np.isnan(spread) | ~np.isfinite(widest), np.inf, spread)
        return finish(exact, spread, acc.dims, acc.dtype)


def no_sum_is_rounded(a: Value, b: Value, acc: Value, magnitude: np.ndarray, unit: float) -> bool:
    """Whether all sums, in any order, are whole numbers of one small unit and below 1 / unit of these."""
    if not np.isfinite(magnitude).all():
        return False
    fraction = [next((n for n in range(13) if is_whole(v.x, n)), None) for v in (a, b, acc)]
    if None in fraction:
        return False
    places = max(fraction[0] + fraction[1], fraction[2])
    return bool((magnitude * 2.0**places < 0.5 / unit).all())


def is_whole(x: np.ndarray, places: int) -> bool:
    scaled = np.ldexp(x, places)
    return bool((scaled == np.rint(scaled)).all())


def literal(value, dtype: str) -> Value:
    """A Python number where the author writes one."""
    if dtype in FLOATS:
        return Value(rounded(np.float64(value), dtype), np.float64(0), (), dtype)
    x = np.asarray(bool(value) if dtype == "bool" else int(value), np.bool_ if dtype == "bool" else np.int64)
    return Value(x, np.float64(0), (), dtype)


assert set(BITS) | set(FORMATS) | {"bool", "f64"} == set(NUMPY)
