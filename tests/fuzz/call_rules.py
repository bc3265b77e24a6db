"""What a call should come to: results and their bounds, or an error of ours; by the documents, not by the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import call_references as ref
from .call_arrays import Buffered
from .call_references import Result, arithmetic, written
from .calls import Alias, Call, Laid, Said
from .program import FLOATS

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
WIDE = {"i8": "i32", "bool": "i32", **dict.fromkeys((d for d in FLOATS if d not in ("f32", "f64")), "f32")}


class Unfit(Exception):
    """The call must be refused; why is said."""


@dataclass
class Expected:
    """The results of a call by the name of the argument that they are written to; or why it must be refused."""

    results: dict[str, Result] = field(default_factory=dict)
    unfit: str = ""
    may_refuse: bool = False


@dataclass(frozen=True)
class Given:
    """An array's numbers before the call: floats as float64, whole numbers as int64."""

    x: np.ndarray
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape


class Asked:
    """A call as its rule reads it: arrays and other arguments by name, and doubts on the way."""

    def __init__(self, call: Call, arrays: dict[str, Buffered], device: str = "cpu") -> None:
        self.call, self.arrays, self.device, self.may_refuse = call, arrays, device, False

    def array(self, name: str) -> Given:
        found = self.maybe(name)
        if found is None:
            raise Unfit(f"{name} is missing")
        return found

    def maybe(self, name: str) -> Given | None:
        """The array of that name, or None where there is none."""
        argument = self.call.get(name)
        if argument is None or (isinstance(argument, Said) and argument.value is None):
            return None
        if isinstance(argument, Said):
            raise Unfit(f"{name} is no array")
        view, dtype = self.arrays[name].view, self.dtype(name)
        kind = np.float64 if dtype in FLOATS else np.int64
        return Given(view.astype(kind), dtype)

    def dtype(self, name: str) -> str:
        argument = self.call.get(name)
        while isinstance(argument, Alias):
            argument = self.call.get(argument.of)
        assert isinstance(argument, Laid)
        return argument.dtype

    def said(self, name: str, default: Any = None) -> Any:
        argument = self.call.get(name)
        if argument is None:
            return default
        if not isinstance(argument, Said):
            raise Unfit(f"{name} is an array")
        return argument.value

    def number(self, name: str, default: float | None) -> float | None:
        """A real number; what is nearly one may be refused."""
        value = self.said(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, (bool, np.bool_)) or (isinstance(value, np.ndarray) and value.shape == ()):
            self.may_refuse = True
            return float(value)
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise Unfit(f"{name} is no number")
        if isinstance(value, int) and abs(value) > 10**300:
            raise Unfit(f"{name} is larger than any float")
        if not math.isfinite(value) or abs(value) > 1e30:
            self.may_refuse = True
        return float(value)

    def integer(self, name: str, default: int | None) -> int | None:
        value = self.said(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, (bool, np.bool_)):
            self.may_refuse = True
            return int(value)
        if not isinstance(value, (int, np.integer)):
            raise Unfit(f"{name} is no whole number")
        return int(value)

    def truth(self, name: str) -> bool:
        value = self.said(name, False)
        if not isinstance(value, bool):
            self.may_refuse = True
        if isinstance(value, np.ndarray) and value.size > 1:
            raise Unfit(f"{name} is an array")
        return bool(value)

    def products_in(self, *dtypes: str) -> str:
        """What products of these are added up in."""
        of_bytes = self.device == "cuda" and any(dtype.startswith("f8") for dtype in dtypes)
        return "f8" if of_bytes else arithmetic(*dtypes)

    # -- results

    def out_dtype(self, name: str, default: str) -> str:
        return default if self.maybe(name) is None else self.dtype(name)

    def check_written(self, name: str, shape: tuple[int, ...]) -> None:
        """An array that is to be written: of that shape, writeable, each element in its own place."""
        if self.maybe(name) is None:
            return
        b = self.arrays[name]
        if b.view.shape != shape:
            raise Unfit(f"{name} has another shape than the result")
        argument = self.call.get(name)
        if self.dtype(name) not in FLOATS:
            self.may_refuse = True  # floats need not become whole numbers on their way
        if not b.view.size:
            self.may_refuse |= isinstance(argument, Laid) and bool(argument.flaw or argument.layout)
            return
        if not b.view.flags.writeable:
            raise Unfit(f"{name} is read-only")
        if b.shares_addresses:
            raise Unfit(f"elements of {name} share an address")
        if isinstance(argument, Alias) or (isinstance(argument, Laid) and (argument.flaw or argument.layout)):
            self.may_refuse = True  # what cannot be written in place is refused


