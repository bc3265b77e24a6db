"""What arithmetic and casts give, exactly: numpy's widest float and Python's integers, and nothing of tilewave's.

Every number of every dtype is a number of `np.longdouble`, whose 64 digits are more than twice those of f32 and two
more: what it rounds, f32 and the narrower floats round to the same as if nothing had been rounded before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WIDE = np.longdouble
assert np.finfo(WIDE).nmant >= 63, "this machine has no float that holds every i64"


@dataclass(frozen=True)
class Format:
    """A narrow float, as its definition says: the sign, then exponent, then mantissa."""

    exponent: int
    mantissa: int
    bias: int
    specials: str
    """ieee: the last exponent is infinity and NaN; fn: only the last code is NaN; fnuz: the code of -0 is NaN."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def finite(self) -> int:
        """How many codes from 0 on are finite."""
        return {"ieee": self.sign - (1 << self.mantissa), "fn": self.sign - 1, "fnuz": self.sign}[self.specials]

    @property
    def nan(self) -> int:
        return {"ieee": self.sign - 1, "fn": self.sign - 1, "fnuz": self.sign}[self.specials]

    @property
    def infinity(self) -> int:
        """Return the bits of infinity, or of what replaces it."""
        return self.finite if self.specials == "ieee" else self.nan


FORMATS = {
    "f16": Format(5, 10, 15, "ieee"),
    "bf16": Format(8, 7, 127, "ieee"),
    "f8e5m2": Format(5, 2, 15, "ieee"),
    "f8e4m3fn": Format(4, 3, 7, "fn"),
    "f8e4m3fnuz": Format(4, 3, 8, "fnuz"),
    "f8e5m2fnuz": Format(5, 2, 16, "fnuz"),
}


@cache
def finite(name: str) -> Array:
    """The finite numbers that are not negative, in the order of their codes, and the one that would follow."""
    fmt = FORMATS[name]
    code = np.arange(fmt.finite + 1)
    power, digits = code >> fmt.mantissa, code & ((1 << fmt.mantissa) - 1)
    whole = np.where(power > 0, digits + (1 << fmt.mantissa), digits)
    return np.ldexp(whole.astype(WIDE), np.maximum(power, 1) - fmt.bias - fmt.mantissa)


def decoded(codes: Array, name: str) -> Array:
    fmt = FORMATS[name]
    codes = codes.astype(np.int64)
    size = codes & (fmt.sign - 1)
    number = finite(name)[np.minimum(size, fmt.finite)]
    number = np.where(size >= fmt.finite, np.where(size == fmt.infinity, WIDE(np.inf), WIDE(np.nan)), number)
    if fmt.specials != "ieee":
        number = np.where(codes == fmt.nan, WIDE(np.nan), number)
        number = np.where(np.isinf(number), WIDE(np.nan), number)
    return np.where(codes & fmt.sign, -number, number)


def nearest(x: Array, name: str) -> Array:
    """The codes of the nearest numbers, ties to even; what is too large is infinite, or no number."""
    fmt, numbers = FORMATS[name], finite(name)
    size, between = np.abs(x), (numbers[1:] + numbers[:-1]) / 2
    code = np.searchsorted(between, size, side="left")
    tie = size == between[np.minimum(code, len(between) - 1)]
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    code = np.where(code >= fmt.finite, fmt.infinity, code)
    signed = code | np.where(np.signbit(x), fmt.sign, 0)
    if fmt.specials == "fnuz":
        signed = np.where(code == 0, 0, np.where(code == fmt.nan, fmt.nan, signed))
    return np.where(np.isnan(x), fmt.nan, signed)


def numbers(x: Array, name: str) -> Array:
    """An array of any dtype in the widest float, exactly."""
    if name in FORMATS:
        return decoded(x.view(f"u{x.itemsize}"), name)
    return x.astype(WIDE)


def rounded(x: Array, name: str, like: np.dtype[Any]) -> Array:
    """The widest float rounded once to a float."""
    with np.errstate(all="ignore"):
        if name in FORMATS:
            return nearest(x, name).astype(f"u{like.itemsize}").view(like)
        return x.astype(like)


def wrapped(x: Array, like: np.dtype[Any]) -> Array:
    """Python's integers, their low bits."""
    bits = 8 * like.itemsize
    least = -(1 << bits - 1) if like.kind == "i" else 0
    return ((x - least) % (1 << bits) + least).astype(like)


def cast(x: Array, old: str, new: str, like: np.dtype[Any]) -> Array:
    """An array of the dtype called `old` as the one called `new`, whose numpy dtype is `like`."""
    wide = numbers(x, old)
    if new == "bool":
        return wide != 0
    if like.kind not in "iu":
        return rounded(wide, new, like)
    if x.dtype.kind in "iub":
        return wrapped(x.astype(object) + 0, like)
    ends = np.iinfo(like)
    kept = np.clip(np.trunc(np.where(np.isnan(wide), 0, wide)), WIDE(ends.min), WIDE(ends.max))
    return kept.astype(like)


# -- ops --------------------------------------------------------------------------------------------------------------


