"""Attention: softmax(q · kᵀ) · v by online softmax, block of keys by block of keys.

Scores are exponents of 2 here, as GPUs have an exp2 instruction. The running maximum begins with the lowest finite
number, and a key that a query does not see scores -inf: its weight is 0, whatever the maximum is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import Parameter, Signature
from math import e, inf, log, log2, sqrt
from typing import Any, NamedTuple

import numpy as np

from tilewave.backend.targets import target_on
from tilewave.errors import CallError, here
from tilewave.ir.launch import MOST_OPEN
from tilewave.ir.types import F32, I32, INDEX, DType
from tilewave.kernels.numbers import checked_causal, checked_scale, checked_soft_cap, checked_window
from tilewave.kernels.rows import arithmetic_of, looked_at
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import (
    Constraint,
    TilingConstraint,
    WaveConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.index_mapping import IndexMapping
from tilewave.lang.kernel import WaveKernel, wave
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, exp2, fma, scalar, select, self_index, tanh
from tilewave.lang.ops import log2 as log2_of
from tilewave.lang.products import mma
from tilewave.lang.symbols import Expression, Symbol, sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, AddressSpace, MemoryType, RegisterType
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView

B, H, H_KV, M, K2, K1, N = sym.B, sym.H, sym.H_KV, sym.M, sym.K2, sym.K1, sym.N
"""Batches, heads of queries and of keys, queries, keys, elements of a query and a key, elements of a value."""
LOG2_E = log2(e)
Shapes = dict[str, tuple[Symbol, ...]]


def attention(
    q: Any,
    k: Any,
    v: Any,
    y: Any,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Any = None,
    lse: Any = None,
) -> None:
    """y = softmax(q · kᵀ · scale) · v, for every query of every head.

    q is [batch, head, query, element], k and v are [batch, head, key, element], and several heads of q may share one of
    theirs. docs/ref/library.md describes the other arguments.
    """
    kernel = attention_for(q, k, v, y, causal, window, scale, soft_cap, bias, lse)
    kernel(*(array for array in (q, k, v, bias, y, lse) if array is not None))


def attention_for(
    q: Any,
    k: Any,
    v: Any,
    y: Any,
    causal: bool,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
    bias: Any = None,
    lse: Any = None,
) -> WaveKernel:
    """Return the kernel of an attention call."""
    views = looked_at_all("attention", {"q": q, "k": k, "v": v, "y": y}, bias=bias, lse=lse)
    heads = Heads.of("attention", views)
    target = target_on("attention", views["q"].device).name
    dtypes = [views[name].dtype if name in views else None for name in ("q", "k", "v", "y", "bias", "lse")]
    of = arithmetic_of("attention", **{name: v.dtype for name, v in views.items()})
    scores = Scores.of("attention", heads, scale, causal, window, soft_cap).want_held("attention", of)
    scores = scores.of_queries(views["q"].shape[2])
    tile = attention_tile_for(
        target, heads, scores, views["k"].dtype, dtypes[4], views["q"].shape[2], views["k"].shape[2]
    )
    return attention_kernel(tile, heads, scores, *dtypes)


# what a call asks for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    """The elements of a query or key, the elements of a value, and how many query heads share a head of keys."""

    size: int
    size_v: int
    sharing: int = 1

    @staticmethod
    def of(kernel: str, views: dict[str, ArrayView]) -> Heads:
        for name in ("q", "k", "v"):
            if len(views[name].shape) != 4:
                what = f"{kernel}: {name} has {len(views[name].shape)} axes, but needs batch, head, position, element"
                raise CallError(
                    what, loc=here(), remedy=f"pass {name}[None] for one batch, {name}.reshape(…) for others"
                )
        of_q, of_k = views["q"].shape[1], views["k"].shape[1]
        if of_q != of_k and (of_k == 0 or of_q % of_k):
            what = f"{kernel}: {of_q} heads of q cannot share {of_k} heads of k"
            raise CallError(what, loc=here(), remedy="pass k with as many heads as q, or a divisor of them")
        return Heads(views["q"].shape[3], views["v"].shape[3], of_q // of_k if of_k else 1)


class AttentionAsked(NamedTuple):
    """The options of attention, as a caller gave them and `of` checked them."""

    causal: bool = False
    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None

    @staticmethod
    def of(caller: str, causal: Any, window: Any, scale: Any, soft_cap: Any) -> AttentionAsked:
        """Return the options; an error where one of them is invalid."""
        return AttentionAsked(
            checked_causal(caller, causal),
            checked_window(caller, window),
            checked_scale(caller, scale),
            checked_soft_cap(caller, soft_cap),
        )


@dataclass(frozen=True)
class Scores:
    """How scores follow from products of queries and keys, and which keys a query sees."""

    scale: float
    causal: bool = False
    window: int | None = None
    soft_cap: float | None = None

    @staticmethod
    def of(
        kernel: str, heads: Heads, scale: float | None, causal: bool, window: int | None, soft_cap: float | None
    ) -> Scores:
        asked = AttentionAsked.of(kernel, causal, window, scale, soft_cap)
        unit = 1 / sqrt(max(heads.size, 1)) if asked.scale is None else asked.scale
        return Scores(unit, asked.causal, asked.window, asked.soft_cap)

    def want_held(self, kernel: str, of: DType) -> Scores:
        """Return these scores; an error where their factors overflow the dtype that they are computed in."""
        capped = () if self.soft_cap is None else (self.scale / self.soft_cap, self.soft_cap * LOG2_E)
        if any(abs(factor) > -lowest(of) for factor in capped or (self.scale * LOG2_E,)):
            beside = "" if self.soft_cap is None else f" and a soft cap of {self.soft_cap}"
            what = f"{kernel}: {of} does not have the factors that a scale of {self.scale}{beside} comes to"
            raise CallError(what, loc=here(), remedy="pass numbers nearer to 1, or arrays of f64")
        return self

    def of_queries(self, queries: int) -> Scores:
        """Return the scores for `queries` per head: a single query is at the last key, so causal masks nothing."""
        return replace(self, causal=False) if queries == 1 and self.causal else self

    @property
    def masked(self) -> bool:
        """Return whether some query does not see some key."""
        return self.causal or self.window is not None

    def late_unit(self, of: DType, bias: Any = None) -> float:
        """Return the factor that turns differences of products into exponents of 2, fused with their subtraction; 1
        where products are scaled before. It is below 1, so that the lowest number does not become infinite."""
        unit = self.scale * LOG2_E
        return unit if 0 < unit < 1 and self.soft_cap is None and bias is None and of == F32 else 1.0

    def powers(self, products: Any) -> Any:
        """Return products as scaled, capped exponents of 2."""
        if self.soft_cap is None:
            return products * (self.scale * LOG2_E)
        return tanh(products * (self.scale / self.soft_cap)) * (self.soft_cap * LOG2_E)

    def seen_only(self, powers: Any, query: Any, places: DType = I32) -> Any:
        """Return scores with -inf where the query at its position does not see the key."""
        seen = self.seen(query, self_index(K2, places))
        return powers if seen is None else select(seen, powers, -inf)

    def seen(self, query: Any, key: Any) -> Any:
        """Return whether the query sees the key; None where each sees all."""
        conditions = []
        if self.causal:
            conditions.append(key <= query)
            if self.window is not None:  # in this form a row has one bound, not a difference for each of its keys
                conditions.append(query - self.window < key)
        elif self.window is not None:
            conditions += [key - query < self.window, query - key < self.window]
        return conditions[0] & conditions[1] if len(conditions) == 2 else next(iter(conditions), None)


@dataclass(frozen=True)
class AttentionTile:
    """A tile of attention: queries of a workgroup, divided among its waves, and keys of a step."""

    queries: int
    keys: int
    waves: int = 1

    @property
    def places(self) -> DType:
        """The dtype of a query's position among the keys, wide enough for the end of the last, partial tile."""
        return INDEX if MOST_OPEN % self.queries else I32

    def constraints(self, rows: Symbol) -> list[Constraint]:
        shared = [WaveConstraint(rows, self.queries // self.waves)] if self.waves > 1 else []
        return [WorkgroupConstraint(rows, self.queries, 0), TilingConstraint(K2, self.keys), *shared]


MOST_KEYS = 64
MOST_KEYS_COPIED = 128
"""The most keys of a step, and of a step that TMA loads for a tile of queries."""
SMALL_HEAD = 64
"""The head size up to which products take less time than softmax: three consumer warpgroups hide it, two would wait."""
GAIN_OF_THREE = 1.16
"""The speedup of three warpgroups over two for each query of a full tile: 1.10 and 0.95 of cuDNN on an H200."""
REGISTERS_OF_TWO = 208
"""Registers of a lane on AMD with which two waves fit on a SIMD, besides some 48 for operands and addresses. Where four
waves need more, eight share the queries: on an MI300X and heads of 192 the model of a CU counts 0.57 of the matrix
cycles in place of 0.49, and LLVM moves no accumulators, nor spills."""
HELD_REGISTERS = 176
"""Registers of a lane for scores, weights and results on Hopper: with more, some are spilled."""
BOUND_REGISTERS = 16
"""How many of them hold the first and the last key that each row sees."""


def attention_tile_for(
    target: str,
    heads: Heads,
    scores: Scores,
    dtype: DType,
    bias: DType | None = None,
    queries: int = MOST_OPEN,
    keys: int = MOST_OPEN,
) -> AttentionTile:
    """Return the tile of a call: on a GPU as many keys as fit, with their values, in three quarters of shared memory;
    on a CPU no more than there are, as it computes all of a tile."""
    if target not in CHIPS:
        return AttentionTile(power_between(16, queries, 128), power_between(32, keys, MOST_KEYS))
    chip = CHIPS[target]
    if chip.tma and bias is None and not scores.masked and max(heads.size, heads.size_v) <= SMALL_HEAD:
        in_threes, in_twos = (-(-queries // tile) * tile for tile in (192, 128))
        if in_threes <= in_twos * GAIN_OF_THREE:
            return AttentionTile(192, MOST_KEYS_COPIED, waves=4)
    room, step = chip.shared.bytes * 3 // 4, keys_held(heads, scores, bias) if chip.tma else MOST_KEYS
    direct = not chip.tma and chip.widest_load_bytes in chip.direct_load_bytes  # such loads need two pipeline stages
    while step > 16 and step * (heads.size + heads.size_v) * dtype.bytes * (2 if direct else 1) > room:
        step //= 2
    few = chip.tma is not None or registers_of_four(heads, step, 0 if direct else dtype.bytes) <= REGISTERS_OF_TWO
    return AttentionTile(128, step, waves=4 if few else 8)


def registers_of_four(heads: Heads, keys: int, loaded_bytes: int) -> int:
    """Return what a lane of four AMD waves holds for 128 queries: results, queries, scores, weights, and loads of
    `loaded_bytes` an element that pass its registers."""
    loads = keys * (heads.size + heads.size_v) * loaded_bytes // (4 * 64 * 4)
    return heads.size_v // 2 + heads.size // 4 + keys // 2 + keys // 4 + loads


def power_between(least: int, wanted: int, most: int) -> int:
    """Return the smallest power of two that is at least `wanted`, within two bounds that are powers of two."""
    return max(least, min(1 << max(wanted - 1, 0).bit_length(), most))


def keys_held(heads: Heads, scores: Scores, bias: DType | None) -> int:
    """Return for how many keys a lane has registers besides its results: scores (f32), weights (16 bits) and a bias.

    Each lane of four waves has half a register for each key and each element of the result: 64 rows by 128 lanes.
    """
    quarters = 3 if bias is None else 5
    bounds = BOUND_REGISTERS if scores.window is not None and not scores.causal else 0
    found = (HELD_REGISTERS - bounds - heads.size_v // 2) * 4 // quarters
    return max(16, min(MOST_KEYS_COPIED, found // 32 * 32))


def looked_at_all(kernel: str, needed: Mapping[str, Any], **others: Any) -> dict[str, ArrayView]:
    """Return views of the arrays that a kernel needs, and of optional ones that are not None."""
    every = {**needed, **{name: array for name, array in others.items() if array is not None}}
    return {name: looked_at(kernel, name, array) for name, array in every.items()}


# the kernel ---------------------------------------------------------------------------------------------------------


@cache
def attention_kernel(
    tile: AttentionTile,
    heads: Heads,
    scores: Scores,
    q_dtype: DType,
    k_dtype: DType,
    v_dtype: DType,
    y_dtype: DType,
    bias_dtype: DType | None = None,
    lse_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from q[B, H, M, K1], k[B, H_KV, K2, K1] and v[B, H_KV, K2, N] to y[B, H, M, N].

    Where they have dtypes, bias[B, H, M, K2] is added to the scores, and lse[B, H, M] is written.
    """
    dtypes = {"q": q_dtype, "k": k_dtype, "v": v_dtype, "bias": bias_dtype, "y": y_dtype, "lse": lse_dtype}
    of = arithmetic_of("attention", **dtypes)

    def attend(q: Any, k: Any, v: Any, bias: Any, y: Any, lse: Any) -> None:
        place = self_index(M, tile.places) + scalar(K2 - M, tile.places)  # the last query is aligned with the last key

        unit = scores.late_unit(of, bias)

        def score() -> Any:
            keys = read(k, mapping=shared_heads(heads, K2, K1))
            products = mma(read(q), keys, RegisterType((B, H, M, K2), of)(0.0))
            powers = scores.powers(products) if unit == 1 else products
            powers = powers if bias is None else powers + cast(read(bias), of) * LOG2_E
            return scores.seen_only(powers, place, tile.places)

        values = shared_heads(heads, K2, N)
        found = walked((B, H, M), of, score, lambda: read(v, mapping=values), v_dtype, unit)
        write(cast(found.mean, y_dtype), y)
        if lse is not None:
            write(cast(found.log2_sum * log(2), lse_dtype or of), lse)

    shapes: Shapes = {"q": (B, H, M, K1), "k": (B, H_KV, K2, K1), "v": (B, H_KV, K2, N)}
    shapes |= {"bias": (B, H, M, K2), "y": (B, H, M, N), "lse": (B, H, M)}
    along = [WorkgroupConstraint(H, 1, 2), WorkgroupConstraint(H_KV, 1, 2, primary=False)]
    order = [WorkgroupMapping("last_first()")] if scores.causal else []  # the longest rows of a head first
    constraints = [*tile.constraints(M), *along, WorkgroupConstraint(B, 1, 3), *order]
    return wave(constraints, subs={K1: heads.size, N: heads.size_v})(taking("attention", attend, shapes, dtypes))


@dataclass(frozen=True)
class Weighted:
    """The state of online softmax: each row's maximum, its sum of powers, and its sum of values times powers."""

    largest: Any
    total: Any
    values: Any
    unit: float = 1.0
    """The factor that turns scores into exponents of 2."""

    @property
    def mean(self) -> Any:
        """The weighted mean of the values; 0 for a row that sees no key."""
        return select(self.total == 0.0, 0.0, self.values * (1.0 / self.total))  # one division per row

    @property
    def log2_sum(self) -> Any:
        return self.largest * self.unit + log2_of(self.total)


def walked(
    rows: tuple[Symbol, ...],
    of: DType,
    score: Callable[[], Any],
    values: Callable[[], Any],
    v_dtype: DType,
    unit: float,
    **part: Any,
) -> Weighted:
    """Return the softmax state after all keys, or a split of them; `score` and `values` give those of a step."""
    none = RegisterType(rows, of)

    @iterate(K2, init_args=[none(lowest(of)), none(0.0), RegisterType((*rows, N), of)(0.0)], **part)
    def found(largest: Any, total: Any, weighted: Any) -> Any:
        x = score()
        larger = x.max(dim=K2, acc=largest)
        shrink = power((largest - larger) * unit)
        p = power(x - larger if unit == 1 else fma(x, unit, -larger * unit))
        return larger, total * shrink + p.sum(dim=K2), mma(cast(p, v_dtype), values(), weighted * shrink)

    largest, total, weighted = found
    return Weighted(largest, total, weighted, unit)


def power(x: Any) -> Any:
    """Return 2 to the power of a difference; in f32 results below 2⁻¹²⁶ are flushed to 0."""
    return exp2(x, flush=x.dtype == F32)


def lowest(of: DType) -> float:
    return float(np.finfo(of.numpy).min)


def shared_heads(heads: Heads, rows: Symbol, columns: Symbol) -> IndexMapping:
    """Return the mapping of k or v from the workgroup's query head to the head of keys that it shares."""
    b, h, row, column = (IndexMapping.iterator(n) for n in range(4))
    places: dict[Expression, Expression] = {B: b, H_KV: h, rows: row, columns: column}
    return IndexMapping(4, inputs={**places, H_KV: h // heads.sharing}, outputs=places)


def taking(
    name: str,
    function: Callable[..., None],
    shapes: Shapes,
    dtypes: Mapping[str, DType | None],
    shared: Sequence[str] = (),
) -> Callable[..., None]:
    """Return a function whose parameters are those with a dtype: arrays, and scalars, which have no shape.

    Tiles of arrays in `shared` pass shared memory.
    """
    space = {of: SHARED_ADDRESS_SPACE if of in shared else GLOBAL_ADDRESS_SPACE for of in dtypes}
    arrays = {of: _kind(shapes.get(of), dtype, space[of]) for of, dtype in dtypes.items() if dtype}

    def given(*those: Any) -> None:
        function(**{**dict.fromkeys(dtypes), **dict(zip(arrays, those, strict=True))})

    given.__name__, given.__annotations__ = name, arrays
    parameters = [Parameter(of, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for of, kind in arrays.items()]
    given.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return given


def _kind(shape: tuple[Symbol, ...] | None, dtype: DType, space: AddressSpace) -> MemoryType | DType:
    return dtype if shape is None else MemoryType(shape, space, dtype)
