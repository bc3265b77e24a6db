"""f32 arithmetic, and exp, exp2, log, log2, log10 in it where LLVM has no intrinsics for them.

x = n · ln 2 + r makes exp(x) a polynomial of a small r times 2ⁿ; x = 2ⁿ · m with m near 1 makes log(x) = n · ln 2 +
2 · atanh((m - 1) / (m + 1)), which keeps every digit near 1. The coefficients are Chebyshev fits; each function is
within 4 units in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewave.ir.types import F32
from tilewave.lower.elements import literal, splat_constant, suffix
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.lower.numbers import each

EXP = (
    0.9999999999562333,
    1.0000000400240148,
    0.5000000114307589,
    0.16666405380538504,
    0.04166620025388608,
    0.008375961218977598,
    0.0013949769245051467,
)
EXP2 = (
    0.9999999999525988,
    0.6931472100136792,
    0.24022651278974302,
    0.05550320308110358,
    0.009618017059453565,
    0.001340313990708813,
    0.00015472411765947322,
)
LOG = (2.000000000009302, 0.6666666512214726, 0.40000409781290575, 0.28533482912631863, 0.23646378519405842)
"""log((1 + s) / (1 - s)) / s in s², for |s| < 0.172."""
LOG2_E = 1.4426950408889634
LOG2_E_PARTS = (1.44269502162933349609375, 1.92596303e-08)
"""log₂ e: the nearest f32, and the rest."""
LN_2 = (0.693145751953125, 1.42860677e-06)
"""Two floats whose sum is ln 2; the first times an integer up to 2¹⁰ is exact."""
LOG10_2 = (0.301025390625, 4.6050389811952113e-06)
"""Two floats whose sum is log₁₀ 2; the first times an integer up to 2¹⁰ is exact."""
LOG10_E = 0.4342944819032518
ROOT_HALF = 0.7071067811865476
SMALLEST_NORMAL, SCALE = 2.0**-126, 2.0**24
"""Subnormal arguments of a logarithm are scaled to normal ones, whose exponent bits are n."""
FAR = 300.0
"""Beyond ± this argument, powers are 0 or infinity."""
ROUNDS = 1.5 * 2.0**23
"""Added to a small float and subtracted again, rounds it to an integer."""


class ExponentArithmetic:
    """Arithmetic on a vector of f32; `known` has the LLVM intrinsics of exp and similar functions."""

    def __init__(self, f: LlvmFunction, lanes: int, known: Mapping[str, str]) -> None:
        self.f, self.lanes, self.known = f, lanes, known
        self.kind, self.ints = vector(lanes, "float"), vector(lanes, "i32")

    def exponential(self, name: str, x: str) -> str:
        """Return exp, exp2, log, log2 or log10 of x."""
        word = self.known.get(name, "")
        if not word:
            return spelled(self, name, x)
        if word == f"llvm.{name}":
            return self.call(name, x)
        return each(self.f, x, self.lanes, self.kind, "float", lambda one: self.f.call("float", word, [("float", one)]))

    def number(self, value: float) -> str:
        return splat_constant("float", literal(value, F32), self.lanes)

    def whole(self, value: int) -> str:
        return splat_constant("i32", str(value), self.lanes)

    def do(self, word: str, a: str, b: str | float) -> str:
        return self.f.value(f"{word} {self.kind} {a}, {b if isinstance(b, str) else self.number(b)}")

    def bits(self, word: str, a: str, b: str | int) -> str:
        return self.f.value(f"{word} {self.ints} {a}, {b if isinstance(b, str) else self.whole(b)}")

    def call(self, name: str, *operands: str) -> str:
        return self.f.call(self.kind, f"llvm.{name}.{suffix(self.kind)}", [(self.kind, x) for x in operands])

    def choose(self, condition: str, a: str, b: str) -> str:
        return self.f.value(f"select {vector(self.lanes, 'i1')} {condition}, {self.kind} {a}, {self.kind} {b}")

    def compare(self, word: str, a: str, b: str | float) -> str:
        return self.f.value(f"fcmp {word} {self.kind} {a}, {b if isinstance(b, str) else self.number(b)}")

    def below(self, a: str, bound: float) -> str:
        return self.compare("olt", a, bound)

    def as_ints(self, x: str) -> str:
        return self.f.value(f"bitcast {self.kind} {x} to {self.ints}")

    def as_floats(self, x: str) -> str:
        return self.f.value(f"bitcast {self.ints} {x} to {self.kind}")

    def to_ints(self, x: str) -> str:
        return self.f.call(self.ints, f"llvm.fptosi.sat.{suffix(self.ints)}.{suffix(self.kind)}", [(self.kind, x)])

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        found = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            found = self.call("fma", found, x, self.number(c))
        return found


def spelled(m: ExponentArithmetic, name: str, x: str) -> str:
    """Return one of the functions of f32, by arithmetic."""
    match name:
        case "exp" if "exp2" in m.known:
            return _exponential(m, x)
        case "exp" | "exp2":
            return _power(m, x, natural=name == "exp")
        case "log":
            n, log = _logarithm(m, x)
            return _special(m, x, m.call("fma", n, m.number(LN_2[0]), m.call("fma", n, m.number(LN_2[1]), log)))
        case "log2":
            n, log = _logarithm(m, x)
            return _special(m, x, m.call("fma", log, m.number(LOG2_E), n))
        case "log10":
            n, log = _logarithm(m, x)
            small = m.call("fma", log, m.number(LOG10_E), m.do("fmul", n, LOG10_2[1]))
            return _special(m, x, m.call("fma", n, m.number(LOG10_2[0]), small))
    raise NotImplementedError(f"no arithmetic for {name}")


def _exponential(m: ExponentArithmetic, x: str) -> str:
    """Return exp by powers of two: an integer one and a fractional one, whose sum is x · log₂ e with all its digits.

    The integer is the nearest one, less 1, so that 2 to its power is finite where the result is. Only the integer is of
    clipped x: elsewhere the fractional power is 0, infinity or NaN, and so is the product.
    """
    near = m.call("minnum", m.call("maxnum", x, m.number(-FAR)), m.number(FAR))
    counted = m.call("fma", near, m.number(LOG2_E_PARTS[0]), m.number(ROUNDS))
    whole = m.do("fsub", counted, ROUNDS + 1)
    back = m.f.value(f"fneg {m.kind} {whole}")
    rest = m.call("fma", x, m.number(LOG2_E_PARTS[1]), m.call("fma", x, m.number(LOG2_E_PARTS[0]), back))
    flushed = "exp2_flushed" if "exp2_flushed" in m.known else "exp2"
    return m.do("fmul", m.exponential("exp2", whole), m.exponential(flushed, rest))


def _near(m: ExponentArithmetic, x: str) -> str:
    """Clip x to where its power is neither 0 nor infinity; comparisons, unlike minima, pass NaN."""
    low = m.choose(m.below(x, -FAR), m.number(-FAR), x)
    return m.choose(m.compare("ogt", low, FAR), m.number(FAR), low)


def _power(m: ExponentArithmetic, x: str, natural: bool) -> str:
    near = _near(m, x)
    n = m.call("rint", m.do("fmul", near, LOG2_E) if natural else near)
    if natural:
        back = m.f.value(f"fneg {m.kind} {n}")
        rest = m.call("fma", back, m.number(LN_2[1]), m.call("fma", back, m.number(LN_2[0]), near))
    else:
        rest = m.do("fsub", near, n)
    small = m.polynomial(rest, EXP if natural else EXP2)
    # In three steps, since the power itself may be beyond the largest float, or below the smallest normal one.
    count = m.to_ints(n)
    third = m.bits("sdiv", count, 3)
    powers = (third, third, m.bits("sub", count, m.bits("mul", third, 2)))
    for power in powers:
        small = m.do("fmul", small, m.as_floats(m.bits("shl", m.bits("add", _clipped(m, power), 127), 23)))
    return small


def _clipped(m: ExponentArithmetic, n: str) -> str:
    """Return a power of two in the range of a float."""
    kinds = [(m.ints, n), (m.ints, m.whole(126))]
    low = m.f.call(m.ints, f"llvm.smin.{suffix(m.ints)}", kinds)
    return m.f.call(m.ints, f"llvm.smax.{suffix(m.ints)}", [(m.ints, low), (m.ints, m.whole(-126))])


def _logarithm(m: ExponentArithmetic, x: str) -> tuple[str, str]:
    """Return n and log(m) of x = 2ⁿ · m, with m between √½ and √2."""
    tiny = m.below(x, SMALLEST_NORMAL)
    scaled = m.choose(tiny, m.do("fmul", x, SCALE), x)
    moved = m.choose(tiny, m.number(-24.0), m.number(0.0))
    half = m.as_ints(m.number(ROOT_HALF))
    off = m.bits("sub", m.as_ints(scaled), half)
    n = m.f.value(f"sitofp {m.ints} {m.bits('ashr', off, 23)} to {m.kind}")
    mantissa = m.as_floats(m.bits("add", m.bits("and", off, 0x7FFFFF), half))
    s = m.do("fdiv", m.do("fsub", mantissa, 1.0), m.do("fadd", mantissa, 1.0))
    return m.do("fadd", n, moved), m.do("fmul", s, m.polynomial(m.do("fmul", s, s), LOG))


def _special(m: ExponentArithmetic, x: str, log: str) -> str:
    """Replace the logarithms of 0, negative numbers and infinity."""
    found = m.choose(m.compare("ogt", x, 3.4028234663852886e38), x, log)
    found = m.choose(m.compare("oeq", x, 0.0), m.number(float("-inf")), found)
    return m.choose(m.compare("uge", x, 0.0), m.choose(m.compare("uno", x, x), x, found), m.number(float("nan")))