def floats(caller: str, *arrays: Given | None) -> None:
    for a in arrays:
        if a is not None and a.dtype not in FLOATS:
            raise Unfit(f"{caller} takes floats")


def same_shape(name: str, a: Given, shape: tuple[int, ...]) -> None:
    if a.shape != shape:
        raise Unfit(f"{name} has another shape than it must have")


# -- products --------------------------------------------------------------------------------------------------------


def _product_dtype(a: Given, b: Given) -> str:
    if a.dtype != b.dtype:
        raise Unfit("factors have two dtypes")
    if a.dtype not in (*FLOATS, "i8"):
        raise Unfit("there are no products of such numbers")
    return "i32" if a.dtype == "i8" else a.dtype if a.dtype in ("f16", "bf16", "f32", "f64") else "f32"


def matmul(asked: Asked) -> dict[str, Result]:
    a, b = asked.array("a"), asked.array("b")
    default = _product_dtype(a, b)
    of = asked.products_in(a.dtype)
    try:
        x, err = ref.product(a.x, b.x, of)
    except ValueError:
        raise Unfit("the shapes of a and b do not go together") from None
    asked.check_written("out", x.shape)
    return {"out": written(x, err, asked.out_dtype("out", default), "i32" if default == "i32" else of)}


def linear(asked: Asked) -> dict[str, Result]:
    x, weight = asked.array("x"), asked.array("weight")
    bias, residual, activation = asked.maybe("bias"), asked.maybe("residual"), asked.said("activation")
    default = _product_dtype(x, weight)
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise Unfit("no such activation")
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise Unfit("the shapes of x and weight do not go together")
    if bias is not None:
        same_shape("bias", bias, weight.shape[:1])
    of = asked.products_in(x.dtype)
    s, err = ref.product(x.x, weight.x.T, of)
    dtype = asked.out_dtype("out", default)
    _fit_sums("i32" if default == "i32" else of, activation, bias=bias, residual=residual)
    if bias is not None:
        s, err = s + bias.x, err + 4 * ref.UNITS[of] * (np.abs(s) + np.abs(bias.x))
    narrow = dtype in FLOATS and dtype not in ("f32", "f64") and residual is None
    s, err = ref.activated(activation, s, err, of, narrow)
    if residual is not None:
        try:
            added = np.broadcast_to(residual.x, s.shape)
        except ValueError:
            raise Unfit("residual does not fit the result") from None
        s, err = s + added, err + 4 * ref.UNITS[of] * (np.abs(s) + np.abs(added))
    asked.check_written("out", s.shape)
    return {"out": written(s, err, dtype, "i32" if default == "i32" else of)}


def _fit_sums(sums: str, activation: str | None, **added: Given | None) -> None:
    """What is added to sums is of their kind, and integers are no wider; only relu takes integers."""
    whole = sums == "i32"
    for name, a in added.items():
        if a is not None and ((a.dtype in FLOATS) == whole or (whole and a.dtype not in ("i8", "i32"))):
            raise Unfit(f"{name} is of another kind than the sums")
    if whole and activation not in (None, "relu"):
        raise Unfit("the activation takes floats")


# -- rows ------------------------------------------------------------------------------------------------------------


def softmax(asked: Asked) -> dict[str, Result]:
    x = asked.array("x")
    floats("softmax", x)
    dim = asked.integer("dim", -1)
    if not x.shape or dim is None or not -len(x.shape) <= dim < len(x.shape):
        raise Unfit("there is no such axis")
    asked.check_written("out", x.shape)
    asked.may_refuse |= dim not in (-1, len(x.shape) - 1) and asked.maybe("out") is not None
    of = arithmetic(x.dtype, asked.out_dtype("out", x.dtype))
    y, err = ref.softmax(np.swapaxes(x.x, dim, -1), of)
    return {"out": written(np.swapaxes(y, dim, -1), np.swapaxes(err, dim, -1), asked.out_dtype("out", x.dtype), of)}


