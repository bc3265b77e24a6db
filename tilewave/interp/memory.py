"""Memories that record the accesses of each element, so that races between waves are found in any order of execution.

Every element keeps a stamp: the number of the access that wrote it last, and per wave the one that read it last. An
access is compared with the stamps it finds: it must know the segment in which each was made (`clocks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.clocks import BEFORE, Clocks
from tilewave.interp.lane_order import LaneBits, LaneOrder
from tilewave.interp.numbers import Numbers
from tilewave.interp.tile_run import COMBINING, TrackedMemory
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import CopyAsyncChunks, Wgmma
from tilewave.ir.overlays import NONE, meeting
from tilewave.ir.types import Memory

NO_ACCESS = 0
FIRST = np.zeros(1, np.int64)
PAST = {"read": "read", "write": "wrote", "change": "changed"}


class WaveAccess(NamedTuple):
    """One load, store or copy by one wave."""

    op: Op
    wave: int
    place: tuple[int, ...]
    """The position in the program: op, iteration, op, iteration, …; comparable, as all waves run one program."""
    segment: int
    verb: str
    copied: bool = False
    """Whether the access is asynchronous, made after the wave started it."""
    name: str = ""
    """The name of the wave in messages, where its number in the cluster is not enough."""
    meeting: int = 0
    """The number of the last op at which the wave's lanes synchronized; unique among waves."""

    @property
    def who(self) -> str:
        wave = self.name or f"wave {self.wave}"
        return f"the {self.what} of {wave}" if self.copied and not self.is_load else wave

    @property
    def what(self) -> str:
        """What the hardware, or the wave itself, does, for messages."""
        if not self.copied:
            return self.verb
        return "MMA" if isinstance(self.op, Wgmma) else "load" if self.is_load else "copy"

    @property
    def is_load(self) -> bool:
        """Whether it is a load that lasts until something waits for its registers."""
        return self.copied and not self.op.passes_lanes_by and not isinstance(self.op, Wgmma)


class Race(InterpreterError):
    """A race: two accesses without an order."""


class Ledger:
    """All accesses of one workgroup, or of the workgroups of a cluster, and what each wave knows of them."""

    def __init__(self, waves: int) -> None:
        self.clocks = Clocks(waves)
        self.accesses: list[WaveAccess | None] = [None]
        self.segments = np.full(256, BEFORE, np.int32)
        self.copied = np.zeros(256, bool)
        self.suspicion: InterpreterError | None = None
        """A read of uninitialized memory: a race if another wave writes it later, an error if not."""

    def add(self, access: WaveAccess) -> int:
        number = len(self.accesses)
        if number == len(self.segments):
            self.segments = np.concatenate([self.segments, np.zeros_like(self.segments)])
            self.copied = np.concatenate([self.copied, np.zeros_like(self.copied)])
        self.segments[number], self.copied[number] = access.segment, access.copied
        self.accesses.append(access)
        return number

    def access(self, number: int) -> WaveAccess:
        found = self.accesses[number]
        assert found is not None, "no access to this element"
        return found

    def ordered(self, stamps: Array, wave: int, space: str) -> Array:
        """Return which of the stamped accesses to a memory of this space a wave knows to be over."""
        known: Array = self.clocks.known(wave, space).take(self.segments.take(stamps))
        return known

    def are_ordered(self, stamps: Array, wave: int, space: str) -> bool:
        """Return whether a wave knows all stamped accesses to be over.

        The elements of one access most often have few stamps, one close to the other: then all accesses between the
        first and the last are asked about instead, which are fewer than the elements.
        """
        if not stamps.size:
            return True
        first, last = int(stamps.min()), int(stamps.max())
        if last - first < stamps.size:
            between = self.segments[first : last + 1]
            if bool(self.clocks.known(wave, space).take(between).all()):
                return True
        return first != last and bool(self.ordered(stamps, wave, space).all())

    def settled(self, stamps: Array, space: str) -> Array:
        """Return which of the stamped accesses all waves know to be over."""
        known: Array = self.clocks.known_by_all(space).take(self.segments.take(stamps))
        return known


