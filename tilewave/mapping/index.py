"""Arithmetic that does not care what a number is: an int, a numpy array of ints, or a traced value.

A formula uses `+ - * // %`, comparisons and the functions below, never an `if` on an index. The same lines then answer
a question (int), feed the verifier, the simulator and the pictures (array), and become the kernel's code (traced).
All indices are non-negative, and no formula divides by zero, not even in the half of a `choose` that is thrown away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Index = Any
"""An int, a numpy array of ints, or a traced value (which has `smaller`, `larger`, and on its comparisons `choose`)."""

INT32 = 2**31


def smaller(a: Index, b: Index) -> Index:
    """min(a, b)."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if is_zero(a) or is_zero(b):
        return 0
    if _is_numpy(a) or _is_numpy(b):
        return np.minimum(a, b)
    return b.smaller(a) if isinstance(a, int) else a.smaller(b)


def larger(a: Index, b: Index) -> Index:
    """max(a, b)."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if _is_numpy(a) or _is_numpy(b):
        return np.maximum(a, b)
    return b.larger(a) if isinstance(a, int) else a.larger(b)


def choose(condition: Index, a: Index, b: Index) -> Index:
    """a where the condition holds, else b; both are computed."""
    if isinstance(condition, bool):
        return a if condition else b
    if isinstance(a, int) and isinstance(b, int):
        if a == b:
            return a
        if _is_numpy(condition) and max(a, b) < INT32:
            # numpy would make int64 of two plain ints, and everything after this twice as slow.
            return np.where(condition, np.int32(a), np.int32(b))
    if _is_numpy(condition):
        return np.where(condition, a, b)
    return condition.choose(a, b)


def divide(a: Index, b: Index) -> tuple[Index, Index]:
    """The quotient and the rest, with one division."""
    if isinstance(b, int) and b == 1:
        return a, zero_like(a)
    quotient = a // b
    return quotient, a - quotient * b


def times(a: Index, b: Index) -> Index:
    """a * b, without the multiplication by a known 0 or 1."""
    if is_zero(a) or is_zero(b):
        return 0
    if isinstance(b, int) and b == 1:
        return a
    return b if isinstance(a, int) and a == 1 else a * b


def total(*terms: Index) -> Index:
    """The sum, without the terms known to be 0."""
    result: Index = 0
    for term in terms:
        if not is_zero(term):
            result = term if is_zero(result) else result + term
    return result


def zero_like(value: Index) -> Index:
    """Return 0, or an array of zeros if `value` is an array, so that arrays give arrays."""
    return np.zeros_like(value) if _is_numpy(value) else 0


def is_zero(value: Index) -> bool:
    """Whether this is 0 for certain, before anything runs."""
    return isinstance(value, int) and value == 0


def is_one(value: Index) -> bool:
    """Whether this is 1 for certain, before anything runs."""
    return isinstance(value, int) and value == 1


def _is_numpy(value: Index) -> bool:
    return isinstance(value, (np.ndarray, np.generic))
