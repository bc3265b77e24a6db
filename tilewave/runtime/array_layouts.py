"""Addresses and layouts of a call's arrays, as formulas that accept plain numbers and recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewave.ir.host_program import LINE as LINE
from tilewave.ir.host_program import Number, chosen, grain, rank
from tilewave.runtime.array_view import PlacedArray
from tilewave.runtime.arrays import Parameter

Placed = Sequence[PlacedArray]


def words_at(arrays: Placed) -> list[int]:
    """Return arrays as one list: for each its address, its lengths, and its strides."""
    found: list[int] = []
    for pointer, lengths, steps in arrays:
        found += (pointer, *lengths, *steps)
    return found


def placed_arrays(words: Sequence[Number], ranks: Sequence[int]) -> list[PlacedArray]:
    """Return the arrays that `words_at` put into one list."""
    found, at = [], 0
    for axes in ranks:
        lengths, steps = words[at + 1 : at + 1 + axes], words[at + 1 + axes : at + 1 + 2 * axes]
        found.append(PlacedArray(words[at], lengths, steps))
        at += 1 + 2 * axes
    return found


def layout_of(arrays: Placed) -> list[Number]:
    """Return the layout key of arrays.

    It holds the largest power of two that divides each address, stride and row length, and for every length and stride
    whether it is 0, 1, negative or very large.
    """
    found: list[Number] = []
    for pointer, lengths, steps in arrays:
        found += [grain(pointer), pointer == 0, *map(rank, (*lengths, *steps))]
        found += map(grain, (*lengths[-1:], *steps))
    return found


ArrayKinds = tuple[tuple[int, bool], ...]
"""For each array, the bytes of an element and whether the kernel writes it."""


def kinds_of(parameters: Sequence[Parameter]) -> ArrayKinds:
    return tuple((p.item_bytes, p.written) for p in parameters)


def apart(arrays: Placed, kinds: ArrayKinds) -> Iterator[Number]:
    """Yield conditions under which no element of a written array overlaps another element; where one is false, arrays
    need the full check."""
    ends = [_end(array, item) for array, (item, _) in zip(arrays, kinds, strict=True)]
    for i, (array, (_, is_written)) in enumerate(zip(arrays, kinds, strict=True)):
        if is_written:
            yield from _nested(array)
            others = [j for j in range(len(arrays)) if j != i]
            yield from [(arrays[j].pointer >= ends[i]) | (array.pointer >= ends[j]) for j in others]


def _end(array: PlacedArray, item_bytes: int) -> Number:
    """Return the address after the array's last element; valid for an array with elements and positive strides."""
    last: Number = 1
    for length, step in zip(array.lengths, array.steps, strict=True):
        last = last + (length - 1) * step
    return array.pointer + last * item_bytes


def _nested(array: PlacedArray) -> Iterator[Number]:
    """Yield conditions that together guarantee that no two elements of the array share an address."""
    axes = [*zip(array.lengths, array.steps, strict=True)]
    for i, (length, step) in enumerate(axes):
        yield (length <= 1) | (step >= 1)
        for inner, inner_step in axes[i + 1 :]:
            yield (length <= 1) | (inner <= 1) | (step >= inner * inner_step)


def there_at_least(arrays: Placed) -> list[Number]:
    """Return addresses that lanes may always read: masked lanes read their array's first element, and an empty array
    has none, so it gets the address of another."""
    there: Number = 0
    for array in reversed(arrays):
        there = chosen(array.pointer == 0, there, array.pointer)
    return [chosen(array.pointer == 0, there, array.pointer) for array in arrays]
