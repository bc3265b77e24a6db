"""Quotients, remainders and shifts of integers in LLVM IR, which leaves open what some operands give."""

from __future__ import annotations

from collections.abc import Callable

from tilewave.analysis.ranges import Range, bounds
from tilewave.ir import ops as ir
from tilewave.ir.core import Op, Value
from tilewave.lower.elements import Written, splat_constant, stored
from tilewave.lower.llvm import LlvmFunction, vector

WIDEST_BITS = 64
Known = Callable[[Value], Range]
"""Returns the bounds of an integer."""


def anything(v: Value) -> Range:
    return bounds(v.type.dtype)


def shifted(w: Written, fits: bool) -> str:
    """Return a shift; LLVM leaves open what one by the width or more gives, unless it `fits`."""
    a, b = w.operands
    word = "shl" if isinstance(w.op, ir.ShiftLeft) else "ashr" if w.dtype.is_signed else "lshr"
    if fits:
        return w.of_numbers(word)
    if word == "ashr":
        return w.f.value(f"ashr {w.kind} {a}, {w.call('umin', b, w.everywhere(str(w.dtype.bits - 1)))}")
    if w.dtype.bits == WIDEST_BITS:
        return _shifted_in_halves(w, word)
    below = w.f.value(f"icmp ult {w.kind} {b}, {w.everywhere(str(w.dtype.bits))}")
    moved = w.of_numbers(word)
    return w.f.value(f"select {vector(w.lanes, 'i1')} {below}, {w.kind} {moved}, {w.kind} {w.everywhere('0')}")


def _shifted_in_halves(w: Written, word: str) -> str:
    """Return a shift by at most the width in two steps, each by less.

    A choice of 0 from the width on would not do: for NVIDIA, LLVM makes it one instruction, which takes the low 32 bits
    of the number of places.
    """
    a, b = w.operands
    places = w.call("umin", b, w.everywhere(str(WIDEST_BITS)))
    half = w.f.value(f"lshr {w.kind} {places}, {w.everywhere('1')}")
    rest = w.f.value(f"sub {w.kind} {places}, {half}")
    moved = w.f.value(f"{word} {w.kind} {a}, {half}")
    return w.f.value(f"{word} {w.kind} {moved}, {rest}")


def divided(w: Written, safe: bool) -> str:
    """Return a floor quotient or remainder; it is `safe` where the divisor is neither 0 nor a -1 that overflows."""
    if not w.dtype.is_signed:
        return _unsigned_division(w, safe)
    divide = _floor_division if safe else _any_division
    return divide(w.f, w.op, w.operands[0], w.operands[1], stored(w.dtype), w.lanes)


def _unsigned_division(w: Written, safe: bool) -> str:
    """Return a quotient or remainder; 0 for a divisor of 0."""
    (a, b), mask = w.operands, vector(w.lanes, "i1")
    word, zero = "urem" if isinstance(w.op, ir.Mod) else "udiv", w.everywhere("0")
    if safe:
        return w.of_numbers(word)
    by_zero = w.f.value(f"icmp eq {w.kind} {b}, {zero}")
    divisor = w.f.value(f"select {mask} {by_zero}, {w.kind} {w.everywhere('1')}, {w.kind} {b}")
    result = w.f.value(f"{word} {w.kind} {a}, {divisor}")
    return w.f.value(f"select {mask} {by_zero}, {w.kind} {zero}, {w.kind} {result}")


def _floor_division(f: LlvmFunction, op: Op, a: str, b: str, element: str, lanes: int) -> str:
    """Return Python's // or %: the quotient rounded down, the remainder with the divisor's sign."""
    kind, mask = vector(lanes, element), vector(lanes, "i1")
    zero, one = (splat_constant(element, x, lanes) for x in ("0", "1"))
    rest = f.value(f"srem {kind} {a}, {b}")
    differs = f.value(f"xor {kind} {rest}, {b}")
    signs_differ = f.value(f"icmp slt {kind} {differs}, {zero}")
    not_even = f.value(f"icmp ne {kind} {rest}, {zero}")
    adjust = f.value(f"and {mask} {signs_differ}, {not_even}")
    if isinstance(op, ir.Mod):
        shifted = f.value(f"add {kind} {rest}, {b}")
        return f.value(f"select {mask} {adjust}, {kind} {shifted}, {kind} {rest}")
    quotient = f.value(f"sdiv {kind} {a}, {b}")
    lower = f.value(f"sub {kind} {quotient}, {one}")
    return f.value(f"select {mask} {adjust}, {kind} {lower}, {kind} {quotient}")


def _any_division(f: LlvmFunction, op: Op, a: str, b: str, element: str, lanes: int) -> str:
    """Return a floor quotient or remainder without traps: by 0 both are 0; by -1 the rest is 0, the quotient wraps."""
    kind, mask = vector(lanes, element), vector(lanes, "i1")
    zero, one, minus_one = (splat_constant(element, x, lanes) for x in ("0", "1", "-1"))
    by_zero = f.value(f"icmp eq {kind} {b}, {zero}")
    by_minus_one = f.value(f"icmp eq {kind} {b}, {minus_one}")
    either = f.value(f"or {mask} {by_zero}, {by_minus_one}")
    divisor = f.value(f"select {mask} {either}, {kind} {one}, {kind} {b}")
    result = _floor_division(f, op, a, divisor, element, lanes)
    if isinstance(op, ir.Mod):
        return result
    negated = f.value(f"sub {kind} {zero}, {a}")
    result = f.value(f"select {mask} {by_minus_one}, {kind} {negated}, {kind} {result}")
    return f.value(f"select {mask} {by_zero}, {kind} {zero}, {kind} {result}")
