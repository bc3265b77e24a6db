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
from functools import cache
from math import inf
from types import SimpleNamespace
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
from tilewave.lang.symbols import Symbol, sym
from tilewave.lang.types import RegisterType
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass

G = sym.G
"""The query heads that share a head of keys."""
DELTA_ROWS = 16
"""Rows of a workgroup of `attention_deltas`."""


@cache
def attention_deltas_kernel(
    size_v: int,
    of: DType,
    y_dtype: DType,
    grad_dtype: DType,
    grad_lse_dtype: DType | None = None,
    size: int = 0,
    cleared: tuple[tuple[str, DType], ...] = (),
) -> WaveKernel:
    """Return the kernel from y[B, H, M, N], grad[B, H, M, N] and lse[B, H, M] to delta[B, H, M] and base2[B, H, M].

    delta is the sum of y · grad along a row, less the gradient of the log-sum-exp where it has a dtype; base2 is the
    log-sum-exp as an exponent of 2, and inf for a row that sees no key, so that its weights are 0. `cleared` names
    arrays that are set to 0 for a kernel after this one, with their dtypes: sums_q[B, H, M, K1] and turns[B, H, M].
    Every array has the rows of the queries, so that no workgroup has a tile out of bounds of one of them.
    """

    def find(y: Any, grad: Any, lse: Any, grad_lse: Any, delta: Any, base2: Any, **later: Any) -> None:
        found = (cast(read(y), of) * cast(read(grad), of)).sum(dim=N)
        write(found if grad_lse is None else found - cast(read(grad_lse), of), delta)
        sums = read(lse)
        write(select(sums == -inf, inf, sums * LOG2_E), base2)
        for name, dtype in cleared:
            write(RegisterType(shapes[name], dtype)(0), later[name])

    row = (B, H, M)
    shapes: Shapes = {"y": (*row, N), "grad": (*row, N), "sums_q": (*row, K1)}
    shapes |= dict.fromkeys(("lse", "grad_lse", "delta", "base2", "turns"), row)
    dtypes = {"y": y_dtype, "grad": grad_dtype, "lse": of, "grad_lse": grad_lse_dtype, "delta": of, "base2": of}
    each = [WorkgroupConstraint(M, DELTA_ROWS, 0), WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(B, 1, 3)]
    subs = {N: size_v, K1: size} if size else {N: size_v}
    return wave(each, subs=subs)(taking("attention_deltas", find, shapes, {**dtypes, **dict(cleared)}))