class LaneMemory:
    """The elements of one memory in a row, and stamps of their accesses; a global memory has a buffer.

    Stamps are kept as tables, (1 or waves) x elements: `writer` the last write; `twins` earlier writes of the same
    bytes that it is not ordered with; `overwritten` earlier writes by the same wave, or ordered before it; `readers`
    and `copies` the last read of each wave and of its copies; `changers` the last atomic operation of each wave.
    """

    def __init__(
        self, value: Value, data: Array, waves: int, numbers: Numbers, buffer: TrackedMemory | None = None
    ) -> None:
        self.name, self.buffer, self.numbers = value.name, buffer, numbers
        self.shape: tuple[int, ...] = value.type.shape
        self.poison = numbers.poison(value.type.dtype)
        self.element_bytes = value.type.dtype.bytes
        self.data = data.reshape(-1)
        self.bits = self.data.view(f"u{self.data.itemsize}")
        self.waves = waves
        self.tables: dict[str, Array] = {}
        self.touched: list[Array] = []
        self.last_write: WaveAccess | None = None
        self.was_read = False
        self.overlaps: list[tuple[LaneMemory, Array]] = []
        """Memories that alias this one: for each element the aliasing elements, or NONE."""
        self._lane_order: LaneOrder | None = None

    @staticmethod
    def shared(value: Value, waves: int, numbers: Numbers) -> LaneMemory:
        """Return an uninitialized memory of one workgroup, filled with poison."""
        kind = value.type
        poison = np.full(kind.shape, numbers.poison(kind.dtype), numbers.storage(kind.dtype))
        memory = LaneMemory(value, poison, waves, numbers)
        memory.table("writer", 1)
        return memory

    def overlaid(self, under: Value, value: Value) -> LaneMemory:
        """Return a memory that aliases this one, whose value is `under`."""
        over, below, above = LaneMemory.shared(value, self.waves, self.numbers), under.type, value.type
        assert isinstance(below, Memory) and isinstance(above, Memory)
        over.overlaps.append((self, meeting(above, below)))
        self.overlaps.append((over, meeting(below, above)))
        return over

    def met(self, flat: Array) -> Iterator[tuple[LaneMemory, Array]]:
        """Yield the memories and elements that share bytes with these elements."""
        for other, table in self.overlaps:
            there = np.unique(table[flat])
            yield other, there[there != NONE]

    @property
    def space(self) -> str:
        return "shared" if self.buffer is None else "global"

    @property
    def is_tracked(self) -> bool:
        return "writer" in self.tables

    def table(self, name: str, rows: int) -> Array:
        """Return a table of stamps, made at its first use, because most memories need few."""
        if name not in self.tables:
            self.tables[name] = np.full((rows, prod(self.shape)), NO_ACCESS, np.int32)
        return self.tables[name]

    def forget(self) -> None:
        """Clear the stamps of the workgroup that just ended."""
        for flat in self.touched:
            for table in self.tables.values():
                table[:, flat] = NO_ACCESS
        self.touched.clear()

    def element(self, flat: Any) -> str:
        return f"{self.name}[{', '.join(str(int(p)) for p in np.unravel_index(int(flat), self.shape))}]"

    # -- lanes of one wave

    @property
    def lane_order(self) -> LaneOrder:
        """The order of lanes' accesses, made at its first use, because memories without accesses by lanes need none."""
        if self._lane_order is None:
            self._lane_order = LaneOrder(prod(self.shape))
        return self._lane_order

    def order_lanes(self, ledger: Ledger, access: WaveAccess, flat: Array, lanes: LaneBits, new: Array | None) -> None:
        """Check an access by lanes against other lanes' accesses since they synchronized; `new` is what it stores."""
        if access.verb == "read":
            wrote, changed = self.lane_order.note_read(flat, access.meeting, lanes)
            self._want_lanes_met(ledger, access, flat, wrote, "writer")
            self._want_lanes_met(ledger, access, flat, changed, "changers")
            return
        if access.verb == "change":
            wrote, read = self.lane_order.note_change(flat, access.meeting, lanes)
            self._want_lanes_met(ledger, access, flat, wrote, "writer")
            self._want_lanes_met(ledger, access, flat, read, "readers")
            return
        changes = np.ones(len(flat), bool) if new is None else self.bits.take(flat) != bits_of(new)
        wrote, read, changed = self.lane_order.note_write(flat, access.meeting, lanes)
        self._want_lanes_met(ledger, access, flat, changed, "changers")
        self._want_lanes_met(ledger, access, flat, wrote & changes, "writer")
        self._want_lanes_met(ledger, access, flat, read & changes, "readers")

    def order_machine(self, ledger: Ledger, access: WaveAccess, flat: Array) -> None:
        """Check that what the hardware reads for a wave was written before the wave's lanes last synchronized."""
        if self.is_tracked and self._lane_order is not None:
            loose = self._lane_order.written_since(flat, access.meeting)
            self._want_lanes_met(ledger, access, flat, loose, "writer")

    def _want_lanes_met(self, ledger: Ledger, access: WaveAccess, flat: Array, loose: Array, table: str) -> None:
        if not loose.any():
            return
        at = int(flat[np.flatnonzero(loose)[0]])
        stamps = self.tables[table]
        met = ledger.access(int(stamps[access.wave if len(stamps) > 1 else 0, at]))
        other = f"another lane of it {PAST[met.verb]} with no barrier between"
        raise Race(
            f"{access.who} {access.verb}s {self.element(at)}, which {other}",
            loc=access.op.loc,
            remedy=f"the {met.what} is at {met.op.loc}; a barrier, of one wave at least, must be between them",
        )

    # -- accesses of elements

    def note_read(self, ledger: Ledger, access: WaveAccess, flat: Array) -> None:
        self._note_read(ledger, access, flat)
        for other, there in self.met(flat):
            other._note_read(ledger, access, there)

    def note_write(self, ledger: Ledger, access: WaveAccess, flat: Array, new: Array | None) -> None:
        """Record and check a write; `new` is what is stored, None where the data is still in flight."""
        self._note_write(ledger, access, flat, new)
        for other, there in self.met(flat):
            other._note_write(ledger, access, there, None)
            other.data[there] = other.poison

    def note_dropped_read(self, ledger: Ledger, access: WaveAccess) -> None:
        """Record that lanes masked out of a load read the first element, as compiled code does, and drop it."""
        if self.is_tracked:
            self._order_read(ledger, access, FIRST)
        for other, there in self.met(FIRST):
            if other.is_tracked:
                other._order_read(ledger, access, there)

    def _note_read(self, ledger: Ledger, access: WaveAccess, flat: Array) -> None:
        self.was_read = True
        if not self.is_tracked:
            return
        self._order_read(ledger, access, flat)
        if self.buffer is None and ledger.suspicion is None:
            stamps = self.tables["writer"][0].take(flat)
            if stamps.size and stamps.min() == NO_ACCESS:
                at = self.element(flat[np.flatnonzero(stamps == NO_ACCESS)[0]])
                why = f"{access.who} reads {at}, which was never written"
                ledger.suspicion = InterpreterError(why, loc=access.op.loc)
        self._touch(flat)

    def _order_read(self, ledger: Ledger, access: WaveAccess, flat: Array) -> None:
        number = ledger.add(access)
        self._want_order(ledger, access, self.tables["writer"], flat)
        for name in ("twins", "changers"):
            if name in self.tables:
                self._want_order(ledger, access, self.tables[name], flat)
        self.table("copies" if access.copied else "readers", self.waves)[access.wave][flat] = number

    def _note_write(self, ledger: Ledger, access: WaveAccess, flat: Array, new: Array | None) -> None:
        number = ledger.add(access)
        self.last_write = access
        changes = np.ones(len(flat), bool) if new is None else self.bits.take(flat) != bits_of(new)
        for name in ("readers", "copies", "overwritten", "changers"):
            if name in self.tables:
                self._want_order(ledger, access, self.tables[name], flat)
        for name in ("writer", "twins"):
            if name in self.tables:
                self._want_order(ledger, access, self.tables[name], flat, changes)
        self._remember_open(ledger, access, flat, changes)
        self.tables["writer"][0][flat] = number
        self._touch(flat)

    def note_change(self, ledger: Ledger, access: WaveAccess, flat: Array) -> None:
        """Record and check an atomic operation: others of the kind need no order, reads and writes do."""
        number = ledger.add(access)
        for name in ("readers", "copies", "overwritten", "writer", "twins"):
            if name in self.tables:
                self._want_order(ledger, access, self.tables[name], flat)
        if not self.tables["writer"][0, flat].all() and ledger.suspicion is None:
            at = self.element(flat[np.flatnonzero(self.tables["writer"][0, flat] == NO_ACCESS)[0]])
            ledger.suspicion = InterpreterError(
                f"{access.who} changes {at}, which was never written", loc=access.op.loc
            )
        self.table("changers", self.waves)[access.wave, flat] = number

    def put(self, flat: Array, new: Array) -> int | None:
        """Store; return the place in `flat` of an element to which two lanes store different values, if any."""
        self.data[flat] = new
        lost = self.bits.take(flat) != bits_of(new)
        return int(np.flatnonzero(lost)[0]) if lost.any() else None

    def combine(self, how: str, flat: Array, new: Array) -> None:
        COMBINING[how].at(self.data, flat, new)

    def _touch(self, flat: Array) -> None:
        if self.buffer is not None:  # not for shared memories, which each workgroup allocates again
            self.touched.append(flat)

    def _want_order(
        self, ledger: Ledger, access: WaveAccess, table: Array, flat: Array, matters: Array | None = None
    ) -> None:
        """Raise a race unless every stamped access is ordered before `access`, where it `matters`."""
        stamps = table.take(flat, axis=1)
        if ledger.are_ordered(stamps, access.wave, self.space):
            return
        loose = ~ledger.ordered(stamps, access.wave, self.space)
        if matters is not None:
            loose &= matters | ledger.copied[stamps]  # a copy in flight conflicts even if it stores equal bytes
        if loose.any():
            row, column = (int(axis[0]) for axis in np.nonzero(loose))
            raise _race(self, ledger.access(stamps[row, column]), access, int(flat[column]))

    def _remember_open(self, ledger: Ledger, access: WaveAccess, flat: Array, changes: Array) -> None:
        """Keep the overwritten writes that some wave does not know to be over, for later comparisons."""
        stamps = self.tables["writer"][0].take(flat)
        settled = ledger.settled(stamps, self.space)
        if settled.all():
            return
        ordered = ledger.ordered(stamps, access.wave, self.space)
        covered = ~settled & ordered & changes
        if covered.any():
            self.table("overwritten", 1)[0, flat[covered]] = stamps[covered]
        twin = ~ordered
        if twin.any():
            of = np.array([ledger.access(n).wave for n in stamps[twin]], np.int64)
            self.table("twins", self.waves)[of, flat[twin]] = stamps[twin]