def _norm_arguments(asked: Asked, x: Given, *columns: Given | None) -> float:
    floats("a norm", x, *columns)
    if not x.shape:
        raise Unfit("x is a single number")
    for c in columns:
        if c is not None:
            same_shape("weight or bias", c, x.shape[-1:])
    eps = asked.number("eps", 1e-5)
    assert eps is not None
    asked.may_refuse |= eps < 0 or not isinstance(asked.said("eps", 1e-5), float)
    return eps


def ops_rms_norm(asked: Asked) -> dict[str, Result]:
    return _rms_norm(asked, "out", "total")


def kernels_rms_norm(asked: Asked) -> dict[str, Result]:
    if (asked.maybe("residual") is None) != (asked.maybe("total") is None):
        raise Unfit("residual and total come together")
    _rows(asked, "y")
    return _rms_norm(asked, "y", "total")


def _rms_norm(asked: Asked, out: str, total: str) -> dict[str, Result]:
    x, weight, residual = asked.array("x"), asked.maybe("weight"), asked.maybe("residual")
    eps = _norm_arguments(asked, x, weight)
    floats("rms_norm", residual)
    asked.check_written(out, x.shape)
    dtype = asked.out_dtype(out, x.dtype)
    others = [a.dtype for a in (weight, residual) if a is not None]
    kept = asked.out_dtype(total, x.dtype) if residual is not None else x.dtype
    of = arithmetic(x.dtype, dtype, kept, *others)
    numbers, found = x.x, {}
    if residual is not None:
        same_shape("residual", residual, x.shape)
        asked.check_written(total, x.shape)
        kind = np.float64 if of == "f64" else np.float32
        with np.errstate(all="ignore"):
            numbers = ref.rounded(x.x.astype(kind) + residual.x.astype(kind), kept)
        found[total] = Result(numbers, np.zeros(x.shape), kept)
    y, err = ref.rms_norm(numbers, None if weight is None else weight.x, eps, of)
    return {out: written(y, err, dtype, of), **found}


def ops_layer_norm(asked: Asked) -> dict[str, Result]:
    return _layer_norm(asked, "out")


def kernels_layer_norm(asked: Asked) -> dict[str, Result]:
    _rows(asked, "y")
    return _layer_norm(asked, "y")


def _layer_norm(asked: Asked, out: str) -> dict[str, Result]:
    x, weight, bias = asked.array("x"), asked.maybe("weight"), asked.maybe("bias")
    eps = _norm_arguments(asked, x, weight, bias)
    asked.may_refuse |= weight is None and bias is not None
    asked.check_written(out, x.shape)
    dtype = asked.out_dtype(out, x.dtype)
    of = arithmetic(x.dtype, dtype, *(a.dtype for a in (weight, bias) if a is not None))
    w, b = (None if a is None else a.x for a in (weight, bias))
    y, err = ref.layer_norm(x.x, w, b, eps, of)
    return {out: written(y, err, dtype, of)}


def _rows(asked: Asked, out: str) -> tuple[Given, str]:
    """x, which has two axes, and the dtype of what is written."""
    x = asked.array("x")
    if asked.maybe(out) is None:
        raise Unfit(f"{out} is missing")
    if len(x.shape) != 2:
        raise Unfit("x has not two axes")
    return x, asked.dtype(out)


def _kernel_softmax(compute: Callable[..., Any]) -> Callable[[Asked], dict[str, Result]]:
    def rule(asked: Asked) -> dict[str, Result]:
        x, dtype = _rows(asked, "y")
        floats("softmax", x, asked.array("y"))
        asked.check_written("y", x.shape)
        asked.may_refuse |= not x.shape[1]  # of none there is no largest
        of = arithmetic(x.dtype, dtype)
        return {"y": written(*compute(x.x, of), dtype, of)}

    return rule


