"""What the floating-point vector instructions compute, the packed ones, and the comparisons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewave.emulator.division import fixed_quotient
from tilewave.emulator.fused import fma
from tilewave.emulator.kernel import DX10_CLAMP
from tilewave.emulator.numbers import F32, F64, I16, I32, U16, Array
from tilewave.emulator.vector_table import (
    CONVERSIONS,
    INTEGERS,
    MOVES,
    Formula,
    InstructionRow,
    exponent,
    fraction,
    mantissa,
)


def scaled(a: Array, power: Array) -> Array:
    return np.ldexp(a.astype(F64), np.clip(power, -4000, 4000).astype(I32)).astype(a.dtype)


def multiply_legacy(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), F32(0), a * b)


def in_double(function: Callable[[Array], Array]) -> Formula:
    """Correctly rounded: the hardware's transcendental units may differ in the last place."""
    return lambda a: function(a.astype(F64)).astype(a.dtype)


def without_denormals(function: Callable[[Array], Array]) -> Formula:
    """Wrap a function so that denormal float32 operands and results are flushed to zero; other formats keep theirs."""
    rounded = in_double(function)
    return lambda a: flushed(rounded(flushed(a))) if a.dtype == F32 else rounded(a)


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def sine_of_turns(a: Array) -> Array:
    """Multiples of a quarter turn are exact."""
    part = a - np.rint(a)
    near = np.where(np.abs(part) > 0.25, np.copysign(0.5, part) - part, part)
    return np.where(a == 0, a, np.sin(near * 2 * np.pi))


def cosine_of_turns(a: Array) -> Array:
    result: Array = np.sin((0.25 - np.abs(a - np.rint(a))) * 2 * np.pi)
    return result


def clamped(value: Array, mode: int) -> Array:
    """Between 0 and 1; what is no number becomes 0 where the mode says so."""
    result: Array = np.clip(value, value.dtype.type(0), value.dtype.type(1))
    return np.where(np.isnan(value), value.dtype.type(0), result) if mode & DX10_CLAMP else result


def smaller(least: Formula) -> Formula:
    """The smaller of two as `least` has it; of two zeros the negative one, if there is one."""
    return lambda a, b: np.where(a == b, np.where(np.signbit(a), a, b), least(a, b))


def larger(most: Formula) -> Formula:
    return lambda a, b: np.where(a == b, np.where(np.signbit(a), b, a), most(a, b))


def over_nan(two: Formula) -> Formula:
    """Wrap a function of two operands to return the one that is a number: processors differ on signaling NaN."""
    return lambda a, b: np.where(np.isnan(b), a, np.where(np.isnan(a), b, two(a, b)))


def of_three(two: Formula) -> Formula:
    return lambda a, b, c: two(two(a, b), c)


def quieting(two: Formula) -> Formula:
    """In IEEE mode a signaling NaN is not passed over: it comes out, quiet."""
    return lambda a, b: np.where(is_signaling(a), quiet(a), np.where(is_signaling(b), quiet(b), two(a, b)))


def is_signaling(x: Array) -> Array:
    result: Array = np.isnan(x) & (_bits(x) & _quiet_bit(x) == 0)
    return result


def quiet(x: Array) -> Array:
    result: Array = (_bits(x) | _quiet_bit(x)).view(x.dtype)
    return result


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _quiet_bit(x: Array) -> Array:
    """Return the quiet bit of a NaN: the highest bit of the mantissa."""
    return np.array(1 << (np.finfo(x.dtype).nmant - 1), f"u{x.dtype.itemsize}")


def median(least: Formula, most: Formula) -> Formula:
    """The middle of three; the smallest where one is no number."""

    def middle(a: Array, b: Array, c: Array) -> Array:
        largest = most(most(a, b), c)
        rest = np.where(largest == a, most(b, c), np.where(largest == b, most(a, c), most(a, b)))
        return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), least(least(a, b), c), rest)

    return middle


def _selections(least: Formula, most: Formula) -> dict[str, Formula]:
    return {
        "min": least,
        "max": most,
        "min3": of_three(least),
        "max3": of_three(most),
        "med3": median(least, most),
    }


_LEAST, _MOST = smaller(over_nan(np.fmin)), larger(over_nan(np.fmax))
SELECTIONS = _selections(_LEAST, _MOST)
_IEEE_SELECTIONS = _selections(quieting(_LEAST), quieting(_MOST))
IN_IEEE_MODE = {
    **{f"{name}_{kind}": formula for kind in ("f16", "f32", "f64") for name, formula in _IEEE_SELECTIONS.items()},
    **{f"pk_{name}_f16": _IEEE_SELECTIONS[name] for name in ("min", "max")},
}
"""What these compute where the mode register says IEEE."""


