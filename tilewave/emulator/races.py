"""Races in global memory: which waves accessed which bytes, and whether two accesses are ordered.

The last access of each kind to a piece of a buffer is kept as a stamp: workgroup, barriers that it has passed, wave.

    stamp     │ workgroup + 1 │ barriers passed │ wave │          0: none yet
                 31 bits          27 bits         5 bits

Waves of one workgroup are ordered by the barriers between them, workgroups of one launch by nothing. Two accesses to a
byte race if one of them writes and nothing orders them, whatever order the emulator happened to run them in. Atomic
operations do not race with each other; nor do loads and stores whose scope (sc0, sc1) makes them atomic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tilewave.emulator.memory import Buffer
from tilewave.emulator.numbers import I64, Array

Touch = Literal["read", "write", "change", "look"]
"""A change is atomic and writes, a look is atomic and only reads."""
CONFLICTS: dict[Touch, tuple[Touch, ...]] = {
    "read": ("write", "change"),
    "write": ("write", "read", "change", "look"),
    "change": ("write", "read"),
    "look": ("write",),
}
VERBS: dict[Touch, tuple[str, str]] = {
    "read": ("reads", "read"),
    "write": ("overwrites", "written"),
    "change": ("changes", "changed"),
    "look": ("reads", "read"),
}
NO_WRITER = 0
WAVES = 31
"""The bits of a wave; all ones means more than one wave. A workgroup has at most 16."""
EVERYBODY = (1 << 62) - 1
"""The stamp of more than one workgroup."""
LARGEST_PIECE = 16
MOST_UNNOTED = 1 << 22
"""Lanes whose reads are kept for later, at 16 bytes each."""


class Meeting(NamedTuple):
    """Two accesses without an order: which lane noticed, whose stamp it found, who did what, and where."""

    lane: int
    stamp: int
    other: Touch
    byte: int
    buffer: Buffer


def stamps_of(workgroups: Array, epochs: Array, waves: Array) -> Array:
    """One stamp per wave."""
    stamps: Array = ((workgroups + 1).astype(I64) << 32) | (epochs.astype(I64) << 5) | waves
    return stamps


class Races:
    """The stamps of every buffer that a kernel may write."""

    def __init__(self, buffers: Sequence[Buffer], starts: Sequence[int]) -> None:
        """`starts` are the offsets of the buffers in the arena, in ascending order."""
        self._starts = np.array(starts, I64)
        self._areas = [_Area(b) if b.writable and b.size else None for b in buffers]

    def touch(self, kind: Touch, offsets: Array, size: int, began: Array, now: Array) -> Meeting | None:
        """Note an access that began and is still under way or over now, stamps per lane; whom it meets unordered."""
        for at, lanes in self._by_buffer(offsets):
            area = self._areas[at]
            if area is None:
                continue
            inside = offsets[lanes] - self._starts[at]
            met = area.touch(kind, inside, size, began[lanes], now[lanes])
            if met is not None:
                lane = met.lane if isinstance(lanes, slice) else int(lanes[met.lane])
                return met._replace(lane=lane)
        return None

    def _by_buffer(self, offsets: Array) -> Iterator[tuple[int, slice | Array]]:
        first, last = (int(np.searchsorted(self._starts, x, "right")) - 1 for x in (offsets.min(), offsets.max()))
        if first == last:
            yield first, slice(None)
            return
        owner = np.searchsorted(self._starts, offsets, "right") - 1
        for at in np.unique(owner).tolist():
            yield at, np.flatnonzero(owner == at)


class _Area:
    """The stamps of one buffer, one for each piece; pieces are as small as the accesses that were seen."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer, self.piece = buffer, LARGEST_PIECE
        self._stamps: dict[Touch, Array] = {}
        self._reads: list[tuple[Array, int, Array]] = []
        """Reads of a buffer that was never written: offsets, size and stamps. Most buffers need no more."""
        self._lanes = 0

    def touch(self, kind: Touch, offsets: Array, size: int, began: Array, now: Array) -> Meeting | None:
        if kind == "read" and not ("write" in self._stamps or "change" in self._stamps):
            self._reads.append((offsets, size, now))
            self._lanes += len(offsets)
            if self._lanes > MOST_UNNOTED:
                self._note_reads()
            return None
        self._note_reads()
        return self._touch(kind, offsets, size, began, now)

    def _note_reads(self) -> None:
        reads, self._reads, self._lanes = self._reads, [], 0
        for offsets, size, stamps in reads:
            self._touch("read", offsets, size, stamps, stamps)

    def _touch(self, kind: Touch, offsets: Array, size: int, began: Array, now: Array) -> Meeting | None:
        pieces = self._pieces(offsets, size)
        met = self._meets(kind, pieces, began[:, None])
        if kind not in self._stamps:
            # Zeros are not laid out before they are written: a large array costs what is touched of it.
            self._stamps[kind] = np.zeros(-(-self.buffer.size // self.piece), I64)
        if kind == "write":
            return self._write(pieces, now[:, None]) if met is None else met
        _join(self._stamps[kind], pieces, now[:, None])
        return met

    def _pieces(self, offsets: Array, size: int) -> Array:
        """Return the pieces [lanes, pieces] that contain these bytes, after splitting pieces that are too large."""
        together = int(np.bitwise_or.reduce(offsets)) | size | LARGEST_PIECE
        whole = together & -together
        if whole < self.piece:
            parts, self.piece = self.piece // whole, whole
            self._stamps = {kind: _split(stamps, parts) for kind, stamps in self._stamps.items()}
        pieces: Array = offsets[:, None] // self.piece + np.arange(size // self.piece)
        return pieces

    def _meets(self, kind: Touch, pieces: Array, own: Array) -> Meeting | None:
        for other in CONFLICTS[kind]:
            if other in self._stamps:
                found = self._stamps[other][pieces]
                met = self._first(_unordered(found, own), found, other, pieces)
                if met is not None:
                    return met
        return None

    def _write(self, pieces: Array, own: Array) -> Meeting | None:
        """Waves that store together: the stamp of the last stays, and the others notice."""
        stamps = self._stamps["write"]
        stamps[pieces] = own
        found = stamps[pieces]
        return self._first(found != own, found, "write", pieces)

    def _first(self, bad: Array, stamps: Array, other: Touch, pieces: Array) -> Meeting | None:
        if not bad.any():
            return None
        lane, column = (int(x) for x in np.argwhere(bad)[0])
        byte = int(pieces[lane, column]) * self.piece
        return Meeting(lane, int(stamps[lane, column]), other, byte, self.buffer)


def _split(stamps: Array, parts: int) -> Array:
    """Return the stamps of smaller pieces; untouched pieces stay unallocated."""
    touched = np.flatnonzero(stamps)
    split = np.zeros(len(stamps) * parts, I64)
    split[touched[:, None] * parts + np.arange(parts)] = stamps[touched][:, None]
    return split


def _unordered(found: Array, own: Array) -> Array:
    """Stamps of other workgroups, and of other waves since the last barrier."""
    elsewhere = (found >> 32) != (own >> 32)
    since = (found >= own & ~WAVES) & ((found ^ own) & WAVES != 0)
    unordered: Array = (found != NO_WRITER) & (elsewhere | since)
    return unordered


def _join(stamps: Array, pieces: Array, own: Array) -> None:
    """Add a stamp to what is there, until lanes of one piece agree."""
    while True:
        before = stamps[pieces]
        if (before == EVERYBODY).all():
            return
        together = np.where((before >> 5 == own >> 5) & (before != own), own | WAVES, np.maximum(before, own))
        elsewhere = (before != NO_WRITER) & (before >> 32 != own >> 32)
        after = np.where(elsewhere, EVERYBODY, together)
        grown = after != before
        if not grown.any():
            return
        stamps[pieces[grown]] = after[grown]


def given(kind: Touch, met: Meeting, stamp: int, workgroups: Sequence[tuple[int, int, int]]) -> tuple[str, str]:
    """Return the message for an access with this stamp that races with another, and what should order them."""
    verb, did = VERBS[kind][0], VERBS[met.other][1]
    what = f"{verb} byte {met.byte} of {met.buffer.name}, {did} by"
    if met.stamp >> 32 == stamp >> 32:
        wave = met.stamp & WAVES
        who = "other waves" if wave == WAVES else f"wave {wave}"
        return f"{what} {who} with no barrier between them", "s_waitcnt vmcnt(0) and s_barrier must be between them"
    who = "other workgroups" if met.stamp == EVERYBODY else f"workgroup {workgroups[(met.stamp >> 32) - 1]}"
    return f"{what} {who}, which runs in no order with this one", (
        "give each workgroup separate bytes, use atomic operations, or launch twice"
    )