def _race(memory: LaneMemory, met: WaveAccess, access: WaveAccess, flat: int) -> Race:
    """Return the race between two accesses to a memory, with the same message whichever ran first."""
    if met.copied or access.copied:
        first, second = met, access
        early = met.verb == "read" and memory.tables["writer"][0, flat] == NO_ACCESS
        if early and access.copied and access.verb == "write":
            first, second = access, met
    else:
        first, second = sorted((met, access), key=lambda a: (a.place, a.wave))
    at = memory.element(flat)
    if first.copied and first.verb == "write" and second.verb == "read":
        missing = (
            "a wait_mbarrier of its mbarrier must be between them" if memory.buffer is None else "no wait covers it"
        )
        if isinstance(first.op, CopyAsyncChunks):
            missing = "a wait_async, and a barrier after it for other waves, must be between them"
        return Race(
            f"{second.who} reads {at} before {first.who} has arrived",
            loc=second.op.loc,
            remedy=f"the copy is at {first.op.loc}; {missing}",
        )
    if first.is_load:
        missing = "an arrival that names what it loads must be between them"
        return Race(
            f"{second.who} {second.verb}s {at}, which {first.who} may still load",
            loc=second.op.loc,
            remedy=f"the load is at {first.op.loc}; {missing}",
        )
    link = "wait" if first.copied else "barrier"
    over = "" if first.copied or memory.buffer is None else " over global memory"
    return Race(
        f"{second.who} {second.verb}s {at}, which {first.who} {PAST[first.verb]} with no {link} between",
        loc=second.op.loc,
        remedy=f"the {first.what} is at {first.op.loc}; a {link}{over} must be between them",
    )


def bits_of(x: Array) -> Array:
    """Return the bytes of numbers as integers, so that NaN equals itself and 0.0 differs from -0.0."""
    bits: Array = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return bits
