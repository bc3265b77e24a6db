"""Memory for one launch at a time, reused by the next."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from tilewave.errors import CallError, here

_PAGE_BYTES = 4096
"""The least distance of workers' buffers, so that no two write to one page, let alone one cache line."""

_HUGE_BYTES = 2 << 20


class NoRoom(CallError, MemoryError):
    """The system does not have the memory that a launch needs besides its arrays."""


class _Region:
    """Zeroed private memory of this process; a huge page where it is large enough to fill one."""

    __slots__ = ("address", "bytes", "memory")

    def __init__(self, wanted_bytes: int) -> None:
        huge = wanted_bytes >= _HUGE_BYTES
        self.bytes = _rounded_up(wanted_bytes, _HUGE_BYTES if huge else _PAGE_BYTES)
        try:
            # Private: the default is shared, and a child of fork() would write into its parent's buffers.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self.memory = mmap.mmap(-1, self.bytes + (_HUGE_BYTES if huge else 0), flags=flags)
        except (OSError, OverflowError) as error:
            raise NoRoom(
                f"no room for {wanted_bytes:,} bytes of scratch memory: {error}",
                loc=here(),
                remedy="a smaller tile, fewer threads (TILEWAVE_NUM_THREADS) or smaller arrays need less",
            ) from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.address = _rounded_up(start, _HUGE_BYTES) if huge else start
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                self.memory.madvise(mmap.MADV_HUGEPAGE)


class Lease:
    """One launch's scratch memory, until the `with` block ends: worker w's buffer is at address + w · stride_bytes."""

    __slots__ = ("_free", "_region", "address", "stride_bytes")

    def __init__(self, region: _Region, stride_bytes: int, free: list[_Region]) -> None:
        self.address = region.address
        self.stride_bytes = stride_bytes
        self._region = region
        self._free = free

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self._free.append(self._region)


class Scratch:
    """Scratch memory for launches, reused by the next one; a buffer's initial contents are arbitrary."""

    def __init__(self) -> None:
        self._free: list[_Region] = []

    def lease(self, workers: int, bytes_each: int) -> Lease:
        """Return a page-aligned buffer of at least `bytes_each` for every worker, which no concurrent lease has."""
        stride = _rounded_up(max(bytes_each, 1), _PAGE_BYTES)
        try:
            region = self._free.pop()
        except IndexError:
            region = _Region(workers * stride)
        if region.bytes < workers * stride:
            # The small region is freed, so that there are never more regions than concurrent leases.
            region = _Region(workers * stride)
        return Lease(region, stride, self._free)

    def free(self) -> None:
        """Return the memory that no lease holds to the system."""
        self._free.clear()


def _rounded_up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple
