"""sin and cos of f32: the argument is reduced to |r| ≤ π/4 by quarter turns, exactly, however large it is.

    |x| = n · π/2 + r with |r| ≤ π/4        sin x is ± sin r or ± cos r, as the last two bits of n say

Up to `FAR`, n · π/2 is subtracted from x in three steps (Cody-Waite): π/2 is the sum of three floats, and n · the first
of them is exact. Beyond `FAR` (Payne-Hanek), the digits of x that count whole turns must not cost those that do not:
x = m · 2ᵉ with an integer m below 2²⁴, and only m · 2ᵉ · 2/π modulo 4 matters. So m is multiplied by the 96 digits of
2/π that begin where 2ᵉ · 2/π is 4; the digits before make whole turns, and those after less than 2⁻⁶⁸ of a quarter
turn. The product keeps 62 digits after the point. No f32 comes nearer to a whole number of quarter turns than 2⁻³⁰ of
one, so more digits of r are right than f32 has. A vector is reduced this way if one of its elements needs it.
"""

from __future__ import annotations

import math
from itertools import pairwise

from tilewave.ir.types import F32, F64
from tilewave.lower.elements import literal, splat_constant, suffix
from tilewave.lower.gpu.exponents import ExponentArithmetic
from tilewave.lower.llvm import Typed, vector

SIN = (
    -0.16666666628716995,
    0.008333328505357628,
    -0.00019839119123021793,
    2.7165831371368683e-06,
)
COS = (
    -0.49999999999956474,
    0.04166666663420732,
    -0.0013888884814788104,
    2.4799783214920346e-05,
    -2.7230094917044963e-07,
)
QUARTER_TURN = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
FAR = 2.0**15
"""Up to this argument three floats have enough digits, and the number of quarter turns is right to 1/1000."""
RULER = 1.5 * 2.0**23
"""A float plus this is rounded to an integer, which the last bits of the sum give."""
SIGN = -(2**31)
TWO_OVER_PI = 0x00000051_7CC1B727_220A94FE_13ABE8FA_9A6EE06D_B14ACC9E_21C820FF
"""2/π · 2¹⁹⁹, in seven words."""
WORDS = tuple(TWO_OVER_PI >> 32 * i & 0xFFFFFFFF for i in reversed(range(7)))


def rotated(m: ExponentArithmetic, x: str, quarters: int) -> str:
    """Return sin(x + quarters · 90°)."""
    size = m.call("fabs", x)
    near = _sine(m, x, quarters, *_near(m, size))

    def of_any_size() -> list[Typed]:
        far = _sine(m, x, quarters, *_far(m, size))
        return [(m.kind, m.choose(m.below(size, FAR), near, far))]

    # The branch selects between results, one register each, and not between the values they are computed from.
    ((_, found),) = m.f.choose(_is_any_far(m, size), of_any_size, lambda: [(m.kind, near)])
    return found


def _sine(m: ExponentArithmetic, x: str, quarters: int, count: str, rest: str) -> str:
    """Return sin(x + quarters · 90°) from the number of quarter turns in |x| and the rest."""
    square = m.do("fmul", rest, rest)
    sine = m.call("fma", m.do("fmul", rest, square), m.polynomial(square, SIN), rest)
    cosine = m.call("fma", square, m.polynomial(square, COS), m.number(1.0))
    number = m.bits("add", count, quarters) if quarters else count
    odd = m.f.value(f"trunc {m.ints} {number} to {vector(m.lanes, 'i1')}")
    turn = m.bits("shl", number, 30)
    sign = turn if quarters else m.bits("xor", turn, m.as_ints(x))  # cos(-x) is cos(x), sin(-x) is -sin(x)
    return m.as_floats(m.bits("xor", m.as_ints(m.choose(odd, cosine, sine)), m.bits("and", sign, SIGN)))


def _is_any_far(m: ExponentArithmetic, size: str) -> str:
    """Return whether an element is FAR or more; bits of positive floats are ordered as the floats are."""
    bits = m.as_ints(size)
    largest = bits if m.lanes == 1 else m.f.call("i32", f"llvm.vector.reduce.umax.{suffix(m.ints)}", [(m.ints, bits)])
    return m.f.value(f"icmp uge i32 {largest}, bitcast (float {literal(FAR, F32)} to i32)")


def _near(m: ExponentArithmetic, size: str) -> tuple[str, str]:
    """Return the quarter turns, in the last two bits, and the rest of a number below FAR."""
    ruled = m.call("fma", size, m.number(1 / sum(QUARTER_TURN)), m.number(RULER))
    back = m.do("fsub", m.number(RULER), ruled)
    rest = size
    for length in QUARTER_TURN:
        rest = m.call("fma", back, m.number(length), rest)
    return m.as_ints(ruled), rest


def _far(m: ExponentArithmetic, size: str) -> tuple[str, str]:
    """Return the quarter turns and the rest of a number of 2 or more; the rest is NaN for infinity and NaN."""
    f, longs = m.f, vector(m.lanes, "i64")
    turns = _turns(m, size)
    high = f.value(f"trunc {longs} {_shifted(m, 'lshr', turns, 32)} to {m.ints}")
    count = m.bits("lshr", m.bits("add", high, 2**29), 30)  # to the nearest
    doubles = vector(m.lanes, "double")
    part = f.value(f"sitofp {longs} {_shifted(m, 'shl', turns, 2)} to {doubles}")
    unit = splat_constant("double", literal(math.pi / 2 * 2.0**-64, F64), m.lanes)
    rest = f.value(f"fptrunc {doubles} {f.value(f'fmul {doubles} {part}, {unit}')} to {m.kind}")
    return count, m.do("fadd", rest, m.do("fsub", size, size))


def _turns(m: ExponentArithmetic, size: str) -> str:
    """Return size · 2/π · 2⁶² in 64 bits: whole turns overflow."""
    f, longs = m.f, vector(m.lanes, "i64")
    bits = m.as_ints(size)
    whole = m.bits("or", m.bits("and", bits, 0x7FFFFF), 0x800000)
    first, *others = _digits(m, bits)
    highest, *wide = (f.value(f"zext {m.ints} {x} to {longs}") for x in (m.bits("mul", whole, first), whole, *others))
    second, third = (f.value(f"mul {longs} {wide[0]}, {x}") for x in wide[1:])
    upper = f.value(f"add {longs} {_shifted(m, 'shl', highest, 32)}, {second}")
    return f.value(f"add {longs} {upper}, {_shifted(m, 'lshr', third, 32)}")


def _digits(m: ExponentArithmetic, bits: str) -> list[str]:
    """Return the 96 digits of 2/π that matter, in three words; the number's exponent selects them."""
    words = [m.whole(word) for word in WORDS]
    for step, bit in ((2, 1 << 29), (1, 1 << 28)):
        truth = m.f.value(f"icmp ne {m.ints} {m.bits('and', bits, bit)}, {m.whole(0)}")
        mask = vector(m.lanes, "i1")
        pairs = zip(words[step:], words, strict=False)
        words = [m.f.value(f"select {mask} {truth}, {m.ints} {a}, {m.ints} {b}") for a, b in pairs]
    back = m.bits("xor", m.bits("lshr", bits, 23), -1)
    name = f"llvm.fshr.{suffix(m.ints)}"
    return [m.f.call(m.ints, name, [(m.ints, w) for w in (*both, back)]) for both in pairwise(words)]


def _shifted(m: ExponentArithmetic, word: str, x: str, count: int) -> str:
    return m.f.value(f"{word} {vector(m.lanes, 'i64')} {x}, {splat_constant('i64', str(count), m.lanes)}")
