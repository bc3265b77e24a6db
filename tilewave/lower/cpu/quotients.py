"""Many numbers divided by one: the reciprocal times each, corrected to the last bit.

With y = 1/b rounded to nearest, q = x · y is off by less than two units. The remainder x - q · b, times y, corrects q
twice: after the first correction q is one of the two neighbours of x/b, and the second gives the nearer of them
(Markstein). Fused multiply-adds round once, and nothing may underflow: 1 ≤ b ≤ 2²⁴, and no x is between 0 and 2⁻¹⁰⁰.
Where an x is, or is infinite or NaN, all are divided as usual.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.ir.types import F32
from tilewave.lower.elements import literal, splat_constant, suffix
from tilewave.lower.llvm import LlvmFunction, Typed, vector

FEWEST = 4
"""The fewest vectors for which this is faster than a division each."""
SMALLEST_BITS = (127 - 100) << 23
"""The f32 bit pattern of 2⁻¹⁰⁰."""
LARGEST_DIVISOR = 2.0**24


def divided_by_one(f: LlvmFunction, numbers: Sequence[str], by: str, lanes: int) -> list[str]:
    """Return vectors of f32 divided by one number, which is in every lane of `by`."""
    kind = vector(lanes, "float")
    one = splat_constant("float", literal(1.0, F32), lanes)
    inverse = f.value(f"fdiv {kind} {one}, {by}")
    found = [_quotient(f, x, by, inverse, lanes) for x in numbers]
    doubtful = [_is_doubtful(f, x, q, lanes) for x, q in zip(numbers, found, strict=True)]
    safe = f.value(f"and i1 {_is_near(f, by, lanes)}, {_none(f, doubtful, lanes)}")

    def quick() -> list[Typed]:
        return [(kind, q) for q in found]

    def plain() -> list[Typed]:
        return [(kind, f.value(f"fdiv {kind} {x}, {by}")) for x in numbers]

    return [q for _, q in f.choose(safe, quick, plain)]


def _quotient(f: LlvmFunction, x: str, by: str, inverse: str, lanes: int) -> str:
    kind, ints = vector(lanes, "float"), vector(lanes, "i32")

    def fused(a: str, b: str, c: str) -> str:
        return f.call(kind, f"llvm.fma.{suffix(kind)}", [(kind, v) for v in (a, b, c)])

    minus = f.value(f"fneg {kind} {by}")
    found = f.value(f"fmul {kind} {x}, {inverse}")
    for _ in range(2):
        found = fused(fused(found, minus, x), inverse, found)
    # The remainder of -0 is 0, and 0 added to -0 loses the sign.
    sign = f.value(f"and {ints} {_bits(f, x, lanes)}, {splat_constant('i32', str(-(1 << 31)), lanes)}")
    signed = f.value(f"or {ints} {_bits(f, found, lanes)}, {sign}")
    return f.value(f"bitcast {ints} {signed} to {kind}")


def _bits(f: LlvmFunction, x: str, lanes: int) -> str:
    return f.value(f"bitcast {vector(lanes, 'float')} {x} to {vector(lanes, 'i32')}")


def _is_doubtful(f: LlvmFunction, x: str, quotient: str, lanes: int) -> str:
    """Return the mask of x that are too small, but not 0, and of quotients that are NaN."""
    ints = vector(lanes, "i32")

    def whole(value: int) -> str:
        return splat_constant("i32", str(value), lanes)

    size = f.value(f"and {ints} {_bits(f, x, lanes)}, {whole(0x7FFFFFFF)}")
    before = f.value(f"sub {ints} {size}, {whole(1)}")
    small = f.value(f"icmp ult {ints} {before}, {whole(SMALLEST_BITS - 1)}")
    lost = f.value(f"fcmp uno {vector(lanes, 'float')} {quotient}, {quotient}")
    return f.value(f"or {vector(lanes, 'i1')} {small}, {lost}")


def _is_near(f: LlvmFunction, by: str, lanes: int) -> str:
    one = f.value(f"extractelement {vector(lanes, 'float')} {by}, i64 0")
    above = f.value(f"fcmp oge float {one}, {literal(1.0, F32)}")
    below = f.value(f"fcmp ole float {one}, {literal(LARGEST_DIVISOR, F32)}")
    return f.value(f"and i1 {above}, {below}")


def _none(f: LlvmFunction, doubts: Sequence[str], lanes: int) -> str:
    mask, found = vector(lanes, "i1"), doubts[0]
    for more in doubts[1:]:
        found = f.value(f"or {mask} {found}, {more}")
    some = f.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [(mask, found)])
    return f.value(f"xor i1 {some}, true")
