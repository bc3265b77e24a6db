"""What the kernels on rows must give: references with more digits than they compute with, and how far they may be off.

A bound counts roundings. `u` is half a unit in the last place of what the kernel computes in; a sum of n numbers rounds
each of them once for every level of its tree, and once for every step of a walk; a function is off by as many units as
docs/ref/language.md says. A result in a narrower dtype is off by half a unit of that besides.
"""

import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from function_values import bounds

from tilewave import *
from tilewave import kernels as shipped
from tilewave.call import room_for
from tilewave.ir.types import DTYPES
from tilewave.lang.kernel import parameters_of
from tilewave.lang.reductions import SUMMED_IN

COLUMNS = {"numpy": "interpreter", "gfx942": "gfx942, gfx950", "gfx950": "gfx942, gfx950"}
"""Those of the table of functions."""
EPS = 1e-5
N = sym.N
NUMPY_DTYPES = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype.name != "index"}


@dataclass(frozen=True)
class Precision:
    """What a kernel computes in, on a target, in walks of so many steps."""

    of: object
    target: str = "cpu"
    steps: int = 1

    @property
    def u(self):
        return float(np.finfo(self.of.numpy).eps) / 2

    def off(self, function):
        column = COLUMNS.get(self.target, self.target)
        if self.of == f64:
            column = "cpu, f64" if self.target in ("cpu", "numpy") else "GPUs, f64"
        return 2 * self.u * bounds()[column][function]

    def summed(self, n):
        """How often a number is rounded on its way into a sum, as a share of the sum of all sizes."""
        return _gamma((math.ceil(math.log2(max(n, 1))) + self.steps) * self.u)


def _gamma(share):
    assert share < 1, "the bound holds for few roundings"
    return share / (1 - share)


@dataclass
class Problem:
    """A call of one kernel: what it gets, what it writes, and a function that holds that against the reference."""

    name: str
    given: dict
    written: dict
    check: object
    numbers: dict = field(default_factory=dict)

    @property
    def arguments(self):
        return {**self.given, **self.written, **self.numbers}

    def kernel(self, rows):
        """The kernel that takes rows so, for the dtypes of these arrays."""
        make = getattr(shipped, f"{self.name}_kernel")
        arrays = {**self.given, **self.written}
        order = ORDER.get(self.name, tuple(arrays))
        return make(rows, *(NUMPY_DTYPES[arrays[of].dtype] if of in arrays else None for of in order))


ORDER = {"layer_norm": ("x", "y", "weight", "bias"), "rms_norm": ("x", "y", "weight", "residual", "total")}


# -- data ------------------------------------------------------------------------------------------------------------

KINDS = ("normal", "one value", "half masked", "offset", "masked rows", "late")


