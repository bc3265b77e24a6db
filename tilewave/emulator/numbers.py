"""The number formats of the chips: bits to values and back, by numpy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I16, I32, I64 = np.int8, np.int16, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

LETTERS: dict[str, type[np.generic]] = {
    "u": U32, "i": I32, "f": F32, "U": U64, "I": I64, "F": F64, "h": F16, "s": U16, "w": I16,
}  # fmt: skip
"""How the tables of instructions spell the type of an operand."""
WIDE, NARROW = "UIF", "hsw"

SMALL_FLOAT: dict[str, tuple[int, Any]] = {
    "fp6": (6, ml_dtypes.float6_e2m3fn),
    "bf6": (6, ml_dtypes.float6_e3m2fn),
    "fp4": (4, ml_dtypes.float4_e2m1fn),
}


def values_of(dtype: Any, bits: int) -> Array:
    """The value of every pattern of a narrow float, in float64."""
    result: Array = np.arange(1 << bits, dtype=U8).view(dtype).astype(F64)
    return result


def to_float8(x: Array, dtype: Any, *, largest: float | None) -> Array:
    """The byte of each float32, to nearest even; `largest` is where values saturate, if they do."""
    if largest is not None:
        x = np.where(np.isnan(x), x, np.clip(x, -largest, largest))
    return x.astype(dtype).view(U8).astype(U32)


def to_bfloat16(x: Array) -> Array:
    """The upper half of each float32, to nearest even, as a uint32."""
    return np.ascontiguousarray(x, F32).astype(ml_dtypes.bfloat16).view(U16).astype(U32)


def from_bfloat16(bits: Array) -> Array:
    result: Array = (bits.astype(U32) << U32(16)).view(F32)
    return result


def to_half_toward_zero(x: Array) -> Array:
    """The bits of float16, rounded toward zero."""
    nearest = x.astype(F16)
    too_large = np.abs(nearest.astype(F32)) > np.abs(x)
    bits: Array = nearest.view(U16).copy()
    bits[too_large & ~np.isinf(x)] -= U16(1)
    return bits


def to_integer(x: Array, low: int, high: int, dtype: type[np.generic]) -> Array:
    """Toward zero, saturating; NaN gives 0."""
    whole = np.trunc(x.astype(F64))
    return np.where(np.isnan(whole), 0, np.clip(whole, low, high)).astype(I64).astype(dtype)


def signed(x: Array, bits: int) -> Array:
    """The low bits of unsigned 64-bit numbers as a signed number."""
    shift = U64(64 - bits)
    result: Array = (x << shift).view(I64) >> I64(64 - bits)
    return result


def constant_bits(text: str, number: float, is_float: bool, letter: str) -> int:
    """Return the bits of an inline constant or a literal, read as this type."""
    if is_float:
        match letter:
            case _ if letter in WIDE:  # an operand of 64 bits gets the pattern of f64, also where it is only moved
                return int(np.array(number, F64).view(U64))
            case "h":
                return int(np.array(number, F16).view(U16))
            case _:
                return int(np.array(number, F32).view(U32))
    whole = int(number)
    if letter == "F" and text.lstrip("-").startswith(("0x", "lit(0x")):
        return (whole & MASK32) << 32
    return whole & (MASK64 if letter in WIDE else MASK32)
