"""Floats as elements of a finite ring, where sums and products are exact and exp2 turns sums into products.

An element is a pair of residues: one modulo the prime Q, one modulo the prime P = 2048 · Q + 1. Sums, differences,
products and quotients are taken in both, so they do not depend on an order and nothing is rounded. The nonzero residues
modulo P have a subgroup of Q elements with a generator G, so that

    exp2(x) = (1, G^(x mod Q) mod P)            exp2(x + y) = exp2(x) · exp2(y), exp2(0) = 1
    log2(x) = (the Q-part of x modulo P, ?)     log2(x · y) = log2(x) + log2(y), log2(exp2(x)) = x modulo Q

hold for all elements: a second prime is needed, since no prime alone has a homomorphism from its sums to its products.
What a logarithm is modulo P is undefined (`?`): such an element is open there, and so is what is computed from it.

An element is a uint64: bits 0 to 31 hold the residue modulo P, bits 32 to 52 the one modulo Q; the uppermost bits mark
infinities, NaN, and open elements. Zero is 0. Two different real numbers, which are polynomials of degree d in the
inputs, have the same element with a probability of about d / 2^51, or d / 2^20 where only one residue is left: after a
logarithm, and inside a power.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import Array

Q = 1_048_571
P = 2_147_473_409
"""Q and P are prime; residues of 20 and 31 bits leave room for the marks, and their products fit 64 bits."""
COFACTOR_BITS = 11
"""P - 1 is Q · 2^11."""
G = 820_629_405
"""An element of order Q modulo P."""

ELEMENT = np.dtype(np.uint64)
OPEN, INFINITE, NEGATIVE, NAN = (np.uint64(1 << bit) for bit in (60, 61, 62, 63))
MARKS = np.uint64(0xF << 60)
"""The four marks above; an element without marks is a plain pair of residues."""
PLUS_INFINITY, MINUS_INFINITY = INFINITE, np.uint64(INFINITE | NEGATIVE)
ONE = np.uint64(1 << 32 | 1)
"""1 in both residues."""
MOST_ADDED = 1024
"""How many products of two residues modulo Q float64 adds exactly; of halves of residues modulo P it adds more."""


def low(x: Array) -> Array:
    """The residues modulo P."""
    found: Array = x & np.uint64(0xFFFF_FFFF)
    return found


def high(x: Array) -> Array:
    """The residues modulo Q."""
    found: Array = x >> np.uint64(32) & np.uint64(0x1F_FFFF)
    return found


def joined(q: Any, p: Any) -> Array:
    """Return elements from their residues, which need not be reduced."""
    whole: Array = (np.asarray(q, np.uint64) % np.uint64(Q)) << np.uint64(32) | np.asarray(p, np.uint64) % np.uint64(P)
    return whole


def opened(x: Array) -> Array:
    """Return the elements with an undefined residue modulo P."""
    found: Array = x >> np.uint64(32) << np.uint64(32) | OPEN
    return found


def has(x: Array, mark: np.uint64) -> Array:
    found: Array = (x & mark) != 0
    return found


def is_plain(*xs: Array) -> bool:
    """Return whether no element is infinite, open or NaN."""
    return not any((x & MARKS).any() for x in xs)


# numbers ------------------------------------------------------------------------------------------------------------


@cache
def _powers_of_two(modulus: int) -> Array:
    """Return 2^e for -1200 < e < 1200, at e modulo 2400."""
    return np.array([pow(2, e if e < 1200 else e - 2400, modulus) for e in range(2400)], np.uint64)


def elements(x: Any) -> Array:
    """Return the elements of numbers: integers and floats are fractions n · 2^e, which both primes can divide."""
    x = np.asarray(x)
    if x.dtype.kind in "iub":
        whole = x.astype(np.int64)
        return joined(whole % Q, whole % P)
    with np.errstate(all="ignore"):
        x = x.astype(np.float64)
        fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        digits, exponent = (fraction * 2.0**53).astype(np.int64), exponent - 53
    q, p = ((digits % m).astype(np.uint64) * _powers_of_two(m)[exponent % 2400] for m in (Q, P))
    infinite = np.where(x > 0, PLUS_INFINITY, MINUS_INFINITY)
    return np.where(np.isfinite(x), joined(q, p), np.where(np.isnan(x), NAN, infinite))


# the ring -----------------------------------------------------------------------------------------------------------


def marked(found: Array, a: Array, b: Array, is_nan: Array, infinity: Array) -> Array:
    """Return `found` with open, infinite and NaN results where an operand is open, infinite or NaN."""
    found = np.where(has(a | b, OPEN), opened(found), found)
    found = np.where(has(a | b, INFINITE), infinity, found)
    return np.where(has(a | b, NAN) | is_nan, NAN, found)


def add(a: Array, b: Array) -> Array:
    found = joined(high(a) + high(b), low(a) + low(b))
    if is_plain(a, b):
        return found
    opposite = has(a & b, INFINITE) & has(a ^ b, NEGATIVE)
    return marked(found, a, b, opposite, PLUS_INFINITY | (a | b) & NEGATIVE)


def negate(x: Array) -> Array:
    found = joined(np.uint64(Q) - high(x), np.uint64(P) - low(x))
    if is_plain(x):
        return found
    found = np.where(has(x, OPEN), opened(found), found)
    return np.where(has(x, INFINITE), x ^ NEGATIVE, np.where(has(x, NAN), NAN, found))


def subtract(a: Array, b: Array) -> Array:
    return add(a, negate(b))


def multiply(a: Array, b: Array) -> Array:
    """Return a · b; infinities keep their sign for all finite factors, because finite elements have none."""
    found = joined(high(a) * high(b), low(a) * low(b))
    if is_plain(a, b):
        return found
    zero = (a == 0) | (b == 0)
    found = marked(found, a, b, zero & has(a | b, INFINITE), PLUS_INFINITY | (a ^ b) & NEGATIVE)
    return np.where(zero & ~has(a | b, INFINITE | NAN), np.uint64(0), found)


def _power(x: Array, exponent: int, modulus: int) -> Array:
    found = np.ones_like(x)
    while exponent:
        if exponent & 1:
            found = found * x % np.uint64(modulus)
        x = x * x % np.uint64(modulus)
        exponent >>= 1
    return found


def reciprocal(x: Array) -> Array:
    """Return 1 / x; infinity where x is 0. A zero residue stays 0 where the other residue is not."""
    each, of = np.unique(x, return_inverse=True)  # once per distinct element: whole rows are divided by one number
    found: Array = _reciprocal(each)[of].reshape(np.shape(x))
    return found


def _reciprocal(x: Array) -> Array:
    found: Array = joined(_power(high(x), Q - 2, Q), _power(low(x), P - 2, P)) | x & OPEN
    found = np.where(x == 0, PLUS_INFINITY, np.where(has(x, INFINITE), np.uint64(0), found))
    return np.where(has(x, NAN), NAN, found)


def matrix_product(a: Array, b: Array) -> Array:
    """Return a · bᵀ, by float64 where it is exact: of residues modulo Q, and of halves of residues modulo P."""
    if not is_plain(a, b):
        return _product_of_marked(a, b)
    q = np.zeros(1, np.uint64)
    for first in range(0, max(1, a.shape[-1]), MOST_ADDED):
        part = slice(first, first + MOST_ADDED)
        q = (q + _exactly(high(a[..., part]), high(b[..., part]))) % np.uint64(Q)
    (a_low, a_high), (b_low, b_high) = ((low(x) & np.uint64(0xFFFF), low(x) >> np.uint64(16)) for x in (a, b))
    middle = (_exactly(a_low, b_high) + _exactly(a_high, b_low)) % np.uint64(P)
    upper = _exactly(a_high, b_high) % np.uint64(P)
    upper = (upper * np.uint64(1 << 16) + middle) % np.uint64(P)
    return joined(q, upper * np.uint64(1 << 16) + _exactly(a_low, b_low) % np.uint64(P))


def _exactly(a: Array, b: Array) -> Array:
    """Return a · bᵀ of numbers so small that float64 rounds no sum of them."""
    found: Array = np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2)).astype(np.uint64)
    return found


def _product_of_marked(a: Array, b: Array) -> Array:
    found = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]), ELEMENT)
    for k in range(a.shape[-1]):
        found = add(found, multiply(a[..., :, k, None], b[..., None, :, k]))
    return found


# powers and logarithms ----------------------------------------------------------------------------------------------


@cache
def _powers() -> Array:
    """Return G^0, G^1, …, G^(Q - 1) modulo P."""
    found: Array = np.ones(1, np.uint64)
    while len(found) < Q:
        found = np.concatenate([found, found * np.uint64(pow(G, len(found), P)) % np.uint64(P)])
    return np.resize(found, Q)


@cache
def _logarithms() -> tuple[Array, Array]:
    """Return all powers of G, sorted, and the exponent of each."""
    order = np.argsort(_powers())
    return _powers()[order], order.astype(np.uint64)


def power_of_two(x: Array) -> Array:
    """Return exp2 of elements; 0 for -infinity."""
    found: Array = np.uint64(1 << 32) | _powers()[high(x).astype(np.int64)]
    found = np.where(has(x, INFINITE), np.where(has(x, NEGATIVE), np.uint64(0), PLUS_INFINITY), found)
    return np.where(has(x, NAN), NAN, found)


def logarithm(x: Array) -> Array:
    """Return log2 of elements; -infinity for 0, and a hash for an open element."""
    inside = _power(low(x), 1 << COFACTOR_BITS, P)
    values, exponents = _logarithms()
    found = exponents[np.searchsorted(values, inside).clip(0, Q - 1)] * np.uint64(pow(1 << COFACTOR_BITS, -1, Q))
    found = opened(np.where(has(x, OPEN), hashed(x, 0), joined(found, 0)))
    found = np.where(x == 0, MINUS_INFINITY, np.where(has(x, INFINITE), PLUS_INFINITY, found))
    return np.where(has(x, NAN), NAN, found)


# order --------------------------------------------------------------------------------------------------------------


def rank(x: Array) -> Array:
    """Return integers that order elements: small integers as usual, others arbitrarily, with rank(-x) = -rank(x)."""
    q, p = (r - np.where(r > m // 2, m, 0) for r, m in ((high(x).astype(np.int64), Q), (low(x).astype(np.int64), P)))
    infinite = np.where(has(x, NEGATIVE), -1, 1) * np.int64(1 << 62)
    found: Array = np.where(has(x, INFINITE), infinite, (p << 23) + (q << 1) + has(x, OPEN))
    return found


def whole_number(x: Array) -> tuple[Array, Array]:
    """Return the small integers that elements are, and which elements are one."""
    value = high(x).astype(np.int64)
    value = value - np.where(value > Q // 2, Q, 0)
    return value, elements(value) == x


SPREAD, ALL_BITS = 0x9E37_79B9_7F4A_7C15, (1 << 64) - 1


def hashed(x: Array, key: int) -> Array:
    """Return pseudorandom elements that depend on x and the key, a number of 32 bits."""
    with np.errstate(over="ignore"):
        found = (x ^ np.uint64(key * SPREAD & ALL_BITS)) * np.uint64(SPREAD)
        for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
            found = (found ^ found >> np.uint64(shift)) * np.uint64(factor)
    found ^= found >> np.uint64(31)
    return np.where(has(x, NAN), NAN, joined(found >> np.uint64(33), low(found)))
