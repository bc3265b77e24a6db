"""The backward pass of attention: weights are computed again from the log-sum-exp of each row, block by block.

With s = q · kᵀ, p = 2^(c · s - lse) and the gradient g of the result:

    delta   = the sum of g · y along a row of y              a number a row
    dv      = the sum of pᵀ · g over queries
    ds      = p · (g · vᵀ - delta)
    dk      = scale · the sum of dsᵀ · q over queries
    dq      = scale · the sum of ds · k over keys

A workgroup of `attention_keys_backward` has a tile of keys and loops over queries, one of `attention_queries_backward`
has a tile of queries and loops over keys: each sum has one owner and one order, so that every run has the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, NamedTuple

from tilewave.backend.targets import target_on
from tilewave.ir.types import DType
from tilewave.kernels.attentions import (
    H_KV,
    K1,
    K2,
    LOG2_E,
    AttentionAsked,
    AttentionTile,
    B,
    H,
    Heads,
    M,
    N,
    Scores,
    Shapes,
    looked_at_all,
    power,
    power_between,
    shared_heads,
    taking,
)
from tilewave.kernels.decode import KernelCall, Make
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WaveConstraint, WorkgroupConstraint, WorkgroupMapping
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, fma, scalar, select, self_index, tanh
from tilewave.lang.products import mma
from tilewave.lang.symbols import sym
from tilewave.lang.types import RegisterType
from tilewave.machine.chips import CHIPS

G = sym.G
"""The query heads that share a head of keys."""
DELTA_ROWS = 16
"""Rows of a workgroup of `attention_deltas`."""


@cache
def attention_deltas_kernel(
    size_v: int, of: DType, y_dtype: DType, grad_dtype: DType, grad_lse_dtype: DType | None = None
) -> WaveKernel:
    """Return the kernel from y[B, H, M, N], grad[B, H, M, N] and lse[B, H, M] to delta[B, H, M] and base2[B, H, M].

    delta is the sum of y · grad along a row, less the gradient of the log-sum-exp where it has a dtype; base2 is the
    log-sum-exp as an exponent of 2, and inf for a row that sees no key, so that its weights are 0.
    """

    def find(y: Any, grad: Any, lse: Any, grad_lse: Any, delta: Any, base2: Any) -> None:
        found = (cast(read(y), of) * cast(read(grad), of)).sum(dim=N)
        write(found if grad_lse is None else found - cast(read(grad_lse), of), delta)
        sums = read(lse)
        write(select(sums == -inf, inf, sums * LOG2_E), base2)

    row = (B, H, M)
    shapes: Shapes = {"y": (*row, N), "grad": (*row, N), "lse": row, "grad_lse": row, "delta": row, "base2": row}
    dtypes = {"y": y_dtype, "grad": grad_dtype, "lse": of, "grad_lse": grad_lse_dtype, "delta": of, "base2": of}
    each = [WorkgroupConstraint(M, DELTA_ROWS, 0), WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(B, 1, 3)]
    return wave(each, subs={N: size_v})(taking("attention_deltas", find, shapes, dtypes))


@dataclass(frozen=True)
class Weights:
    """Weights of a block of queries and keys, and the gradients of its scores, from its products."""

    scores: Scores
    of: DType
    biased: bool = False

    @property
    def late(self) -> float:
        """The factor of products that is fused with the subtraction of the log-sum-exp; 1 where they have it."""
        return self.scores.late_unit(self.of, True if self.biased else None)

    def of_products(self, products: Any, base2: Any, bias: Any, seen: Any) -> tuple[Any, Any]:
        """Return weights, and the slope of capped scores, None without a cap."""
        unit, slope, powers = self.late, None, products
        if self.scores.soft_cap is not None:
            capped = tanh(products * (self.scores.scale / self.scores.soft_cap))
            slope, powers = 1.0 - capped * capped, capped * (self.scores.soft_cap * LOG2_E)
        elif unit == 1:
            powers = self.scores.powers(products)
        powers = powers if bias is None else powers + cast(bias, self.of) * LOG2_E
        weights = power(powers - base2 if unit == 1 else fma(powers, unit, -base2))
        return weights if seen is None else select(seen, weights, 0.0), slope


# keys and values ----------------------------------------------------------------------------------------------------


@cache
def attention_keys_backward_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    of: DType,
    dtype: DType,
    bias_dtype: DType | None = None,
    grad_k_dtype: DType | None = None,
    grad_v_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel to grad_k[B, H_KV, K2, K1] and grad_v[B, H_KV, K2, N], of which those with a dtype are written.

    It takes q[B, H_KV, G, M, K1], k[B, H_KV, K2, K1], v[B, H_KV, K2, N], grad[B, H_KV, G, M, N], bias, base2 and delta;
    without G where no heads share keys. The sums of heads that share keys are added head by head.
    """
    grouped = heads.sharing > 1
    rows = (B, H_KV, G, M) if grouped else (B, H_KV, M)
    wanted = [name for name, found in (("grad_k", grad_k_dtype), ("grad_v", grad_v_dtype)) if found is not None]

    def walk(q: Any, k: Any, v: Any, grad: Any, bias: Any, base2: Any, delta: Any, grad_k: Any, grad_v: Any) -> None:
        block, weights_of = RegisterType((B, H_KV, K2, M), of), Weights(scores, of, bias is not None)

        def of_head(array: Any) -> Any:
            return read(array, at={G: first_index(G)}) if grouped else read(array)

        def step(*sums: Any) -> Any:
            totals, queries = dict(zip(wanted, sums, strict=True)), of_head(q)
            products = mma(read(k), queries, block(0.0))
            added, seen = None if bias is None else of_head(bias), seen_of(scores, tile)
            weights, slope = weights_of.of_products(products, of_head(base2), added, seen)
            grads = of_head(grad)  # loaded in this order: what the next product needs comes first
            if "grad_k" in totals:
                outer = weights * (mma(read(v), grads, block(0.0)) - of_head(delta))
                outer = outer if slope is None else outer * slope
                totals["grad_k"] = mma(cast(outer, dtype), queries, totals["grad_k"])
            if "grad_v" in totals:
                totals["grad_v"] = mma(cast(weights, dtype), grads, totals["grad_v"])
            return tuple(totals.values())

        def head(*sums: Any) -> Any:
            return iterate(M, init_args=sums)(step)

        ends = {"grad_k": K1, "grad_v": N}
        init = [RegisterType((B, H_KV, K2, ends[name]), of)(0.0) for name in wanted]
        found = iterate(G, init_args=init)(head) if grouped else head(*init)
        totals = dict(zip(wanted, found if len(wanted) > 1 else [found], strict=True))
        if grad_k is not None:
            write(cast(totals["grad_k"] * scores.scale, grad_k_dtype or of), grad_k)
        if grad_v is not None:
            write(cast(totals["grad_v"], grad_v_dtype or of), grad_v)

    shapes: Shapes = {"q": (*rows, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N), "grad": (*rows, N)}
    shapes |= {"bias": (*rows, K2), "base2": rows, "delta": rows}
    shapes |= {"grad_k": (B, H_KV, K2, K1), "grad_v": (B, H_KV, K2, N)}
    inner = {"v": dtype, "delta": of} if grad_k_dtype else {"v": None, "delta": None}
    dtypes = {"q": dtype, "k": dtype, "v": inner["v"], "grad": dtype, "bias": bias_dtype, "base2": of}
    dtypes |= {"delta": inner["delta"], "grad_k": grad_k_dtype, "grad_v": grad_v_dtype}
    each = [TilingConstraint(M, tile.queries), WorkgroupConstraint(K2, tile.keys, 0)]
    each += [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3)]
    each += [TilingConstraint(G, 1)] if grouped else []
    each += [WaveConstraint(K2, tile.keys // tile.waves)] if tile.waves > 1 else []
    function = taking("attention_keys_backward", walk, shapes, dtypes, shared=("base2", "delta"))
    return wave(each, subs={K1: heads.size, N: heads.size_v})(function)


# queries ------------------------------------------------------------------------------------------------------------


@cache
def attention_queries_backward_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    of: DType,
    dtype: DType,
    grad_q_dtype: DType,
    bias_dtype: DType | None = None,
    grad_bias_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from q[B, H, M, K1], k[B, H_KV, K2, K1], v[B, H_KV, K2, N], grad[B, H, M, N], bias, base2 and
    delta[B, H, M] to grad_q[B, H, M, K1].

    Where it has a dtype, grad_bias[B, H, M, K2] is written too, except for blocks that a mask hides.
    """

    def walk(q: Any, k: Any, v: Any, grad: Any, bias: Any, base2: Any, delta: Any, grad_q: Any, grad_bias: Any) -> None:
        block, weights_of = RegisterType((B, H, M, K2), of), Weights(scores, of, bias is not None)

        @iterate(K2, init_args=[RegisterType((B, H, M, K1), of)(0.0)])
        def total(so_far: Any) -> Any:
            keys = read(k, mapping=shared_heads(heads, K2, K1))
            products = mma(read(q), keys, block(0.0))
            added, seen = None if bias is None else read(bias), seen_of(scores, tile)
            weights, slope = weights_of.of_products(products, read(base2), added, seen)
            values = read(v, mapping=shared_heads(heads, K2, N))
            outer = weights * (mma(read(grad), values, block(0.0)) - read(delta))
            if grad_bias is not None:
                write(cast(outer, grad_bias_dtype or of), grad_bias)
            return mma(cast(outer if slope is None else outer * slope, dtype), keys, so_far)

        write(cast(total * scores.scale, grad_q_dtype), grad_q)

    row = (B, H, M)
    shapes: Shapes = {"q": (*row, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N), "grad": (*row, N)}
    shapes |= {"bias": (*row, K2), "base2": row, "delta": row, "grad_q": (*row, K1), "grad_bias": (*row, K2)}
    inputs = {**dict.fromkeys(("q", "k", "v", "grad"), dtype), "bias": bias_dtype, "base2": of, "delta": of}
    dtypes = {**inputs, "grad_q": grad_q_dtype, "grad_bias": grad_bias_dtype}
    along = [WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(H_KV, 1, 2, primary=False), WorkgroupConstraint(B, 1, 3)]
    order = [WorkgroupMapping("last_first()")] if scores.causal else []  # the longest rows of a head first
    function = taking("attention_queries_backward", walk, shapes, dtypes)
    return wave([*tile.constraints(M), *along, *order], subs={K1: heads.size, N: heads.size_v})(function)


def seen_of(scores: Scores, tile: AttentionTile) -> Any:
    """Return whether each query of a block sees each key; None where all see all. The last query is aligned with the
    last key."""
    if not scores.masked:
        return None
    place = self_index(M, tile.places) + scalar(K2 - M, tile.places)
    return scores.seen(place, self_index(K2, tile.places))


# which kernels a call launches ----------------------------------------------------------------------------------------


class WantedGradients(NamedTuple):
    """Which gradients a call asks for."""

    q: bool = True
    k: bool = True
    v: bool = True


@dataclass(frozen=True)
class GradientTiles:
    """The tiles of the kernels of a backward pass; `apart`: the sums of keys and of values have a kernel each."""

    queries: AttentionTile
    keys: AttentionTile
    apart: bool = False

    @staticmethod
    def of(target: str, heads: Heads, queries: int, keys: int) -> GradientTiles:
        """Return the tiles for a target: the most rows whose sums leave registers for two blocks of scores."""
        if target not in CHIPS:
            tile = AttentionTile(power_between(16, queries, 64), power_between(16, keys, 64))
            return GradientTiles(tile, tile)
        size = max(heads.size, heads.size_v)
        step, rows = (32, 128) if size > SPLIT_HEAD else (64, 128)
        if CHIPS[target].tma is None:
            step, rows = step // 2, 64
        return GradientTiles(AttentionTile(rows, step, 4), AttentionTile(step, rows, 4), size > SPLIT_HEAD)


SPLIT_HEAD = 128
"""The longest head whose sums of keys and of values fit into the registers of a workgroup together."""


def attention_backward_calls(
    arrays: Mapping[str, Any], make: Make, asked: AttentionAsked, wanted: WantedGradients
) -> list[KernelCall]:
    """Return the kernels of a backward pass, in order.

    `arrays` are q, k, v, y, lse and grad, the results grad_q, grad_k and grad_v that are wanted, and optionally bias,
    grad_lse and grad_bias, all with the axes of `attention`.
    """
    given = {name: arrays[name] for name in ("bias", "grad_lse", "grad_bias") if name in arrays}
    views = looked_at_all("attention", {name: arrays[name] for name in ("q", "k", "v", "y", "lse", "grad")}, **given)
    heads, dtypes = Heads.of("attention", views), {name: view.dtype for name, view in views.items()}
    of, dtype, bias = dtypes["lse"], dtypes["q"], dtypes.get("bias")
    queries, keys = views["q"].shape[2], views["k"].shape[2]
    scores = Scores.of("attention", heads, asked.scale, asked.causal, asked.window, asked.soft_cap).of_queries(queries)
    tiles = GradientTiles.of(target_on("attention", views["q"].device).name, heads, queries, keys)
    row = views["q"].shape[:3]
    rows = {"base2": make("base2", of, row), "delta": make("delta", of, row)}
    kernel = attention_deltas_kernel(heads.size_v, of, dtypes["y"], dtypes["grad"], dtypes.get("grad_lse"))
    taken = {name: arrays[name] for name in ("y", "grad", "lse", "grad_lse") if name in arrays}
    calls = [KernelCall(kernel, {**taken, "delta": rows["delta"], "base2": rows["base2"]})]
    inputs = {name: arrays[name] for name in ("q", "k", "v", "grad", "bias") if name in arrays} | rows
    if wanted.k or wanted.v:
        by_group = {name: _by_group(x, heads) if name not in ("k", "v") else x for name, x in inputs.items()}
        for results in _key_sums(tiles, wanted):
            its = [dtype if name in results else None for name in ("grad_k", "grad_v")]
            kernel = attention_keys_backward_kernel(tiles.keys, heads, scores, of, dtype, bias, *its)
            used = {name: x for name, x in by_group.items() if name in kernel.function.__annotations__}
            calls.append(KernelCall(kernel, {**used, **{name: arrays[name] for name in results}}))
    if wanted.q or "grad_bias" in arrays:
        found = {name: arrays[name] for name in ("grad_q", "grad_bias") if name in arrays}
        kernel = attention_queries_backward_kernel(
            tiles.queries, heads, scores, of, dtype, dtype, bias, dtypes.get("grad_bias")
        )
        calls.append(KernelCall(kernel, {**inputs, **found}))
    return calls


def _key_sums(tiles: GradientTiles, wanted: WantedGradients) -> list[list[str]]:
    """Return the results of each kernel that has a tile of keys."""
    names = [name for name, is_wanted in (("grad_k", wanted.k), ("grad_v", wanted.v)) if is_wanted]
    return [[name] for name in names] if tiles.apart else [names]


def _by_group(x: Any, heads: Heads) -> Any:
    """Return an array of query heads with an axis of those that share a head of keys."""
    return x if heads.sharing == 1 else x.reshape(x.shape[0], -1, heads.sharing, *x.shape[2:])
