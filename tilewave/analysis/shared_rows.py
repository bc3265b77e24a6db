"""Placement of a tile's rows in shared memory, from the layouts in which lanes write it and read it back.

A lane's access covers the elements that are contiguous both in its registers and along a row in memory; the first of
them is its address. Lanes that are served together have a bank conflict where these fall on the same banks
(`machine/banks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd

import numpy as np

from tilewave.ir.placements import elements, offset, row_elements
from tilewave.ir.types import DTYPES, Memory, Padded, Placement, Swizzle, Swizzled, SwizzledByBits
from tilewave.layouts.formulas import Layout
from tilewave.machine.banks import NO_LANE, Array, Kind, Ports
from tilewave.records import dataclass

PERIODS, EVERY = (16, 8, 4, 2), (1, 2, 4, 8)
"""Parameters of swizzles in the order of trying: the longest period most often has no bank conflicts."""
REPEATING_ROWS = max(PERIODS) * max(EVERY)
"""Rows after which every swizzle repeats, so that more rows add no information."""
BY_BITS = (
    # Written transposed: eight lanes write to rows eight apart, each to eight neighbours, and then read
    # neighbours. Rows four apart are swizzled the same way, so that one instruction can write two of them.
    (2, 4, 0, 1, 2, 4),  # for blocks of 16 rows
    (1, 2, 0, 1, 4, 2),  # of 32 rows
    (1, 2, 4, 1, 2, 4),  # and where a lane takes several consecutive chunks of a row
    # Transposing loads: four neighbouring rows, and in blocks of 16 also those eight further on.
    (2, 4, 0, 8),
    (2, 4, 0, 0, 8),  # 16 further on, where a lane takes two consecutive groups of rows
    (4, 8),
    (1, 2, 0, 0, 4, 8),  # rows in order: four neighbours, and those 16 and 32 further on
)
"""Swizzles by the bits of a row's number, for cases in which `Swizzled` has bank conflicts."""
WIDE_PADS, NARROW_PADS = (16, 32), (8, 4)
"""Padding bytes after each row; narrow padding splits wide accesses."""
_SIZED = {dtype.bytes: dtype for dtype in DTYPES.values()}
"""Some dtype of each size, because bank conflicts depend on the size alone."""


@dataclass(frozen=True)
class StagedAccess:
    """The layouts in which lanes write a tile to shared memory and read it back; they decide a placement's cost."""

    shape: tuple[int, ...]
    element_bytes: int
    written: tuple[Layout, ...]
    read: tuple[Layout, ...]
    waves: int
    lanes: int
    readers: int = 1
    """How often all of it is read."""

    def memory(self, placement: Placement | None) -> Memory:
        return Memory(self.shape, _SIZED[self.element_bytes], "shared", placement)


@dataclass(frozen=True)
class Cost:
    """Cycles of shared memory for all lanes' writes and reads: (without bank conflicts, with them)."""

    placement: Placement | None
    bytes: int
    write: tuple[int, int]
    read: tuple[int, int]

    @property
    def conflicts(self) -> int:
        return self.write[1] - self.write[0] + self.read[1] - self.read[0]


@lru_cache(maxsize=256)
def cheapest(ports: Ports, access: StagedAccess) -> Cost:
    """Return the first placement without bank conflicts; where all have some, the one with the fewest.

    Narrow padding is tried last.
    """
    found = [cost(ports, access, None)]
    candidates: list[Placement] = [
        *swizzles(access, ports.widest_bytes),
        *by_bits(access, ports.widest_bytes),
        *paddings((*WIDE_PADS, *NARROW_PADS), access),
    ]
    for candidate in candidates:
        if not found[-1].conflicts:
            return found[-1]
        found.append(cost(ports, access, candidate))
    return min(found, key=lambda c: (c.conflicts, c.write[1] + c.read[1]))


def swizzles(access: StagedAccess, widest_bytes: int) -> Iterator[Swizzled]:
    """Yield swizzles of chunks as wide as an access, and narrower ones where lanes read fewer elements at once."""
    per_lane = max(_neighbours(layout) for layout in access.read)
    for chunk in dict.fromkeys((max(per_lane, widest_bytes // access.element_bytes), per_lane)):
        chunks, left = divmod(access.shape[-1], chunk)
        for period in PERIODS:
            if not left and chunks % period == 0:
                yield from (Swizzled(chunk, period, every) for every in EVERY)


def by_bits(access: StagedAccess, widest_bytes: int) -> Iterator[SwizzledByBits]:
    """Yield the swizzles of BY_BITS for which rows have enough chunks."""
    chunk = widest_bytes // access.element_bytes
    for moves in BY_BITS:
        if access.shape[-1] % (chunk << max(moves).bit_length()) == 0:
            yield SwizzledByBits(chunk, moves)


def paddings(bytes: tuple[int, ...], access: StagedAccess) -> Iterator[Padded]:
    return (Padded(n // access.element_bytes) for n in bytes if n >= access.element_bytes)


def cost(ports: Ports, access: StagedAccess, placement: Placement | None) -> Cost:
    memory, size = access.memory(placement), access.element_bytes
    most = gcd(max(1, ports.widest_bytes // size), row_elements(memory) if len(access.shape) > 1 else 0)
    if isinstance(placement, Swizzle):
        most = min(most, placement.chunk)

    def cycles(kind: Kind, layouts: tuple[Layout, ...], times: int) -> tuple[int, int]:
        ideal = actual = 0
        for layout in layouts:
            starts, piece = accesses(layout, access.waves, access.lanes, most)
            at = np.where(starts[0] < 0, NO_LANE, offset(memory, *starts) * size)
            took = ports.of(kind, piece * size).cycles(at)
            ideal, actual = ideal + took[0] * times, actual + took[1] * times
        return ideal, actual

    written, read = cycles("write", access.written, 1), cycles("read", access.read, access.readers)
    return Cost(placement, elements(memory) * size, written, read)


@lru_cache(maxsize=64)
def accesses(layout: Layout, waves: int, lanes: int, most: int) -> tuple[Array, int]:
    """Return the first positions of all waves' accesses, axes x accesses x lanes, and the elements of each access."""
    piece = gcd(_neighbours(layout), most)
    positions = layout.positions(waves, lanes)[..., ::piece, :]
    found = np.full((waves * lanes, *positions.shape[1:]), NO_LANE)
    found[: len(positions)] = positions
    by_lane = found.reshape(waves, lanes, -1, layout.rank)
    return by_lane.transpose(3, 0, 2, 1).reshape(layout.rank, -1, lanes), piece


def _neighbours(layout: Layout) -> int:
    """Return how many elements are contiguous along a row and in consecutive registers."""
    along = (*[0] * (layout.rank - 1), 1)
    return layout.registers[-1] if layout.steps[-1] == along else 1
