"""Packed copies of unaligned arrays that TMA cannot load, in private memory of the launch.

Unaligned rows are copied, once per call, into rows that begin on cache lines (`ir/pack.py`); columns of dtypes that
wgmma takes along the depth only are transposed by the copy (`ir/transpose.py`); the product then runs the code for
aligned arrays. Arrays that are written are copied back. The sizes of an array do not change, so padding is never
multiplied: past the end of a row TMA loads zeros, whatever the private memory has there.

Whether packing pays is decided in one place, `analysis/packing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewave.backend.protocol import LaneLaunch
from tilewave.ir.core import Kernel
from tilewave.ir.launch import numbers_of
from tilewave.ir.pack import CHUNK_BYTES, MOST_CHUNKS, pack_rows, unpack_rows
from tilewave.ir.transpose import transpose_rows
from tilewave.ir.types import DTYPES, DType
from tilewave.machine.chips import NVIDIA_LANES
from tilewave.records import dataclass
from tilewave.runtime.arrays import ArrayView

PITCH_BYTES = 128
"""Rows of private memory begin at multiples of a cache line."""
ALLOCATED_BYTES = 256
"""The alignment of memory that CUDA allocates ("CUDA C++ Programming Guide", device memory accesses)."""
CARRIERS = {1: DTYPES["i8"], 2: DTYPES["f16"], 4: DTYPES["i32"], 8: DTYPES["i64"]}
"""The dtype that elements of so many bytes are copied as: copies move bits alone."""


PACK, UNPACK, TRANSPOSE = "pack_rows", "unpack_rows", "transpose_rows"
KERNELS: dict[str, Callable[[DType, int, int, int], Kernel]] = {
    PACK: pack_rows,
    UNPACK: unpack_rows,
    TRANSPOSE: lambda dtype, rank, lanes, count: transpose_rows(dtype, rank, lanes),
}
WIDEST_TRANSPOSED = 4


@dataclass(frozen=True)
class Unaligned:
    """An array that TMA cannot load as it is, and its axes in TMA's order."""

    array: int
    name: str
    problem: str
    is_written: bool
    order: tuple[int, ...]

    def seen(self, v: ArrayView) -> ArrayView:
        """Return the array with its axes in that order."""
        return _permuted(v, self.order)

    def copied_by(self, v: ArrayView) -> str:
        """Return the kernel that packs the array, or copies it back; "" where there is none."""
        seen, size = self.seen(v), v.dtype.bytes
        chunks = prod(seen.shape[:-1]) * (seen.shape[-1] * size // CHUNK_BYTES + 2)
        if not 0 < chunks < MOST_CHUNKS or min(v.shape) < 1 or size not in CARRIERS:
            return ""
        if seen.strides[-1] == size:
            return UNPACK if self.is_written else PACK
        turns = len(seen.shape) > 1 and seen.strides[-2] == size <= WIDEST_TRANSPOSED and not self.is_written
        return TRANSPOSE if turns else ""


@dataclass(frozen=True)
class PackedArray(Unaligned):
    """An unaligned array with its packed copy, in rows on cache lines, `offset_bytes` into the private memory."""

    offset_bytes: int
    pitch_bytes: int

    def bytes(self, v: ArrayView) -> int:
        return prod(self.seen(v).shape[:-1]) * self.pitch_bytes

    @property
    def on_lines(self) -> PackedArray:
        """This copy with a line for each row: no row of it is in two lines, and code for rows on lines serves it."""
        return replace(self, pitch_bytes=_up(self.pitch_bytes, PITCH_BYTES))

    def padded(self, v: ArrayView, memory: int = ALLOCATED_BYTES) -> ArrayView:
        """Return the array in private memory; written rows end with the last chunk, since TMA stores end there."""
        *outer, cols = self.seen(v).shape
        if self.is_written:
            cols = _up(cols, CHUNK_BYTES // v.dtype.bytes)
        rows = self.in_rows(v, (*outer, cols), memory)
        back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return _permuted(rows, back)

    def in_rows(self, v: ArrayView, shape: Sequence[int], memory: int) -> ArrayView:
        """Return the packed copy with its axes in memory order."""
        strides = [v.dtype.bytes]
        for axis in range(len(shape) - 2, -1, -1):
            step = self.pitch_bytes if len(strides) == 1 else shape[axis + 1] * strides[0]
            strides.insert(0, step)
        at = memory + self.offset_bytes
        return v._replace(pointer=at, shape=tuple(shape), strides=tuple(strides), readonly=False)


def _permuted(v: ArrayView, order: Sequence[int]) -> ArrayView:
    return v._replace(shape=tuple(v.shape[a] for a in order), strides=tuple(v.strides[a] for a in order))


def packed_copies(views: Sequence[ArrayView], unaligned_arrays: Sequence[Unaligned]) -> tuple[PackedArray, ...]:
    """Return the arrays with consecutive places in private memory."""
    found: list[PackedArray] = []
    offset = 0
    for x in unaligned_arrays:
        v = views[x.array]
        pitch_bytes = padded_row(x.seen(v)) * v.dtype.bytes
        found.append(PackedArray(x.array, x.name, x.problem, x.is_written, x.order, offset, pitch_bytes))
        offset += _up(found[-1].bytes(v), ALLOCATED_BYTES)
    return tuple(found)


def padded_row(v: ArrayView) -> int:
    """Return the row stride in elements: each row begins on a cache line, or several short ones share a line."""
    row = _up(v.shape[-1] * v.dtype.bytes, CHUNK_BYTES)
    pitch = _up(row, PITCH_BYTES) if row > PITCH_BYTES // 2 else 1 << (row - 1).bit_length()
    return pitch // v.dtype.bytes


def private_bytes(arrays: Sequence[PackedArray], views: Sequence[ArrayView]) -> int:
    """Return the bytes of private memory for these arrays."""
    last = arrays[-1]
    return last.offset_bytes + last.bytes(views[last.array])


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


# copies -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowCopy:
    """A packing kernel for elements of so many bytes in arrays of so many axes, `count` arrays at once."""

    kind: str
    element_bytes: int
    rank: int
    count: int = 1

    @property
    def member(self) -> str:
        """The member of a file with its code."""
        return f"{self.kind}_{self.count}_{self.rank}_{self.element_bytes}"

    @property
    def is_back(self) -> bool:
        return self.kind == UNPACK

    @property
    def dtype(self) -> DType:
        return CARRIERS[self.element_bytes]

    @property
    def kernel(self) -> Kernel:
        return KERNELS[self.kind](self.dtype, self.rank, NVIDIA_LANES, self.count)

    def bound(self, v: ArrayView, r: PackedArray, memory: int) -> tuple[tuple[ArrayView, ArrayView], tuple[int, ...]]:
        """Return the launch arguments for one array: source and destination, and scalars."""
        seen, width = r.seen(v)._replace(dtype=self.dtype), CHUNK_BYTES // self.element_bytes
        *outer, cols = seen.shape
        if self.is_back:
            apart = (s // self.element_bytes % width for s in seen.strides[:-1])
            numbers = (*seen.shape, v.pointer // self.element_bytes % width, *apart)
            return (seen, r.in_rows(seen, seen.shape, memory)), numbers
        padded = r.in_rows(seen, (*outer, _up(cols, width)), memory)
        rank = len(seen.shape)
        rows = _permuted(seen, (*range(rank - 2), rank - 1, rank - 2)) if self.kind == TRANSPOSE else seen
        return (rows, padded), (*rows.shape, padded.shape[-1])


@dataclass(frozen=True)
class CopyGroup:
    """Arrays that one launch copies."""

    copy: RowCopy
    arrays: tuple[PackedArray, ...]

    def bound(self, views: Sequence[ArrayView], memory: int) -> tuple[list[ArrayView], list[int]]:
        """Return the arrays and scalars of its launch."""
        found = [self.copy.bound(views[r.array], r, memory) for r in self.arrays]
        return [v for pair, _ in found for v in pair], [n for _, numbers in found for n in numbers]


def copy_groups(
    arrays: Sequence[PackedArray], views: Sequence[ArrayView]
) -> tuple[tuple[CopyGroup, ...], tuple[CopyGroup, ...]]:
    """Return the copies before and after a launch; arrays of equal dtype size and rank share one copy."""
    same_kind: dict[tuple[Any, ...], list[PackedArray]] = {}
    for r in arrays:
        v = views[r.array]
        kind = r.copied_by(v)
        alone = r.array if kind == TRANSPOSE else None
        same_kind.setdefault((kind, v.dtype.bytes, len(v.shape), alone), []).append(r)
    groups = [
        CopyGroup(RowCopy(kind, size, rank, len(some)), tuple(some))
        for (kind, size, rank, _), some in same_kind.items()
    ]
    before, after = (tuple(g for g in groups if g.copy.is_back is is_back) for is_back in (False, True))
    return before, after


# in numpy -----------------------------------------------------------------------------------------------------------

POISON = 0xFF
"""The initial byte of private memory: NaN in every float, and -1."""


def in_numpy(arrays: Sequence[PackedArray], views: Sequence[ArrayView], main: LaneLaunch) -> Iterator[LaneLaunch]:
    """Return the launches of a call with packed arrays, with private memory in this process."""
    memory = np.full(private_bytes(arrays, views) + ALLOCATED_BYTES, POISON, np.uint8)
    at = _up(memory.ctypes.data, ALLOCATED_BYTES)
    own = list(views)
    for r in arrays:
        own[r.array] = r.padded(views[r.array], at)._replace(shape=views[r.array].shape, owner=memory)
    before, after = copy_groups(arrays, views)
    yield from (_in_numpy(group, views, at, memory) for group in before)
    yield replace(main, views=tuple(own))
    yield from (_in_numpy(group, views, at, memory) for group in after)


def _in_numpy(group: CopyGroup, views: Sequence[ArrayView], at: int, memory: object) -> LaneLaunch:
    arrays, numbers = group.bound(views, at)
    kernel = group.copy.kernel
    values = dict(zip([x.name for x in numbers_of(kernel)], numbers, strict=True))
    return LaneLaunch(
        kernel, tuple(v if i % 2 == 0 else v._replace(owner=memory) for i, v in enumerate(arrays)), values
    )
