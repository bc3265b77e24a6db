"""What public functions compute, in float64 and plain numpy, and how far a right result may be from it.

Bounds follow from the number of roundings: so many of half a unit in the dtype that numbers are added in, and one of
the dtype that is written. Nothing here is taken from the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .exact import NUMPY
from .program import BITS, FLOATS

UNITS = {"f32": 2.0**-24, "f64": 2.0**-52, "f8": 2.0**-13}
"""Half a unit in the last place; of f64 twice that, as the reference rounds as well. "f8" are sums of 8-bit products on
a GPU: Hopper keeps 13 bits after the leading one of the largest."""
LARGEST = {"f32": 1e37, "f64": 1e300, "f8": 1e37}
"""Beyond this, sums may overflow on their way."""
MORE = 24
"""Roundings of functions and of short sums, in addition to those of long sums."""


@dataclass(frozen=True)
class Result:
    """A result in float64, or in int64 for whole numbers, how far each element may be off, and its dtype."""

    x: np.ndarray
    err: np.ndarray
    dtype: str


def arithmetic(*dtypes: str) -> str:
    return "f64" if "f64" in dtypes else "f32"


def gamma(roundings: float, of: str) -> float:
    share = roundings * UNITS[of]
    return share / (1 - share) if share < 1 else math.inf


def written(x: np.ndarray, err: np.ndarray, dtype: str, of: str = "f32") -> Result:
    """What is rounded to a dtype, floats or not."""
    x, err = np.asarray(x), np.broadcast_to(np.asarray(err, np.float64), np.shape(x)).copy()
    if dtype == "bool":
        return Result(x != 0, np.where(np.abs(x) > err, 0, np.inf), dtype)
    if dtype not in FLOATS:
        return _whole(x, err, dtype)
    x = x.astype(np.float64)  # of the least i64 there is no absolute value
    info = ml_dtypes.finfo(NUMPY[dtype])
    if dtype not in (of, "f64"):
        err = err + (np.abs(x) + err) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
    sure = np.isfinite(x) & (np.abs(x) + err < float(info.max))
    special = np.isnan(x) | (np.isinf(x) & (not dtype.endswith(("fn", "fnuz"))))  # which have no infinity
    return Result(
        x.astype(np.float64), np.where(sure, np.nan_to_num(err, nan=np.inf), np.where(special, 0, np.inf)), dtype
    )


def _whole(x: np.ndarray, err: np.ndarray, dtype: str) -> Result:
    if x.dtype.kind in "iub":
        bits = BITS[dtype]
        wrapped = ((x.astype(object) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)) if x.size else x
        return Result(np.asarray(wrapped, np.int64).reshape(x.shape), np.zeros(x.shape), dtype)
    within = np.isfinite(x) & (np.abs(x) + err < 2.0 ** (BITS[dtype] - 1) - 2)
    return Result(
        np.where(within, np.trunc(np.where(within, x, 0)), 0).astype(np.int64), np.where(within, err + 1, np.inf), dtype
    )


def unsure(magnitude: np.ndarray, err: np.ndarray, of: str) -> np.ndarray:
    """The bound, or infinity where a sum may overflow on its way."""
    return np.where(np.nan_to_num(magnitude, nan=0.0, posinf=0.0) < LARGEST[of], err, np.inf)


def finite_part(x: np.ndarray) -> np.ndarray:
    """|x|, with 0 in place of infinities and NaN."""
    return np.nan_to_num(np.abs(x), nan=0.0, posinf=0.0)


def infinite_or_nan(found: np.ndarray, err: np.ndarray, finite: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    """A sum and its bound, unbounded where an infinite sum may be NaN as well.

    Its finite terms, of magnitude `finite`, may overflow before an infinity of the other sign is added.
    """
    either = np.isinf(found) & (finite >= LARGEST[of])
    return np.where(either, 0, found), np.where(either, np.inf, err)


# -- products --------------------------------------------------------------------------------------------------------


def product(a: np.ndarray, b: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    """a · b as numpy.matmul has it, and the bound; whole numbers are exact."""
    if a.dtype.kind in "ib":
        found = np.matmul(a.astype(np.int64), b.astype(np.int64))
        return found, np.zeros(np.shape(found))
    found, magnitude = np.matmul(a, b), np.matmul(np.abs(a), np.abs(b))
    err = unsure(magnitude, gamma(a.shape[-1] + 4, of) * magnitude + 1e-44, of)
    return infinite_or_nan(found, err, np.matmul(finite_part(a), finite_part(b)), of)


def activated(name: str | None, s: np.ndarray, err: np.ndarray, of: str, narrow: bool) -> tuple[np.ndarray, np.ndarray]:
    """The activation of sums; no slope is above 1.13, and gelu is an approximation in f32."""
    if name is None:
        return s, err
    erf, off = np.vectorize(math.erf, otypes=[np.float64]), 2 * MORE * UNITS[of] * np.abs(s)
    if name == "relu":
        return np.maximum(s, 0), err
    if name == "gelu":
        tail = np.abs(s) * 0.5 * (1 - erf(np.abs(s) / math.sqrt(2)))
        approximate = (2.0**-13 * tail + 2.0**-20 if narrow else 2e-6 * (1 + np.abs(s))) if of == "f32" else 0.0
        return 0.5 * s * (1 + erf(s / math.sqrt(2))), 1.2 * err + off + approximate
    if name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (s + 0.044715 * s**3)
        spread = (
            MORE * UNITS[of] * np.abs(s) * np.minimum(np.abs(inner), 20) / np.cosh(np.minimum(np.abs(inner), 300)) ** 2
        )
        return 0.5 * s * (1 + np.tanh(inner)), 1.2 * err + off + spread
    e = np.exp(-np.clip(s, -700, 700))
    return s / (1 + e), 1.2 * err + off * (1 + np.minimum(np.abs(s), 100))


# -- rows ------------------------------------------------------------------------------------------------------------


def powers(x: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x less the largest of its row, its power, the row's sum of powers, and the relative error of a power."""
    largest = x.max(axis=-1, keepdims=True)
    less = x - largest
    e = np.exp(less)
    relative = 4 * UNITS[of] * np.nan_to_num(np.abs(less), posinf=0.0) + MORE * UNITS[of]
    return less, e, e.sum(axis=-1, keepdims=True), relative


