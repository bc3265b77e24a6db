"""Scans: each element becomes what all elements up to it along a dim combine to.

By doubling: each element is combined with the one before it, then with the one two before it, four before it, …

    x0  x1     x2        x3              x4                      (before each round: all of the round before)
    x0  x0·x1  x1·x2     x2·x3           x3·x4                   elements 1 apart
    x0  x0·x1  x0·x1·x2  x0·x1·x2·x3     x1·x2·x3·x4             elements 2 apart
    x0  x0·x1  x0·x1·x2  x0·x1·x2·x3     x0·x1·x2·x3·x4          elements 4 apart

So a scan of n elements takes log2(n) rounds, and a sum's error grows with that number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewave.errors import DTypeError, TraceError, here
from tilewave.ir import ops as ir
from tilewave.ir.ops.reduction import COMBINED_BY
from tilewave.ir.types import BOOL, I8, INDEX, Tile
from tilewave.lang.ops import minimum, select
from tilewave.lang.reductions import in_its_dtype, one_dim, want_placed, want_tile
from tilewave.lang.tags import taggable
from tilewave.lang.values import Traced, describe
from tilewave.lang.windows import end_of, ends_with_a_tile, start_of
from tilewave.trace import Trace, current

Combine = Callable[[Any, Any], Any]
"""From what comes before, and what follows it: tiles, or tuples of as many tiles as are scanned."""


@taggable
def scan(x: Any, dim: Any = None, combine: str | Combine = "sum", reverse: bool = False) -> Any:
    """Return the inclusive prefixes of x along `dim`: element i is what elements 0 to i combine to.

    `combine` is sum, prod, max, min, any, all, or an associative function of two tiles. x may be a tuple of tiles; then
    the function takes two tuples, and returns one. `reverse` begins with the last element: element i is what all from
    it to the end combine to, where the function's first argument is what is nearer to that end.
    """
    trace = current("scan")
    tiles = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    for each in tiles:
        want_tile("scan", each)
    dim = one_dim(tiles[0], "scan", dim)
    if isinstance(combine, str):
        tiles, function = _named(trace, tiles, combine)
    else:
        function = _checked(combine, isinstance(x, (tuple, list)))
    _want_same_dims(tiles, dim)
    scanned = _doubled(trace, tiles, dim, function, reverse)
    return scanned if isinstance(x, (tuple, list)) else scanned[0]


TileFunction = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


def _named(trace: Trace, tiles: tuple[Any, ...], how: str) -> tuple[tuple[Any, ...], TileFunction]:
    """Return the tiles in the dtypes that a reduction of that name has, and its function."""
    if how not in COMBINED_BY:
        known = ", ".join(COMBINED_BY)
        remedy = f"write one of {known}, or a function: combine=lambda before, x: before + x"
        raise TraceError(f"scan: combine is {how!r}", loc=here(), remedy=remedy)
    if len(tiles) > 1:
        remedy = "scan one tile, or give a function of two tuples of tiles"
        raise TraceError(f"scan: {how} combines single elements, not {len(tiles)} tiles", loc=here(), remedy=remedy)
    (x,) = tiles

    def function(before: tuple[Any, ...], each: tuple[Any, ...]) -> tuple[Any, ...]:
        return (x.make(trace.binary(COMBINED_BY[how], each[0].value, before[0].value)),)

    return (in_its_dtype(trace, x, how),), function


def _checked(combine: Combine, are_several: bool) -> TileFunction:
    """Return an author's function as one of tuples, whose results are checked."""
    if not callable(combine):
        remedy = 'write combine="max", or a function: combine=lambda before, x: before + x'
        raise TraceError(f"scan: combine is {combine!r}", loc=here(), remedy=remedy)

    def function(before: tuple[Any, ...], each: tuple[Any, ...]) -> tuple[Any, ...]:
        made = combine(before, each) if are_several else (combine(before[0], each[0]),)
        if not isinstance(made, (tuple, list)) or len(made) != len(each):
            remedy = f"return a tuple of {len(each)} tiles"
            raise TraceError(f"scan: combine returned {made!r}", loc=here(), remedy=remedy)
        for result, x in zip(made, each, strict=True):
            if not isinstance(result, Traced) or result.dims != x.dims or result.type != x.type:
                shown = describe(result) if isinstance(result, Traced) else repr(result)
                what, remedy = f"scan: combine made {shown} of {describe(x)}", f"write cast(…, {x.dtype})"
                raise DTypeError(what, loc=here(), remedy=f"return a tile like those it takes: {remedy}, say")
        return tuple(made)

    return function


def _want_same_dims(tiles: tuple[Any, ...], dim: Any) -> None:
    """Refuse tiles of other dims or lengths than the first."""
    first, *others = tiles
    for x in others:
        if x.dims != first.dims or x.type.shape != first.type.shape:
            remedy = "scan tiles of the same dims; broadcast(x, target_shape=[…]) gives a tile the dims that it lacks"
            raise TraceError(f"scan: {describe(first)} and {describe(x)} differ in dims", loc=here(), remedy=remedy)


def _doubled(trace: Trace, tiles: tuple[Any, ...], dim: Any, function: TileFunction, reverse: bool) -> tuple[Any, ...]:
    axis = tiles[0].dims.index(dim)
    far, extent = 1, tiles[0].type.shape[axis]
    while far < extent:
        before = tuple(moved(x, dim, -far if reverse else far) for x in tiles)
        has_one = _has_one(trace, tiles[0], dim, -far if reverse else far)
        joined = function(before, tiles)
        tiles = tuple(select(has_one, both, x) for both, x in zip(joined, tiles, strict=True))
        far *= 2
    return tiles


def moved(x: Any, dim: Any, by: int) -> Any:
    """Return the tile whose element i along a dim is element i - by of x; 0 where there is none."""
    trace, axis = current("scan"), x.dims.index(dim)
    if x.dtype == BOOL:
        return moved(x.make(trace.cast(x.value, I8)), dim, by) != 0
    return x.make(trace.emit(ir.Shift, x.value, axis, by, type=x.type))


def _has_one(trace: Trace, x: Any, dim: Any, by: int) -> Any:
    """Return which elements have another one `by` before them, or after them where it is negative, inside the dim."""
    extent = x.type.shape[x.dims.index(dim)]
    places = Traced(trace, trace.emit(ir.Iota, type=Tile((extent,), INDEX)), (dim,))
    if by > 0:
        return places >= by
    want_placed(trace, dim, "scan")
    if ends_with_a_tile(trace, dim, extent):
        return places < extent + by
    length, start = (Traced(trace, trace.index(n)) for n in (end_of(trace, dim), start_of(trace, dim)))
    return places < minimum(length - start, extent) + by
