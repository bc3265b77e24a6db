"""Shared memory of all workgroups, and who touched which bytes since which barrier.

A byte's last writer and its readers are kept as stamps `epoch * 32 + wave`, where the epoch counts the barriers that
the wave has passed. Two waves that touch a byte in the same epoch, one of them writing, race: no order of theirs
is certain, whatever order the emulator happened to run them in. What a wave has issued but not waited for when it
arrives at a barrier counts as done in the next epoch too.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

import numpy as np

from tilewave.emulator.numbers import I32, I64, U8, U32, Array
from tilewave.emulator.wait_counters import VECTOR, WaitCounters

POISON = 0x7FC0DEAD
NEVER = -1
SEVERAL = 31
"""Means "more than one wave" among the readers; a workgroup has at most 16."""
LONGEST_LOG = 64


class Conflict(NamedTuple):
    """Two waves and a byte: which lane of the access noticed, whom it met, and at which byte."""

    lane: int
    other: int
    byte: int


class TouchedGranules(NamedTuple):
    """The granules that the lanes of an instruction touched, and each lane's wave."""

    granules: Array
    waves: Array
    kind: Literal["read", "write", "change"]
    """A change is atomic."""


NO_ACCESS = TouchedGranules(np.zeros((0, 1), I64), np.zeros(0, I64), "read")


