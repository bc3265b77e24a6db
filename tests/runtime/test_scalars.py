"""Numbers of a call: what is taken, what it becomes, and what is refused."""

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilewave.ir.types import BF16, BOOL, DTYPES, F8E4M3FN, F8E5M2, F16, F32, F64, I8, I32, I64, INTERNAL, U16, U64
from tilewave.runtime.dlpack import Refused
from tilewave.runtime.scalars import largest, scalar_value, value_of, word_of

PUBLIC = [d for d in DTYPES.values() if d not in INTERNAL]
LEAST = -(1 << 63)
FLOATS = [d for d in PUBLIC if d.is_float]


def refused(given, dtype):
    with pytest.raises(Refused) as caught:
        scalar_value("x", given, dtype)
    return caught.value.what, caught.value.remedy


@pytest.mark.parametrize("dtype", PUBLIC, ids=str)
def test_a_word_gives_its_number_back(dtype):
    given = [True, False]
    if dtype.is_int:
        given = [0, 1, 7, *dtype.bounds, *([-1] if dtype.is_signed else [])]
    if dtype.is_float:
        given = [0.0, -0.0, 1.0, -1.5, 0.1, math.nan, float(largest(dtype))]
        given += [math.inf, -math.inf] if dtype in (F16, BF16, F32, F64, F8E5M2) else []
    for one in given:
        value = scalar_value("x", one, dtype)
        again = value_of(word_of(value, dtype), dtype)
        assert type(again) is type(value)
        np.testing.assert_array_equal(np.float64(again), np.float64(value))
        assert np.signbit(np.float64(again)) == np.signbit(np.float64(value))


def test_floats_are_words_of_their_own_bits():
    assert word_of(scalar_value("x", 1.0, F32), F32) == 0x3F800000
    assert word_of(scalar_value("x", -2.0, F64), F64) == 0xC000000000000000 - (1 << 64), "with a sign"
    assert word_of(scalar_value("x", 1.0, BF16), BF16) == 0x3F80
    assert word_of(scalar_value("x", -1.0, F16), F16) == 0xBC00
    assert word_of(scalar_value("x", -3, I8), I8) == -3
    assert word_of(scalar_value("x", True, BOOL), BOOL) == 1


def test_a_float_is_rounded_once():
    """Via f32, this number would be halfway between two of f16, and be rounded to the even one."""
    number = 1 + 2.0**-11 + 2.0**-40
    assert float(scalar_value("x", number, F16)) == 1 + 2.0**-10
    assert float(np.float16(np.float32(number))) == 1.0


@pytest.mark.parametrize(
    ("given", "dtype", "value"),
    [
        (np.float64(0.5), F32, 0.5),
        (np.float16(0.5), F64, 0.5),
        (np.array(0.5, np.float32), F32, 0.5),
        (ml_dtypes.bfloat16(0.5), F32, 0.5),
        (np.array(0.5, ml_dtypes.bfloat16), BF16, 0.5),
        (np.int8(3), I64, 3),
        (np.uint64(3), I32, 3),
        (np.array(-3), I32, -3),
        (np.bool_(True), BOOL, True),
        (np.array(False), BOOL, False),
        (5e-324, F64, 5e-324),
    ],
)
def test_numbers_of_numpy_are_taken(given, dtype, value):
    assert scalar_value("x", given, dtype) == value


@pytest.mark.parametrize(
    ("given", "dtype", "what", "remedy"),
    [
        (1, F32, "x is 1 (int), but the kernel takes a float (f32)", "write x=1.0"),
        (np.int64(-2), F16, "x is -2 (int64), but the kernel takes a float (f16)", "write x=-2.0"),
        (True, F32, "x is True (bool), but the kernel takes a float (f32)", "write x=1.0"),
        (
            *(2.0, I32, "x is 2.0 (float), but the kernel takes a whole number (i32)"),
            "write x=2, or declare x: f32 to compute with fractions",
        ),
        (
            *(math.nan, I32, "x is nan (float), but the kernel takes a whole number (i32)"),
            "declare x: f32 to compute with fractions",
        ),
        (
            *(False, I64, "x is False (bool), but the kernel takes a whole number (i64)"),
            "write x=0, or declare x: f32 to compute with fractions",
        ),
        (1, BOOL, "x is 1 (int), but the kernel takes True or False", "write x=True"),
        (0.0, BOOL, "x is 0.0 (float), but the kernel takes True or False", "write x=False"),
        (128, I8, "x is 128, which is no i8", "i8 goes from -128 to 127, or declare x: i64"),
        (1 << 63, I64, f"x is {1 << 63}, which is no i64", f"i64 goes from {LEAST} to {-LEAST - 1}, or declare x: u64"),
        (1 << 64, I64, f"x is {1 << 64}, which is no i64", f"i64 goes from {LEAST} to {-LEAST - 1}"),
        (-1, U16, "x is -1, which is no u16", "u16 goes from 0 to 65535, or declare x: i64"),
        (1 << 64, U64, f"x is {1 << 64}, which is no u64", f"u64 goes from 0 to {(1 << 64) - 1}"),
        (
            *(-1e39, F32, "x is -1e+39, which f32 does not have"),
            f"the largest f32 is {largest(F32)}; declare x: f64 for numbers as large as this one",
        ),
        (
            *(math.inf, F8E4M3FN, "x is inf, which f8e4m3fn does not have"),
            "the largest f8e4m3fn is 448; declare x: f64 for numbers as large as this one",
        ),
        (None, F32, "x is None, but the kernel takes a float (f32)", "pass x=…, a Python or numpy number"),
        ("1.0", F32, "x is a str, but the kernel takes a float (f32)", "pass x=…, a Python or numpy number"),
        (1j, F32, "x is a complex, but the kernel takes a float (f32)", "pass x=…, a Python or numpy number"),
        (
            *(np.ones(3), F64, "x is an array of float64, but the kernel takes a float (f64)"),
            "declare x as Memory[…] to pass an array",
        ),
        (
            *(Fraction(1, 2), F64, "x is a fractions.Fraction, but the kernel takes a float (f64)"),
            "pass x=…, a Python or numpy number",
        ),
        (
            *(Decimal(1), F64, "x is a decimal.Decimal, but the kernel takes a float (f64)"),
            "pass x=…, a Python or numpy number",
        ),
    ],
)
def test_other_numbers_are_refused_with_what_to_write(given, dtype, what, remedy):
    assert refused(given, dtype) == (what, remedy)


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_that_no_float_and_no_word_has_are_refused(digits):
    assert refused(10**digits, F32)[1] == f"the largest f32 is {largest(F32)}"
    assert refused(10**digits, I32)[1] == "i32 goes from -2147483648 to 2147483647"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_number_of_a_dtype_is_taken_and_the_next_is_not(dtype):
    most = float(largest(dtype))
    assert float(scalar_value("x", most, dtype)) == most
    if dtype != F64:
        assert refused(most * 2, dtype)[0].endswith(f"which {dtype} does not have")
