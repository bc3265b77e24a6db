"""Happens-before: what each wave of a workgroup knows of the others.

A wave's run is cut into segments wherever it releases what it did to others, and an asynchronous copy has its own
segment. Accesses in a segment happen before everything a wave does once it knows that segment:

    wave 0   write │ barrier │ read           segment 1 │ 3: knows 1, 2
    wave 1   write │ barrier │ read           segment 2 │ 4: knows 1, 2

so wave 1 may read what wave 0 wrote in segment 1, and segments 3 and 4 are not ordered.

Shared and global memory are tracked separately: after a barrier over shared memory alone, a wave does not know what
others did to global memory before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Knowledge = np.ndarray[Any, np.dtype[np.bool_]]
"""Booleans, spaces x segments: whether accesses of the segment to memories of the space are known to be over."""

SPACES = {"shared": 0, "global": 1}
"""Shared memory first, because `Clocks.barrier` takes a prefix: a barrier over global memory orders both."""

BEFORE = 0
"""The segment of everything before the workgroup started; all waves know it."""
NOTHING: Knowledge = np.zeros((len(SPACES), 0), bool)


class Clocks:
    """The segments of one workgroup, and which of them each wave knows."""

    def __init__(self, waves: int) -> None:
        self.count = 1
        self.table: Knowledge = np.zeros((len(SPACES), waves, 64), bool)
        self.table[:, :, BEFORE] = True
        self.current = [self.new_segment() for _ in range(waves)]
        self._know_themselves()

    def new_segment(self) -> int:
        """Return a new segment, which no wave knows yet."""
        if self.count == self.table.shape[2]:
            self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=2)
        self.count += 1
        return self.count - 1

    def known(self, wave: int, space: str = "shared") -> Knowledge:
        """Return what a wave knows, by segment."""
        known: Knowledge = self.table[SPACES[space], wave]
        return known

    def known_by_all(self, space: str) -> Knowledge:
        known: Knowledge = np.logical_and.reduce(self.table[SPACES[space]], axis=0)
        return known

    def learn(self, wave: int, segments: list[int]) -> None:
        self.table[:, wave, segments] = True

    def release(self, wave: int) -> Knowledge:
        """Return what a wave knows and did so far, for others to acquire, and start a new segment."""
        notified: Knowledge = self.table[:, wave, : self.count].copy()
        self.current[wave] = self.new_segment()
        self.table[:, wave, self.current[wave]] = True
        return notified

    def acquire(self, wave: int, notified: Knowledge) -> None:
        self.table[:, wave, : notified.shape[1]] |= notified

    def barrier(self, waves: range, over: str = "global") -> None:
        """Share what these waves know of shared memory, and with `over="global"` of global memory too."""
        own = slice(waves.start, waves.stop)
        for table in self.table[: SPACES[over] + 1]:
            table[own] = table[own].any(axis=0)
        self.current[own] = [self.new_segment() for _ in waves]
        self._know_themselves()

    def _know_themselves(self) -> None:
        for wave, segment in enumerate(self.current):
            self.table[:, wave, segment] = True


def union(one: Knowledge, other: Knowledge) -> Knowledge:
    """Return the union of two; the longer one has seen more segments start."""
    short, long = sorted((one, other), key=lambda knowledge: knowledge.shape[1])
    both: Knowledge = long.copy()
    both[:, : short.shape[1]] |= short
    return both
