"""Caches that sample a few lines and evict the oldest of them, in closed form: expected bytes, no random numbers.

All lines last read in one step age together, so a cache is two numbers for each step: the bytes it holds that were last
read in that step, and the share of them that is still there. To evict, it samples `looks` lines at random.
With lines ordered from the newest (0) to the oldest (1), the oldest of those sampled is before x with the
probability

    x ** looks

so a step whose bytes are between x and y loses y ** looks - x ** looks of the evicted bytes. One look is random
eviction; many looks are LRU. Nothing is evicted before a cache is full, however far apart two walks of a stream are.
"""

from __future__ import annotations

import numpy as np

from tilewave.sim.accesses import Array

NOTHING = 1.0
"""Bytes that are not worth an eviction."""


class SampledCaches:
    """The step in which each cache last read each stream, and the bytes that it still holds of each step."""

    def __init__(self, streams: int, capacities: Array, steps: int, looks: float) -> None:
        caches = len(capacities)
        self.streams, self.capacities, self.looks = streams, capacities, looks
        self.last = np.full(caches * streams, -1, np.int32)
        self.held, self.kept = np.zeros((caches, steps)), np.zeros((caches, steps))
        self.oldest = 0
        """Everything last read before this step has been evicted."""

    def missing(self, cache: Array, stream: Array) -> Array:
        """The share of each stream that its cache does not hold."""
        return self._missing(cache, self.last[cache * self.streams + stream])

    def _missing(self, cache: Array, since: Array) -> Array:
        missing: Array = np.where(since >= self.oldest, 1.0 - self.kept[cache, since], 1.0)
        return missing

    def walk(self, step: int, cache: Array, stream: Array, size: Array, taken: Array) -> Array:
        """Return the share that each walk of one step misses; `taken` are other bytes that enter each cache."""
        caches, key = len(self.capacities), cache * self.streams + stream
        since = self.last[key]
        missing = self._missing(cache, since)
        # The end of a step is read last: half of the evictions that the step causes have happened by then.
        if self._evict(step, 0.5 * self._too_much(step, np.bincount(cache, size * missing, minlength=caches))):
            missing = self._missing(cache, since)
        self._next_window(step, cache, since, size, missing, taken)
        self.last[key] = step
        if self._evict(step + 1, self._too_much(step + 1, 0.0)):
            self._forget(step + 1)
        return missing

    def _next_window(self, step: int, cache: Array, since: Array, size: Array, missing: Array, taken: Array) -> None:
        """Mark the streams read now as last read in this step."""
        known, length = missing < 1.0, step - self.oldest
        flat = cache[known] * length + since[known] - self.oldest
        moved = np.bincount(flat, (size * (1.0 - missing))[known], minlength=len(self.held) * length)
        held = self.held[:, self.oldest : step]
        np.maximum(held - moved.reshape(held.shape), 0.0, out=held)
        self.held[:, step] = np.bincount(cache, size, minlength=len(self.held)) + taken
        self.kept[:, step] = 1.0

    def _too_much(self, end: int, new: Array | float) -> Array:
        held = self.held[:, self.oldest : end].sum(1)
        too_much: Array = np.clip(held + new - self.capacities, 0.0, held)
        return too_much

    def _evict(self, end: int, volume: Array) -> bool:
        """Evict `volume` bytes from what each cache last read before step `end`; return whether there were any."""
        if volume.max() <= NOTHING:
            return False
        while volume.max() > NOTHING:
            held, kept = self.held[:, self.oldest : end], self.kept[:, self.oldest : end]
            newer = np.cumsum(held[:, ::-1], 1)[:, ::-1]
            before = (newer / np.maximum(newer[:, :1], NOTHING)) ** self.looks
            lost = volume[:, None] * before
            lost[:, :-1] -= volume[:, None] * before[:, 1:]
            lost = np.minimum(lost, held)
            kept *= 1.0 - lost / np.maximum(held, NOTHING)
            held -= lost
            volume = volume - lost.sum(1)
        return True

    def _forget(self, end: int) -> None:
        gone = self.held[:, self.oldest : end].max(0) <= NOTHING
        self.oldest += int(np.append(~gone, True).argmax())
