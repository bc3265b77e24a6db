"""What the scalar instructions compute, on uint64 values, and when branches are taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewave.emulator.instruction import VCC
from tilewave.emulator.machine import Convoy
from tilewave.emulator.numbers import F64, I64, MASK32, MASK64, U32, U64, Array, signed
from tilewave.emulator.vector_table import count_ones, reverse_bits

Two = Callable[[Array, Array, Array], tuple[Array, Array | None]]
ONES = U64(MASK32)

BRANCHES: dict[str, Callable[[Convoy], Array]] = {
    "cbranch_scc0": lambda c: ~c.scc,
    "cbranch_scc1": lambda c: c.scc,
    "cbranch_vccz": lambda c: c.scalar64(VCC) == 0,
    "cbranch_vccnz": lambda c: c.scalar64(VCC) != 0,
    "cbranch_execz": lambda c: ~c.any_on,
    "cbranch_execnz": lambda c: c.any_on,
}
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn1": lambda a, b: ~a & b,
    "andn2": lambda a, b: a & ~b,
    "orn1": lambda a, b: ~a | b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}


def _overflows(total: Array) -> Array:
    return (total < -(2**31)) | (total >= 2**31)


def _signed(operation: Callable[[Array, Array], Array]) -> Two:
    """The exact result of two signed numbers, and whether it left 32 bits."""

    def both(a: Array, b: Array, _: Array) -> tuple[Array, Array | None]:
        total = operation(signed(a, 32), signed(b, 32))
        return total.view(U64), _overflows(total)

    return both


def _shifted_add(by: int) -> Two:
    return lambda a, b, _: ((a << U64(by)) + b, (a << U64(by)) + b > ONES)


def _of_bits(operation: Callable[[Array, Array], Array], mask: int) -> Two:
    def both(a: Array, b: Array, _: Array) -> tuple[Array, Array | None]:
        result = operation(a, b) & U64(mask)
        return result, result != 0

    return both


def _high_signed(a: Array, b: Array, _: Array) -> tuple[Array, Array | None]:
    return ((signed(a, 32) * signed(b, 32)) >> I64(32)).view(U64), None


def _minimum_signed(a: Array, b: Array, _: Array) -> tuple[Array, Array | None]:
    return np.minimum(signed(a, 32), signed(b, 32)).view(U64), signed(a, 32) < signed(b, 32)


def _maximum_signed(a: Array, b: Array, _: Array) -> tuple[Array, Array | None]:
    return np.maximum(signed(a, 32), signed(b, 32)).view(U64), signed(a, 32) >= signed(b, 32)


HALF, UPPER = U64(0xFFFF), U64(0xFFFF0000)
TWO_OPERANDS: dict[str, tuple[int, Two]] = {
    "add_u32": (32, lambda a, b, c: (a + b, a + b > ONES)),
    "sub_u32": (32, lambda a, b, c: (a - b, b > a)),
    "addc_u32": (32, lambda a, b, c: (a + b + c, a + b + c > ONES)),
    "subb_u32": (32, lambda a, b, c: (a - b - c, b + c > a)),
    "add_i32": (32, _signed(lambda a, b: a + b)),
    "sub_i32": (32, _signed(lambda a, b: a - b)),
    "mul_i32": (32, lambda a, b, c: (a * b, None)),
    "mul_hi_u32": (32, lambda a, b, c: ((a * b) >> U64(32), None)),
    "mul_hi_i32": (32, _high_signed),
    "min_i32": (32, _minimum_signed),
    "max_i32": (32, _maximum_signed),
    "min_u32": (32, lambda a, b, c: (np.minimum(a, b), a < b)),
    "max_u32": (32, lambda a, b, c: (np.maximum(a, b), a >= b)),
    "absdiff_i32": (32, lambda a, b, c: (np.abs(signed(a, 32) - signed(b, 32)).view(U64), a != b)),
    "pack_ll_b32_b16": (32, lambda a, b, c: ((b & HALF) << U64(16) | a & HALF, None)),
    "pack_lh_b32_b16": (32, lambda a, b, c: (b & UPPER | a & HALF, None)),
    "pack_hh_b32_b16": (32, lambda a, b, c: (b & UPPER | a >> U64(16), None)),
    "bfm_b32": (32, lambda a, b, c: (((U64(1) << (a & U64(31))) - U64(1)) << (b & U64(31)), None)),
    "bfm_b64": (64, lambda a, b, c: (((U64(1) << (a & U64(63))) - U64(1)) << (b & U64(63)), None)),
    **{f"lshl{by}_add_u32": (32, _shifted_add(by)) for by in (1, 2, 3, 4)},
    **{f"{name}_b32": (32, _of_bits(formula, MASK32)) for name, formula in LOGIC.items()},
    **{f"{name}_b64": (64, _of_bits(formula, MASK64)) for name, formula in LOGIC.items()},
}


def _halves(x: Array) -> tuple[Array, Array]:
    return x.astype(U32), (x >> U64(32)).astype(U32)


def _ones(x: Array) -> Array:
    low, high = _halves(x)
    return count_ones(low).astype(U64) + count_ones(high).astype(U64)


def _reversed64(x: Array) -> Array:
    low, high = _halves(x)
    result: Array = reverse_bits(low).astype(U64) << U64(32) | reverse_bits(high).astype(U64)
    return result


def _length(x: Array) -> Array:
    """The number of bits up to the highest one."""
    low, high = _halves(x)
    return np.where(high != 0, 32 + np.frexp(high.astype(F64))[1], np.frexp(low.astype(F64))[1]).astype(U64)


def _first_one(x: Array) -> Array:
    result: Array = np.where(x == 0, ONES, _length(x & (~x + U64(1))) - U64(1))
    return result


def _leading(bits: int) -> Callable[[Array], Array]:
    return lambda x: np.where(x == 0, ONES, U64(bits) - _length(x))


def _leading_signs(x: Array) -> Array:
    value = signed(x, 32)
    folded = np.where(value < 0, ~value, value).view(U64)
    result: Array = np.where(folded == 0, ONES, U64(32) - _length(folded))
    return result


def _extended(bits: int) -> Callable[[Array], Array]:
    return lambda x: signed(x, bits).view(U64)


def _absolute(x: Array) -> Array:
    return np.abs(signed(x, 32)).view(U64)


ONE_OPERAND: dict[str, tuple[int, int, Callable[[Array], Array], bool]] = {
    "mov_b32": (32, 32, lambda x: x, False),
    "mov_b64": (64, 64, lambda x: x, False),
    "not_b32": (32, 32, lambda x: ~x & ONES, True),
    "not_b64": (64, 64, lambda x: ~x, True),
    "brev_b32": (32, 32, lambda x: reverse_bits(x.astype(U32)).astype(U64), False),
    "brev_b64": (64, 64, _reversed64, False),
    "bcnt1_i32_b32": (32, 32, _ones, True),
    "bcnt1_i32_b64": (64, 32, _ones, True),
    "bcnt0_i32_b32": (32, 32, lambda x: U64(32) - _ones(x), True),
    "bcnt0_i32_b64": (64, 32, lambda x: U64(64) - _ones(x), True),
    "ff1_i32_b32": (32, 32, _first_one, False),
    "ff1_i32_b64": (64, 32, _first_one, False),
    "ff0_i32_b32": (32, 32, lambda x: _first_one(~x & ONES), False),
    "ff0_i32_b64": (64, 32, lambda x: _first_one(~x), False),
    "flbit_i32_b32": (32, 32, _leading(32), False),
    "flbit_i32_b64": (64, 32, _leading(64), False),
    "flbit_i32": (32, 32, _leading_signs, False),
    "abs_i32": (32, 32, _absolute, True),
    "sext_i32_i8": (32, 32, _extended(8), False),
    "sext_i32_i16": (32, 32, _extended(16), False),
}
"""Bits of the operand, bits of the result, the formula, and whether it leaves a condition."""
