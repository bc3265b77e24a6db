"""Arrays that the copy engine cannot take, copied into memory of the launch where it can.

Rows that begin anywhere are copied, once per call, into rows that begin on cache lines (`ir/repack.py`); the product is
then computed by the very code that arrays take which lie so from the beginning. What is written comes back by a copy of
the other kind. An array's sizes stay what they are, so nothing is multiplied that the caller did not give: where a tile
hangs over the end of a row, the engine brings zeros, whatever the private memory holds there.

Whether that pays is decided in one place, `analysis/repacking.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewave.backend.protocol import LaneLaunch
from tilewave.ir.core import Kernel
from tilewave.ir.launch import numbers_of
from tilewave.ir.repack import CHUNK_BYTES, MOST_CHUNKS, pack_rows, unpack_rows
from tilewave.ir.types import DTYPES, DType
from tilewave.machine.chips import NVIDIA_LANES
from tilewave.runtime.arrays import ArrayView

PITCH_BYTES = 128
"""Rows of private memory lie at multiples of a cache line."""
ALLOCATED_BYTES = 256
"""Where CUDA allocates memory it begins at multiples of this ("CUDA C++ Programming Guide", device memory accesses)."""
CARRIERS = {1: DTYPES["i8"], 2: DTYPES["f16"], 4: DTYPES["i32"], 8: DTYPES["i64"]}
"""What elements of so many bytes are copied as: copies ask for bits alone."""


@dataclass(frozen=True)
class RepackedArray:
    """An array that a launch finds in rows on cache lines, `offset_bytes` into its private memory."""

    array: int
    name: str
    problem: str
    """Why, as said behind its name."""
    is_written: bool
    offset_bytes: int
    pitch_bytes: int

    def bytes(self, shape: Sequence[int]) -> int:
        return prod(shape[:-1]) * self.pitch_bytes

    def strides(self, v: ArrayView) -> tuple[int, ...]:
        found = [v.dtype.bytes]
        for step in (self.pitch_bytes, *v.shape[-2:0:-1])[: len(v.shape) - 1]:
            found.insert(0, step if len(found) == 1 else step * found[0])
        return tuple(found)

    def padded(self, v: ArrayView, memory: int = ALLOCATED_BYTES) -> ArrayView:
        """The array in private memory; rows that are written end with the last chunk, since stores are cut there."""
        cols = _up(v.shape[-1], CHUNK_BYTES // v.dtype.bytes) if self.is_written else v.shape[-1]
        at = memory + self.offset_bytes
        return replace(v, pointer=at, shape=(*v.shape[:-1], cols), strides=self.strides(v), readonly=False)


@dataclass(frozen=True)
class Misfit:
    """An array that keeps a launch from copies."""

    array: int
    name: str
    problem: str
    is_written: bool


def repacked(views: Sequence[ArrayView], misfits: Sequence[Misfit]) -> tuple[RepackedArray, ...]:
    """Places for arrays, one behind the other."""
    found: list[RepackedArray] = []
    offset = 0
    for x in misfits:
        v = views[x.array]
        pitch_bytes = padded_row(v) * v.dtype.bytes
        found.append(RepackedArray(x.array, x.name, x.problem, x.is_written, offset, pitch_bytes))
        offset += _up(found[-1].bytes(v.shape), ALLOCATED_BYTES)
    return tuple(found)


def padded_row(v: ArrayView) -> int:
    """Elements from one row to the next, where each begins on a cache line."""
    return _up(v.shape[-1], PITCH_BYTES // v.dtype.bytes)


def private_bytes(arrays: Sequence[RepackedArray], views: Sequence[ArrayView]) -> int:
    """All that they take."""
    last = arrays[-1]
    return last.offset_bytes + last.bytes(views[last.array].shape)


def can_repack(v: ArrayView) -> bool:
    """Whether its rows can be copied: neighbours lie side by side, and a copy has few enough chunks."""
    chunks = prod(v.shape[:-1]) * (v.shape[-1] * v.dtype.bytes // CHUNK_BYTES + 2)
    return v.strides[-1] == v.dtype.bytes and 0 < chunks < MOST_CHUNKS and v.dtype.bytes in CARRIERS


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


# copies -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowCopy:
    """One of the two kernels, for elements of so many bytes in arrays of so many axes, several at once."""

    is_back: bool
    element_bytes: int
    rank: int
    count: int = 1

    @property
    def member(self) -> str:
        """What a file calls its code."""
        return f"{self.kernel.name}_{self.count}_{self.rank}_{self.element_bytes}"

    @property
    def dtype(self) -> DType:
        return CARRIERS[self.element_bytes]

    @property
    def kernel(self) -> Kernel:
        make = unpack_rows if self.is_back else pack_rows
        return make(self.dtype, self.rank, NVIDIA_LANES, self.count)

    def numbers(self, v: ArrayView) -> tuple[int, ...]:
        """Those that a launch is given for one array."""
        width = CHUNK_BYTES // self.element_bytes
        if not self.is_back:
            return (*v.shape, _up(v.shape[-1], width))
        begin = v.pointer // self.element_bytes % width
        return (*v.shape, begin, *(s // self.element_bytes % width for s in v.strides[:-1]))

    def arrays(self, v: ArrayView, r: RepackedArray, memory: int) -> tuple[ArrayView, ArrayView]:
        """The rows, and what they are copied to or from."""
        rows = replace(v, dtype=self.dtype)
        padded = r.padded(rows, memory)
        cols = v.shape[-1] if self.is_back else _up(v.shape[-1], CHUNK_BYTES // self.element_bytes)
        return rows, replace(padded, shape=(*v.shape[:-1], cols))


@dataclass(frozen=True)
class CopyGroup:
    """Arrays that one launch copies."""

    copy: RowCopy
    arrays: tuple[RepackedArray, ...]

    def bound(self, views: Sequence[ArrayView], memory: int) -> tuple[list[ArrayView], list[int]]:
        """What it is launched with: arrays and numbers."""
        found = [(self.copy.arrays(views[r.array], r, memory), self.copy.numbers(views[r.array])) for r in self.arrays]
        return [v for pair, _ in found for v in pair], [n for _, numbers in found for n in numbers]


def copy_groups(
    arrays: Sequence[RepackedArray], views: Sequence[ArrayView]
) -> tuple[tuple[CopyGroup, ...], tuple[CopyGroup, ...]]:
    """Those in front of a launch, and those behind it: arrays of equal dtypes and axes go together."""
    alike: dict[tuple[bool, int, int], list[RepackedArray]] = {}
    for r in arrays:
        v = views[r.array]
        alike.setdefault((r.is_written, v.dtype.bytes, len(v.shape)), []).append(r)
    groups = [CopyGroup(RowCopy(*kind, len(some)), tuple(some)) for kind, some in alike.items()]
    before, after = (tuple(g for g in groups if g.copy.is_back is is_back) for is_back in (False, True))
    return before, after


# in numpy -----------------------------------------------------------------------------------------------------------

POISON = 0xFF
"""What every byte of private memory holds at first: no number of any float, and -1."""


def in_numpy(arrays: Sequence[RepackedArray], views: Sequence[ArrayView], main: LaneLaunch) -> Iterator[LaneLaunch]:
    """The launches of a call whose arrays are repacked, with private memory of this process."""
    memory = np.full(private_bytes(arrays, views) + ALLOCATED_BYTES, POISON, np.uint8)
    at = _up(memory.ctypes.data, ALLOCATED_BYTES)
    own = list(views)
    for r in arrays:
        own[r.array] = replace(r.padded(views[r.array], at), shape=views[r.array].shape, owner=memory)
    before, after = copy_groups(arrays, views)
    yield from (_in_numpy(group, views, at, memory) for group in before)
    yield replace(main, views=tuple(own))
    yield from (_in_numpy(group, views, at, memory) for group in after)


def _in_numpy(group: CopyGroup, views: Sequence[ArrayView], at: int, memory: object) -> LaneLaunch:
    arrays, numbers = group.bound(views, at)
    kernel = group.copy.kernel
    values = dict(zip([x.name for x in numbers_of(kernel)], numbers, strict=True))
    return LaneLaunch(
        kernel, tuple(v if i % 2 == 0 else replace(v, owner=memory) for i, v in enumerate(arrays)), values
    )
