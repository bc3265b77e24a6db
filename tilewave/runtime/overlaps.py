"""Whether arrays, or elements of one array, share addresses: arithmetic on strides, no memory is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from tilewave.records import dataclass
from tilewave.runtime.array_view import NDArray, elements_at
from tilewave.runtime.dlpack import MOST_AXES

MOST_BYTES = 1 << 57
"""No machine has more memory; numpy's arithmetic on smaller offsets does not overflow."""
USERS = 1 << 63
"""Addresses from here on belong to the system, on every known machine."""
OVERLAP_WORK = 10_000
"""How long numpy may search for a common address, in numpy's unit: about half a millisecond."""


@dataclass(frozen=True)
class ByteLayout:
    """The byte range of elements, relative to the first; `uneven` where a stride is no whole number of elements."""

    low: int
    high: int
    uneven: bool


@lru_cache(maxsize=1024)
def layout_of(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> ByteLayout:
    last = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low, high = sum(min(0, step) for step in last), sum(max(0, step) for step in last) + item_bytes
    return ByteLayout(low, high, any(stride % item_bytes for stride in strides))


def distances(
    layouts: Sequence[ByteLayout], written: Collection[int], fresh: Collection[int]
) -> tuple[tuple[int, int, int, int], ...]:
    """Return what decides whether written arrays are apart from others, for arrays of these layouts at any addresses.

    (i, j, low, high): the byte ranges of arrays i and j meet where j begins more than `low` and less than `high` bytes
    after i. Arrays that are `fresh`, and no one else's, are apart from all.
    """
    old = [i for i in range(len(layouts)) if i not in fresh]
    pairs = ((i, j) for i in old if i in written for j in old if j != i and not (j in written and j < i))
    return tuple((i, j, layouts[i].low - layouts[j].high, layouts[i].high - layouts[j].low) for i, j in pairs)


def impossible(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> str:
    """Return why no memory can have this layout, as said after an array's name; empty where some can."""
    if len(shape) > MOST_AXES or len(strides) != len(shape):
        return f"has {len(shape)} sizes and {len(strides)} strides"
    if any(size < 0 for size in shape):
        return f"has a negative size (shape {shape})"
    if math.prod(size for size in shape if size) * item_bytes > MOST_BYTES or not 0 <= pointer < USERS:
        return f"is larger than any memory (shape {shape} at {pointer:#x})"
    layout = layout_of(shape, strides, item_bytes)
    if 0 in shape:
        return "" if max(map(abs, strides)) < MOST_BYTES else f"has strides that lead nowhere ({strides})"
    if not pointer:
        return "has elements, but no address"
    first, last = pointer + layout.low, pointer + layout.high
    if first < 0 or last > USERS or last - first > MOST_BYTES:
        return f"reaches beyond all memory (shape {shape}, strides {strides})"
    return ""


@lru_cache(maxsize=1024)
def repeats(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool | None:
    """Return whether two elements share an address; None where deciding takes too long.

    Split an axis in two: if the halves do not overlap, a shared address is within one of them. The halves have equal
    strides, so the longer one decides for both; split it again.
    """
    answer: bool | None = False
    part = elements_at(1 << 62, shape, strides, item_bytes, None)
    # The widest stride first: the halves of a nested layout are then disjoint ranges, which `meet` sees quickly.
    for axis in sorted(range(len(shape)), key=lambda a: -abs(strides[a])):
        while part.shape[axis] > 1:
            shorter, part = np.split(part, [part.shape[axis] // 2], axis)
            shared = meet(shorter, part)
            if shared:
                return True
            if shared is None:
                answer = None
    return answer


def meet(one: NDArray, other: NDArray) -> bool | None:
    """Return whether two arrays have an address in common; None where deciding takes too long."""
    try:
        return bool(np.shares_memory(one, other, OVERLAP_WORK))  # type: ignore[arg-type]  # the stubs know only 0, -1
    except np.exceptions.TooHardError:
        return None