def cross_entropy(asked: Asked) -> dict[str, Result]:
    x, dtype = _rows(asked, "y")
    target = asked.array("target")
    floats("cross_entropy", x, asked.array("y"))
    if target.dtype in FLOATS:
        raise Unfit("target names columns")
    asked.may_refuse |= target.dtype == "bool" or not x.shape[1]
    same_shape("target", target, x.shape[:1])
    asked.check_written("y", x.shape[:1])
    of, (rows, columns) = arithmetic(x.dtype, dtype), x.shape
    y, err = ref.log_softmax(x.x, of)
    there = np.clip(target.x, 0, max(columns - 1, 0))
    loss, off = (v[np.arange(rows), there] if columns else np.zeros(rows) for v in (-y, err))
    outside = (target.x < 0) | (target.x >= columns)
    return {"y": written(np.where(outside, 0.0, loss), np.where(outside, 0, off), dtype, of)}


def embedding(asked: Asked) -> dict[str, Result]:
    weight, ids = asked.array("weight"), asked.array("ids")
    if ids.dtype in (*FLOATS, "bool"):
        raise Unfit("ids name rows")
    if len(weight.shape) != 2:
        raise Unfit("weight has no rows and columns")
    asked.check_written("out", (*ids.shape, weight.shape[1]))
    dtype = asked.out_dtype("out", weight.dtype)
    if weight.dtype in FLOATS and dtype not in FLOATS:
        raise Unfit("floats do not become whole numbers")
    asked.may_refuse |= "bool" in (weight.dtype, dtype) and weight.dtype != dtype
    there = (ids.x >= 0) & (ids.x < weight.shape[0])
    rows = weight.x[np.where(there, ids.x, 0)] if weight.shape[0] else np.zeros((*ids.shape, weight.shape[1]))
    found = np.where(there[..., None], rows, 0).astype(weight.x.dtype)
    return {"out": written(found, np.zeros(found.shape), dtype, weight.dtype)}


def _kernel_sum(running: bool) -> Callable[[Asked], dict[str, Result]]:
    def rule(asked: Asked) -> dict[str, Result]:
        x, dtype = _rows(asked, "y")
        asked.check_written("y", x.shape if running else x.shape[:1])
        return {"y": running_sums(x.x, x.dtype, dtype, running)}

    return rule


def running_sums(x: np.ndarray, x_dtype: str, dtype: str, running: bool) -> Result:
    """Sums along the last axis, all of them or the last."""
    wide = WIDE.get(x_dtype, x_dtype)
    if (wide in FLOATS) != (dtype in FLOATS) or dtype == "bool":
        raise Unfit("the result is of another kind than the sums")
    of = dtype if (wide, dtype) in (("f32", "f64"), ("i32", "i64")) else wide
    found, err = ref.sums(x, of if of in FLOATS else "f32", running)
    narrowed = written(found, err, of, of) if of not in FLOATS else Result(found, err, of)
    return written(narrowed.x, narrowed.err, dtype, of)


def argmax(asked: Asked) -> dict[str, Result]:
    x, dtype = _rows(asked, "y")
    if dtype not in ("i32", "i64"):
        raise Unfit("y does not take columns")
    asked.check_written("y", x.shape[:1])
    if not x.shape[1]:
        asked.may_refuse |= not x.shape[0]
        if x.shape[0]:
            raise Unfit("there is no largest number of none")
        return {"y": Result(np.zeros(0, np.int64), np.zeros(0), dtype)}
    found = ref.argmax(x.x)
    both_zeros = (x.x == 0).sum(axis=1) > 1  # of which sign the first must be is not said
    at_zero = np.take_along_axis(x.x, found[:, None], 1)[:, 0] == 0 if len(found) else found
    return {"y": Result(found.astype(np.int64), np.where(both_zeros & at_zero, np.inf, 0.0), dtype)}


# -- attention -------------------------------------------------------------------------------------------------------


def ops_attention(asked: Asked) -> dict[str, Result]:
    q, k, v, bias = asked.array("q"), asked.array("k"), asked.array("v"), asked.maybe("bias")
    if not len(q.shape) == len(k.shape) == len(v.shape) >= 2:
        raise Unfit("q, k and v have not as many axes")
    if not q.shape[:-3] == k.shape[:-3] == v.shape[:-3]:
        raise Unfit("batches differ")
    shape = (*q.shape[:-1], v.shape[-1])
    if bias is not None:
        try:
            bias = Given(np.broadcast_to(bias.x, (*q.shape[:-1], k.shape[-2])), bias.dtype)
        except ValueError:
            raise Unfit("bias does not fit the scores") from None
    found = _attention(asked, q, k, v, bias, asked.out_dtype("out", q.dtype), None)
    asked.check_written("out", shape)
    return {"out": found["y"]}


