"""Global memory: the caller's arrays at made-up addresses with guards between them, and out-of-bounds accesses."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from tilewave.emulator.numbers import I64, U8, U32, Array
from tilewave.errors import CallError
from tilewave.records import dataclass

FIRST_ADDRESS = 0x7000_0000_0000
GUARD = 0x10000
AFTER = 0xA5
"""The bytes after a buffer in its last word."""


@dataclass(frozen=True)
class Buffer:
    """Bytes of the caller's, or of the launch itself, and where a kernel finds them."""

    name: str
    address: int
    size: int
    writable: bool
    host: int = 0
    """Address of the caller's bytes in this process; 0 for a buffer that belongs to the launch."""


@dataclass(frozen=True)
class OutsideBuffers:
    """Lanes with out-of-bounds accesses: one of them, and the nearest buffer."""

    lane: int
    address: int
    nearest: Buffer | None
    reason: str


class GlobalMemory:
    """Buffers in one arena; a byte of an address is `arena[address - first]` once its buffer is known."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._next = FIRST_ADDRESS
        self.words: Array = np.zeros(4, U32)

    def add(self, name: str, size: int, *, writable: bool, host: int = 0, address: int = 0) -> Buffer:
        """Add a buffer of `size` bytes after a guard, or at its address; call `fill` after the last one."""
        buffer = Buffer(name, address or self._next, size, writable, host)
        self.buffers = sorted([*self.buffers, buffer], key=lambda b: b.address)
        if not address:
            self._next += -(-size // GUARD) * GUARD + GUARD
        return buffer

    def fill(self, contents: dict[str, bytes]) -> None:
        """Lay out the arena and copy in what the caller's buffers and the launch's hold."""
        self._starts = [buffer.address for buffer in self.buffers]
        self._start_of = np.array(self._starts, I64)
        self._end_of = np.array([b.address + b.size for b in self.buffers], I64)
        self._word_end_of = -(-self._end_of // 4) * 4
        packed, self._shift = 0, []
        for buffer in self.buffers:
            self._shift.append(buffer.address - packed)
            packed += -(-buffer.size // 64) * 64 + 64
        self._shift_of = np.array(self._shift, I64)
        try:
            self.words = np.zeros(packed // 4, U32)
        except MemoryError:
            what = f"the arrays span {packed} bytes, which do not fit into memory a second time"
            raise CallError(what, remedy="pass smaller arrays, or copies of what the kernel touches") from None
        self.bytes = self.words.view(U8)
        self.quads = self.words.reshape(-1, 4)
        for buffer, shift in zip(self.buffers, self._shift, strict=True):
            at = buffer.address - shift
            if buffer.host:
                ctypes.memmove(self.bytes.ctypes.data + at, buffer.host, buffer.size)
            else:
                self.bytes[at : at + buffer.size] = np.frombuffer(contents[buffer.name], U8)
            self._after(buffer, shift)[:] = AFTER

    def _after(self, buffer: Buffer, shift: int) -> Array:
        """Return the bytes after a buffer in its last word."""
        end = buffer.address + buffer.size - shift
        return self.bytes[end : -(-end // 4) * 4]

    def changed_after(self) -> Buffer | None:
        """Return a buffer after which atomic operations on its last word changed bytes, if there is one."""
        changed = (
            b for b, shift in zip(self.buffers, self._shift, strict=True) if (self._after(b, shift) != AFTER).any()
        )
        return next(changed, None)

    @property
    def places(self) -> list[int]:
        """Where each buffer begins in the arena."""
        return [b.address - shift for b, shift in zip(self.buffers, self._shift, strict=True)]

    def write_back(self) -> None:
        """Give the caller's arrays what the kernel stored."""
        for buffer, shift in zip(self.buffers, self._shift, strict=True):
            if buffer.host and buffer.writable and buffer.size:
                at = buffer.address - shift
                ctypes.memmove(buffer.host, self.bytes.ctypes.data + at, buffer.size)

    # -- access ------------------------------------------------------------------------------------------------------

    def locate(
        self, addresses: Array, size: int, *, stores: bool, words: bool = False
    ) -> tuple[Array, Array | None, OutsideBuffers | None]:
        """Return each lane's offset in the arena, which lanes are inside (None: all), and the first that is not.

        With `words`, an atomic access may extend past the end of a buffer, within the word of its last byte: machines
        have none for fewer bytes.
        """
        low, high = int(addresses.min()), int(addresses.max())
        at = bisect_right(self._starts, low) - 1
        if at >= 0 and high + size <= self.buffers[at].address + self.buffers[at].size:
            buffer = self.buffers[at]
            if stores and not buffer.writable:
                outside = OutsideBuffers(0, low, buffer, f"{buffer.name} is read-only")
                return addresses - self._shift[at], np.zeros(len(addresses), bool), outside
            return addresses - self._shift[at], None, None
        return self._locate_each(addresses, size, stores, self._word_end_of if words else self._end_of)

    def _locate_each(
        self, addresses: Array, size: int, stores: bool, ends: Array
    ) -> tuple[Array, Array | None, OutsideBuffers | None]:
        at = np.searchsorted(self._start_of, addresses, "right") - 1
        inside = (at >= 0) & (addresses + size <= ends[at])
        if stores:
            inside &= np.array([b.writable for b in self.buffers])[at]
        offsets = np.where(inside, addresses - self._shift_of[at], 0)
        if inside.all():
            return offsets, None, None
        lane = int(np.argmin(inside))
        address = int(addresses[lane])
        nearest = min(self.buffers, key=lambda b: min(abs(address - b.address), abs(address - b.address - b.size)))
        held = nearest.address <= address and address + size <= nearest.address + nearest.size
        return offsets, inside, OutsideBuffers(lane, address, nearest, f"{nearest.name} is read-only" if held else "")

    def load_words(self, offsets: Array, count: int) -> Array:
        """`count` 32-bit words per lane."""
        found: Array
        if count == 4 and not (offsets & 15).any():
            found = self.quads[offsets >> 4]
        elif not (offsets & 3).any():
            found = self.words[(offsets >> 2)[:, None] + np.arange(count)]
        else:
            found = self.load_bytes(offsets, 4 * count).view(U32)
        return found

    def load_bytes(self, offsets: Array, size: int) -> Array:
        return self.bytes[offsets[:, None] + np.arange(size)]

    def store_bytes(self, offsets: Array, data: Array) -> None:
        """One row of bytes per lane; of two lanes at one address the later wins."""
        size = data.shape[1]
        if size % 4 == 0 and not (offsets & 3).any():
            self.words[(offsets >> 2)[:, None] + np.arange(size // 4)] = np.ascontiguousarray(data).view(U32)
        else:
            self.bytes[offsets[:, None] + np.arange(size)] = data


class ZeroMemory(GlobalMemory):
    """Every address holds zeros and swallows stores: to follow a kernel's addresses without its data."""

    def locate(
        self, addresses: Array, size: int, *, stores: bool, words: bool = False
    ) -> tuple[Array, Array | None, OutsideBuffers | None]:
        offsets, inside, _ = super().locate(addresses, size, stores=stores, words=words)
        return offsets, inside, None


def spans(arrays: Sequence[Array]) -> list[tuple[int, int, bool]]:
    """The bytes that arrays cover, as (start, end, writable), in the order of the arrays; what overlaps is one span."""
    bounds = sorted((*_byte_bounds(a), a.flags.writeable) for a in arrays if a.size)
    merged: list[tuple[int, int, bool]] = []
    for start, end, writable in bounds:
        if merged and start < merged[-1][1]:
            before = merged.pop()
            merged.append((before[0], max(before[1], end), before[2] or writable))
        else:
            merged.append((start, end, writable))
    order = [int(a.ctypes.data) for a in arrays]
    return sorted(merged, key=lambda span: next(at for at, host in enumerate(order) if span[0] <= host < span[1]))


def _byte_bounds(array: Array) -> tuple[int, int]:
    """Return the address of an array's lowest byte and the address after its highest."""
    start = end = int(array.ctypes.data)
    for extent, stride in zip(array.shape, array.strides, strict=True):
        start += min(0, (extent - 1) * stride)
        end += max(0, (extent - 1) * stride)
    return start, end + array.itemsize
