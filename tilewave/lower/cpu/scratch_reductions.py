"""Reductions of tiles in scratch memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewave.ir.ops import Reduce
from tilewave.ir.types import Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import add, times
from tilewave.lower.cpu.reductions import Combine, Flat, lane_by_lane, regrouped, without_axis
from tilewave.lower.cpu.scratch_tiles import ScratchSpace, ScratchTile

LONGEST_STRETCH = 64
"""Elements of a row that are reduced in registers at once, for as many rows in parallel as a vector has lanes."""


def rows_reduced(space: ScratchSpace, x: ScratchTile, op: Reduce, combine: Combine) -> ScratchTile:
    """Return x with its last axis shorter: stretches of a power of two become one element each, in registers."""
    f, (*outer, last) = space.f, x.type.shape
    stretch = min(last & -last, LONGEST_STRETCH)
    count, lanes = prod(outer) * last // stretch, space.lanes(stretch)
    side = space.lanes(count)
    tile = space.new(Tile((*outer, last // stretch), x.dtype))
    source, flat = (
        ScratchTile(Tile((count, stretch), x.dtype), x.pointer),
        ScratchTile(Tile((count,), x.dtype), tile.pointer),
    )

    def part(index: list[str]) -> None:
        first = times(f, index[0], side)
        places = [(add(f, first, i), str(j)) for i in range(side) for j in range(0, stretch, lanes)]
        rows = Flat(x.dtype, (side, stretch), lanes, tuple(source.element(f, at, lanes) for at in places))
        rows = rows if op.has_order else lane_by_lane(f, rows, combine)
        found = regrouped(f, without_axis(f, rows, 1, combine), side)
        flat.put(f, [first], found.vectors[0], side)

    for_each(f, (count // side,), part)
    return tile


def pairs_combined(space: ScratchSpace, x: ScratchTile, axis: int, combine: Combine) -> ScratchTile:
    """Combine neighbours along an axis; an unpaired last element is kept."""
    f, shape = space.f, x.type.shape
    half, after = shape[axis] // 2, shape[axis + 1 :]
    lanes = space.lanes(after[-1]) if after else 1
    tile = space.new(Tile((*shape[:axis], -(-shape[axis] // 2), *after), x.dtype))

    def at(index: Sequence[str], place: str) -> list[str]:
        found = [*index[:axis], place, *index[axis + 1 :]]
        return [*found[:-1], times(f, found[-1], lanes)] if after else found

    def pair(index: list[str]) -> None:
        first = times(f, index[axis], 2)
        one, other = (x.element(f, at(index, place), lanes) for place in (first, add(f, first, 1)))
        tile.put(f, at(index, index[axis]), combine(one, other, lanes), lanes)

    def waiting(index: list[str]) -> None:
        tile.put(f, at(index, str(half)), x.element(f, at(index, str(shape[axis] - 1)), lanes), lanes)

    parts = (*after[:-1], after[-1] // lanes) if after else ()
    for_each(f, (*shape[:axis], half, *parts), pair)
    if shape[axis] % 2:
        for_each(f, (*shape[:axis], 1, *parts), waiting)
    return tile
