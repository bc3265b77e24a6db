"""Positions of a tile's elements in a memory, and loads of boundary tiles, for tiles in scratch memory."""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.lower.cpu.memory import Place, add, lanes_inside, load_inside
from tilewave.lower.cpu.scratch_tiles import ScratchSpace, ScratchTile


def in_memory_rows(space: ScratchSpace, place: Place, axis: int) -> str:
    """Return whether neighbours along an axis are contiguous in memory."""
    return space.f.value(f"icmp eq i64 {place.strides[axis]}, 1")


def read_edge(space: ScratchSpace, place: Place, at: Sequence[str], along: tuple[int, ...], tile: ScratchTile) -> None:
    """Copy vectors of a memory's rows, with zeros outside."""
    f, lanes = space.f, space.lanes(tile.type.shape[-1])

    def part(index: list[str]) -> None:
        there = position(space, at, along, index)
        mask = lanes_inside(f, there, place.extents, along[-1], lanes)
        tile.put(f, index, load_inside(f, place.dtype, place.address(f, there), mask, lanes), lanes)

    space.for_each_vector(tile.type.shape, lanes, part)


def position(space: ScratchSpace, at: Sequence[str], axes: tuple[int, ...], index: Sequence[str]) -> list[str]:
    position = list(at)
    for axis, i in zip(axes, index, strict=True):
        position[axis] = add(space.f, position[axis], i)
    return position
