"""Memory for one launch at a time, reused by the next."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress

from tilewave.errors import CallError, here

_PAGE_BYTES = 4096

_HUGE_BYTES = 2 << 20


class NoRoom(CallError, MemoryError):
    """The system does not have the memory that a launch needs besides its arrays."""


class Region:
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


class Scratch:
    """Scratch memory for launches, reused by the next one; its initial contents are arbitrary."""

    def __init__(self) -> None:
        self._free: list[Region] = []

    def take(self, wanted_bytes: int) -> Region:
        """Return a page-aligned region of at least so many bytes, which no concurrent launch has; see `give`."""
        try:
            region = self._free.pop()
        except IndexError:
            return Region(max(wanted_bytes, 1))
        # A small region is freed, so that there are never more regions than concurrent launches.
        return region if region.bytes >= wanted_bytes else Region(wanted_bytes)

    def give(self, region: Region) -> None:
        """Give back a region of a launch that has ended."""
        self._free.append(region)

    def free(self) -> None:
        """Return the memory that no launch has to the system."""
        self._free.clear()


def _rounded_up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple
