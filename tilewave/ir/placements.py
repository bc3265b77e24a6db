"""Where the elements of a shared memory stand: rows behind each other, padded, with their chunks changing places, or in
panels of some columns each.

8 rows of 8 chunks, xor(…, 8, 1): a column of chunks, which lanes read together, lies in 8 different places.

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
    """Where in its row a column stands; twice changes nothing, so it is also which column stands at a place."""
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
            raise NotImplementedError(f"nobody says where {other} puts a row")


def _runs(moves: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring bits that move twice as far each: the first, how many, and how far the first one moves."""
    first = 0
    while first < len(moves):
        count = 1
        while first + count < len(moves) and moves[first] and moves[first + count] == moves[first] << count:
            count += 1
        if moves[first]:
            yield first, count, moves[first]
        first += count


def offset(memory: Memory, *position: Any) -> Any:
    """How many elements stand before the one at `position`: ints, arrays, or whatever has + * // % and ^."""
    *front, column = position
    row = front[-1] if front else 0
    if isinstance(memory.placement, Panels):
        place, width = in_its_place(memory, row, column), memory.placement.width
        return _number(_rows(memory), (*front[:-1], place // width, row)) * width + place % width
    number, place = _number(_rows(memory), front), in_its_place(memory, row, column)
    return number * row_elements(memory) + place


def _rows(memory: Memory) -> tuple[int, ...]:
    """How many there are along each axis, from the one in which they lie farthest apart."""
    if isinstance(memory.placement, Panels):
        return (*memory.shape[:-2], panels(memory), memory.shape[-2])
    return memory.shape[:-1]


def _number(extents: Sequence[int], position: Sequence[Any]) -> Any:
    """Which one it is, counted through all axes."""
    number: Any = 0
    for extent, at in zip(extents, position, strict=True):
        number = number * extent + at
    return number


def row_elements(memory: Memory) -> int:
    """From the first element of a row to that of the next."""
    match memory.placement:
        case Padded(unused):
            return memory.shape[-1] + unused
        case Panels(width):
            return width
        case _:
            return memory.shape[-1]


def panels(memory: Memory) -> int:
    """How many lie behind each other in every matrix of rows and columns."""
    return memory.shape[-1] // memory.placement.width if isinstance(memory.placement, Panels) else 1


def elements(memory: Memory) -> int:
    """As many as it takes in all, with those that nobody uses."""
    return prod(_rows(memory)) * row_elements(memory)


def without_swizzle(memory: Memory) -> Memory:
    """The same with every chunk in its own place."""
    match memory.placement:
        case Panels(width, chunk):
            return replace(memory, placement=Panels(width, chunk, 1, 1))
        case _:
            return replace(memory, placement=None)


def size_bytes(memory: Memory) -> int:
    return elements(memory) * memory.dtype.bytes


def lies_in(v: Value, space: str) -> bool:
    """Whether v is a memory of that address space."""
    return isinstance(v.type, Memory) and v.type.space == space


def is_repacked(v: Value) -> bool:
    """Whether a launch copies a memory to where it lies as its type says, unless an array lies so already."""
    return lies_in(v, "global") and isinstance(v.type, Memory) and v.type.placement is not None


def stored_axes(memory: Memory) -> tuple[int, ...]:
    """From the slowest to the fastest."""
    axes = tuple(range(memory.rank))
    return (*axes[:-2], axes[-1], axes[-2]) if isinstance(memory.placement, Columns) else axes


def is_one_row(memory: Memory) -> bool:
    """Whether all its elements lie behind each other, so that nothing hangs on where a next row would begin."""
    *others, _ = stored_axes(memory)
    return all(memory.extents[axis] == 1 for axis in others)


def row_pitch(v: Value) -> Extent:
    """From the first element of a memory's row to that of the next, if it has no gaps but those that are known."""
    assert isinstance(v.type, Memory)
    row = v.type.extents[stored_axes(v.type)[-1]]
    unused = v.type.placement.elements if isinstance(v.type.placement, Padded | Columns) else 0
    return row + unused if isinstance(row, int) else row


def lies_on_lines(v: Value, line_bytes: int, open_rows: bool = False) -> bool:
    """Whether each row of a memory begins on a line of so many bytes, if the first one does; `open_rows` where rows are
    as long as the launch says."""
    if not isinstance(v.type, Memory):
        return False
    if is_one_row(v.type):
        return True
    row = row_pitch(v)
    return open_rows if isinstance(row, str) else row * v.type.dtype.bytes % line_bytes == 0


def box_axes(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """All axes of a memory in the order in which the copy engine sees them: those of a box come last."""
    return (*(axis for axis in range(rank) if axis not in axes), *axes)