def _divided(a: int, b: int) -> int:
    return a // b if b else 0


def _rest(a: int, b: int) -> int:
    return a % b if b else 0


def _smaller(a: Array, b: Array) -> Array:
    first = (a < b) | ((a == b) & np.signbit(a)) | np.isnan(a)
    return np.where(first, a, b)


def _larger(a: Array, b: Array) -> Array:
    return -_smaller(-a, -b)


INTEGERS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": np.frompyfunc(_divided, 2, 1),
    "%": np.frompyfunc(_rest, 2, 1),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "neg": lambda a: -a,
    "abs": abs,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "~": lambda a: ~a,
    "<<": np.frompyfunc(lambda a, b: a * 2**b if 0 <= b < 64 else 0, 2, 1),
    ">>": np.frompyfunc(lambda a, b: a // 2**b if 0 <= b < 64 else -(a < 0), 2, 1),
}
FLOATS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "minimum": _smaller,
    "maximum": _larger,
    "neg": lambda a: -a,
    "abs": abs,
}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def computed(word: str, operands: list[Array], name: str) -> Array:
    """An op on arrays of the dtype called `name`."""
    like = operands[0].dtype
    with np.errstate(all="ignore"):
        if word == "select":
            smaller = computed("<", operands, name)
            words = [x.view(f"u{like.itemsize}") for x in operands]
            return np.where(smaller, *words).view(like)
        if word in COMPARISONS:
            return np.asarray(COMPARISONS[word](*(numbers(x, name) for x in operands)), bool)
        if like.kind in "iu":
            return wrapped(INTEGERS[word](*(x.astype(object) for x in operands)), like)
        if name == "f64":  # the machine's own, each rounded once
            return np.asarray(FLOATS[word](*operands), like)
        return rounded(FLOATS[word](*(numbers(x, name) for x in operands)), name, like)


def differing(found: Array, want: Array) -> Array:
    """Where two arrays of one dtype are not the same numbers; zeros have signs, and NaN is NaN."""
    assert found.dtype == want.dtype and found.shape == want.shape
    same = found.view(f"u{found.itemsize}") == want.view(f"u{want.itemsize}")
    if found.dtype.kind in "iub":
        return np.flatnonzero(~same)
    with np.errstate(invalid="ignore"):
        nan = (found != found) & (want != want)
    return np.flatnonzero(~(same | nan))


# -- what is hard -----------------------------------------------------------------------------------------------------


def hard_integers(like: np.dtype[Any]) -> Array:
    """Ends, small numbers, and 2^k and their neighbours with either sign, where the dtype has one."""
    bits, ends = 8 * like.itemsize, np.iinfo(like)
    near = {0, *range(-9, 10)}
    for k in range(3, bits + 1):
        near |= {sign * ((1 << k) + d) for sign in (1, -1) for d in (-1, 0, 1)}
        near |= {
            sign * ((1 << k) + (1 << max(0, k - n)) + d)
            for sign in (1, -1)
            for n in (4, 8, 9, 11, 24)
            for d in (-1, 0, 1)
        }
    return np.array(sorted(x for x in near if ends.min <= x <= ends.max), like)


def hard_floats(name: str) -> Array:
    """Return hard f32 or f64 values: every narrower format's ends and ties, and their neighbours; denormals, 2^k ±
    1, specials."""
    like = np.dtype({"f32": np.float32, "f64": np.float64}[name])
    found: list[Array] = [np.array([0, np.inf, np.nan], WIDE)]
    for narrow in FORMATS:
        some = finite(narrow)
        some = some if len(some) < 300 else some[np.r_[0:20, 900:1200:7, len(some) - 20 : len(some)]]
        found += [some, (some[1:] + some[:-1]) / 2]
    powers = WIDE(2) ** np.arange(-160, 130)
    halves = WIDE(2) ** np.arange(0, 65)
    found += [powers, powers * (1 + WIDE(2) ** -24), halves - 1, halves + 1, halves - 0.5, halves + 0.5]
    info = np.finfo(like)
    found += [np.array([info.max, info.tiny, info.smallest_subnormal, 0.3, 0.5, 0.9, 1.5, 299.99], WIDE)]
    with np.errstate(all="ignore"):
        flat = np.concatenate(found).astype(like)
        beside = [np.nextafter(flat, like.type(0)), np.nextafter(flat, like.type(np.inf))]
        tiny = [flat * like.type(1 + s * 2.0**-k) for k in (23, 40) for s in (1, -1)]
        both = np.concatenate([flat, *beside, *tiny])
        both = np.concatenate([both, -both])
    return np.unique(both.view(f"u{like.itemsize}")).view(like)


def every_value(name: str, like: np.dtype[Any]) -> Array:
    """All of a dtype with at most 16 bits, else the hard ones."""
    if name == "bool":
        return np.array([False, True])
    if like.itemsize <= 2:
        return np.arange(1 << 8 * like.itemsize, dtype=f"u{like.itemsize}").view(like)
    return hard_integers(like) if like.kind in "iu" else hard_floats(name)
