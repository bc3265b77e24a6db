"""Asynchronous ops of a wave: mbarriers, and copies that the hardware makes."""

from __future__ import annotations

from collections.abc import Generator
from math import prod
from typing import Any, NoReturn

import numpy as np

from tilewave.errors import InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.mbarriers import Mbarrier, MbarrierArray
from tilewave.interp.memory import LaneMemory, WaveAccess
from tilewave.interp.positions import Elements, strides
from tilewave.interp.windows import Window
from tilewave.interp.workgroup import Asked, CopyUnderWay, LateAccess, Wait, WorkgroupState
from tilewave.ir import ops
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import (
    Arrive,
    ClusterBarrier,
    CopyAsyncChunks,
    HandOver,
    MakeExchange,
    MakeMbarriers,
    TakeOver,
    TakeOverAll,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    WaitAsync,
    WaitMbarrier,
    WaitPriorLaunch,
    WaitTmaStores,
)
from tilewave.ir.placements import in_its_place
from tilewave.ir.types import Memory

Waiting = Generator[None, None, tuple[Any, ...]]

GRAIN_BYTES = 16
"""The alignment of a TMA box in its rows; repeated here, because the interpreter checks the passes independently."""


class AsynchronousMeaning:
    """The part of a wave that waits, and starts asynchronous ops."""

    def __init__(self, number: int, state: WorkgroupState) -> None:
        self.number, self.state, self.numbers = number, state, state.launch.numbers
        self.index = state.first + number
        """The wave's number among all waves of the cluster."""
        self.env: dict[Value, Any] = dict(state.arguments)
        self.path: tuple[int, ...] = ()
        """The position in the program of the current block: op, iteration, op, iteration, …"""
        self.place = 0
        """The number of the current op in that block."""
        self.leader = 0
        """The first of the waves that run this block."""
        self.meeting = next(state.launch.meetings)
        """The number of the last op at which the lanes of this wave synchronized."""
        self.wait: Wait | None = None
        self.loading: dict[Value, int] = {}
        """Loads from memory that copies fill, with the segments of their reads until something waits for them."""
        self.sent: list[tuple[CopyUnderWay, ...]] = []
        """TMA stores in the order in which this wave started them; one tuple for each bulk group."""
        self.joined: tuple[CopyUnderWay, ...] = ()
        """TMA stores of the bulk group that is not committed yet."""
        self.loaded: list[tuple[CopyUnderWay, int]] = []
        """Asynchronous copies that this wave started, in order, with their bytes."""
        self.may_touch = not state.launch.uses_pdl
        """Whether this wave may access global memory; with PDL, earlier kernels may still write it."""

    @property
    def name(self) -> str:
        alone = len(self.state.cluster.members) == 1
        return f"wave {self.number}" if alone else f"wave {self.number} of workgroup {self.state.number}"

    def access(self, op: Op, verb: str, segment: int | None = None) -> WaveAccess:
        """Return an access of this wave, made now, or, with `segment`, made asynchronously for it."""
        place, copied = (*self.path, self.place), segment is not None
        when = self.state.ledger.clocks.current[self.index] if segment is None else segment
        return WaveAccess(op, self.index, place, when, verb, copied, self.name, self.meeting)

    def fail(self, op: Op, why: str, remedy: str = "") -> NoReturn:
        raise InterpreterError(why, loc=op.loc, remedy=remedy)

    def uniform(self, op: Op, value: Value) -> Any:
        return self.agreed(op, self.env[value])

    def agreed(self, op: Op, x: Any) -> Any:
        """Return the number that all lanes hold; raise where they differ."""
        if not isinstance(x, np.ndarray):
            return x
        other = np.flatnonzero(x != x[0])
        if len(other):
            lanes = f"lanes 0 and {other[0]} of wave {self.number}"
            self.fail(op, f"{op.name}: {lanes} say {x[0]} and {x[other[0]]}, and must agree")
        return x[0].item()

    def lanes_meet(self) -> None:
        """Order what lanes of this wave did before what its lanes do next."""
        self.meeting = next(self.state.launch.meetings)

    def end_loads(self) -> None:
        """At a barrier, synchronize the lanes of this wave and complete their loads."""
        self.lanes_meet()
        self.state.ledger.clocks.learn(self.index, list(self.loading.values()))
        self.loading.clear()

    def until(self, wait: Wait) -> Generator[None, None, None]:
        """Let other waves run until a wait is over."""
        while not wait.is_over():
            self.wait = wait
            yield
        self.wait = None

    # -- dependent launches

    def wait_prior_launch(self, op: WaitPriorLaunch) -> None:
        self.may_touch = True

    def want_waited(self, op: Op, memory: LaneMemory) -> None:
        """Refuse accesses to global memory before the wait for earlier kernels, where the kernel uses PDL."""
        if memory.buffer is not None and not self.may_touch:
            self.fail(
                op,
                f"wave {self.number} touches {memory.name} while earlier kernels may still run",
                "wait_prior_launch() must be before it",
            )

    # -- mbarriers

    def make_mbarriers(self, op: MakeMbarriers) -> MbarrierArray:
        return self.state.make_mbarriers(op, op.arrivals, self.number, self.leader)

    def mbarrier(
        self, op: Op, mbarriers: Value, at: Value, member: WorkgroupState | None = None
    ) -> tuple[Mbarrier, str]:
        """Return an mbarrier of this workgroup or of `member`, and its name; its initialization must be visible."""
        there = member or self.state
        made: MbarrierArray = there.mbarriers.get(mbarriers) or self.env[mbarriers]
        number = self.uniform(op, at)
        name = f"{made.value.name}[{number}]" + ("" if there is self.state else f" of workgroup {there.number}")
        if not 0 <= number < len(made.mbarriers):
            self.fail(op, f"{self.name} wants {name}, outside {made.value.type}")
        known = self.state.ledger.clocks.known(self.index)
        if mbarriers not in there.mbarriers or made.made_in is None or not known[made.made_in]:
            barrier = "barrier" if there is self.state else "cluster_barrier"
            self.fail(
                op,
                f"{self.name} uses {name}, which wave {made.maker} made with no {barrier} between",
                f"it is made at {made.op.loc}; a {barrier} must be between them",
            )
        return made.mbarriers[number], name

    def arrive(self, op: Arrive) -> None:
        self.lanes_meet()
        self.state.ledger.clocks.learn(self.index, [self.loading.pop(v) for v in op.seen if v in self.loading])
        members = self.state.cluster.members if op.members > 1 else [self.state]
        clocks = self.state.ledger.clocks
        before = clocks.current[self.index]
        notified = clocks.release(self.index)
        for member in members:
            mbarrier, name = self.mbarrier(op, op.mbarriers, op.at, member)
            if mbarrier.arrived == mbarrier.needed:
                everyone = f"all {mbarrier.needed} arrivals"
                self.fail(op, f"{self.name} arrives on {name}, whose phase already has {everyone}")
            mbarrier.arrive(notified, op.expect, self.state.first + self.number // op.waves, op.waves)
            self.want_not_overfull(op, mbarrier, name)
            if member is not self.state:
                self.note_late(op, before, member)

    def note_late(self, op: Op, segment: int, member: WorkgroupState) -> None:
        late = LateAccess(op, self.name, segment, member, member is not self.state)
        self.state.cluster.late.append(late)

    def want_not_overfull(self, op: Op, mbarrier: Mbarrier, name: str) -> None:
        if mbarrier.is_overfull:
            self.fail(op, f"{name} expects {mbarrier.expected} bytes, and {mbarrier.landed} came")

    def wait_mbarrier(self, op: WaitMbarrier) -> Waiting:
        mbarrier, name = self.mbarrier(op, op.mbarriers, op.at)
        parity = self.uniform(op, op.parity)

        def notified() -> str:
            come = (
                f"{mbarrier.arrived} of {mbarrier.needed} arrivals and {mbarrier.landed} of {mbarrier.expected} bytes"
            )
            return f"at {op.loc} for {name} to complete phase {mbarrier.phase}, which has {come}"

        yield from self.until(Wait(op, lambda: mbarrier.phase % 2 != parity, notified))
        self.state.ledger.clocks.acquire(self.index, mbarrier.notified)
        return ()

    def cluster_barrier(self, op: ClusterBarrier) -> Waiting:
        self.end_loads()
        cluster = self.state.cluster
        cluster.come_to_barrier(self.index, op)

        def is_over() -> bool:
            return self.index not in cluster.at_barrier

        if is_over():
            yield  # let others run first, so that the last wave to arrive does not always continue first
        yield from self.until(Wait(op, is_over, lambda: f"at the cluster's barrier of {op.loc}"))
        return ()

    # -- copies

    def copy(self, op: ops.Copy) -> None:
        """Copy a box; wave 0 does it for all, synchronously."""
        if self.number:
            return
        source: LaneMemory = self.env[op.memory]
        target: LaneMemory = self.env[op.to]
        self.want_waited(op, source)
        box = target.shape[len(op.to_at) :]
        flat = self.box(op, target, op.to_at)
        window = self.window(op, op.at, op.axes, box, source)
        if window is not None and source.is_tracked:
            self.state.note_read(source, self.access(op, "read"), numbers(source, window))
        new = boxed(source, window, box).reshape(-1)
        self.state.note_write(target, self.access(op, "write"), flat, new)
        target.put(flat, new)

    def tma_load(self, op: TmaLoad) -> None:
        target: LaneMemory = self.env[op.to]
        box = target.shape[len(op.to_at) :]
        window = self.window(op, op.at, op.axes, box, self.env[op.memory])
        self.bring(op, self.box(op, target, op.to_at), window, box, self.state)

    def tma_load_multicast(self, op: TmaLoadMulticast) -> None:
        target: LaneMemory = self.env[op.to]
        *others, rows, row = target.shape[len(op.to_at) :]
        box, flat = (*others, rows // op.shares, row), self.box(op, target, op.to_at)
        at = self.begin(op, op.at, self.env[op.memory])
        together, size, rank = self.uniform(op, op.together), len(flat) // op.shares, self.state.rank
        self.ask(op, tuple(at) if together else None)
        members = [self.state.cluster.members[i] for i in op.peers(rank)] if together else [self.state]
        for part in (op.share(rank),) if together else range(op.shares):
            from_here = list(at)
            from_here[op.axes[-2]] += part * (rows // op.shares)
            window = Window.of(from_here, op.axes, box, self.env[op.memory].shape)
            for member in members:
                self.bring(op, flat[part * size : (part + 1) * size], window, box, member)

    def ask(self, op: TmaLoadMulticast, box: tuple[int, ...] | None) -> None:
        """Refuse a multicast whose workgroups load different boxes."""
        asked = Asked(op, self.name, self.state.rank, box)
        other = self.state.cluster.ask((*self.path, self.place), asked)
        if other is not None:
            wants = [f"{a.who} wants {list(a.box) if a.box else 'a separate box'}" for a in (other, asked)]
            self.fail(op, f"{op.name}: {wants[0]}, and {wants[1]}: a multicast loads one box")

    def bring(
        self,
        op: TmaLoad | TmaLoadMulticast,
        flat: Array,
        window: Window | None,
        box: tuple[int, ...],
        member: WorkgroupState,
    ) -> None:
        """Start the TMA load of a box to a workgroup, completing on its mbarrier."""
        source: LaneMemory = self.env[op.memory]
        self.want_waited(op, source)
        target = member.allocate(op.to)
        mbarrier, name = self.mbarrier(op, op.mbarriers, op.mbarrier, member)
        segment = self.state.ledger.clocks.new_segment()
        self.note_late(op, segment, member)
        if window is not None and source.is_tracked:
            self.state.note_read(source, self.access(op, "read", segment), numbers(source, window))
        self.state.note_write(target, self.access(op, "write", segment), flat, None)

        def land() -> None:
            tile = boxed(source, window, box)
            target.data[flat] = tile.reshape(-1)
            mbarrier.land(segment, tile.size * target.element_bytes)
            self.want_not_overfull(op, mbarrier, name)

        self.state.cluster.copies.append(CopyUnderWay(op, segment, land))

    def tma_store(self, op: TmaStore) -> None:
        source: LaneMemory = self.env[op.source]
        target: LaneMemory = self.env[op.memory]
        self.want_waited(op, target)
        box = source.shape[len(op.source_at) :]
        flat = self.box(op, source, op.source_at)
        window = self.window(op, op.at, op.axes, box, target)
        read, written = (self.state.ledger.clocks.new_segment() for _ in range(2))
        reading = self.access(op, "read", read)
        source.order_machine(self.state.ledger, reading, flat)
        self.state.note_read(source, reading, flat)
        if window is not None:
            self.state.note_write(target, self.access(op, "write", written), numbers(target, window), None)

        def land() -> None:
            if window is not None:
                tile = source.data[flat].reshape(box)[window.part]
                target.data.reshape(target.shape)[window.inside] = window.to_memory(tile)

        copy = CopyUnderWay(op, read, land)
        self.state.cluster.copies.append(copy)
        self.joined = (*self.joined, copy)
        if not op.more:
            self.sent.append(self.joined)
            self.joined = ()

    def wait_tma_stores(self, op: WaitTmaStores) -> Waiting:
        self.lanes_meet()
        groups = self.sent[: max(0, len(self.sent) - op.pending)]
        waited = [copy for group in groups for copy in group]

        def notified() -> str:
            return f"at {op.loc} for its TMA stores"

        yield from self.until(Wait(op, lambda: all(copy.has_landed for copy in waited), notified))
        self.state.ledger.clocks.learn(self.index, [copy.segment for copy in waited])
        self.sent = self.sent[len(groups) :]
        return ()

    def want_nothing_under_way(self) -> None:
        """Refuse that a wave ends with copies in flight, because another workgroup may get the shared memory then."""
        sent = [copy.op for copies in (*self.sent, self.joined) for copy in copies]
        if sent:
            self.fail(
                sent[0],
                f"{self.name} ends while its TMA store may still read shared memory",
                "a wait_tma_stores must be between the store and the end",
            )
        if self.loaded:
            self.fail(
                self.loaded[0][0].op,
                f"{self.name} ends while its copy may still write shared memory",
                "a wait_async must be between the copy and the end",
            )

    # -- exchange of tiles between workgroups

    def make_exchange(self, op: MakeExchange) -> ExchangeSlots:
        return self.state.launch.exchange(op.result)

    def hand_over(self, op: HandOver) -> None:
        slots: ExchangeSlots = self.env[op.exchange]
        held = np.broadcast_to(self.env[op.tile], (self.state.lanes, *op.tile.type.shape))
        first = self.uniform(op, op.slot)
        for i, part in enumerate(np.split(held.reshape(self.state.lanes, -1), op.wide, axis=1)):
            slots.put(op, self.state.number, first + i, self.number, part)

    def take_over(self, op: TakeOver) -> Waiting:
        taken = yield from self.taken(op, self.uniform(op, op.slot))
        return (self.numbers.added(self.env[op.tile], taken),)

    def take_over_all(self, op: TakeOverAll) -> Waiting:
        first, apart = self.uniform(op, op.slot), self.uniform(op, op.apart)
        found = self.env[op.tile]
        for i in range(op.count):
            taken = yield from self.taken(op, first + i * apart)
            found = self.numbers.added(found, taken)
        return (found,)

    def taken(self, op: TakeOver, slot: int) -> Generator[None, None, Array]:
        """Wait for a slot; workgroups run one after the other, so an empty slot is reported as a deadlock."""
        slots: ExchangeSlots = self.env[op.exchange]
        slots.want_inside(op, self.state.number, slot)

        def notified() -> str:
            return f"at {op.loc} for {slots.name(slot)}, which no earlier workgroup handed over"

        yield from self.until(Wait(op, lambda: (slot, self.number) in slots.full, notified))
        return slots.take(op, self.state.number, slot, self.number).reshape(self.state.lanes, *op.tile.type.shape)

    # -- asynchronous copies by lanes

    def bring_elements(self, op: CopyAsyncChunks, elements: Elements) -> None:
        """Start asynchronous copies; `elements` are those of the global memory, lanes x rounds x neighbours."""
        source: LaneMemory = self.env[op.memory]
        target: LaneMemory = self.env[op.to]
        flat = self.places(op, target)
        segment = self.state.ledger.clocks.new_segment()
        if source.is_tracked and len(elements.kept):
            self.state.note_read(source, self.access(op, "read", segment), elements.kept)
        self.state.note_write(target, self.access(op, "write", segment), flat, None)
        taken = (self.state.lanes, *op.shape)

        def land() -> None:
            found = source.data.take(np.broadcast_to(elements.flat, taken))
            if elements.active is not None:
                found = np.where(np.broadcast_to(elements.active, taken), found, np.zeros((), found.dtype))
            target.data[flat] = found.swapaxes(0, 1).reshape(-1)

        copy = CopyUnderWay(op, segment, land)
        self.state.cluster.copies.append(copy)
        self.loaded.append((copy, len(flat) * target.element_bytes))

    def places(self, op: CopyAsyncChunks, target: LaneMemory) -> Array:
        """Return the numbers of the elements that the chunks fill, contiguous from the beginning of a row."""
        *front, row = (self.uniform(op, v) for v in op.to_at)
        kind = op.to.type
        assert isinstance(kind, Memory)
        place = np.arange(op.shape[0] * self.state.lanes * op.shape[1])
        rows, columns = row + place // kind.shape[-1], place % kind.shape[-1]
        if not (row >= 0 and rows[-1] < kind.shape[-2] and all(map(range.__contains__, map(range, kind.shape), front))):
            where = ", ".join(map(str, (*front, row)))
            self.fail(op, f"wave {self.number} copies {len(place)} elements to {target.name}[{where}], outside {kind}")
        first = sum(i * s for i, s in zip(front, strides(target.shape), strict=False))
        flat: Array = first + rows * kind.shape[-1] + in_its_place(kind, rows, columns)
        return flat

    def wait_async(self, op: WaitAsync) -> Waiting:
        waited: list[CopyUnderWay] = []
        while self.loaded and sum(size for _, size in self.loaded) > op.pending:
            waited.append(self.loaded.pop(0)[0])

        def notified() -> str:
            return f"at {op.loc} for its copies"

        yield from self.until(Wait(op, lambda: all(copy.has_landed for copy in waited), notified))
        self.state.ledger.clocks.learn(self.index, [copy.segment for copy in waited])
        return ()

    def box(self, op: Op, memory: LaneMemory, at: tuple[Value, ...]) -> Array:
        """Return the numbers of the elements at the leading indices `at`."""
        indices = [self.uniform(op, v) for v in at]
        if not all(0 <= i < extent for i, extent in zip(indices, memory.shape, strict=False)):
            where = ", ".join(map(str, indices))
            self.fail(op, f"wave {self.number} copies {memory.name}[{where}], which is outside the memory")
        first = sum(i * s for i, s in zip(indices, strides(memory.shape), strict=False))
        return np.arange(first, first + prod(memory.shape[len(at) :]))

    def window(
        self, op: Op, at: tuple[Value, ...], axes: tuple[int, ...], box: tuple[int, ...], memory: LaneMemory
    ) -> Window | None:
        return Window.of(self.begin(op, at, memory), axes, box, memory.shape)

    def begin(self, op: Op, at: tuple[Value, ...], memory: LaneMemory) -> list[int]:
        """Return the position of a box in a global memory."""
        found = [self.uniform(op, v) for v in at]
        if found[-1] * memory.element_bytes % GRAIN_BYTES:
            where = ", ".join(map(str, found))
            self.fail(
                op,
                f"wave {self.number} copies from {memory.name}[{where}], not a multiple of {GRAIN_BYTES} bytes",
            )
        return found


def boxed(source: LaneMemory, window: Window | None, box: tuple[int, ...]) -> Array:
    """Return the elements of a box of a memory; out-of-bounds elements are 0."""
    tile = np.zeros(box, source.data.dtype)
    if window is not None:
        tile[window.part] = window.to_tile(source.data.reshape(source.shape)[window.inside])
    return tile


def numbers(memory: LaneMemory, window: Window) -> Array:
    """Return the numbers of the elements in a window."""
    along = [np.arange(w.start, w.stop) if isinstance(w, slice) else np.array([w]) for w in window.inside]
    steps = strides(memory.shape)
    return sum((p * s for p, s in zip(np.ix_(*along), steps, strict=True)), np.zeros(1, np.int64)).reshape(-1)
