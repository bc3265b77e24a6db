"""The steps of a division: v_div_scale, v_div_fmas and v_div_fixup, around a reciprocal and its corrections.

v_div_scale scales dividend and divisor away from the ends of the format, so that no step of the corrections is
denormal or overflows; where that changes the quotient, it sets a mask, and v_div_fmas, the last correction,
scales back before it rounds. v_div_fixup applies the sign and the special cases.

AMD's document of CDNA4 is the source, except for three lines with which no division would be right:

- The document has v_div_fmas multiply by 2^32 (2^64 for f64). What it undoes is a factor of 2^64 (2^128), up or down,
  and the size of the quotient determines the direction.
- Where both the quotient and the divisor's inverse are denormal, the document has the divisor multiplied by 2^64, which
  makes it infinite. It is divided by it.
- The document has v_div_fixup overflow where the divisor's exponent is that of infinity, a case handled before. It
  overflows where the quotient is NaN: the corrections of an infinite quotient subtract infinity from itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tilewave.emulator.fused import scaled_fma
from tilewave.emulator.instruction import VCC
from tilewave.emulator.machine import LANES, Convoy, lanes_of, mask_of
from tilewave.emulator.numbers import F16, F32, F64, I32, Array
from tilewave.emulator.step import SCALAR_ROWS, Draft, Early, Execute


class Format(NamedTuple):
    """Exponents: of the smallest normal number, of half the smallest number; and of scaling."""

    smallest: int
    underflow: int
    far: int = 0
    tiny: int = 0
    scaling: int = 0


FORMATS = {
    np.dtype(F16): Format(-14, -25),
    np.dtype(F32): Format(-126, -150, far=96, tiny=23 - 127, scaling=64),
    np.dtype(F64): Format(-1022, -1075, far=768, tiny=53 - 1023, scaling=128),
}


def exponent(x: Array) -> Array:
    """Return the exponent of the highest digit of each number."""
    result: Array = np.frexp(x)[1] - 1
    return result


def scaled_operand(value: Array, divisor: Array, dividend: Array) -> tuple[Array, Array]:
    """One of the two, made fit for a division, and where the quotient is to be scaled back."""
    format_ = FORMATS[value.dtype]
    fraction_smaller = np.abs(np.frexp(dividend)[0]) < np.abs(np.frexp(divisor)[0])
    distance = exponent(dividend) - exponent(divisor)
    small_quotient = distance - fraction_smaller < format_.smallest
    small_inverse = np.abs(divisor) > np.ldexp(value.dtype.type(1), -format_.smallest)
    up, down, same = (np.array(sign * format_.scaling, I32) for sign in (1, -1, 0))
    is_divisor, is_dividend = value == divisor, value == dividend
    cases = [
        (distance >= format_.far, np.where(is_divisor, up, same), True),
        (exponent(divisor) < format_.smallest, up, False),
        (small_inverse & small_quotient, np.where(is_divisor, down, same), True),
        (small_inverse, down, False),
        (small_quotient, np.where(is_dividend, up, same), True),
        (exponent(dividend) <= format_.tiny, up, False),
    ]
    tests = [test for test, _, _ in cases]
    power = np.select(tests, [power for _, power, _ in cases], same)
    changes = np.select(tests, [np.array(changes) for _, _, changes in cases], False)
    zero = (dividend == 0) | (divisor == 0)
    return np.where(zero, value.dtype.type(np.nan), np.ldexp(value, power)), changes & ~zero


def fixed_quotient(quotient: Array, divisor: Array, dividend: Array) -> Array:
    """Return the quotient with its sign, replaced where an operand is special or the quotient is outside the format."""
    number, format_ = quotient.dtype.type, FORMATS[quotient.dtype]
    distance = exponent(dividend) - exponent(divisor)
    no_number = number(-np.nan)
    undefined = ((divisor == 0) & (dividend == 0)) | (np.isinf(divisor) & np.isinf(dividend))
    size = np.select(
        [
            (divisor == 0) | np.isinf(dividend),
            np.isinf(divisor) | (dividend == 0) | (distance < format_.underflow),
            np.isnan(quotient),
        ],
        [number(np.inf), number(0), number(np.inf)],
        np.abs(quotient),
    )
    result = np.where(np.signbit(divisor) ^ np.signbit(dividend), -size, size)
    special = [np.isnan(dividend), np.isnan(divisor), undefined]
    return np.select(special, [dividend, divisor, no_number], result)


def _scale(letter: str) -> Callable[[Draft], Execute]:
    def build(draft: Draft) -> Execute:
        a, b, third = (draft.source(o, letter) for o in draft.operands[2:5])
        write, write_mask = draft.target(draft.operands[0], letter), draft.scalar_target(draft.operands[1], 64)

        def execute(c: Convoy) -> None:
            result, changes = scaled_operand(*np.broadcast_arrays(a(c), b(c), third(c)))
            write(c, result)
            write_mask(c, mask_of(np.broadcast_to(changes, (c.count, LANES)) & c.on))

        return execute

    return build


def _last_step(letter: str) -> Callable[[Draft], Execute]:
    """A fused multiply-add that undoes what v_div_scale did, where vcc says so."""

    def build(draft: Draft) -> Execute:
        a, b, third = (draft.source(o, letter) for o in draft.operands[1:4])
        draft.scalar_reads += [VCC, VCC + 1]
        draft.early.append(Early(SCALAR_ROWS + VCC, 4, "undoes a division's scaling"))
        write = draft.target(draft.operands[0], letter)

        def execute(c: Convoy) -> None:
            quotient = third(c)
            scaling = FORMATS[quotient.dtype].scaling
            back = np.where(np.abs(quotient) >= 2, scaling, -scaling)
            power = np.where(lanes_of(c.scalar64(VCC)), back, 0).astype(I32)
            write(c, scaled_fma(a(c), b(c), quotient, power))

        return execute

    return build


DIVISION: dict[str, Callable[[Draft], Execute]] = {
    "div_scale_f32": _scale("f"),
    "div_scale_f64": _scale("F"),
    "div_fmas_f32": _last_step("f"),
    "div_fmas_f64": _last_step("F"),
}
