"""State shared by the waves of a workgroup (memories, mbarriers, the barrier) and by the workgroups of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewave.interp.arithmetic import Array
from tilewave.interp.mbarriers import MbarrierArray
from tilewave.interp.memory import LaneMemory, Ledger, WaveAccess
from tilewave.interp.numbers import DTYPE_NUMBERS, Numbers
from tilewave.interp.tile_run import ATOMICALLY, InterpretedCall, TrackedMemory
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Agree, Barrier, ClusterBarrier, Loop, Meet, TmaLoadMulticast
from tilewave.ir.rewrite import walk
from tilewave.records import dataclass


@dataclass(frozen=True)
class Wait:
    """The op at which a wave waits, whether the wait is over, and its description for messages."""

    op: Op
    is_over: Callable[[], bool]
    notified: Callable[[], str]


@dataclass
class CopyUnderWay:
    """A copy in flight; it may complete at any time."""

    op: Op
    segment: int
    """The segment of a store's reads, or of a load's writes."""
    land: Callable[[], None]
    has_landed: bool = False


@dataclass(frozen=True)
class LateAccess:
    """A copy into a workgroup's shared memory, or an arrival from outside: the workgroup must not end before it."""

    op: Op
    who: str
    segment: int
    there: WorkgroupState
    from_outside: bool
    """Whether the wave belongs to another workgroup of the cluster."""


@dataclass(frozen=True)
class Asked:
    """A multicast load that a wave started, to be compared with those of the other workgroups of its group."""

    op: TmaLoadMulticast
    who: str
    rank: int
    box: tuple[int, ...] | None
    """The position of the box; None where the workgroup loads the whole box for itself."""


class ClusterState:
    """Workgroups of a cluster, most often one, which run concurrently and share one ledger of accesses."""

    def __init__(self, launch: InterpretedCall, arguments: dict[Value, Any], first: int, waves: int) -> None:
        kernel = launch.kernel
        self.waves = kernel.cluster * waves
        self.ledger = Ledger(self.waves)
        self.copies: list[CopyUnderWay] = []
        self.late: list[LateAccess] = []
        self.asked: dict[tuple[int, ...], dict[int, Asked]] = {}
        """Multicast loads by position in the program and first rank of the group, until all of the group got there."""
        self.at_barrier: dict[int, ClusterBarrier] = {}
        self.members = [
            WorkgroupState(self, launch, arguments, first + rank, rank, waves, kernel.lanes)
            for rank in range(kernel.cluster)
        ]

    def land(self, copy: CopyUnderWay) -> None:
        copy.has_landed = True
        self.copies.remove(copy)
        copy.land()

    def come_to_barrier(self, wave: int, op: ClusterBarrier) -> None:
        self.at_barrier[wave] = op
        if all(self.at_barrier.get(other) is op for other in range(self.waves)):
            self.at_barrier.clear()
            self.ledger.clocks.barrier(range(self.waves))

    def ask(self, place: tuple[int, ...], asked: Asked) -> Asked | None:
        """Return a multicast load of another workgroup of the group, at the same place, that differs; else None."""
        peers = asked.op.peers(asked.rank)
        here = self.asked.setdefault((*place, peers.start), {})
        if asked.rank in here:  # this workgroup's next iteration; the others never got here
            here.clear()
        here[asked.rank] = asked
        other = next((one for one in here.values() if one.box != asked.box), None)
        if len(here) == len(peers):
            here.clear()
        return other

    def never_waited_for(self) -> LateAccess | None:
        """Return the first late access that no wave of its workgroup waited for before the workgroup ended."""
        (table, _) = self.ledger.clocks.table
        for late in self.late:
            first = late.there.first
            if not table[first : first + late.there.waves, late.segment].any():
                return late
        return None