class SharedState:
    """The shared memory of every workgroup, one after the other, and the stamps of its bytes."""

    def __init__(
        self, size: int, workgroups: int, waves: int, granule: int, counters: WaitCounters, *, loads_directly: bool
    ) -> None:
        self.size, self.granule, self.counters = size, granule, counters
        self.stride = -(-size // 16) * 16 + 16
        self.words = np.full(self.stride * workgroups // 4, POISON, U32)
        self.bytes, self.quads = self.words.view(U8), self.words.reshape(-1, 4)
        self.base_of = (np.arange(waves) % max(workgroups, 1)).astype(I64) * self.stride
        self.epoch = np.zeros(waves, I32)
        self.writer = np.full(self.stride * workgroups // granule, NEVER, I32)
        self.reader = np.full(self.stride * workgroups // granule, NEVER, I32)
        self.changer: Array | None = None
        """Stamps of atomic operations, allocated at the first one."""
        self.arrival = np.zeros(len(self.writer), I32)
        """For bytes that a direct-to-shared load writes: its number among its wave's vector-memory operations."""
        self.log: list[deque[TouchedGranules]] = [deque(maxlen=LONGEST_LOG) for _ in range(waves)]
        self.direct_log: list[deque[TouchedGranules]] = [deque(maxlen=LONGEST_LOG) for _ in range(waves)]
        self.workgroups, self.loads_directly = max(workgroups, 1), loads_directly

    def granules(self, offsets: Array, size: int) -> Array:
        """[lanes, granules]: what `size` bytes at these offsets into `bytes` touch."""
        steps = np.arange(0, max(size, self.granule), self.granule)
        touched: Array = (offsets[:, None] + steps) // self.granule
        return touched

    def _stamps(self, waves: Array) -> Array:
        own: Array = self.epoch[waves] * 32 + (waves // self.workgroups).astype(I32)
        return own

    # -- reads and writes --------------------------------------------------------------------------------------------

    def read(self, granules: Array, waves: Array) -> tuple[Conflict | None, Conflict | None, Conflict | None]:
        """Record a read; return the write it races with, unwritten bytes, a direct load that has not arrived."""
        own = self._stamps(waves)[:, None]
        writers = self.writer[granules]
        race = self._first(_since(writers, own), writers, granules) or self._met_change(granules, own)
        unwritten = self._first(writers == NEVER, writers, granules)
        late = None
        if self.loads_directly:
            pending = (self.arrival[granules] > self.counters.done[VECTOR, waves][:, None]) & (writers & 31 == own & 31)
            late = self._first(pending, writers, granules)
        _add(self.reader, granules, own)
        return race, unwritten, late

    def _met_change(self, granules: Array, own: Array) -> Conflict | None:
        """Another wave's atomic operation since the last barrier."""
        if self.changer is None:
            return None
        changers = self.changer[granules]
        return self._first(_since(changers, own), changers, granules)

    def write(self, granules: Array, waves: Array) -> tuple[Conflict | None, Conflict | None]:
        """Note a write: another wave's write, or read, that it races with."""
        own = self._stamps(waves)[:, None]
        writers, readers = self.writer[granules], self.reader[granules]
        written = self._first(_since(writers, own), writers, granules) or self._met_change(granules, own)
        read = self._first(_since(readers, own), readers, granules)
        self.writer[granules] = own
        if written is None:
            found = self.writer[granules]
            written = self._first(found != own, found, granules)
        return written, read

    def touch(self, granules: Array, waves: Array) -> tuple[Conflict | None, Conflict | None, Conflict | None]:
        """Record an atomic operation; return a plain write or read that it races with, and unwritten bytes."""
        own = self._stamps(waves)[:, None]
        if self.changer is None:
            self.changer = np.full_like(self.writer, NEVER)
        writers, readers = self.writer[granules], self.reader[granules]
        written = self._first(_since(writers, own), writers, granules)
        read = self._first(_since(readers, own), readers, granules)
        _add(self.changer, granules, own)
        return written, read, self._first(writers == NEVER, writers, granules)

    # -- loads that write shared memory directly ----------------------------------------------------------------------

    def will_arrive(self, granules: Array, waves: Array) -> None:
        """What a direct load writes is there when its wave has waited for it."""
        self.arrival[granules] = self.counters.issued[VECTOR, waves][:, None]

    def _first(self, bad: Array, stamps: Array, granules: Array) -> Conflict | None:
        if not bad.any():
            return None
        lane, column = (int(x) for x in np.argwhere(bad)[0])
        byte = int(granules[lane, column]) * self.granule % self.stride
        return Conflict(lane, int(stamps[lane, column]) & 31, byte)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def remember(self, members: list[int], access: TouchedGranules, *, direct: bool) -> None:
        """Keep an access until its wave is known to have waited for it."""
        for wave in members:
            (self.direct_log if direct else self.log)[wave].append(access)

    def arrive(self, wave: int, outstanding: int, direct: int) -> None:
        """A wave comes to a barrier; accesses that it has not waited for also belong to the next epoch."""
        for log, count in ((self.log[wave], outstanding), (self.direct_log[wave], direct)):
            if count == 0:
                log.clear()
            while len(log) > count:
                log.popleft()
            for access in log:
                mine = access.granules[access.waves == wave].reshape(-1)
                stamp = (int(self.epoch[wave]) + 1) * 32 + wave // self.workgroups
                if access.kind == "write":
                    self.writer[mine] = stamp
                    continue
                stamps = self.reader if access.kind == "read" else self.changer
                assert stamps is not None
                others = (stamps[mine] >= stamp & ~31) & (stamps[mine] != stamp)
                stamps[mine] = np.where(others, stamp | SEVERAL, stamp)

    def release(self, waves: Array) -> None:
        self.epoch[waves] += 1


def _since(stamps: Array, own: Array) -> Array:
    """Stamps of other waves since the last barrier."""
    since: Array = (stamps >> 5 >= own >> 5) & (stamps != own)
    return since


def _add(stamps: Array, granules: Array, own: Array) -> None:
    """Add waves to those that touched these granules."""
    before = stamps[granules]
    stamp = np.where(_since(before, own), np.maximum(before, own) | SEVERAL, own)
    stamps[granules] = stamp
    lost = stamps[granules] != stamp  # two waves of one convoy touch the same byte
    if lost.any():
        stamps[granules[lost]] = np.broadcast_to(own | SEVERAL, granules.shape)[lost]
