"""Memory that only the launches of one kernel share."""

from __future__ import annotations

from tilewave.runtime.cuda_driver import CudaDriver, DeviceMemory
from tilewave.runtime.graph_memory import GraphMemory

PARTS_OF_OCTAVE = 8
"""Sizes of memory between one power of two and the next: a few sizes serve all calls, and little is wasted."""


class PrivateMemory:
    """Memory that one kernel's launches on one stream share; it grows, and has arbitrary contents between launches.

    Launches that a graph records use memory of that graph, as with `ScratchMemory`. Memory that became too small is
    kept, for launches that were prepared with it; each piece is at least half as large again as the one before, so
    that all of them together are no more than three times the last.
    """

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._of_streams: dict[tuple[int, int], list[DeviceMemory]] = {}
        self._of_graphs: dict[tuple[int, int], GraphMemory] = {}
        """Memory of graphs, by device and size."""

    def at_least(self, size: int, driver: CudaDriver, number: int, stream: int) -> int:
        """Return the address of at least `size` bytes."""
        recording = driver.recording(number, stream)
        if recording is not None:
            return self._recorded(_rounded(size), driver, number).address(recording, stream)
        kept = self._of_streams.setdefault((number, stream), [])
        if not kept or kept[-1].bytes < size:
            wanted = max(size, kept[-1].bytes * 3 // 2 if kept else 0)
            kept.append(DeviceMemory.zeroed(driver, number, wanted, self._kernel))
        return kept[-1].address

    def _recorded(self, size: int, driver: CudaDriver, number: int) -> GraphMemory:
        found = self._of_graphs.get((number, size))
        if found is None:
            with driver.beside_recordings():
                found = self._of_graphs[number, size] = GraphMemory(driver, number, size, self._kernel)
        return found


def _rounded(size: int) -> int:
    """Return the size rounded up to the next of a few sizes."""
    part = max(1, (1 << size.bit_length() - 1) // PARTS_OF_OCTAVE)
    return -(-size // part) * part