class WorkgroupState:
    """The state of one workgroup that its waves share."""

    def __init__(
        self,
        cluster: ClusterState,
        launch: InterpretedCall,
        arguments: dict[Value, Any],
        number: int,
        rank: int,
        waves: int,
        lanes: int,
    ) -> None:
        self.cluster, self.launch, self.arguments = cluster, launch, arguments
        self.number, self.rank, self.waves, self.lanes = number, rank, waves, lanes
        self.ledger = cluster.ledger
        self.allocations: dict[Value, LaneMemory] = {}
        self.left_out: set[int] = set()
        """Ids of the loops that ran no iteration."""
        self.mbarriers: dict[Value, MbarrierArray] = {}
        self.at_barrier: dict[int, Op] = {}
        self.products: dict[int, list[tuple[int, ...]]] = {}
        """For each group of waves, the program positions of its MMAs."""
        self.said: dict[int, bool] = {}
        self.agreed: dict[int, bool] = {}
        """The boolean of each wave at its last `agree` (`said`), and the conjunction over the waves there."""

    @property
    def first(self) -> int:
        """The number in the cluster of this workgroup's first wave."""
        return self.rank * self.waves

    def allocate(self, value: Value) -> LaneMemory:
        if value not in self.allocations:
            self.allocations[value] = LaneMemory.shared(value, self.cluster.waves, self.launch.numbers)
        return self.allocations[value]

    def overlay(self, under: Value, memory: LaneMemory, value: Value) -> LaneMemory:
        if value not in self.allocations:
            self.allocations[value] = memory.overlaid(under, value)
        return self.allocations[value]

    def leave_out(self, loop: Loop) -> None:
        """Mark what a loop without iterations would read as read: sizes of a call may decide that it does not run."""
        if id(loop) not in self.left_out:
            self.left_out.add(id(loop))
            for value in {v for op in walk(loop.body) for v in op.read}:
                if value in self.allocations:
                    self.allocations[value].was_read = True

    def make_mbarriers(self, op: Op, arrivals: int, wave: int, maker: int) -> MbarrierArray:
        """Return the mbarriers of an op that all waves execute; the wave `maker` initializes them."""
        if op.result not in self.mbarriers:
            self.mbarriers[op.result] = MbarrierArray.of(op.result, op, maker, arrivals)
        made = self.mbarriers[op.result]
        if wave == maker and made.made_in is None:
            made.made_in = self.ledger.clocks.current[self.first + wave]
        return made

    # -- memory

    def note_read(self, memory: LaneMemory, access: WaveAccess, flat: Array) -> None:
        memory.note_read(self.ledger, access, flat)
        if memory.buffer is not None and memory.buffer.writer is not None:
            self.launch.workgroup = self.number
            self.launch.note_read(access.op, memory.buffer, np.unravel_index(flat, memory.shape))

    def note_write(self, memory: LaneMemory, access: WaveAccess, flat: Array, new: Array | None) -> None:
        memory.note_write(self.ledger, access, flat, new)
        if memory.buffer is not None:
            self.launch.workgroup = self.number
            self.launch.note_write(access.op, memory.buffer, np.unravel_index(flat, memory.shape))

    def note_combined(self, op: Op, memory: LaneMemory, flat: Array) -> None:
        """Record that elements of an array are written atomically."""
        assert memory.buffer is not None
        self.launch.workgroup = self.number
        self.launch.note_write(op, memory.buffer, np.unravel_index(flat, memory.shape), ATOMICALLY)

    # -- warpgroups

    def comes_along(self, group: int, count: int, place: tuple[int, ...]) -> bool:
        """Return whether the other waves of a group make, or made, the same MMA as their `count`-th."""
        made = self.products.setdefault(group, [])
        if count == len(made):
            made.append(place)
        return made[count] == place

    # -- barriers

    def come_to_barrier(self, wave: int, op: Barrier | Agree, says: bool = True) -> None:
        """Arrive at a barrier; for `agree`, `says` is this wave's boolean, of which all waves get the conjunction."""
        self.at_barrier[wave], self.said[wave] = op, says
        count = op.waves or self.waves
        those = range(wave // count * count, wave // count * count + count)
        others = (self.at_barrier.get(other) for other in those)
        if all(other is op or (isinstance(op, Meet) and isinstance(other, Meet)) for other in others):
            agreed = all(self.said[other] for other in those)
            for other in those:
                del self.at_barrier[other]
                self.agreed[other] = agreed
            over = "shared" if isinstance(op, Agree) else op.over
            self.ledger.clocks.barrier(range(self.first + those.start, self.first + those.stop), over)


def argument_memory(buffer: TrackedMemory, waves: int, numbers: Numbers = DTYPE_NUMBERS) -> LaneMemory:
    """Return a global memory; only memories that the kernel writes have stamps."""
    data = np.ascontiguousarray(buffer.data)
    memory = LaneMemory(buffer.value, data, waves, numbers, buffer)
    if buffer.writer is not None:
        assert data is buffer.data, "an output is a separate contiguous copy"
        memory.table("writer", 1)
    return memory