def softmax(x: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    if not x.size:
        return x, x
    _, e, total, relative = powers(x, of)
    y = e / total
    whole = (e * relative).sum(axis=-1, keepdims=True) / total + gamma(x.shape[-1] + MORE, of)
    return y, np.nan_to_num(np.abs(y) * (relative + whole)) + 2.0**-120


def log_softmax(x: np.ndarray, of: str) -> tuple[np.ndarray, np.ndarray]:
    if not x.size:
        return x, x
    less, e, total, relative = powers(x, of)
    whole = (e * relative).sum(axis=-1, keepdims=True) / total + gamma(x.shape[-1] + MORE, of)
    y = less - np.log(total)
    return y, np.nan_to_num(
        whole + 4 * UNITS[of] * (np.abs(np.where(np.isfinite(less), less, 0)) + np.log(total)), nan=0.0
    )


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return x rounded once, to nearest even: ml_dtypes converts f64 by way of f32, and so rounds twice."""
    if dtype in ("f32", "f64"):
        return x.astype(NUMPY[dtype]).astype(np.float64)
    near = x.astype(np.float32)
    is_even = near.view(np.int32) % 2 == 0
    beyond = np.nextafter(near, np.where(near < x, np.float32(np.inf), np.float32(-np.inf)))
    odd = np.where((near.astype(np.float64) != x) & np.isfinite(near) & is_even, beyond, near)
    return odd.astype(NUMPY[dtype]).astype(np.float64)


def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float, of: str) -> tuple[np.ndarray, np.ndarray]:
    n = max(x.shape[-1], 1)
    mean = (x * x).sum(axis=-1, keepdims=True) / n
    return _scaled(x, np.zeros(x.shape), mean, gamma(n + MORE, of) * mean, weight, None, eps, of)


def layer_norm(
    x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float, of: str
) -> tuple[np.ndarray, np.ndarray]:
    n = max(x.shape[-1], 1)
    mean = x.sum(axis=-1, keepdims=True) / n
    off = gamma(n + MORE, of) * np.abs(x).sum(axis=-1, keepdims=True) / n
    left = x - mean
    spread = (left * left).sum(axis=-1, keepdims=True) / n
    of_spread = gamma(n + MORE, of) * spread + 2 * off * np.sqrt(spread) + off * off
    return _scaled(left, np.broadcast_to(off, x.shape), spread, of_spread, weight, bias, eps, of)


def _scaled(x, off, spread, of_spread, weight, bias, eps: float, of: str) -> tuple[np.ndarray, np.ndarray]:
    """x / sqrt(spread + eps) · weight + bias, where x and spread are off by as much."""
    below = spread + eps
    relative = (of_spread + UNITS[of] * (np.abs(eps) + np.abs(spread))) / np.abs(below)
    y = x / np.sqrt(below)
    err = np.abs(y) * (relative + MORE * UNITS[of]) + off / np.sqrt(np.abs(below))
    err = np.where((relative < 0.5) & (np.abs(below) > 1e-30) & (np.abs(below) < LARGEST[of]), err, np.inf)
    for factor in (w for w in (weight,) if w is not None):
        y, err = y * factor, err * np.abs(factor) + 4 * UNITS[of] * np.abs(y * factor)
    if bias is not None:
        y, err = y + bias, err + 4 * UNITS[of] * (np.abs(y) + np.abs(bias))
    return np.where(below < -np.abs(of_spread), np.nan, y), unsure(spread, err, of)


def sums(x: np.ndarray, of: str, running: bool) -> tuple[np.ndarray, np.ndarray]:
    if x.dtype.kind in "ib":
        found = np.cumsum(x, axis=-1, dtype=np.int64) if running else x.sum(axis=-1, dtype=np.int64)
        return found, np.zeros(found.shape)
    magnitude = np.cumsum(np.abs(x), axis=-1) if running else np.abs(x).sum(axis=-1)
    found = np.cumsum(x, axis=-1) if running else x.sum(axis=-1)
    finite = np.cumsum(finite_part(x), axis=-1) if running else finite_part(x).sum(axis=-1)
    return infinite_or_nan(found, unsure(magnitude, gamma(x.shape[-1] + MORE, of) * magnitude, of), finite, of)


def argmax(x: np.ndarray) -> np.ndarray:
    """The first NaN, or the first of the largest, in each row."""
    if x.dtype.kind != "f":
        return np.argmax(x, axis=-1)
    return np.where(np.isnan(x).any(axis=-1), np.argmax(np.isnan(x), axis=-1), np.argmax(x, axis=-1))


# -- attention -------------------------------------------------------------------------------------------------------


def attention(q, k, v, bias, seen: np.ndarray, scale: float, cap: float | None, of: str, v_dtype: str):
    """softmax(q · kᵀ · scale + bias) · v over the keys that a query sees, and log of the sum of powers; each with its
    bound. Heads of q in turn share those of k and v."""
    sharing = q.shape[-3] // k.shape[-3] if k.shape[-3] else 1
    k, v = (np.repeat(x, sharing, axis=-3) for x in (k, v))
    raw, off = product(q, np.swapaxes(k, -1, -2), of)
    s, off = raw * scale, off * abs(scale) + 8 * UNITS[of] * np.abs(raw * scale)
    if cap is not None:
        s, off = cap * np.tanh(s / cap), off + MORE * UNITS[of] * cap
    if bias is not None:
        s, off = s + bias, off + 8 * UNITS[of] * (np.abs(s) + np.nan_to_num(np.abs(bias), posinf=0.0))
    s = np.where(seen, s, -np.inf)
    keys = s.shape[-1]
    largest = np.where(np.isneginf(s).all(axis=-1, keepdims=True), 0.0, s.max(axis=-1, keepdims=True, initial=-np.inf))
    p = np.exp(s - largest)
    total = p.sum(axis=-1, keepdims=True)
    off = np.where(np.isneginf(s), 0, off + 4 * UNITS[of] * np.nan_to_num(np.abs(s), neginf=0.0, posinf=0.0))
    off = off.max(axis=-1, keepdims=True, initial=0.0)
    none = total == 0
    y = np.matmul(p, v) / np.where(none, 1, total)
    info = ml_dtypes.finfo(NUMPY[v_dtype])
    rounded = float(info.eps) if v_dtype not in (of, "f64") else 0.0  # weights have the dtype of v
    relative = 2 * np.expm1(np.minimum(2 * off, 50)) + rounded + gamma(keys + MORE, of)
    lost = (float(info.smallest_subnormal) if rounded else 0.0) + 2.0**-100
    err = np.matmul(p, np.abs(v)) / np.where(none, 1, total) * relative + lost * np.abs(v).sum(axis=-2, keepdims=True)
    lse = np.where(none, -np.inf, np.log(np.where(none, 1, total)) + largest)[..., 0]
    lse_err = (off + gamma(keys + MORE, of) + MORE * UNITS[of] * (1 + np.abs(np.where(none, 0, largest))))[..., 0]
    return (np.where(none, 0.0, y), np.where(none, 0.0, err)), (lse, np.where(none[..., 0], 0.0, lse_err))


def seen_keys(queries: int, keys: int, causal: bool, window: float | None) -> np.ndarray:
    """Which keys a query sees, the last query being at the last key."""
    place, key = np.arange(queries)[:, None] + keys - queries, np.arange(keys)[None, :]
    seen = key <= place if causal else np.ones((queries, keys), np.bool_)
    return seen if window is None else seen & (np.abs(place - key) < window)