def rows_of(kind, m, n, dtype, seed=0):
    rng = np.random.default_rng(seed + 1000 * m + n)
    x = rng.standard_normal((m, n))
    match kind:
        case "one value":
            x[:] = rng.standard_normal((m, 1))
        case "half masked":
            x[:, n // 2 + 1 :] = -math.inf
        case "offset":
            x = 30 + x / 100
        case "late":
            x[:, : 2 * n // 3] = -math.inf
        case "masked rows":
            x[::2] = -math.inf
    return x.astype(dtype.numpy)


def numbers_of(m, n, dtype, seed=0):
    """Any numbers of a dtype, for sums and places."""
    if dtype.is_float:
        return rows_of("normal", m, n, dtype, seed)
    rng = np.random.default_rng(seed + 1000 * m + n)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, (m, n), dtype=dtype.numpy, endpoint=True)


def poisoned(shape, dtype):
    return np.full(shape, math.nan if dtype.is_float else 77, dtype.numpy)


# -- how far a result is off -----------------------------------------------------------------------------------------


def close(found, want, bound, what):
    """Within the bound, and within the rounding to the dtype of the result; no number where there is none to find."""
    info = ml_dtypes.finfo(found.dtype)
    found, want = found.astype(np.longdouble), np.asarray(want, np.longdouble)
    assert (np.isnan(found) == np.isnan(want)).all(), f"{what}: {np.isnan(found).sum()} are no numbers"
    finite = np.isfinite(want)
    assert (found[np.isinf(want)] == want[np.isinf(want)]).all(), f"{what}: other infinities"
    off = np.abs(found[finite] - want[finite])
    allowed = np.broadcast_to(bound, want.shape)[finite]
    assert np.isfinite(allowed).all(), f"{what}: anything would do"
    allowed = allowed + (np.abs(want[finite]) + allowed) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
    worst = (off - allowed).argmax() if off.size else 0
    assert (off <= allowed).all(), f"{what}: off by {off[worst]}, {allowed[worst]} are allowed"


def _wide(x):
    return x.astype(np.longdouble)


def _softmax_parts(x, p, out):
    """x less its largest, the sum of powers, and the share that the latter is off by.

    For narrow results a power may be exp2(difference · log2(e)): the product and its constant are rounded, too.
    """
    n = x.shape[1]
    rounded, of_power = (1, p.off("exp")) if out.itemsize >= 4 else (3, max(p.off("exp"), p.off("exp2")))
    with np.errstate(invalid="ignore"):
        below = _wide(x) - _wide(x).max(axis=1, keepdims=True)
    powers = np.exp(below)
    total = powers.sum(axis=1, keepdims=True)
    depth = np.where(np.isfinite(below), np.abs(below), 0)
    each = rounded * p.u * depth + of_power
    deepest = rounded * p.u * depth.max(axis=1, keepdims=True)
    rescaled = 0 if p.steps == 1 else deepest + p.steps * (of_power + 2 * p.u)
    share = (powers * each).sum(axis=1, keepdims=True) / total + p.summed(n) + rescaled
    return below, powers, total, each, share


def softmax(m, n, dtype, kind="normal", out=None):
    x = rows_of(kind, m, n, dtype)

    def check(y, p):
        _, powers, total, each, share = _softmax_parts(x, p, y.dtype)
        smallest = float(np.finfo(p.of.numpy).smallest_subnormal) * p.off("exp") / p.u
        close(y, powers / total, powers / total * _inflated(each + share + 2 * p.u) + smallest, "softmax")

    return Problem("softmax", {"x": x}, {"y": poisoned((m, n), out or dtype)}, check)


def log_softmax(m, n, dtype, kind="normal", out=None):
    x = rows_of(kind, m, n, dtype)

    def check(y, p):
        want, bound = _logarithms(x, p, y.dtype)
        close(y, want, bound, "log_softmax")

    return Problem("log_softmax", {"x": x}, {"y": poisoned((m, n), out or dtype)}, check)


def _logarithms(x, p, out):
    below, _, total, _, share = _softmax_parts(x, p, out)
    with np.errstate(divide="ignore", invalid="ignore"):
        want = below - np.log(total)
        bound = p.u * np.abs(below) + share + p.off("log") * np.abs(np.log(total)) + p.u * np.abs(want)
    return want, _inflated(bound)


def cross_entropy(m, n, dtype, kind="normal", out=f32, target=i64):
    x = rows_of(kind, m, n, dtype)
    wanted = np.random.default_rng(m + n).integers(0, n, m).astype(target.numpy)
    wanted[1::4] = -100 if target != i8 else -1
    wanted[2::4] = min(n, np.iinfo(target.numpy).max)
    none, past = wanted < 0, wanted >= n

    def check(y, p):
        want, bound = (a[np.arange(m), np.where(none | past, 0, wanted)] for a in _logarithms(x, p, y.dtype))
        close(y, np.where(none | past, 0, -want), np.where(none | past, 0, bound), "cross_entropy")

    return Problem("cross_entropy", {"x": x, "target": wanted}, {"y": poisoned(m, out)}, check)


def layer_norm(m, n, dtype, kind="normal", weight=None, bias=None, out=None):
    x, columns = rows_of(kind, m, n, dtype), _columns(n, weight=weight, bias=bias)

    def check(y, p):
        wide = _wide(x)
        w, b = (_wide(columns[name]) if name in columns else default for name, default in (("weight", 1), ("bias", 0)))
        mean = wide.mean(axis=1, keepdims=True)
        mean_off = (p.summed(n) + 2 * p.u) * np.abs(wide).mean(axis=1, keepdims=True)
        d = wide - mean
        d_off = p.u * np.abs(d) + mean_off * (1 + p.u)
        want, bound = _scaled(d, d_off, w, n, p)
        close(y, want + b, bound + p.u * (np.abs(want + b) + bound), "layer_norm")

    return Problem("layer_norm", {"x": x, **columns}, {"y": poisoned((m, n), out or dtype)}, check, {"eps": EPS})


def _scaled(d, d_off, w, n, p):
    """d / sqrt(mean of d² + eps) · w and how far that may be off, where d is off by d_off."""
    eps = _wide(np.float64(EPS).astype(p.of.numpy))
    square = (d * d).mean(axis=1, keepdims=True)
    square_off = (2 * np.abs(d) * d_off + d_off**2).mean(axis=1, keepdims=True)
    square_off = square_off + (p.summed(n) + 3 * p.u) * (square + square_off)
    scale = 1 / np.sqrt(square + eps)
    scale_off = _inflated(square_off / (square + eps) / 2 + p.u + p.off("rsqrt"))
    want = d * scale * w
    return want, np.abs(want) * (scale_off + 2 * p.u) + d_off * scale * np.abs(w) * (1 + scale_off + 2 * p.u)


def _inflated(share):
    """A share that products of several roundings stay below."""
    return np.where(share < 0.5, share / (1 - np.minimum(share, 0.5)), math.inf)


def rms_norm(m, n, dtype, kind="normal", weight=None, residual=None, out=None):
    x, columns = rows_of(kind, m, n, dtype), _columns(n, weight=weight)
    added = {} if residual is None else {"residual": rows_of("normal", m, n, residual, seed=5)}
    totals = {} if residual is None else {"total": poisoned((m, n), dtype)}

    def check(y, p, total=None):
        if added:
            close(total, _wide(x) + _wide(added["residual"]), p.u * np.abs(_wide(total)), "x + residual")
        v = _wide(x if total is None else total)
        want, bound = _scaled(v, 0 * v, _wide(columns["weight"]) if columns else 1, n, p)
        close(y, want, bound, "rms_norm")

    written = {**totals, "y": poisoned((m, n), out or dtype)}
    return Problem("rms_norm", {"x": x, **added, **columns}, written, check, {"eps": EPS})


def _columns(n, **dtypes):
    rng = np.random.default_rng(n)
    return {name: rng.standard_normal(n).astype(dtype.numpy) for name, dtype in dtypes.items() if dtype is not None}


def sum_(m, n, dtype, out=None):
    x = numbers_of(m, n, dtype)
    out = out or SUMMED_IN.get(dtype, dtype)

    def check(y, p):
        if out.is_int:
            np.testing.assert_array_equal(y, x.astype(out.numpy).sum(axis=1, dtype=out.numpy))
        else:
            close(y, _wide(x).sum(axis=1), p.summed(n) * np.abs(_wide(x)).sum(axis=1), "sum")

    return Problem("sum", {"x": x}, {"y": poisoned(m, out)}, check)


def cumsum(m, n, dtype, out=None):
    x = numbers_of(m, n, dtype)
    out = out or SUMMED_IN.get(dtype, dtype)

    def check(y, p):
        if out.is_int:
            np.testing.assert_array_equal(y, x.astype(out.numpy).cumsum(axis=1, dtype=out.numpy))
        else:
            close(y, _wide(x).cumsum(axis=1), p.summed(n) * np.abs(_wide(x)).cumsum(axis=1), "cumsum")

    return Problem("cumsum", {"x": x}, {"y": poisoned((m, n), out)}, check)


def argmax(m, n, dtype, out=i64, kind="normal"):
    x = rows_of(kind, m, n, dtype) if dtype.is_float else numbers_of(m, n, dtype)
    x[:, n // 3] = x.max(axis=1) if n else 0  # there are several, and the first counts
    if dtype.is_float and m > 1:
        x[1, n // 2 :] = math.nan

    def check(y, p):
        np.testing.assert_array_equal(y, x.argmax(axis=1))

    return Problem("argmax", {"x": x}, {"y": poisoned(m, out)}, check)


# -- running ---------------------------------------------------------------------------------------------------------


def precision(problem, target, rows, n):
    """What it computes in: f32, or f64 where one of the arrays is that; integers in themselves."""
    dtypes = {a.dtype for a in (*problem.given.values(), *problem.written.values())}
    steps = 1 if rows.step is None else -(-n // rows.step)
    return Precision(f64 if np.dtype(np.float64) in dtypes else f32, target, steps)


def choose(problem, target):
    """How a call takes these rows on a target."""
    x = problem.given["x"]
    chosen = shipped.running_rows if problem.name == "cumsum" else shipped.rows_for
    return chosen(target, x.shape[1], NUMPY_DTYPES[x.dtype])


def check_call(problem):
    """By its public function, on this CPU."""
    getattr(shipped, problem.name)(**problem.arguments)
    _check(problem, "cpu", choose(problem, "cpu"))


def check_compiled(problem, way, rows=None):
    """Compiled for a target and run as far as that can be done here; `way` is a target, or `lanes of` one."""
    target = way.removeprefix("lanes of ")
    rows = rows or choose(problem, target)
    kernel, n = problem.kernel(rows), problem.given["x"].shape[1]
    longest = {} if rows.step else {N: room_for(n)}
    compiled = wave_compile(WaveCompileOptions(target=target, max_sizes=longest), kernel)
    arguments = [problem.arguments[name] for name, _ in parameters_of(kernel)]
    if way.startswith("lanes of"):
        compiled.interpret(*arguments, level="lane", order="random", seed=3)
    elif way in ("gfx942", "gfx950"):
        compiled.emulate(*arguments, order="random", seed=5)
    else:
        compiled(*arguments)
    if target == "sm_90a":
        assert compiled.asm
    _check(problem, target, rows)


def _check(problem, target, rows):
    if not problem.given["x"].size:
        return
    problem.check(**problem.written, p=precision(problem, target, rows, problem.given["x"].shape[1]))
