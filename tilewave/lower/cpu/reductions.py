"""Reductions of tiles in registers: neighbours first, whole vectors of pairs at a time.

The elements of a tile are stored one after the other in vectors, and a step combines the even and the odd elements of
two neighbouring vectors:

    x0 x1 x2 x3 | x4 x5 x6 x7      x0 x2 x4 x6     x01 x23 x45 x67
                                 + x1 x3 x5 x7  =

No pair crosses a row as long as rows have even length: rows of a power of two become one number each, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd, prod

from tilewave.ir.ops.reduction import COMBINED_BY, Reduce
from tilewave.ir.types import DType
from tilewave.lower.elements import stored
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.lower.numbers import elementwise
from tilewave.records import dataclass

Combine = Callable[[str, str, int], str]
"""Combines two vectors of so many lanes into one."""


def combining(f: LlvmFunction, op: Reduce) -> Combine:
    """Return the function that combines two elements, as the elementwise op of that name does."""
    both = COMBINED_BY[op.how](op.x, op.x, results=(op.x,))
    return lambda a, b, lanes: elementwise(f, both, [a, b], op.x.type.dtype, lanes)


@dataclass(frozen=True)
class Flat:
    """The elements of a tile one after the other, `lanes` per vector, across row ends."""

    dtype: DType
    shape: tuple[int, ...]
    lanes: int
    vectors: tuple[str, ...]


def regrouped(f: LlvmFunction, x: Flat, lanes: int) -> Flat:
    """Return the elements of x in vectors of `lanes`."""
    while x.lanes < lanes:
        pairs = zip(x.vectors[::2], x.vectors[1::2], strict=True)
        whole = range(2 * x.lanes)
        x = replace(x, lanes=2 * x.lanes, vectors=tuple(_picked(f, x, a, b, whole) for a, b in pairs))
    while x.lanes > lanes:
        half = x.lanes // 2
        halves = (range(half), range(half, 2 * half))
        x = replace(
            x, lanes=half, vectors=tuple(_picked(f, x, v, "poison", part) for v in x.vectors for part in halves)
        )
    return x


def _picked(f: LlvmFunction, x: Flat, a: str, b: str, places: Sequence[int]) -> str:
    """Return a shuffle of two vectors."""
    kind, element = vector(x.lanes, stored(x.dtype)), stored(x.dtype)
    if x.lanes == 1:
        one = f.value(f"insertelement <2 x {element}> poison, {element} {a}, i64 0")
        return f.value(f"insertelement <2 x {element}> {one}, {element} {b}, i64 1")
    if len(places) == 1:
        return f.value(f"extractelement {kind} {a}, i64 {places[0]}")
    numbers = ", ".join(f"i32 {place}" for place in places)
    return f.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(places)} x i32> <{numbers}>")


def without_axis(f: LlvmFunction, x: Flat, axis: int, combine: Combine) -> Flat:
    """Return the tile reduced along an axis, in the order of a binary tree."""
    inner = prod(x.shape[axis + 1 :])
    while x.shape[axis] > 1:
        in_vectors = inner == 1 and x.shape[axis] % 2 == 0
        x = _pairs(f, x, axis, combine) if in_vectors else _pairs_of_rows(f, x, axis, inner, combine)
    return replace(x, shape=(*x.shape[:axis], *x.shape[axis + 1 :]))


def lane_by_lane(f: LlvmFunction, x: Flat, combine: Combine) -> Flat:
    """Return rows of whole vectors reduced to one vector each, where the order does not matter; no shuffles."""
    *outer, along = x.shape
    if along % x.lanes:
        return x
    return without_axis(f, replace(x, shape=(*outer, along // x.lanes, x.lanes)), len(outer), combine)


def _halved(x: Flat, axis: int) -> tuple[int, ...]:
    return (*x.shape[:axis], -(-x.shape[axis] // 2), *x.shape[axis + 1 :])


def _pairs(f: LlvmFunction, x: Flat, axis: int, combine: Combine) -> Flat:
    """Combine neighbours along the last axis, of even length: of two vectors, or of the halves of each."""
    alone = len(x.vectors) % 2 == 1
    firsts, seconds = (x.vectors, ("poison",) * len(x.vectors)) if alone else (x.vectors[::2], x.vectors[1::2])
    lanes = x.lanes // 2 if alone else x.lanes

    def pair(a: str, b: str) -> str:
        if x.lanes > 1:
            a, b = (_picked(f, x, a, b, range(first, 2 * lanes, 2)) for first in (0, 1))
        return combine(a, b, lanes)

    made = tuple(pair(a, b) for a, b in zip(firsts, seconds, strict=True))
    return replace(x, shape=_halved(x, axis), lanes=lanes, vectors=made)


def _rows(f: LlvmFunction, x: Flat, axis: int, inner: int) -> tuple[Flat, list[list[tuple[str, ...]]]]:
    """Return, per index before the axis and per index along it, the vectors of the axes after it."""
    x = regrouped(f, x, gcd(x.lanes, inner))
    each, count = inner // x.lanes, x.shape[axis]
    rows = [x.vectors[first : first + each] for first in range(0, len(x.vectors), each)]
    return x, [rows[first : first + count] for first in range(0, len(rows), count)]


def _pairs_of_rows(f: LlvmFunction, x: Flat, axis: int, inner: int, combine: Combine) -> Flat:
    """Combine neighbouring rows along an axis that is not the last, by whole vectors; an unpaired row is kept."""
    x, groups = _rows(f, x, axis, inner)
    vectors: list[str] = []
    for rows in groups:
        for one, other in zip(rows[::2], rows[1::2], strict=False):
            vectors += [combine(a, b, x.lanes) for a, b in zip(one, other, strict=True)]
        if len(rows) % 2:
            vectors += rows[-1]
    return replace(x, shape=_halved(x, axis), vectors=tuple(vectors))
