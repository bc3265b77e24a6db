"""Loads and stores of tiles in registers, vector by vector, and of boundary tiles by way of a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from tilewave.ir.types import DType, Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import (
    Place,
    add,
    inside,
    is_number,
    lanes_inside,
    load,
    load_inside,
    store,
    store_inside,
    times,
    whole_inside,
    zero,
)
from tilewave.lower.cpu.row_vectors import RegisterSpace, RowVectors, flat
from tilewave.lower.elements import in_memory
from tilewave.lower.llvm import LlvmFunction


def vectors_of(space: RegisterSpace, tile: RowVectors) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, row in zip(product(*map(range, tile.type.shape[:-1])), tile.rows, strict=True):
        for number, value in enumerate(row):
            yield (*index, number * tile.lanes), value


def is_whole(space: RegisterSpace, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile) -> str:
    """Return whether the window is inside its memory and its last axis is contiguous."""
    f = space.f
    extents = [kind.shape[axes.index(a)] if a in axes else 1 for a in range(place.type.rank)]
    fits = whole_inside(f, at, extents, place.extents)
    unit = f.value(f"icmp eq i64 {place.strides[axes[-1]]}, 1")
    return f.value(f"and i1 {fits}, {unit}")


def vector_address(
    space: RegisterSpace, place: Place, at: Sequence[str], axes: tuple[int, ...], index: Sequence[int]
) -> str:
    position = list(at)
    for axis, i in zip(axes, index, strict=True):
        position[axis] = add(space.f, position[axis], i)
    return place.address(space.f, position)


def load_vector(
    space: RegisterSpace, place: Place, at: Sequence[str], axes: tuple[int, ...], index: Sequence[int], lanes: int
) -> str:
    return load_lanes(space, place.dtype, lanes, vector_address(space, place, at, axes, index))


def load_lanes(space: RegisterSpace, dtype: DType, lanes: int, address: str) -> str:
    return load(space.f, dtype, address, lanes)


def store_vector(space: RegisterSpace, value: str, dtype: DType, lanes: int, address: str) -> None:
    store(space.f, dtype, value, address, lanes)


def from_buffer(space: RegisterSpace, buffer: str, kind: Tile, index: Sequence[int], lanes: int) -> str:
    where = f"getelementptr {in_memory(kind.dtype)}, ptr {buffer}, i64 {flat(index, kind.shape)}"
    return load_lanes(space, kind.dtype, lanes, space.f.value(where))


def edge_copy(
    space: RegisterSpace, place: Place, at: Sequence[str], axes: tuple[int, ...], kind: Tile, buffer: str, way: str
) -> None:
    """Copy between a buffer and a memory, where they overlap; a buffer that is loaded has zeros elsewhere."""
    name = f"{way}_edge_{'x'.join(map(str, kind.shape))}_{kind.dtype}_{'_'.join(map(str, axes))}_of_"
    name += "x".join("open" if isinstance(extent, str) else str(extent) for extent in place.type.extents)
    function = space.f.module.helper(name, lambda: write_edge_copy(space, name, place, axes, kind, way))
    numbers = (*at, *place.strides, *(x for x in place.extents if not is_number(x)))
    arguments = [f"ptr {buffer}", f"ptr {place.pointer}", *(f"i64 {x}" for x in numbers)]
    space.f.do(f"call void {function}({', '.join(arguments)})")


def write_edge_copy(space: RegisterSpace, name: str, place: Place, axes: tuple[int, ...], kind: Tile, way: str) -> str:
    at, strides = ([f"%{word}{a}" for a in range(place.type.rank)] for word in ("at", "stride"))
    extents = tuple(x if is_number(x) else f"%size{a}" for a, x in enumerate(place.extents))
    numbers = (*at, *strides, *(x for x in extents if not is_number(x)))
    f = LlvmFunction(space.f.module, name, [("ptr", "%buffer"), ("ptr", "%memory"), *(("i64", x) for x in numbers)])
    there = Place(place.type, "%memory", tuple(strides), extents)
    lanes = space.lanes(kind)

    def place_of(indices: Sequence[str]) -> tuple[list[str], str]:
        """Return the position of an element of the tile in the memory, and its address in the buffer."""
        position, number = list(at), "0"
        for axis, i, n in zip(axes, indices, kind.shape, strict=True):
            position[axis] = add(f, position[axis], i)
            number = add(f, times(f, number, n), i)
        return position, f.value(f"getelementptr {in_memory(kind.dtype)}, ptr %buffer, i64 {number}")

    def copy_vector(indices: list[str]) -> None:
        position, where = place_of([*indices[:-1], times(f, indices[-1], lanes)])
        address, mask = there.address(f, position), lanes_inside(f, position, extents, axes[-1], lanes)
        if way == "load":
            store(f, kind.dtype, load_inside(f, kind.dtype, address, mask, lanes), where, lanes)
        else:
            store_inside(f, kind.dtype, load(f, kind.dtype, where, lanes), address, mask, lanes)

    def copy_element(indices: list[str]) -> None:
        position, where = place_of(indices)
        address = there.address(f, position)
        source, target = (address, where) if way == "load" else (where, address)
        outside = partial(store, f, kind.dtype, zero(kind.dtype), where) if way == "load" else lambda: None
        f.when(
            inside(f, position, extents),
            lambda: store(f, kind.dtype, load(f, kind.dtype, source), target),
            outside,
        )

    def each_element() -> None:
        for_each(f, kind.shape, copy_element)

    if lanes == 1:
        each_element()
    else:
        in_rows = f.value(f"icmp eq i64 {strides[axes[-1]]}, 1")
        vectors = (*kind.shape[:-1], kind.shape[-1] // lanes)
        f.when(in_rows, lambda: for_each(f, vectors, copy_vector), each_element)
    return f.finish(attributes="nounwind noinline cold", linkage="internal")