@dataclass(frozen=True)
class GradientBlocks:
    """GradientBlocks of queries and keys in a backward pass: their weights, and the gradients of their scores."""

    tile: AttentionTile
    heads: Heads
    scores: Scores
    of: DType
    dtype: DType
    bias: DType | None = None

    def zeros(self, *dims: Symbol) -> Any:
        return RegisterType(dims, self.of)(0.0)

    def weights(self, products: Any, base2: Any, bias: Any) -> tuple[Any, Any]:
        """Return weights, and the slope of capped scores, None without a cap."""
        unit, slope, powers = self.scores.late_unit(self.of, bias), None, products
        if self.scores.soft_cap is not None:
            capped = tanh(products * (self.scores.scale / self.scores.soft_cap))
            slope, powers = 1.0 - capped * capped, capped * (self.scores.soft_cap * LOG2_E)
        elif unit == 1:
            powers = self.scores.powers(products)
        powers = powers if bias is None else powers + cast(bias, self.of) * LOG2_E
        weights = power(powers - base2 if unit == 1 else fma(powers, unit, -base2))
        return self.seen_only(weights), slope

    def seen_only(self, weights: Any) -> Any:
        """Return weights with 0 where a query does not see a key; the last query is aligned with the last key."""
        if not self.scores.masked:
            return weights
        places = self.tile.places
        place = self_index(M, places) + scalar(K2 - M, places)
        return select(self.scores.seen(place, self_index(K2, places)), weights, 0.0)

    def inputs(self, rows: tuple[Symbol, ...]) -> tuple[Shapes, dict[str, DType | None]]:
        """Return the shapes and dtypes of what the kernels read; `rows` are the dims of a query."""
        shapes: Shapes = {"q": (*rows, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N), "grad": (*rows, N)}
        shapes |= {"bias": (*rows, K2), "base2": rows, "delta": rows}
        inputs = {**dict.fromkeys(("q", "k", "v", "grad"), self.dtype), "bias": self.bias}
        return shapes, {**inputs, "base2": self.of, "delta": self.of}

    @property
    def subs(self) -> dict[Symbol, int]:
        return {K1: self.heads.size, N: self.heads.size_v}


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
    without G where no heads share keys, and without v and delta for grad_v alone. The sums of heads that share keys are
    added head by head.
    """
    wanted = {name: found for name, found in (("grad_k", grad_k_dtype), ("grad_v", grad_v_dtype)) if found is not None}
    sums = KeySums(GradientBlocks(tile, heads, scores, of, dtype, bias_dtype), tuple(wanted))

    def walk(**arrays: Any) -> None:
        to = SimpleNamespace(**arrays)
        totals = sums.totals(to)
        if "grad_k" in wanted:
            write(cast(totals["grad_k"] * scores.scale, wanted["grad_k"]), to.grad_k)
        if "grad_v" in wanted:
            write(cast(totals["grad_v"], wanted["grad_v"]), to.grad_v)

    grouped = heads.sharing > 1
    shapes, dtypes = sums.blocks.inputs((B, H_KV, G, M) if grouped else (B, H_KV, M))
    shapes |= {"grad_k": (B, H_KV, K2, K1), "grad_v": (B, H_KV, K2, N)}
    dtypes |= {} if "grad_k" in wanted else {"v": None, "delta": None}
    each = [TilingConstraint(M, tile.queries), WorkgroupConstraint(K2, tile.keys, 0)]
    each += [WorkgroupConstraint(H_KV, 1, 2), WorkgroupConstraint(B, 1, 3)]
    each += [TilingConstraint(G, 1)] if grouped else []
    each += [WaveConstraint(K2, tile.keys // tile.waves)] if tile.waves > 1 else []
    dtypes |= {"grad_k": grad_k_dtype, "grad_v": grad_v_dtype}
    function = taking("attention_keys_backward", walk, shapes, dtypes, shared=("base2", "delta"))
    return wave(each, subs=sums.blocks.subs)(function)


@dataclass(frozen=True)
class KeySums:
    """The sums of a tile of keys over all queries that see it."""

    blocks: GradientBlocks
    wanted: tuple[str, ...]

    def totals(self, to: Any) -> dict[str, Any]:
        """Return the sums over the queries of each head that shares these keys, head by head."""
        ends = {"grad_k": K1, "grad_v": N}
        init = [self.blocks.zeros(B, H_KV, K2, ends[name]) for name in self.wanted]

        def head(*sums: Any) -> Any:
            start, stop = self.bounds()
            return iterate(M, init_args=sums, start=start, stop=stop)(step)

        def step(*sums: Any) -> Any:
            return self.step(to, dict(zip(self.wanted, sums, strict=True)))

        found = iterate(G, init_args=init)(head) if self.blocks.heads.sharing > 1 else head(*init)
        return dict(zip(self.wanted, found if len(self.wanted) > 1 else [found], strict=True))

    def step(self, to: Any, totals: dict[str, Any]) -> tuple[Any, ...]:
        """Return the sums after a block of queries; it is loaded in the order in which its products need it."""
        blocks, keys, queries = self.blocks, read(to.k), self.of_head(to.q)
        products = mma(keys, queries, blocks.zeros(B, H_KV, K2, M))
        bias = None if to.bias is None else self.of_head(to.bias)
        weights, slope = blocks.weights(products, self.of_head(to.base2), bias)
        grads = self.of_head(to.grad)
        if "grad_k" in totals:
            inner = mma(read(to.v), grads, blocks.zeros(B, H_KV, K2, M))
            outer = weights * (inner - self.of_head(to.delta))
            outer = outer if slope is None else outer * slope
            totals["grad_k"] = mma(cast(outer, blocks.dtype), queries, totals["grad_k"])
            self.of_block(to, keys, outer)
        if "grad_v" in totals:
            totals["grad_v"] = mma(cast(weights, blocks.dtype), grads, totals["grad_v"])
        return tuple(totals.values())

    def bounds(self) -> tuple[Any, Any]:
        """Return the first query and the end of the queries that are looped over; None: all, masked where need be."""
        return None, None

    def of_block(self, to: Any, keys: Any, outer: Any) -> None:
        """Use the gradients of a block's scores for further sums; here there are none."""

    def of_head(self, array: Any) -> Any:
        return read(array, at={G: first_index(G)}) if self.blocks.heads.sharing > 1 else read(array)


