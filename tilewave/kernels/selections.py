"""The largest numbers of rows, and the routing of tokens to experts by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from tilewave.backend.targets import target_named, target_on
from tilewave.call import room_for
from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import I32, I64, DType
from tilewave.kernels.indexed import array_of
from tilewave.kernels.parameters import kernel_of
from tilewave.kernels.rows import M, N, Rows, arithmetic_of, looked_at
from tilewave.lang.accesses import read, write
from tilewave.lang.functions import reciprocal
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast, exp
from tilewave.lang.sorting import topk as topk_of
from tilewave.lang.symbols import sym
from tilewave.records import dataclass

K = sym.K
MOST_TAKEN = 128
"""The largest k: a kernel has the code of each of its rounds."""
ROW_BYTES = 4096
"""The bytes of the keys of rows that a workgroup takes together."""


def rows_together(target: str, columns: int, dtype: DType) -> Rows:
    """Return the tiling for kernels that select: whole rows, several of them where they are short."""
    key_bytes, most_bytes = 8 * room_for(columns), target_named(target).most_bytes
    if most_bytes is not None and key_bytes > most_bytes // 2:
        what = f"topk: rows of {columns:,} numbers do not fit into the registers of a workgroup"
        raise CallError(what, loc=here(), remedy="take the largest of parts of each row, then those of these")
    return Rows(max(1, min(16, ROW_BYTES // key_bytes)))


def topk(x: Any, y: Any, indices: Any) -> None:
    """y[m] = the largest numbers of row m, the largest first, and indices[m] their columns, i32 or i64.

    As many as y has columns. Of equal numbers the first comes first, and NaN is the largest.
    """
    _call("topk", topk_kernel, x, y, indices)


@cache
def topk_kernel(rows: Rows, x_dtype: DType, y_dtype: DType, indices_dtype: DType, k: int) -> WaveKernel:
    """Return the kernel from x[M, N] to y[M, K] and indices[M, K], for one number K."""
    _want_columns("topk", indices_dtype)
    if y_dtype != x_dtype:
        what = f"topk: y is {y_dtype}, but it takes numbers of x, which are {x_dtype}"
        raise DTypeError(what, loc=here(), remedy=f"pass an array of {x_dtype} as y")

    def largest(to: Any) -> None:
        values, places = topk_of(read(to.x), dim=N, k=K)
        write(values, to.y)
        write(cast(places, indices_dtype), to.indices)

    arrays = {"x": array_of(x_dtype, M, N), "y": array_of(y_dtype, M, K), "indices": array_of(indices_dtype, M, K)}
    return kernel_of("topk", rows.constraints, arrays, largest, {K: k})


@dataclass(frozen=True)
class Routing:
    """How the logits of a token's experts become their weights."""

    scoring: str = "softmax"
    """`softmax`, over all experts, or `sigmoid`, of each alone."""
    renormalize: bool = True
    """Whether the weights of a token's experts are divided by their sum."""


SCORINGS = ("softmax", "sigmoid")
SOFTMAX = Routing()


def routing_named(caller: str, scoring: Any, renormalize: Any) -> Routing:
    """Return the routing with that scoring; an error lists the known ones."""
    if scoring not in SCORINGS:
        what = f"{caller}: no scoring is called {scoring!r}"
        raise CallError(what, loc=here(), remedy=f"write one of {', '.join(map(repr, SCORINGS))}")
    return Routing(scoring, bool(renormalize))


def route_tokens(x: Any, weights: Any, experts: Any, scoring: str = "softmax", renormalize: bool = True) -> None:
    """experts[m] = the columns of the largest logits of token m, and weights[m] their scores, which add up to 1.

    Each token goes to as many experts as `weights` has columns. A score is the softmax over all logits, or the sigmoid
    of one; without `renormalize` scores stay as they are. -inf is a logit that is chosen last, with weight 0.
    """
    routing = routing_named("route_tokens", scoring, renormalize)
    _call("route_tokens", partial(route_tokens_kernel, routing=routing), x, weights, experts)


@cache
def route_tokens_kernel(
    rows: Rows, x_dtype: DType, weights_dtype: DType, experts_dtype: DType, k: int, routing: Routing = SOFTMAX
) -> WaveKernel:
    """Return the kernel from x[M, N] to weights[M, K] and experts[M, K], for one number K."""
    of = arithmetic_of("route_tokens", x=x_dtype, weights=weights_dtype)
    _want_columns("route_tokens", experts_dtype)

    def route(to: Any) -> None:
        logits = read(to.x)
        values, places = topk_of(logits, dim=N, k=K)
        found = _scores(routing, cast(values, of), lambda: cast(logits, of))
        write(cast(found, weights_dtype), to.weights)
        write(cast(places, experts_dtype), to.experts)

    arrays = {
        "x": array_of(x_dtype, M, N),
        "weights": array_of(weights_dtype, M, K),
        "experts": array_of(experts_dtype, M, K),
    }
    return kernel_of("route_tokens", rows.constraints, arrays, route, {K: k})


def _scores(routing: Routing, chosen: Any, every: Callable[[], Any]) -> Any:
    """Return the weights of the chosen logits, of which a softmax's largest is the row's."""
    if routing.scoring == "sigmoid":
        powers = reciprocal(1.0 + exp(-chosen))
        return powers / powers.sum(dim=K) if routing.renormalize else powers
    largest = chosen.max(dim=K)
    powers = exp(chosen - largest)
    return powers / (powers.sum(dim=K) if routing.renormalize else exp(every() - largest).sum(dim=N))


def _call(name: str, make: Any, x: Any, y: Any, indices: Any) -> None:
    given, found, places = (looked_at(name, of, array) for of, array in (("x", x), ("y", y), ("indices", indices)))
    if len(found.shape) != 2 or len(given.shape) != 2:
        raise CallError(f"{name}: arrays have rows and columns", loc=here(), remedy="pass arrays with two axes")
    count = checked_count(name, found.shape[1], given.shape[1])
    rows = rows_together(target_on(name, given.device).name, given.shape[1], given.dtype)
    make(rows, given.dtype, found.dtype, places.dtype, count)(x, y, indices)


def checked_count(caller: str, k: int, columns: int) -> int:
    """Return how many numbers of each row are taken."""
    if not columns:
        raise CallError(f"{caller}: rows have no numbers", loc=here(), remedy="pass rows with numbers")
    if not 0 < k <= columns:
        what = f"{caller}: {k} of each row are wanted, and rows have {columns} numbers"
        raise CallError(
            what, loc=here(), remedy=f"pass a k from 1 to {columns}" if columns else "pass rows with numbers"
        )
    if k > MOST_TAKEN:
        what = f"{caller}: {k} of each row are wanted, and kernels take at most {MOST_TAKEN}"
        raise CallError(what, loc=here(), remedy="sort the rows instead")
    return k


def _want_columns(kernel: str, dtype: DType) -> None:
    if dtype not in (I32, I64):
        what = f"{kernel}: indices are {dtype}, but they are columns, i32 or i64"
        raise DTypeError(what, loc=here(), remedy="pass an array of i64 for them")
