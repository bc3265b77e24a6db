"""Checks of the scalar options of built-in kernels and operations.

Each function returns the value as kernels use it, or raises a CallError that says what to pass instead. A plain float
or int is returned on a fast path, as every call of an operation is checked here.
"""

from __future__ import annotations

from math import inf
from numbers import Integral, Real
from typing import Any

import numpy as np

from tilewave.errors import CallError, here
from tilewave.ir.launch import MOST_OPEN
from tilewave.runtime.remedies import brief


def checked_eps(caller: str, eps: Any) -> float:
    """Return the number that a norm adds to the mean of squares: finite, 0 or above."""
    if type(eps) is float and 0.0 <= eps < inf:
        return eps
    found = _finite(caller, "eps", eps, "pass eps=1e-5")
    if found < 0:
        what = f"{caller}: eps is {eps!r}, and the root of a negative number is none"
        raise CallError(what, loc=here(), remedy="pass eps=1e-5, or 0")
    return found


def checked_axis(caller: str, dim: Any, axes: int) -> int:
    """Return an axis of an array, which may be counted from the end."""
    if type(dim) is not int:
        dim = _whole(caller, "dim", dim, "pass dim=-1 for the last axis")
    if not -axes <= dim < axes:
        what = f"{caller}: dim is {dim}, but x has {axes} ax{'is' if axes == 1 else 'es'}"
        raise CallError(what, loc=here(), remedy=f"pass a dim from {-axes} to {axes - 1}")
    found: int = dim
    return found


def checked_causal(caller: str, causal: Any) -> bool:
    """Return whether a query sees no later key."""
    if causal is True or causal is False:
        return causal
    if isinstance(causal, int | np.bool_) and causal in (0, 1):
        return bool(causal)
    raise CallError(f"{caller}: causal is {brief(causal)}", loc=here(), remedy="pass causal=True or causal=False")


def checked_window(caller: str, window: Any) -> int | None:
    """Return how many positions away a query sees keys; None for all."""
    if window is None:
        return None
    remedy = "pass window=1 for the query's own position alone, or None for all keys"
    found = _whole(caller, "window", window, remedy)
    if found < 1:
        raise CallError(f"{caller}: a window of {found} has no keys", loc=here(), remedy=remedy)
    return min(found, MOST_OPEN)  # no two positions are farther apart


def checked_scale(caller: str, scale: Any) -> float | None:
    """Return the factor of products of queries and keys; None for the usual 1 / √(elements of a key)."""
    if scale is None:
        return None
    return _finite(caller, "scale", scale, "pass a number, or None for 1 / sqrt(q.shape[-1])")


def checked_soft_cap(caller: str, soft_cap: Any) -> float | None:
    """Return the bound that a tanh keeps scores within; None for none."""
    if soft_cap is None:
        return None
    remedy = "pass a number above 0, or None"
    found = _finite(caller, "soft_cap", soft_cap, remedy)
    if not found > 0:
        what = f"{caller}: scores cannot be kept within a soft cap of {soft_cap}"
        raise CallError(what, loc=here(), remedy=remedy)
    return found


def checked_probability(caller: str, p: Any) -> float:
    """Return the share of elements that are zeroed."""
    found = _finite(caller, "p", p, "pass p=0.5, or any number from 0 to 1")
    if not 0 <= found <= 1:
        what = f"{caller}: p is {brief(p)}, and no share of all elements"
        raise CallError(what, loc=here(), remedy="pass p=0.5, or any number from 0 to 1")
    return found


def checked_seed(caller: str, seed: Any) -> int:
    """Return the seed of random numbers as the i64 with its lower 64 bits."""
    found = _whole(caller, "seed", seed, "pass seed=0, or any other integer, and another one for another mask")
    return (found + 2**63) % 2**64 - 2**63


def checked_alpha(caller: str, alpha: Any) -> float:
    """Return the factor of what is added."""
    found = _finite(caller, "alpha", alpha, "pass alpha=1")
    return alpha if type(alpha) is int else found


def checked_k(caller: str, k: Any) -> int:
    """Return how many elements are taken."""
    return _whole(caller, "k", k, "pass k=1, or more")


def checked_length(caller: str, length: Any) -> int:
    """Return the number of elements of a result."""
    found = _whole(caller, "length", length, "pass the number of bins")
    if found < 0:
        raise CallError(f"{caller}: length is {found}", loc=here(), remedy="pass the number of bins")
    return found


def checked_ignored(caller: str, ignored: Any) -> int:
    """Return the label that asks for nothing."""
    found = _whole(caller, "ignore_index", ignored, "pass ignore_index=-100")
    if not -(2**63) <= found < 2**63:
        what = f"{caller}: ignore_index is {brief(ignored)}, which no i64 holds"
        raise CallError(what, loc=here(), remedy="pass ignore_index=-100")
    return found


def _whole(caller: str, name: str, value: Any, remedy: str) -> int:
    """Return a Python or numpy integer; a bool is refused."""
    value = _of_array(value)
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise CallError(f"{caller}: {name} is {brief(value)}, not an integer", loc=here(), remedy=remedy)
    return int(value)


def _finite(caller: str, name: str, value: Any, remedy: str) -> float:
    """Return a Python or numpy number that is neither infinite nor NaN; a bool is refused."""
    value = _of_array(value)
    if not isinstance(value, Real) or isinstance(value, bool):
        raise CallError(f"{caller}: {name} is {brief(value)}, not a number", loc=here(), remedy=remedy)
    try:
        found = float(value)
    except OverflowError:
        found = inf
    if not -inf < found < inf:
        raise CallError(f"{caller}: {name} is {brief(value)}, not a finite number", loc=here(), remedy=remedy)
    return found


def _of_array(value: Any) -> Any:
    """Return the number in a numpy array without axes; anything else unchanged."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value
