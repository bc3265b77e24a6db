"""Memory of launches that CUDA graphs record: each recording has its own, and gives it back when its graph is gone.

A graph runs whenever its owner likes, beside other graphs and beside streams, so what a kernel leaves in memory for its
next launch must be the graph's alone. Launches that one recording takes from one stream run one after the other, and
share a piece.

When a graph is gone, nobody tells Python: the driver calls a function of C from a thread of its own, which may neither
call the driver nor wait for Python. `sem_post` does neither; whoever needs memory next looks who has posted.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from functools import cache
from typing import Any, NamedTuple

from tilewave.runtime.cuda_driver import CudaDriver, DeviceMemory, Recording

SEMAPHORE_BYTES = 64
"""Enough for a sem_t of every C library that we know."""
_ONE_REFERENCE, _NO_WAITING, _MOVED = 1, 1, 1


class GraphMemory:
    """Zeroed pieces of one size on one device."""

    def __init__(self, driver: CudaDriver, number: int, size: int, kernel: str) -> None:
        self._driver, self._number, self._size, self._kernel = driver, number, size, kernel
        self._held: dict[tuple[int, int], _Piece] = {}
        """By recording and stream."""
        self._free = [DeviceMemory.zeroed(driver, number, size, kernel)]
        """The first recording finds one that it need not ask for meanwhile."""

    def address(self, recording: Recording, stream: int) -> int:
        """Where the launches have theirs that are recorded from a stream."""
        held = self._held.get((recording.number, stream))
        if held is None:
            self._take_back()
            memory = self._free.pop() if self._free else self._more()
            held = self._held[recording.number, stream] = _Piece(memory, self._end_of(recording.graph))
        return held.memory.address

    def _more(self) -> DeviceMemory:
        with self._driver.beside_recordings():
            return DeviceMemory.zeroed(self._driver, self._number, self._size, self._kernel)

    def _take_back(self) -> None:
        """What graphs have left that are gone by now; kernels leave zeros behind."""
        for key, piece in list(self._held.items()):
            if piece.end is not None and piece.end.has_come():
                self._free.append(self._held.pop(key).memory)

    def _end_of(self, graph: int) -> _End | None:
        """What is told when the graph is gone, with all that was made of it; nothing where the system cannot."""
        if _semaphores() is None:
            return None
        end, handle = _End(), c_void_p()
        driver, kernel = self._driver, self._kernel
        with driver.current(self._number):
            driver.call(kernel, "cuUserObjectCreate", byref(handle), end.at, end.post, _ONE_REFERENCE, _NO_WAITING)
            driver.call(kernel, "cuGraphRetainUserObject", graph, handle, _ONE_REFERENCE, _MOVED)
        return end


class _Piece(NamedTuple):
    memory: DeviceMemory
    end: _End | None


class _End:
    """A semaphore that the driver posts once. It is C's memory: a driver that ends after Python may still post."""

    def __init__(self) -> None:
        library = _semaphores()
        self.at = library.malloc(SEMAPHORE_BYTES)
        library.sem_init(self.at, 0, 0)
        self.post = ctypes.cast(library.sem_post, c_void_p)

    def has_come(self) -> bool:
        """Whether it was posted; asked until it was, and then no more."""
        library = _semaphores()
        if library.sem_trywait(self.at) != 0:
            return False
        library.free(self.at)
        return True


@cache
def _semaphores() -> Any:
    """The C library, if it has semaphores."""
    try:
        library = ctypes.CDLL(None)
        for name in ("sem_init", "sem_post", "sem_trywait", "free"):
            getattr(library, name).argtypes = [c_void_p, c_int, ctypes.c_uint] if name == "sem_init" else [c_void_p]
        library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], c_void_p
    except (AttributeError, OSError, TypeError):  # Windows has neither the functions nor a library without a name
        return None
    return library
