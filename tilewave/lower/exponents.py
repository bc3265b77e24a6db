"""exp and exp2 of f32 in vectors, where LLVM would call the C library for every element.

x = n · ln 2 + r with |r| ≤ ln 2 / 2, so exp(x) = 2ⁿ · (1 + (r + r² · p(r))). The term added to 1 is below a half, so
the roundings before the last one weigh little: both functions are within one unit in the last place, with or without
fused multiply-add.
"""

from __future__ import annotations

from tilewave.lower.elements import Written
from tilewave.lower.llvm import vector

REST = (
    0.5000000015156812,
    0.16666666683501194,
    0.04166644836571659,
    0.008333309086515256,
    0.0013935451843874688,
    0.00019892991763014595,
)
"""(exp(r) - 1 - r) / r², a Chebyshev fit; off by 1.6e-9."""
LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
LN_2_PARTS = (0.693145751953125, 1.42860682030941723212e-06)
"""Two floats whose sum is ln 2; the first times an integer up to 2⁸ is exact."""
MIDDLE = 254
"""Twice the exponent bias of f32: a power is split into two, each with a bias."""
ROUNDS = 1.5 * 2.0**23 + MIDDLE
"""Added to a small float, rounds it to an integer; the last nine bits of the sum are that integer plus 254."""
ENDS = {"exp": (-104.0, 89.0), "exp2": (-150.0, 129.0)}
"""Arguments below and above which the result is 0 and infinity."""


def exponential(w: Written, name: str) -> str:
    """Return exp or exp2 of f32."""
    x = _clipped(w, w.operands[0], *ENDS[name])
    counted = w.call("fmuladd", x, w.number(LOG2_E if name == "exp" else 1.0), w.number(ROUNDS))
    n = _do(w, "fsub", counted, w.number(ROUNDS))
    rest = _natural_rest(w, x, n) if name == "exp" else _do(w, "fmul", _do(w, "fsub", x, n), w.number(LN_2))
    found = w.number(REST[-1])
    for c in reversed(REST[:-1]):
        found = w.call("fmuladd", found, rest, w.number(c))
    beyond_one = w.call("fmuladd", _do(w, "fmul", rest, rest), found, rest)
    return _scaled(w, _do(w, "fadd", beyond_one, w.number(1.0)), counted)


def _do(w: Written, word: str, a: str, b: str) -> str:
    return w.f.value(f"{word} {w.kind} {a}, {b}")


def _clipped(w: Written, x: str, low: float, high: float) -> str:
    """Clip x by comparisons, which pass NaN."""
    for order, end in (("olt", w.number(low)), ("ogt", w.number(high))):
        beyond = _do(w, f"fcmp {order}", x, end)
        x = w.f.value(f"select {vector(w.lanes, 'i1')} {beyond}, {w.kind} {end}, {w.kind} {x}")
    return x


def _natural_rest(w: Written, x: str, n: str) -> str:
    for part in LN_2_PARTS:
        x = w.call("fmuladd", n, w.number(-part), x)
    return x


def _scaled(w: Written, x: str, counted: str) -> str:
    """Return x · 2ⁿ in two steps, each with a power that f32 has; the first is exact, so a small result rounds once.

    The bits of 2ᵐ are m + 127 shifted by 23. The last nine bits of `counted` are n + 254, the sum of two such numbers:
    its half, and the rest.
    """
    ints = vector(w.lanes, "i32")

    def bits(word: str, a: str, b: str) -> str:
        return w.f.value(f"{word} {ints} {a}, {b}")

    both = w.f.value(f"bitcast {w.kind} {counted} to {ints}")
    half = bits("and", bits("shl", both, w.whole(22)), w.whole(0xFF << 23))
    for power in (half, bits("sub", bits("shl", both, w.whole(23)), half)):
        x = _do(w, "fmul", x, w.f.value(f"bitcast {ints} {power} to {w.kind}"))
    return x
