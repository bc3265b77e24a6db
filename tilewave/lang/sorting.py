"""Sorting along a dim of a tile, and the k largest elements.

`sort` is Batcher's merge exchange (Knuth, The Art of Computer Programming, 5.2.2, Algorithm M): t · (t + 1) / 2 rounds
for 2 ** t elements, in each of which elements a fixed distance apart are put in order, for rows of any length.
`topk` takes the largest key k times, which is less work where k is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import Any

from tilewave.errors import DimensionError, ShapeError, here
from tilewave.ir import ops as ir
from tilewave.ir.ops.reduction import identity
from tilewave.ir.types import BOOL, I32, Tile
from tilewave.lang.ops import select
from tilewave.lang.reductions import one_dim, want_tile
from tilewave.lang.scans import moved
from tilewave.lang.sort_keys import KeyOrder, Keys
from tilewave.lang.symbols import Expression
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe, extents_of, in_order, repeated
from tilewave.lang.windows import is_whole, length_of, window_of
from tilewave.trace import Trace, current


@taggable
def sort(x: Any, dim: Any = None, descending: bool = False) -> tuple[Any, Any]:
    """Return x sorted along a dim, and where each element was, as an i32.

    Equal elements keep their order. NaN comes last, or first where the order is descending.
    """
    return _sorted("sort", x, dim, descending)


@taggable
def argsort(x: Any, dim: Any = None, descending: bool = False) -> Any:
    """Return the indices along a dim that sort x, as an i32; equal elements keep their order, and NaN comes last."""
    return _sorted("argsort", x, dim, descending)[1]


def _sorted(word: str, x: Any, dim: Any, descending: bool) -> tuple[Any, Any]:
    trace = current(word)
    want_tile(word, x)
    dim = one_dim(x, word, dim)
    order = KeyOrder(x.dtype, inverts_values=descending, inverts_indices=False)
    keys = order.keys(trace, x, dim, word)
    for exchange in exchanges(extents_of(x)[dim]):
        keys = _exchanged(trace, keys, dim, *exchange)
    return order.values(keys), order.indices(keys)


def exchanges(count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the rounds (p, r, d) of merge exchange: elements i with i & p == r are compared with those at i + d."""
    top = 1 << (count - 1).bit_length() - 1 if count > 1 else 0
    p = top
    while p:
        yield p, 0, p
        for q in _halves(top, p):
            yield p, p, q - p
        p //= 2


def _halves(top: int, p: int) -> Iterator[int]:
    """Yield a power of two and its halves, above p."""
    while top > p:
        yield top
        top //= 2


def _exchanged(trace: Trace, keys: Keys, dim: Any, p: int, r: int, far: int) -> Keys:
    """Return the keys with the smaller one of each pair of a round before the larger one."""
    extent = extents_of(keys[0])[dim]
    at = Traced(trace, trace.emit(ir.Iota, type=Tile((extent,), I32)), (dim,))
    is_first = ((at & p) == r) & (at < extent - far)
    is_second = (at >= far) & (((at - far) & p) == r)
    others = tuple(select(is_first, moved(key, dim, -far), moved(key, dim, far)) for key in keys)
    swaps = (is_first & _less(others, keys)) | (is_second & _less(keys, others))
    return tuple(select(swaps, other, key) for other, key in zip(others, keys, strict=True))


def _less(a: Keys, b: Keys) -> Any:
    if len(a) == 1:
        return a[0] < b[0]
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


# -- the k largest --------------------------------------------------------------------------------------------------


@taggable
def topk(x: Any, dim: Any = None, k: Any = None) -> tuple[Any, Any]:
    """Return the largest elements along a dim, the largest first, and their indices as an i32, along the dim `k`.

    `k` is a dim that no constraint cuts; its length is their number, and the work grows with it. Of equal elements the
    first comes first, and NaN is the largest. Where a row has fewer elements, the index is -1.
    """
    trace = current("topk")
    want_tile("topk", x)
    if dim not in x.dims and k in x.dims:  # Wave's order: topk(x, K, N)
        dim, k = k, dim
    dim = one_dim(x, "topk", dim)
    count = _count(trace, x, dim, k)
    order = KeyOrder(x.dtype, inverts_values=False, inverts_indices=True)
    left, found = order.keys(trace, x, dim, "topk"), list[Keys]()
    for _ in range(count):
        best = _largest(left, dim)
        found.append(best)
        is_best = reduce(and_, (key == one for key, one in zip(left, best, strict=True)))
        left = tuple(select(is_best, 0, key) for key in left)
    dims = tuple(k if d == dim else d for d in x.dims)
    keys = tuple(in_order(_side_by_side(trace, each, k), dims) for each in zip(*found, strict=True))
    is_there, least = keys[-1] != 0, False if x.dtype == BOOL else identity("max", x.dtype)
    return select(is_there, order.values(keys), least), select(is_there, order.indices(keys), -1)


def _count(trace: Trace, x: Any, dim: Any, k: Any) -> int:
    """Return how many elements a tile has along `k`."""
    if not isinstance(k, Expression) or k in x.dims:
        what = f"topk: k is {k!r}, and takes the dim of the results"
        raise DimensionError(what, loc=here(), remedy="write topk(x, dim=N, k=K), and subs={K: 8} for the largest 8")
    if not is_whole(trace, k):
        what = f"topk: {k} is cut into tiles, but the largest elements are found together"
        raise DimensionError(what, loc=here(), remedy=f"leave {k} out of the constraints")
    length, most = length_of(trace, dim), length_of(trace, k)
    if isinstance(length, int) and isinstance(most, int) and most > length:
        what = f"topk: {describe(x)} has {length} elements along {dim}, and {most} of them are wanted"
        raise ShapeError(what, loc=here(), remedy=f"give {k} at most {length} elements")
    return window_of(trace, k, "topk").extent


def _largest(keys: Keys, dim: Any) -> Keys:
    """Return the largest key along a dim, without it."""
    first, *others = keys
    best = first.max(dim=dim)
    return best, *(select(first == best, key, 0).max(dim=dim) for key in others)


def _side_by_side(trace: Trace, rows: tuple[Any, ...], k: Any) -> Any:
    """Return tiles as one, whose elements along another dim are theirs."""
    places = Traced(trace, trace.emit(ir.Iota, type=Tile((len(rows),), I32)), (k,))
    first, *others = (repeated(trace, row, {**extents_of(row), k: len(rows)}) for row in rows)
    for number, row in enumerate(others, 1):
        first = select(places >= number, row, first)
    return first
