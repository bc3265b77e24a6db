"""Cycles of shared memory accesses: lanes of one phase that access different words of one bank conflict.

Addresses are in bytes; lanes that access the same word are served together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np

from tilewave.machine.chips import BANK_BYTES, Phases, SharedMemory
from tilewave.records import dataclass

Array = np.ndarray[Any, Any]
Kind = Literal["read", "write"]
NO_LANE = -1
"""The address of a lane that does not access memory."""


@dataclass(frozen=True)
class Port:
    """The banks of a shared memory and the phases of a wave, for accesses of one width."""

    banks: int
    phases: Phases
    bytes: int

    def cycles(self, addresses: Array) -> tuple[int, int]:
        """Return the cycles of all accesses without bank conflicts, and with them; addresses: … x lanes."""
        accesses, times = _distinct(addresses.reshape(-1, addresses.shape[-1]))
        words = accesses[:, np.array(self.phases), None] // BANK_BYTES  # accesses x phases x lanes x words of a lane
        words = np.where(words < 0, NO_LANE, words + np.arange(max(1, self.bytes // BANK_BYTES)))
        words = np.sort(words.reshape(*words.shape[:2], -1))
        first = np.diff(words, prepend=NO_LANE) > 0
        turns = np.zeros((*words.shape[:2], self.banks), np.int64)
        access, phase, _ = np.nonzero(first)
        np.add.at(turns, (access, phase, words[first] % self.banks), 1)
        longest = turns.max(axis=-1)
        return int(((longest > 0).sum(axis=-1) * times).sum()), int((longest.sum(axis=-1) * times).sum())


@dataclass(frozen=True)
class Ports:
    """The ports of one shared memory, by the bytes of an access."""

    read: tuple[Port, ...]
    write: tuple[Port, ...]

    @property
    def widest_bytes(self) -> int:
        """The widest access of a lane, for reads and writes."""
        return min(max(port.bytes for port in ports) for ports in (self.read, self.write))

    def of(self, kind: Kind, bytes: int) -> Port:
        return next(p for p in (self.read if kind == "read" else self.write) if p.bytes == bytes)


def ports(shared: SharedMemory) -> Ports:
    return Ports(
        tuple(Port(shared.read_banks, phases, bytes) for bytes, phases in shared.read_phases.items()),
        tuple(Port(shared.write_banks, phases, bytes) for bytes, phases in shared.write_phases.items()),
    )


def cycles(shared: SharedMemory, addresses: Array, bytes: int, kind: Kind) -> tuple[int, int]:
    """Return the cycles without bank conflicts and with them, for `bytes` at each lane's address; leading axes are
    further accesses."""
    return ports(shared).of(kind, bytes).cycles(addresses)


def _distinct(addresses: Array) -> tuple[Array, Array]:
    """Return the accesses that differ by more than a shift of all lanes by whole words, and how often each occurs.

    A shift of all lanes by one distance rotates the banks and does not change the conflicts.
    """
    busy = np.where(addresses < 0, np.iinfo(np.int64).max, addresses)
    lowest = busy.min(axis=-1, keepdims=True) // BANK_BYTES * BANK_BYTES
    moved = np.where(addresses < 0, NO_LANE, addresses - lowest)
    counts = Counter(access.tobytes() for access in moved)
    found = np.frombuffer(b"".join(counts), moved.dtype).reshape(len(counts), -1)
    return found, np.array(list(counts.values()))
