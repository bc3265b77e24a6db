"""Which lanes of a wave accessed an element since the wave's lanes last synchronized.

The lanes of a wave need not run in step: a warp's lanes may diverge, and a compiler that sees one lane's program may
reorder two accesses to different addresses. What one lane stores and another lane loads is ordered only by an op at
which the lanes of the wave synchronize: a barrier, `barrier {waves = 1}` being the cheapest.

    store(%x, %s, …)          lane 3 writes s[5]
    barrier() {waves = 1}     the lanes of each wave meet
    %y = load(%s, …)          lane 9 reads s[5]
    barrier() {waves = 1}     needed where lane 3 stores to s[5] again
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.interp.arithmetic import Array

LaneBits = Any
"""A set of lanes, bit by bit: one for all elements of an access (an int), or one for each (an array of u64)."""


class _Touched:
    """The lanes that accessed each element since their last synchronization."""

    def __init__(self, count: int) -> None:
        self.meeting = np.zeros(count, np.int64)
        self.lanes = np.zeros(count, np.uint64)
        self.meetings: set[int] = set()
        """The synchronizations after which any element was accessed."""

    def since(self, flat: Array, meeting: int) -> Array:
        """Return the lanes that accessed elements since a synchronization."""
        if meeting not in self.meetings:
            return np.zeros(len(flat), np.uint64)
        return np.where(self.meeting.take(flat) == meeting, self.lanes.take(flat), np.uint64(0))

    def add(self, flat: Array, meeting: int, lanes: LaneBits) -> None:
        both = self.since(flat, meeting) | lanes
        self.meetings.add(meeting)
        self.meeting[flat], self.lanes[flat] = meeting, both
        if (self.lanes.take(flat) & lanes != lanes).any():  # several lanes touch one element in one access
            np.bitwise_or.at(self.lanes, flat, np.broadcast_to(np.asarray(lanes, np.uint64), flat.shape))


class LaneOrder:
    """Accesses to one memory's elements by lanes of a wave, each with the number of the lanes' last synchronization."""

    def __init__(self, count: int) -> None:
        self.written, self.read, self.changed = _Touched(count), _Touched(count), _Touched(count)

    def note_read(self, flat: Array, meeting: int, lanes: LaneBits) -> tuple[Array, Array]:
        """Record a read; return for each element whether it was written, but not by every lane that reads it, and
        whether other lanes changed it atomically."""
        writers = self.written.since(flat, meeting)
        self.read.add(flat, meeting, lanes)
        found: Array = (writers != 0) & (writers & lanes != lanes)
        return found, self._by_others(self.changed, flat, meeting, lanes)

    def note_write(self, flat: Array, meeting: int, lanes: LaneBits) -> tuple[Array, Array, Array]:
        """Record a write; return for each element whether other lanes wrote it, read it, or changed it atomically."""
        wrote, read, changed = (
            self._by_others(touched, flat, meeting, lanes) for touched in (self.written, self.read, self.changed)
        )
        self.written.add(flat, meeting, lanes)
        return wrote, read, changed

    def note_change(self, flat: Array, meeting: int, lanes: LaneBits) -> tuple[Array, Array]:
        """Record an atomic operation; return for each element whether other lanes wrote it, and whether they read
        it."""
        wrote, read = (self._by_others(touched, flat, meeting, lanes) for touched in (self.written, self.read))
        self.changed.add(flat, meeting, lanes)
        return wrote, read

    def _by_others(self, touched: _Touched, flat: Array, meeting: int, lanes: LaneBits) -> Array:
        found: Array = touched.since(flat, meeting) & ~lanes != 0
        return found

    def written_since(self, flat: Array, meeting: int) -> Array:
        """Return whether any lane wrote each element since a synchronization, which asynchronous reads do not allow."""
        found: Array = self.written.since(flat, meeting) != 0
        return found


def lane_bits(flat: Array, active: Array | None, lanes: int) -> LaneBits:
    """Return the lane of each accessed element, lanes x registers…; one set where all lanes access the same."""
    if flat.shape[0] == 1:
        return np.uint64((1 << lanes) - 1)
    each = np.uint64(1) << np.arange(lanes, dtype=np.uint64)
    whole = np.broadcast_to(each.reshape(-1, *[1] * (flat.ndim - 1)), flat.shape)
    bits: Array = whole.reshape(-1) if active is None else whole[active]
    return bits
