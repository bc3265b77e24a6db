"""What the vector instructions compute: one row each, result and operand types, and the formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tilewave.emulator.numbers import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    MASK32,
    U16,
    U32,
    U64,
    Array,
    to_bfloat16,
    to_half_toward_zero,
    to_integer,
)

Formula = Callable[..., Array]


class InstructionRow(NamedTuple):
    """`Row("f", "ff", add)`: a float from two floats; "+" after the types: the destination is the last operand."""

    result: str
    operands: str
    formula: Formula


def multiply_high(a: Array, b: Array) -> Array:
    wide = I64 if a.dtype == I32 else U64
    result: Array = ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)
    return result


def low24(x: Array) -> Array:
    result: Array = x & U32(0xFFFFFF)
    return result


def signed24(x: Array) -> Array:
    result: Array = (x << I32(8)) >> I32(8)
    return result


def extract_unsigned(value: Array, offset: Array, count: Array) -> Array:
    result: Array = (value >> (offset & U32(31))) & ((U32(1) << (count & U32(31))) - U32(1))
    return result


def extract_signed(value: Array, offset: Array, count: Array) -> Array:
    shift, bits = (offset & I32(31)).astype(I64), (count & I32(31)).astype(I64)
    field = (value.astype(I64) >> shift) & ((I64(1) << bits) - 1)
    negative = ((field >> np.maximum(bits - 1, 0)) & 1).astype(bool)
    return np.where(bits == 0, 0, np.where(negative, field - (I64(1) << bits), field)).astype(I32)


def count_ones(x: Array) -> Array:
    x = x - ((x >> U32(1)) & U32(0x55555555))
    x = (x & U32(0x33333333)) + ((x >> U32(2)) & U32(0x33333333))
    x = (x + (x >> U32(4))) & U32(0x0F0F0F0F)
    result: Array = (x * U32(0x01010101)) >> U32(24)
    return result


def reverse_bits(x: Array) -> Array:
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        x = ((x >> U32(shift)) & U32(mask)) | ((x & U32(mask)) << U32(shift))
    return x


def leading_zeros(x: Array) -> Array:
    """From the top; all ones where there is no one."""
    return np.where(x == 0, U32(MASK32), (32 - np.frexp(x.astype(F64))[1]).astype(I64).astype(U32))


def trailing_zeros(x: Array) -> Array:
    lowest = (x & (~x + U32(1))).astype(F64)
    result: Array = np.where(x == 0, U32(MASK32), (np.frexp(lowest)[1] - 1).astype(I64).astype(U32))
    return result


def leading_signs(x: Array) -> Array:
    folded = np.where((x >> U32(31)).astype(bool), ~x, x)
    return np.where((x == 0) | (x == MASK32), U32(MASK32), leading_zeros(folded))


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """Each byte of the selector picks one of the eight bytes of a and b, a sign, 0 or 255."""
    both = (a.astype(U64) << U64(32)) | b.astype(U64)
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), U32)
    for byte in range(4):
        pick = (selector >> U32(8 * byte)) & U32(0xFF)
        value = ((both >> ((pick & U32(7)).astype(U64) * U64(8))) & U64(0xFF)).astype(U32)
        sign = ((both >> ((pick & U32(3)).astype(U64) * U64(16) + U64(15))) & U64(1)).astype(U32) * U32(0xFF)
        other = np.where(pick <= 11, sign, np.where(pick == 12, U32(0), U32(0xFF)))
        result |= np.where(pick <= 7, value, other) << U32(8 * byte)
    return result


def align(a: Array, b: Array, shift: Array) -> Array:
    result: Array = (((a.astype(U64) << U64(32)) | b.astype(U64)) >> shift.astype(U64)).astype(U32)
    return result


def median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def exponent(x: Array) -> Array:
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(I32)


def mantissa(x: Array) -> Array:
    return np.where(np.isfinite(x), np.frexp(x)[0], x).astype(x.dtype)


def fraction(x: Array) -> Array:
    result: Array = np.minimum(x - np.floor(x), np.nextafter(x.dtype.type(1), x.dtype.type(0)))
    return result


def two_halves(low: Array, high: Array) -> Array:
    """Two 16-bit patterns in one register."""
    result: Array = (low.astype(U32) & U32(0xFFFF)) | (high.astype(U32) << U32(16))
    return result


def half_bits(x: Array) -> Array:
    return x.astype(F16).view(U16)


def normalized(x: Array) -> Array:
    result: Array = np.rint(np.clip(x, -1, 1) * F32(32767)).astype(I32)
    return result


def saturating_add(a: Array, b: Array) -> Array:
    total = a + b
    return np.where(total < a, ~a.dtype.type(0), total)


def saturating_subtract(a: Array, b: Array) -> Array:
    return np.where(b > a, a.dtype.type(0), a - b)


def _byte(index: int) -> Formula:
    return lambda a: ((a >> U32(8 * index)) & U32(255)).astype(F32)


def _to(dtype: type[np.generic]) -> Formula:
    return lambda a: a.astype(dtype)


def _integer(low: int, high: int, dtype: type[np.generic]) -> Formula:
    return lambda a: to_integer(a, low, high, dtype)


INT32 = (-(2**31), 2**31 - 1)
MOVES = {
    "mov_b32": InstructionRow("u", "u", lambda a: a),
    "mov_b64": InstructionRow("U", "U", lambda a: a),
    "not_b32": InstructionRow("u", "u", lambda a: ~a),
    "bfrev_b32": InstructionRow("u", "u", reverse_bits),
    "ffbh_u32": InstructionRow("u", "u", leading_zeros),
    "ffbl_b32": InstructionRow("u", "u", trailing_zeros),
    "ffbh_i32": InstructionRow("u", "u", leading_signs),
    "accvgpr_read_b32": InstructionRow("u", "u", lambda a: a),
    "accvgpr_read": InstructionRow("u", "u", lambda a: a),
    "accvgpr_write_b32": InstructionRow("u", "u", lambda a: a),
    "accvgpr_write": InstructionRow("u", "u", lambda a: a),
    "accvgpr_mov_b32": InstructionRow("u", "u", lambda a: a),
}
CONVERSIONS = {
    "cvt_f32_u32": InstructionRow("f", "u", _to(F32)),
    "cvt_f32_i32": InstructionRow("f", "i", _to(F32)),
    "cvt_u32_f32": InstructionRow("u", "f", _integer(0, MASK32, U32)),
    "cvt_i32_f32": InstructionRow("i", "f", _integer(*INT32, I32)),
    "cvt_flr_i32_f32": InstructionRow("i", "f", lambda a: to_integer(np.floor(a), *INT32, I32)),
    "cvt_rpi_i32_f32": InstructionRow("i", "f", lambda a: to_integer(np.floor(a + F32(0.5)), *INT32, I32)),
    "cvt_f16_f32": InstructionRow("h", "f", _to(F16)),
    "cvt_f32_f16": InstructionRow("f", "h", _to(F32)),
    "cvt_f64_f32": InstructionRow("F", "f", _to(F64)),
    "cvt_f32_f64": InstructionRow("f", "F", _to(F32)),
    "cvt_f64_i32": InstructionRow("F", "i", _to(F64)),
    "cvt_f64_u32": InstructionRow("F", "u", _to(F64)),
    "cvt_i32_f64": InstructionRow("i", "F", _integer(*INT32, I32)),
    "cvt_u32_f64": InstructionRow("u", "F", _integer(0, MASK32, U32)),
    "cvt_f16_u16": InstructionRow("h", "s", _to(F16)),
    "cvt_f16_i16": InstructionRow("h", "w", _to(F16)),
    "cvt_u16_f16": InstructionRow("s", "h", _integer(0, 65535, U16)),
    "cvt_i16_f16": InstructionRow("w", "h", _integer(-32768, 32767, I16)),
    "cvt_f32_bf16": InstructionRow("f", "s", lambda a: (a.astype(U32) << U32(16)).view(F32)),
    **{f"cvt_f32_ubyte{i}": InstructionRow("f", "u", _byte(i)) for i in range(4)},
    "cvt_pkrtz_f16_f32": InstructionRow(
        "u", "ff", lambda a, b: two_halves(to_half_toward_zero(a), to_half_toward_zero(b))
    ),
    "cvt_pk_f16_f32": InstructionRow("u", "ff", lambda a, b: two_halves(half_bits(a), half_bits(b))),
    "cvt_pk_bf16_f32": InstructionRow("u", "ff", lambda a, b: two_halves(to_bfloat16(a), to_bfloat16(b))),
    "pack_b32_f16": InstructionRow("u", "hh", lambda a, b: two_halves(a.view(U16), b.view(U16))),
    "cvt_pk_u16_u32": InstructionRow(
        "u", "uu", lambda a, b: two_halves(np.minimum(a, U32(65535)), np.minimum(b, U32(65535)))
    ),
    "cvt_pk_i16_i32": InstructionRow(
        "u", "ii", lambda a, b: two_halves(np.clip(a, -32768, 32767).view(U32), np.clip(b, -32768, 32767).view(U32))
    ),
    "cvt_pknorm_i16_f32": InstructionRow(
        "u", "ff", lambda a, b: two_halves(normalized(a).view(U32), normalized(b).view(U32))
    ),
}
INTEGERS = {
    "add_u32": InstructionRow("u", "uu", lambda a, b: a + b),
    "add_i32": InstructionRow("u", "uu", lambda a, b: a + b),
    "sub_u32": InstructionRow("u", "uu", lambda a, b: a - b),
    "sub_i32": InstructionRow("u", "uu", lambda a, b: a - b),
    "subrev_u32": InstructionRow("u", "uu", lambda a, b: b - a),
    "mul_lo_u32": InstructionRow("u", "uu", lambda a, b: a * b),
    "mul_hi_u32": InstructionRow("u", "uu", multiply_high),
    "mul_hi_i32": InstructionRow("i", "ii", multiply_high),
    "mul_u32_u24": InstructionRow("u", "uu", lambda a, b: low24(a) * low24(b)),
    "mul_i32_i24": InstructionRow("i", "ii", lambda a, b: signed24(a) * signed24(b)),
    "mul_hi_u32_u24": InstructionRow("u", "uu", lambda a, b: multiply_high(low24(a), low24(b))),
    "mul_hi_i32_i24": InstructionRow("i", "ii", lambda a, b: multiply_high(signed24(a), signed24(b))),
    "mad_u32_u24": InstructionRow("u", "uuu", lambda a, b, c: low24(a) * low24(b) + c),
    "mad_i32_i24": InstructionRow("i", "iii", lambda a, b, c: signed24(a) * signed24(b) + c),
    "mad_u32_u16": InstructionRow("u", "ssu", lambda a, b, c: a.astype(U32) * b.astype(U32) + c),
    "mad_i32_i16": InstructionRow("i", "wwi", lambda a, b, c: a.astype(I32) * b.astype(I32) + c),
    "lshlrev_b32": InstructionRow("u", "uu", lambda a, b: b << (a & U32(31))),
    "lshrrev_b32": InstructionRow("u", "uu", lambda a, b: b >> (a & U32(31))),
    "ashrrev_i32": InstructionRow("i", "ii", lambda a, b: b >> (a & I32(31))),
    "and_b32": InstructionRow("u", "uu", lambda a, b: a & b),
    "or_b32": InstructionRow("u", "uu", lambda a, b: a | b),
    "xor_b32": InstructionRow("u", "uu", lambda a, b: a ^ b),
    "xnor_b32": InstructionRow("u", "uu", lambda a, b: ~(a ^ b)),
    "bfe_u32": InstructionRow("u", "uuu", extract_unsigned),
    "bfe_i32": InstructionRow("i", "iii", extract_signed),
    "bfi_b32": InstructionRow("u", "uuu", lambda a, b, c: (a & b) | (~a & c)),
    "bfm_b32": InstructionRow("u", "uu", lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "bcnt_u32_b32": InstructionRow("u", "uu", lambda a, b: count_ones(a) + b),
    "perm_b32": InstructionRow("u", "uuu", permute_bytes),
    "alignbit_b32": InstructionRow("u", "uuu", lambda a, b, c: align(a, b, c & U32(31))),
    "alignbyte_b32": InstructionRow("u", "uuu", lambda a, b, c: align(a, b, (c & U32(3)) * U32(8))),
    "lshl_add_u32": InstructionRow("u", "uuu", lambda a, b, c: (a << (b & U32(31))) + c),
    "add_lshl_u32": InstructionRow("u", "uuu", lambda a, b, c: (a + b) << (c & U32(31))),
    "lshl_or_b32": InstructionRow("u", "uuu", lambda a, b, c: (a << (b & U32(31))) | c),
    "and_or_b32": InstructionRow("u", "uuu", lambda a, b, c: (a & b) | c),
    "or3_b32": InstructionRow("u", "uuu", lambda a, b, c: a | b | c),
    "add3_u32": InstructionRow("u", "uuu", lambda a, b, c: a + b + c),
    "xad_u32": InstructionRow("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "sad_u32": InstructionRow("u", "uuu", lambda a, b, c: np.where(a > b, a - b, b - a) + c),
    "min_u32": InstructionRow("u", "uu", np.minimum),
    "max_u32": InstructionRow("u", "uu", np.maximum),
    "min_i32": InstructionRow("i", "ii", np.minimum),
    "max_i32": InstructionRow("i", "ii", np.maximum),
    "min3_u32": InstructionRow("u", "uuu", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_u32": InstructionRow("u", "uuu", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "med3_u32": InstructionRow("u", "uuu", median),
    "min3_i32": InstructionRow("i", "iii", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_i32": InstructionRow("i", "iii", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "med3_i32": InstructionRow("i", "iii", median),
    "lshlrev_b64": InstructionRow("U", "uU", lambda a, b: b << (a & U32(63)).astype(U64)),
    "lshrrev_b64": InstructionRow("U", "uU", lambda a, b: b >> (a & U32(63)).astype(U64)),
    "ashrrev_i64": InstructionRow("I", "uI", lambda a, b: b >> (a & U32(63)).astype(I64)),
    "lshl_add_u64": InstructionRow("U", "UuU", lambda a, b, c: (a << (b & U32(7)).astype(U64)) + c),
    "add_u16": InstructionRow("s", "ss", lambda a, b: a + b),
    "sub_u16": InstructionRow("s", "ss", lambda a, b: a - b),
    "subrev_u16": InstructionRow("s", "ss", lambda a, b: b - a),
    "mul_lo_u16": InstructionRow("s", "ss", lambda a, b: a * b),
    "mad_u16": InstructionRow("s", "sss", lambda a, b, c: a * b + c),
    "mad_legacy_u16": InstructionRow("s", "sss", lambda a, b, c: a * b + c),
    "lshlrev_b16": InstructionRow("s", "ss", lambda a, b: b << (a & U16(15))),
    "lshrrev_b16": InstructionRow("s", "ss", lambda a, b: b >> (a & U16(15))),
    "ashrrev_i16": InstructionRow("w", "ww", lambda a, b: b >> (a & I16(15))),
    "min_u16": InstructionRow("s", "ss", np.minimum),
    "max_u16": InstructionRow("s", "ss", np.maximum),
    "min_i16": InstructionRow("w", "ww", np.minimum),
    "max_i16": InstructionRow("w", "ww", np.maximum),
    "add_i16": InstructionRow("w", "ww", lambda a, b: a + b),
    "sub_i16": InstructionRow("w", "ww", lambda a, b: a - b),
    "mad_i16": InstructionRow("w", "www", lambda a, b, c: a * b + c),
    "min3_i16": InstructionRow("w", "www", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_i16": InstructionRow("w", "www", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "min3_u16": InstructionRow("s", "sss", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "max3_u16": InstructionRow("s", "sss", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "med3_i16": InstructionRow("w", "www", median),
    "med3_u16": InstructionRow("s", "sss", median),
}