def kernels_attention(asked: Asked) -> dict[str, Result]:
    q, k, v, bias = asked.array("q"), asked.array("k"), asked.array("v"), asked.maybe("bias")
    asked.array("y")
    if any(len(a.shape) != 4 for a in (q, k, v)):
        raise Unfit("an array has not four axes")
    if asked.call.function == "kernels.attention_decode" and q.shape[2] > 16:
        raise Unfit("these are more than 16 queries")
    if bias is not None:
        same_shape("bias", bias, (*q.shape[:-1], k.shape[-2]))
    lse = asked.dtype("lse") if asked.maybe("lse") is not None else None
    found = _attention(asked, q, k, v, bias, asked.dtype("y"), lse)
    asked.check_written("y", (*q.shape[:-1], v.shape[-1]))
    asked.check_written("lse", q.shape[:-1])
    return found


def _attention(
    asked: Asked, q: Given, k: Given, v: Given, bias: Given | None, dtype: str, lse: str | None
) -> dict[str, Result]:
    floats("attention", q, k, v, bias)
    if dtype not in FLOATS or (lse is not None and lse not in FLOATS):
        raise Unfit("results are floats")
    if q.dtype != k.dtype and not (q.dtype.startswith("f8") and k.dtype.startswith("f8")):
        raise Unfit("q and k have two dtypes")
    asked.may_refuse |= q.dtype != k.dtype  # instructions multiply several kinds of f8
    causal, window = asked.truth("causal"), asked.integer("window", None)
    scale, cap = asked.number("scale", None), asked.number("soft_cap", None)
    if window is not None and window < 1:
        raise Unfit("the window has no keys")
    if cap is not None and not cap > 0:
        raise Unfit("no score is within such a soft cap")
    q4, k4, v4 = (_four_axes(a.x) for a in (q, k, v))
    _check_heads(q4, k4, v4)
    others = [v.dtype, dtype, *([bias.dtype] if bias else []), *([lse] if lse else [])]
    of = asked.products_in(q.dtype, v.dtype) if "f64" not in others else "f64"
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    seen = ref.seen_keys(q4.shape[-2], k4.shape[-2], causal, window)
    added = None if bias is None else _four_axes(bias.x)
    (y, err), (sums, off) = ref.attention(q4, k4, v4, added, seen, scale, cap, of, v.dtype)
    odd = not math.isfinite(scale) or abs(scale) > 1e4 or (cap is not None and not 1e-3 < cap < 1e4)
    err, off = (np.full(e.shape, np.inf) if odd else e for e in (err, off))
    asked.may_refuse |= odd
    shape = (*q.shape[:-1], v.shape[-1])
    found = {"y": written(y.reshape(shape), err.reshape(shape), dtype, of)}
    return found | ({"lse": written(sums.reshape(q.shape[:-1]), off.reshape(q.shape[:-1]), lse, of)} if lse else {})


def _four_axes(x: np.ndarray) -> np.ndarray:
    shape = (1,) * (4 - x.ndim) + x.shape
    return x.reshape((math.prod(shape[:-3]), *shape[-3:]))


def _check_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    if q.shape[0] != k.shape[0] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise Unfit("the shapes of q, k and v do not go together")
    if q.shape[1] != k.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise Unfit("heads of q cannot share those of k")


RULES: dict[str, Callable[[Asked], dict[str, Result]]] = {
    "ops.matmul": matmul,
    "ops.linear": linear,
    "ops.softmax": softmax,
    "ops.rms_norm": ops_rms_norm,
    "ops.layer_norm": ops_layer_norm,
    "ops.attention": ops_attention,
    "kernels.softmax": _kernel_softmax(ref.softmax),
    "kernels.log_softmax": _kernel_softmax(ref.log_softmax),
    "kernels.cross_entropy": cross_entropy,
    "kernels.layer_norm": kernels_layer_norm,
    "kernels.rms_norm": kernels_rms_norm,
    "kernels.sum": _kernel_sum(running=False),
    "kernels.cumsum": _kernel_sum(running=True),
    "kernels.argmax": argmax,
    "kernels.attention": kernels_attention,
    "kernels.attention_decode": kernels_attention,
    "ops.embedding": embedding,
}
