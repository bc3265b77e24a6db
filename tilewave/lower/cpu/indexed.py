"""Loads and stores at positions that a kernel computes: neighbours in memory in vectors, others one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewave.ir.ops import WriteIndexed
from tilewave.lower.atomics import AtomicCombine, AtomicUnit
from tilewave.lower.cpu.memory import (
    Place,
    inside,
    lanes_inside,
    load,
    load_apart,
    load_inside,
    store,
    store_apart,
    store_inside,
    zero,
)
from tilewave.lower.elements import stored
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.lower.numbers import is_narrow

ATOMICS = AtomicUnit(lambda how, dtype: not is_narrow(dtype), 1)
Positions = Callable[[int], Sequence[str]]
"""From a lane to the position of its element."""


def load_one(f: LlvmFunction, place: Place, position: Sequence[str]) -> str:
    """Load an element of a memory, or 0 outside it."""
    dtype = place.dtype
    found = f.choose(
        inside(f, position, place.extents),
        lambda: [(stored(dtype), load(f, dtype, place.address(f, position)))],
        lambda: [(stored(dtype), zero(dtype))],
    )
    return found[0][1]


def load_each(f: LlvmFunction, place: Place, positions: Positions, lanes: int) -> str:
    """Load an element for each lane."""
    if lanes == 1:
        return load_one(f, place, positions(0))
    whole, found = vector(lanes, stored(place.dtype)), "poison"
    for lane in range(lanes):
        one = load_one(f, place, positions(lane))
        found = f.value(f"insertelement {whole} {found}, {stored(place.dtype)} {one}, i64 {lane}")
    return found


def load_run(f: LlvmFunction, place: Place, positions: Positions, lanes: int) -> str:
    """Load neighbours along the memory's last axis, where its rows are contiguous in one access."""
    if lanes == 1:
        return load_one(f, place, positions(0))
    first, last = positions(0), len(place.extents) - 1

    mask = lanes_inside(f, first, place.extents, last, lanes)
    address, kind, stride = place.address(f, first), vector(lanes, stored(place.dtype)), place.strides[last]
    in_rows = f.value(f"icmp eq i64 {stride}, 1")
    ((_, found),) = f.choose(
        in_rows,
        lambda: [(kind, load_inside(f, place.dtype, address, mask, lanes))],
        lambda: [(kind, load_apart(f, place.dtype, address, stride, mask, lanes))],
    )
    return found


def store_each(f: LlvmFunction, place: Place, positions: Positions, x: str, lanes: int) -> None:
    """Store an element for each lane, if it is in bounds."""
    for lane in range(lanes):
        one = x if lanes == 1 else f.value(f"extractelement {vector(lanes, stored(place.dtype))} {x}, i64 {lane}")
        position = positions(lane)
        address = place.address(f, position)
        f.when(inside(f, position, place.extents), partial(store, f, place.dtype, one, address), lambda: None)


def store_run(f: LlvmFunction, place: Place, positions: Positions, x: str, lanes: int) -> None:
    """Store neighbours along the memory's last axis."""
    if lanes == 1:
        store_each(f, place, positions, x, 1)
        return
    first, last = positions(0), len(place.extents) - 1
    mask, address, stride = (
        lanes_inside(f, first, place.extents, last, lanes),
        place.address(f, first),
        place.strides[last],
    )
    in_rows = f.value(f"icmp eq i64 {stride}, 1")
    beside = partial(store_inside, f, place.dtype, x, address, mask, lanes)
    f.when(in_rows, beside, partial(store_apart, f, place.dtype, x, address, stride, mask, lanes))


def combine_each(f: LlvmFunction, place: Place, positions: Positions, x: str, lanes: int, how: str) -> None:
    """Combine an element for each lane with what the memory has, atomically."""
    kind, combine = stored(place.dtype), AtomicCombine(f, ATOMICS, "ptr", how, place.dtype)
    for lane in range(lanes):
        one = x if lanes == 1 else f.value(f"extractelement {vector(lanes, kind)} {x}, i64 {lane}")
        position = positions(lane)
        address = place.address(f, position)
        f.when(inside(f, position, place.extents), partial(combine, address, one), lambda: None)


def write_vector(f: LlvmFunction, op: WriteIndexed, place: Place, positions: Positions, x: str, lanes: int) -> None:
    """Do what a `write_indexed` does with some neighbours of its tile."""
    if op.combine:
        combine_each(f, place, positions, x, lanes, op.combine)
    elif op.in_runs:
        store_run(f, place, positions, x, lanes)
    else:
        store_each(f, place, positions, x, lanes)
