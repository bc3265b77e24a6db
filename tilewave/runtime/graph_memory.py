"""Scratch memory of launches that CUDA graphs record: each recording has a separate piece, freed with its graph.

A graph may run at any time, concurrently with other graphs and streams, so what a kernel leaves in memory for its next
launch must belong to one graph. Launches that one recording takes from one stream run in order, and share a piece.

The driver reports the end of a graph by calling a C function on one of its threads, which may neither call the driver
nor wait for Python. `sem_post` does neither; the next request for memory checks which semaphores have been posted.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from functools import cache
from typing import Any, NamedTuple

from tilewave.runtime.cuda_driver import CudaDriver, DeviceMemory, Recording

SEMAPHORE_BYTES = 64
"""At least the size of a sem_t in every known C library."""
# A count, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, and CU_GRAPH_USER_OBJECT_MOVE: the graph takes over the one reference.
_ONE_REFERENCE, _NO_WAITING, _MOVED = 1, 1, 1


class GraphMemory:
    """Zeroed memory of one size on one device, a piece for each recording and stream."""

    def __init__(self, driver: CudaDriver, number: int, size: int, kernel: str) -> None:
        self._driver, self._number, self._size, self._kernel = driver, number, size, kernel
        self._held: dict[tuple[int, int], _Piece] = {}
        """Pieces in use, by recording and stream."""
        self._free = [DeviceMemory.zeroed(driver, number, size, kernel)]
        """Free pieces; one is allocated ahead, so that the first recording need not allocate."""

    def address(self, recording: Recording, stream: int) -> int:
        """Return the address of the memory of launches that are recorded from a stream."""
        held = self._held.get((recording.number, stream))
        if held is None:
            self._take_back()
            memory = self._free.pop() if self._free else self._more()
            held = self._held[recording.number, stream] = _Piece(memory, self._end_of(recording.graph))
        return held.memory.address

    def is_held(self, recording: Recording, stream: int) -> bool:
        """Return whether launches that are recorded from a stream have a piece already."""
        return (recording.number, stream) in self._held

    def _more(self) -> DeviceMemory:
        with self._driver.beside_recordings():
            return DeviceMemory.zeroed(self._driver, self._number, self._size, self._kernel)

    def _take_back(self) -> None:
        """Reclaim the memory of destroyed graphs; it needs no clearing, as kernels leave zeros in it."""
        for key, piece in list(self._held.items()):
            if piece.end is not None and piece.end.has_come():
                self._free.append(self._held.pop(key).memory)

    def _end_of(self, graph: int) -> _End | None:
        """Return a semaphore that is posted when the graph and its instances are gone; None without semaphores."""
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
    """A semaphore that the driver posts once, in malloc'ed memory: the driver may still post after Python has ended."""

    def __init__(self) -> None:
        library = _semaphores()
        self.at = library.malloc(SEMAPHORE_BYTES)
        library.sem_init(self.at, 0, 0)
        self.post = ctypes.cast(library.sem_post, c_void_p)

    def has_come(self) -> bool:
        """Return whether the semaphore was posted; after True it is freed, and must not be queried again."""
        library = _semaphores()
        if library.sem_trywait(self.at) != 0:
            return False
        library.free(self.at)
        return True


@cache
def _semaphores() -> Any:
    """Return the C library, if it has semaphores."""
    try:
        library = ctypes.CDLL(None)
        for name in ("sem_init", "sem_post", "sem_trywait", "free"):
            getattr(library, name).argtypes = [c_void_p, c_int, ctypes.c_uint] if name == "sem_init" else [c_void_p]
        library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], c_void_p
    except (AttributeError, OSError, TypeError):  # Windows has neither the functions nor a library without a name
        return None
    return library
