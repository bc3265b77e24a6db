"""Memory that a call's launches fill and read, shared by all kernels: the calls of one stream run one after another."""

from __future__ import annotations

import threading
from functools import cache

from tilewave.forks import LOCKS
from tilewave.runtime.cuda_driver import CudaDriver, DeviceMemory, Recording
from tilewave.runtime.graph_memory import GraphMemory

PARTS_OF_OCTAVE = 8
"""Sizes of memory between one power of two and the next: a few sizes serve all graphs, and little is wasted."""
WHOLE_CALLS = threading.RLock()
"""Held while a call with private memory is launched: no other thread's launches may come between its own."""
LOCKS.append(WHOLE_CALLS)


class PrivateMemory:
    """Memory that the calls of all kernels on one stream share; it grows, and has arbitrary contents between calls.

    Calls that a graph records use memory of that graph, as with `ScratchMemory`. Memory that became too small is kept,
    for calls that were prepared with it; each piece is at least half as large again as the one before, so that all of
    them together are no more than three times the last.
    """

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._of_streams: dict[tuple[int, int], list[DeviceMemory]] = {}
        self._of_graphs: dict[tuple[int, int], GraphMemory] = {}
        """Memory of graphs, by device and size."""

    def at_least(self, size: int, number: int, stream: int, kernel: str) -> int:
        """Return the address of at least `size` bytes for a stream of a device; an error names the kernel."""
        recording = self._driver.recording(number, stream)
        with WHOLE_CALLS:
            if recording is not None:
                return self._recorded(size, number, recording, stream, kernel)
            kept = self._of_streams.setdefault((number, stream), [])
            last = kept[-1].bytes if kept else 0
            if last < size:
                kept.append(DeviceMemory.zeroed(self._driver, number, _next(last, size), kernel))
            return kept[-1].address

    def _recorded(self, size: int, number: int, recording: Recording, stream: int, kernel: str) -> int:
        """Return the address of memory that belongs to the graph."""
        of_device = {had: memory for (device, had), memory in self._of_graphs.items() if device == number}
        last = max((had for had, memory in of_device.items() if memory.is_held(recording, stream)), default=0)
        wanted = last if last >= size else _rounded(_next(last, size))
        if wanted not in of_device:
            with self._driver.beside_recordings():
                of_device[wanted] = self._of_graphs[number, wanted] = GraphMemory(self._driver, number, wanted, kernel)
        return of_device[wanted].address(recording, stream)


@cache
def private_memory(driver: CudaDriver) -> PrivateMemory:
    """Return the private memory of all kernels."""
    return PrivateMemory(driver)


def _next(last: int, size: int) -> int:
    """Return the size of the piece after one of `last` bytes that is too small."""
    return max(size, last * 3 // 2)


def _rounded(size: int) -> int:
    """Return the size rounded up to the next of a few sizes."""
    part = max(1, (1 << size.bit_length() - 1) // PARTS_OF_OCTAVE)
    return -(-size // part) * part
