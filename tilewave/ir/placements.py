"""Placement of a shared memory's elements: rows in order, padded, swizzled by chunks, or in panels of some columns.

8 rows of 8 chunks, xor(…, 8, 1): a column of chunks, which lanes read together, is in 8 different places.

    row 0   0 1 2 3 4 5 6 7
    row 1   1 0 3 2 5 4 7 6
    row 2   2 3 0 1 6 7 4 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilewave.ir.core import Value
from tilewave.ir.types import Columns, Extent, Memory, Padded, Panels, Swizzled, SwizzledByBits


def in_its_place(memory: Memory, row: Any, column: Any) -> Any:
    """Return where in its row a column is placed; an involution, so it also maps a place to its column."""
    match memory.placement:
        case Swizzled(chunk, period, every) | Panels(_, chunk, period, every):
            return (column // chunk ^ row // every % period) * chunk + column % chunk
        case SwizzledByBits(chunk, moves):
            there = column // chunk
            for first, count, move in _runs(moves):
                there = there ^ row // (1 << first) % (1 << count) * move
            return there * chunk + column % chunk
        case Padded() | None:
            return column
        case other:
            raise NotImplementedError(f"no formula for the placement {other}")


def _runs(moves: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of bits whose moves double: the first bit, the number of bits, and the first move."""
    first = 0
    while first < len(moves):
        count = 1
        while first + count < len(moves) and moves[first] and moves[first + count] == moves[first] << count:
            count += 1
        if moves[first]:
            yield first, count, moves[first]
        first += count


def offset(memory: Memory, *position: Any) -> Any:
    """Return the offset of `position` in elements; it may be ints, arrays, or anything with + * // % and ^."""
    *front, column = position
    row = front[-1] if front else 0
    if isinstance(memory.placement, Panels):
        place, width = in_its_place(memory, row, column), memory.placement.width
        return _number(_rows(memory), (*front[:-1], place // width, row)) * width + place % width
    number, place = _number(_rows(memory), front), in_its_place(memory, row, column)
    return number * row_elements(memory) + place


def _rows(memory: Memory) -> tuple[int, ...]:
    """Return the extents of all axes outside of a row, slowest first."""
    if isinstance(memory.placement, Panels):
        return (*memory.shape[:-2], panels(memory), memory.shape[-2])
    return memory.shape[:-1]


def _number(extents: Sequence[int], position: Sequence[Any]) -> Any:
    """Return the row-major number of a position."""
    number: Any = 0
    for extent, at in zip(extents, position, strict=True):
        number = number * extent + at
    return number


def row_elements(memory: Memory) -> int:
    """Return the row stride in elements."""
    match memory.placement:
        case Padded(unused):
            return memory.shape[-1] + unused
        case Panels(width):
            return width
        case _:
            return memory.shape[-1]


def panels(memory: Memory) -> int:
    """Return the number of panels in every matrix of rows and columns; 1 without panels."""
    return memory.shape[-1] // memory.placement.width if isinstance(memory.placement, Panels) else 1


def elements(memory: Memory) -> int:
    """Return the number of elements that a memory takes, including padding."""
    return prod(_rows(memory)) * row_elements(memory)


def without_swizzle(memory: Memory) -> Memory:
    """Return the memory without a swizzle."""
    match memory.placement:
        case Panels(width, chunk):
            return replace(memory, placement=Panels(width, chunk, 1, 1))
        case _:
            return replace(memory, placement=None)


def size_bytes(memory: Memory) -> int:
    return elements(memory) * memory.dtype.bytes


def is_in(v: Value, space: str) -> bool:
    """Return whether v is a memory of that address space."""
    return isinstance(v.type, Memory) and v.type.space == space


def is_packed_copy(v: Value) -> bool:
    """Return whether a launch packs a memory into the layout of its type, unless the array has that layout already."""
    return is_in(v, "global") and isinstance(v.type, Memory) and v.type.placement is not None


def stored_axes(memory: Memory) -> tuple[int, ...]:
    """Return the axes of a memory, slowest first."""
    axes = tuple(range(memory.rank))
    return (*axes[:-2], axes[-1], axes[-2]) if isinstance(memory.placement, Columns) else axes


def is_one_row(memory: Memory) -> bool:
    """Return whether all elements are in one row, so that the row stride does not matter."""
    *others, _ = stored_axes(memory)
    return all(memory.extents[axis] == 1 for axis in others)


def row_pitch(v: Value) -> Extent:
    """Return the row stride of a memory in elements, assuming no gaps but its declared padding."""
    assert isinstance(v.type, Memory)
    row = v.type.extents[stored_axes(v.type)[-1]]
    unused = v.type.placement.elements if isinstance(v.type.placement, Padded | Columns) else 0
    return row + unused if isinstance(row, int) else row


def is_row_aligned(v: Value, grain_bytes: int) -> bool:
    """Return whether the row stride of a memory is a multiple of `grain_bytes`; dynamic ones are checked at launch."""
    row = row_pitch(v)
    return isinstance(row, str) or row * v.type.dtype.bytes % grain_bytes == 0


def is_line_aligned(v: Value, line_bytes: int, open_rows: bool = False) -> bool:
    """Return whether each row of a memory is aligned to `line_bytes`, if the first one is; `open_rows` is the answer
    for dynamic row lengths."""
    if not isinstance(v.type, Memory):
        return False
    if is_one_row(v.type):
        return True
    row = row_pitch(v)
    return open_rows if isinstance(row, str) else row * v.type.dtype.bytes % line_bytes == 0


def box_axes(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return all axes of a memory in the order of its TMA descriptor: those of a box come last."""
    return (*(axis for axis in range(rank) if axis not in axes), *axes)