def _floats(name: str, letter: str) -> dict[str, InstructionRow]:
    """The instructions that every float format has."""
    one, two, three, plus = letter, letter * 2, letter * 3, letter * 2 + "+"
    rows = {
        "add": InstructionRow(letter, two, lambda a, b: a + b),
        "sub": InstructionRow(letter, two, lambda a, b: a - b),
        "subrev": InstructionRow(letter, two, lambda a, b: b - a),
        "mul": InstructionRow(letter, two, lambda a, b: a * b),
        "min": InstructionRow(letter, two, SELECTIONS["min"]),
        "max": InstructionRow(letter, two, SELECTIONS["max"]),
        "fma": InstructionRow(letter, three, fma),
        "fmac": InstructionRow(letter, plus, fma),
        "rcp": InstructionRow(letter, one, without_denormals(lambda a: 1.0 / a)),
        "rsq": InstructionRow(letter, one, without_denormals(lambda a: 1.0 / np.sqrt(a))),
        "sqrt": InstructionRow(letter, one, without_denormals(np.sqrt)),
        "exp": InstructionRow(letter, one, without_denormals(np.exp2)),
        "log": InstructionRow(letter, one, without_denormals(np.log2)),
        "sin": InstructionRow(letter, one, in_double(sine_of_turns)),
        "cos": InstructionRow(letter, one, in_double(cosine_of_turns)),
        "floor": InstructionRow(letter, one, np.floor),
        "ceil": InstructionRow(letter, one, np.ceil),
        "trunc": InstructionRow(letter, one, np.trunc),
        "rndne": InstructionRow(letter, one, np.rint),
        "fract": InstructionRow(letter, one, fraction),
        "min3": InstructionRow(letter, three, SELECTIONS["min3"]),
        "max3": InstructionRow(letter, three, SELECTIONS["max3"]),
        "minimum3": InstructionRow(letter, three, of_three(smaller(np.minimum))),
        "maximum3": InstructionRow(letter, three, of_three(larger(np.maximum))),
        "med3": InstructionRow(letter, three, SELECTIONS["med3"]),
        "frexp_mant": InstructionRow(letter, one, mantissa),
        "div_fixup": InstructionRow(letter, three, fixed_quotient),
    }
    return {f"{instruction}_{name}": row for instruction, row in rows.items()}


FLOATS = {
    **_floats("f32", "f"),
    **_floats("f16", "h"),
    **_floats("f64", "F"),
    "mul_legacy_f32": InstructionRow("f", "ff", multiply_legacy),
    "mad_f32": InstructionRow("f", "fff", lambda a, b, c: a * b + c),
    "mac_f32": InstructionRow("f", "ff+", lambda a, b, c: a * b + c),
    "mad_f16": InstructionRow("h", "hhh", fma),
    "mac_f16": InstructionRow("h", "hh+", fma),
    "fmaak_f32": InstructionRow("f", "fff", fma),
    "fmamk_f32": InstructionRow("f", "fff", fma),
    "rcp_iflag_f32": InstructionRow("f", "f", without_denormals(lambda a: 1.0 / a)),
    "ldexp_f32": InstructionRow("f", "fi", scaled),
    "ldexp_f64": InstructionRow("F", "Fi", scaled),
    "ldexp_f16": InstructionRow("h", "hw", scaled),
    "frexp_exp_i32_f32": InstructionRow("i", "f", exponent),
    "frexp_exp_i32_f64": InstructionRow("i", "F", exponent),
    "frexp_exp_i16_f16": InstructionRow("w", "h", lambda a: exponent(a).astype(I16)),
}
ROWS: dict[str, InstructionRow] = {**MOVES, **CONVERSIONS, **INTEGERS, **FLOATS}
TRANSCENDENTAL = ("exp", "log", "rcp", "rsq", "sqrt", "sin", "cos", "rcp_iflag")

PACKED16: dict[str, tuple[str, Formula]] = {
    "pk_add_f16": ("hh", lambda a, b: a + b),
    "pk_mul_f16": ("hh", lambda a, b: a * b),
    "pk_fma_f16": ("hhh", fma),
    "pk_min_f16": ("hh", SELECTIONS["min"]),
    "pk_max_f16": ("hh", SELECTIONS["max"]),
    "pk_minimum3_f16": ("hhh", of_three(smaller(np.minimum))),
    "pk_maximum3_f16": ("hhh", of_three(larger(np.maximum))),
    "pk_add_u16": ("ss", lambda a, b: a + b),
    "pk_sub_u16": ("ss", lambda a, b: a - b),
    "pk_add_i16": ("ww", lambda a, b: a + b),
    "pk_sub_i16": ("ww", lambda a, b: a - b),
    "pk_mul_lo_u16": ("ss", lambda a, b: a * b),
    "pk_mad_u16": ("sss", lambda a, b, c: a * b + c),
    "pk_mad_i16": ("www", lambda a, b, c: a * b + c),
    "pk_lshlrev_b16": ("ss", lambda a, b: b << (a & U16(15))),
    "pk_lshrrev_b16": ("ss", lambda a, b: b >> (a & U16(15))),
    "pk_ashrrev_i16": ("ww", lambda a, b: b >> (a & I16(15))),
    "pk_min_u16": ("ss", np.minimum),
    "pk_max_u16": ("ss", np.maximum),
    "pk_min_i16": ("ww", np.minimum),
    "pk_max_i16": ("ww", np.maximum),
}
PACKED32: dict[str, tuple[int, Formula]] = {
    "pk_add_f32": (2, lambda a, b: a + b),
    "pk_mul_f32": (2, lambda a, b: a * b),
    "pk_fma_f32": (3, fma),
}

Comparison = Callable[[Array, Array], Array]
COMPARISONS: dict[str, Comparison] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "ne": lambda a, b: a != b,
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
}
COMPARED = {
    "f32": "f", "f64": "F", "f16": "h", "u32": "u", "i32": "i", "u64": "U", "i64": "I", "u16": "s", "i16": "w",
}  # fmt: skip


def classes(values: Array, wanted: Array) -> Array:
    """Whether each value belongs to a class whose bit is wanted: NaNs, infinities, normals, denormals, zeros."""
    negative, size = np.signbit(values), np.abs(values)
    ranks = [
        (np.isnan(values), np.array(1)),
        (np.isinf(values), np.where(negative, 2, 9)),
        (size >= np.finfo(values.dtype).tiny, np.where(negative, 3, 8)),
        (size > 0, np.where(negative, 4, 7)),
    ]
    rank = np.select(
        [test for test, _ in ranks], [np.broadcast_to(r, size.shape) for _, r in ranks], np.where(negative, 5, 6)
    )
    result: Array = ((wanted >> rank.astype(wanted.dtype)) & wanted.dtype.type(1)).astype(bool)
    return result