# queries ------------------------------------------------------------------------------------------------------------


@cache
def attention_queries_backward_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    of: DType,
    dtype: DType,
    grad_q_dtype: DType | None,
    bias_dtype: DType | None = None,
    grad_bias_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from q[B, H, M, K1], k[B, H_KV, K2, K1], v[B, H_KV, K2, N], grad[B, H, M, N], bias, base2 and
    delta[B, H, M] to grad_q[B, H, M, K1], where that has a dtype.

    Where it has a dtype, grad_bias[B, H, M, K2] is written too, except for blocks that a mask hides.
    """
    blocks = GradientBlocks(tile, heads, scores, of, dtype, bias_dtype)

    def walk(**arrays: Any) -> None:
        to = SimpleNamespace(**arrays)

        @iterate(K2, init_args=[blocks.zeros(B, H, M, K1)])
        def total(so_far: Any) -> Any:
            keys = read(to.k, mapping=shared_heads(heads, K2, K1))
            products = mma(read(to.q), keys, blocks.zeros(B, H, M, K2))
            weights, slope = blocks.weights(products, read(to.base2), None if to.bias is None else read(to.bias))
            values = read(to.v, mapping=shared_heads(heads, K2, N))
            outer = weights * (mma(read(to.grad), values, blocks.zeros(B, H, M, K2)) - read(to.delta))
            if grad_bias_dtype is not None:
                write(cast(outer, grad_bias_dtype), to.grad_bias)
            return mma(cast(outer if slope is None else outer * slope, dtype), keys, so_far)

        if grad_q_dtype is not None:
            write(cast(total * scores.scale, grad_q_dtype), to.grad_q)

    shapes, dtypes = blocks.inputs((B, H, M))
    shapes |= {"grad_q": (B, H, M, K1), "grad_bias": (B, H, M, K2)}
    dtypes |= {"grad_q": grad_q_dtype, "grad_bias": grad_bias_dtype}
    along = [WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(H_KV, 1, 2, primary=False), WorkgroupConstraint(B, 1, 3)]
    order = [WorkgroupMapping("last_first()")] if scores.causal else []  # the longest rows of a head first
    function = taking("attention_queries_backward", walk, shapes, dtypes)
    return wave([*tile.constraints(M), *along, *order], subs=blocks.subs)(function)


# which kernels a call launches ----------------------------------------------------------------------------------------


class WantedGradients(NamedTuple):
    """Which gradients a call asks for."""

    q: bool = True
    k: bool = True
    v: bool = True


@dataclass(frozen=True)
class GradientTiles:
    """The tiles of the kernels of a backward pass; with `values`, the sums of keys and of values have a kernel each."""

    queries: AttentionTile
    keys: AttentionTile
    values: AttentionTile | None = None

    @staticmethod
    def of(target: str, heads: Heads, queries: int, keys: int) -> GradientTiles:
        """Return the tiles for a target: the most rows whose sums leave registers for two blocks of scores."""
        if target not in CHIPS:
            tile = AttentionTile(power_between(16, queries, 64), power_between(16, keys, 64))
            return GradientTiles(tile, tile)
        chip, both, is_long = CHIPS[target], heads.size + heads.size_v, max(heads.size, heads.size_v) > SPLIT_HEAD
        if chip.tma is None:
            step = 16 if is_long else 32
            of_keys = AttentionTile(step, 64, 4)
            return GradientTiles(AttentionTile(64, step, 4), of_keys, of_keys if is_long else None)
        step, of_values = (_step_for(chip.shared.bytes, held, both) for held in (both, heads.size))
        values = AttentionTile(of_values, ROWS, 4) if is_long else None
        return GradientTiles(AttentionTile(ROWS, step, 4), AttentionTile(step, ROWS, 4), values)


ROWS = 128
"""The rows of a workgroup on Hopper: 64 for each of two consumer warpgroups."""
RESULT_BYTES, HALF_BYTES = 34 << 10, 2
"""Shared memory for results on their way out, statistics and mbarriers, and the bytes of an element."""
SPLIT_HEAD = 128
"""The longest head whose sums of keys and of values fit into the registers of a workgroup together."""


def _step_for(shared_bytes: int, held: int, loaded: int) -> int:
    """Return the rows of a step on Hopper: 64, or 32 where two stages of 64 do not fit. With fewer columns a product
    reads shared memory more often for each multiplication."""
    room = shared_bytes - RESULT_BYTES - ROWS * held * HALF_BYTES
    return 64 if 2 * 64 * loaded * HALF_BYTES <= room else 32


def attention_backward_calls(
    arrays: Mapping[str, Any], make: Make, asked: AttentionAsked, wanted: WantedGradients
) -> list[KernelCall]:
    """Return the kernels of a backward pass, in order.

    `arrays` are q, k, v, y, lse and grad, the results grad_q, grad_k and grad_v that are wanted, and optionally bias,
    grad_lse and grad_bias, all with the axes of `attention`.
    """
    names = [name for name in ("q", "k", "v", "y", "lse", "grad", "bias", "grad_lse", "grad_bias") if name in arrays]
    views = looked_at_all("attention", {name: arrays[name] for name in names})
    heads, (*row, _) = Heads.of("attention", views), views["q"].shape
    of, dtypes = views["lse"].dtype, {name: view.dtype for name, view in views.items()}
    target = target_on("attention", views["q"].device).name
    tiles = GradientTiles.of(target, heads, views["q"].shape[2], views["k"].shape[2])
    rows = {name: make(name, of, tuple(row)) for name in ("delta", "base2")}
    scores = Scores.of("attention", heads, asked.scale, asked.causal, asked.window, asked.soft_cap).of_queries(row[-1])
    facts, bias = (heads, scores, of, dtypes["q"]), dtypes.get("bias")
    kernel = attention_deltas_kernel(heads.size_v, of, dtypes["y"], dtypes["grad"], dtypes.get("grad_lse"))
    calls = [call_of(kernel, {**arrays, **rows})]
    of_keys = ("k", "v", "grad_k", "grad_v")
    grouped = {name: x if name in of_keys else by_group(x, heads) for name, x in {**arrays, **rows}.items()}
    for tile, its in _key_sums(tiles, wanted):
        kinds = [dtypes["q"] if name in its else None for name in ("grad_k", "grad_v")]
        kernel = attention_keys_backward_kernel(tile, *facts, bias, *kinds)
        calls.append(call_of(kernel, grouped))
    if wanted.q or "grad_bias" in arrays:
        kinds = [dtypes["q"] if wanted.q else None, bias, dtypes.get("grad_bias")]
        kernel = attention_queries_backward_kernel(tiles.queries, *facts, *kinds)
        calls.append(call_of(kernel, {**arrays, **rows}))
    return calls


def call_of(kernel: WaveKernel, arrays: Mapping[str, Any]) -> KernelCall:
    """Return the call of a kernel with those of some arrays that it has parameters for."""
    return KernelCall(kernel, {name: arrays[name] for name in kernel.function.__annotations__})


def _key_sums(tiles: GradientTiles, wanted: WantedGradients) -> list[tuple[AttentionTile, list[str]]]:
    """Return the tile and the results of each kernel that has a tile of keys."""
    names = [name for name, is_wanted in (("grad_k", wanted.k), ("grad_v", wanted.v)) if is_wanted]
    if tiles.values is None:
        return [(tiles.keys, names)] if names else []
    return [(tiles.values if name == "grad_v" else tiles.keys, [name]) for name in names]


def by_group(x: Any, heads: Heads) -> Any:
    """Return an array of query heads with an axis of those that share a head of keys."""
    return x if heads.sharing == 1 else x.reshape(x.shape[0], -1, heads.sharing, *x.shape[2:])
