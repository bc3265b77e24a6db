"""Narrow floats on GPUs: to f32 and back, on scalars or vectors.

8-bit floats are converted by integer and float arithmetic, unless the target has instructions for them.
"""

from __future__ import annotations

from tilewave.ir.types import BF16, F16, F32, DType
from tilewave.lower.elements import literal, splat_constant
from tilewave.lower.gpu.float8_pairs import narrow_pairs, widen_pairs
from tilewave.lower.gpu.target import Float8Pairs
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.lower.numbers import before_narrowing, is_narrow, widened
from tilewave.lower.numbers import cast as plain_cast
from tilewave.records import dataclass


@dataclass(frozen=True)
class Float8:
    """An 8-bit format: sign bit, exponent, mantissa; `largest` is the code of the largest number, `beyond` the next."""

    mantissa: int
    bias: int
    largest: int
    beyond: int
    nan: int
    signed_zero: bool

    @property
    def shift(self) -> int:
        return 23 - self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


FORMATS = {
    "f8e4m3fn": Float8(3, 7, 0x7E, 0x7F, 0x7F, True),
    "f8e5m2": Float8(2, 15, 0x7B, 0x7C, 0x7E, True),
    "f8e4m3fnuz": Float8(3, 8, 0x7F, 0x80, 0x80, False),
    "f8e5m2fnuz": Float8(2, 16, 0x7F, 0x80, 0x80, False),
}


@dataclass(frozen=True)
class FloatConversions:
    """Conversions in one function; `float8` are those of the hardware."""

    f: LlvmFunction
    float8: Float8Pairs | None

    def cast(self, x: str, old: DType, new: DType, lanes: int) -> str:
        """Return x in another dtype."""
        if old == new:
            return x
        if is_narrow(old):
            return self.cast(self.widen(x, old, lanes), F32, new, lanes)
        if is_narrow(new):
            return self.narrow(before_narrowing(self.f, x, old, new, lanes), new, lanes)
        return plain_cast(self.f, x, old, new, lanes)

    def widen(self, x: str, dtype: DType, lanes: int) -> str:
        """Return a narrow float as f32."""
        if dtype in (F16, BF16):
            return widened(self.f, x, dtype, lanes)
        if self.float8 and dtype.name in self.float8.converts:
            return widen_pairs(self.f, x, dtype.name, lanes, self.float8)
        return _from_float8(self.f, x, FORMATS[dtype.name], lanes)

    def narrow(self, x: str, dtype: DType, lanes: int) -> str:
        """Return an f32 rounded to a narrow float, to nearest even."""
        f, wide = self.f, vector(lanes, "float")
        if dtype == F16:
            return f.value(f"fptrunc {wide} {x} to {vector(lanes, 'half')}")
        if dtype == BF16:
            rounded = f.value(f"fptrunc {wide} {x} to {vector(lanes, 'bfloat')}")
            return f.value(f"bitcast {vector(lanes, 'bfloat')} {rounded} to {vector(lanes, 'i16')}")
        if self.float8 and dtype.name in self.float8.converts:
            return narrow_pairs(f, x, dtype.name, lanes, self.float8)
        return _to_float8(f, x, FORMATS[dtype.name], lanes)


class _Words:
    """Arithmetic on 32-bit words, and on the floats with these bits."""

    def __init__(self, f: LlvmFunction, lanes: int) -> None:
        self.f, self.lanes = f, lanes
        self.ints, self.floats, self.truths = (vector(lanes, kind) for kind in ("i32", "float", "i1"))

    def word(self, value: int) -> str:
        return splat_constant("i32", str(value), self.lanes)

    def number(self, value: float) -> str:
        return splat_constant("float", literal(value, F32), self.lanes)

    def do(self, word: str, a: str, b: str | int) -> str:
        return self.f.value(f"{word} {self.ints} {a}, {b if isinstance(b, str) else self.word(b)}")

    def as_float(self, x: str) -> str:
        return self.f.value(f"bitcast {self.ints} {x} to {self.floats}")

    def as_int(self, x: str) -> str:
        return self.f.value(f"bitcast {self.floats} {x} to {self.ints}")

    def choose(self, condition: str, a: str, b: str) -> str:
        return self.f.value(f"select {self.truths} {condition}, {self.ints} {a}, {self.ints} {b}")


def _from_float8(f: LlvmFunction, x: str, fmt: Float8, lanes: int) -> str:
    """Return an 8-bit float as f32: its bits shifted into those of an f32, scaled by the difference of the biases."""
    w = _Words(f, lanes)
    bits = f.value(f"zext {vector(lanes, 'i8')} {x} to {w.ints}")
    size = w.do("and", bits, 0x7F)
    small = w.as_float(w.do("shl", size, fmt.shift))
    scaled = w.as_int(f.value(f"fmul {w.floats} {small}, {w.number(2.0 ** (127 - fmt.bias))}"))
    if fmt.signed_zero:
        infinite = f.value(f"icmp eq {w.ints} {size}, {w.word(fmt.beyond)}")
        above = f.value(f"icmp ugt {w.ints} {size}, {w.word(fmt.largest)}")
        not_a_number = w.choose(infinite, w.word(0x7F800000), w.word(0x7FC00000))
        special = not_a_number if fmt.beyond != fmt.nan else w.word(0x7FC00000)
        scaled = w.choose(above, special, scaled)
    sign = w.do("shl", w.do("and", bits, 0x80), 24)
    signed = w.do("or", scaled, sign)
    if not fmt.signed_zero:
        # Added to the bits of -0 this gives NaN.
        is_nan = f.value(f"icmp eq {w.ints} {bits}, {w.word(fmt.nan)}")
        signed = w.do("or", signed, w.choose(is_nan, w.word(0x7FC00000), w.word(0)))
    return w.as_float(signed)


def _to_float8(f: LlvmFunction, x: str, fmt: Float8, lanes: int) -> str:
    w = _Words(f, lanes)
    bits = w.as_int(x)
    size = w.do("and", bits, 0x7FFFFFFF)
    odd = w.do("and", w.do("lshr", size, fmt.shift), 1)
    rounded = w.do("add", w.do("add", size, (1 << (fmt.shift - 1)) - 1), odd)
    normal = w.do("sub", w.do("lshr", rounded, fmt.shift), (127 - fmt.bias) << fmt.mantissa)
    # Adding a float whose last digit is the format's smallest rounds to the format and leaves the code in the low bits.
    ruler = 2.0 ** (1 - fmt.bias - fmt.mantissa + 23)
    sum_ = f.value(f"fadd {w.floats} {w.as_float(size)}, {w.number(ruler)}")
    tiny = w.do("sub", w.as_int(sum_), w.as_int(w.number(ruler)))
    is_tiny = f.value(f"fcmp olt {w.floats} {w.as_float(size)}, {w.number(fmt.smallest_normal)}")
    code = w.choose(is_tiny, tiny, normal)
    too_large = f.value(f"icmp ugt {w.ints} {code}, {w.word(fmt.largest)}")
    code = w.choose(too_large, w.word(fmt.beyond), code)
    is_nan = f.value(f"icmp ugt {w.ints} {size}, {w.word(0x7F800000)}")
    code = w.choose(is_nan, w.word(fmt.nan), code)
    sign = w.do("and", w.do("lshr", bits, 24), 0x80)
    signed = w.do("or", code, sign)
    if not fmt.signed_zero:
        is_zero = f.value(f"icmp eq {w.ints} {code}, {w.word(0)}")
        signed = w.choose(is_zero, w.word(0), signed)
    return f.value(f"trunc {w.ints} {signed} to {vector(lanes, 'i8')}")
