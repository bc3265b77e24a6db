"""Ops that wait for asynchronous ops and for other workgroups: mbarriers, cluster barriers, dependent launches."""

from __future__ import annotations

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.rules import ON_LANES, parts_only, places
from tilewave.ir.types import I64, INDEX_SCALAR, Mbarriers, Vector
from tilewave.records import dataclass

__all__ = [
    "Arrive",
    "Asynchronous",
    "ClusterBarrier",
    "LaunchDependents",
    "MakeMbarriers",
    "WaitMbarrier",
    "WaitPriorLaunch",
]

MBARRIERS = ("mbarriers",)


class Asynchronous(Op):
    """An op that the hardware executes asynchronously to the waves that start it and wait for it."""

    levels = ON_LANES


@dataclass(frozen=True)
class MakeMbarriers(Asynchronous):
    """Make mbarriers, each of which completes a phase when `arrivals` arrivals and all expected bytes have come.

    A new mbarrier is in phase 0. One wave makes them for the workgroup; other waves see them after a barrier.
    """

    gives = 1

    arrivals: int

    def check(self, want: Want) -> None:
        made = self.result.type
        want(isinstance(made, Mbarriers) and self.arrivals > 0, "makes mbarriers")
        want(len(made.shape) == 1 and made.dtype == I64, "makes a row of mbarriers")


@dataclass(frozen=True)
class Arrive(Asynchronous):
    """Arrive on mbarrier `at`; waves that wait for the phase that this completes see what this wave did before.

    `expect` more bytes must be copied before the phase completes. `waves`: so many neighbouring waves, from wave 0,
    arrive once together, after all of them got here. `members`: on the same mbarrier of each workgroup of the cluster.
    `seen`: what this wave loaded from the memory that it releases here; the arrival waits until it is in registers.
    `stored`: what lanes stored to shared memory before is visible to products and TMA copies of those that wait.
    """

    writes = places(mbarriers=MBARRIERS)

    mbarriers: Value
    at: Value
    expect: int = 0
    waves: int = 1
    members: int = 1
    seen: tuple[Value, ...] = ()
    stored: bool = False

    def check(self, want: Want) -> None:
        want_mbarrier(self.mbarriers, self.at, want)
        want(self.waves > 0, "is the arrival of one wave at least")
        want(all(isinstance(v.type, Vector) for v in self.seen), "waits for vectors")

    def check_cluster(self, members: int, want: Want) -> None:
        want(self.members in (1, members), f"arrives in {self.members} workgroups, and a cluster has {members}")
        alone = self.members == 1 or not self.expect
        want(alone, "cannot expect bytes in other workgroups: each expects its own")


@dataclass(frozen=True)
class WaitMbarrier(Asynchronous):
    """Wait until mbarrier `at` has completed the phase of parity `parity` (0 or 1)."""

    reads = places(mbarriers=MBARRIERS)

    mbarriers: Value
    at: Value
    parity: Value

    def check(self, want: Want) -> None:
        want_mbarrier(self.mbarriers, self.at, want)
        want(self.parity.type == INDEX_SCALAR, f"takes the parity as an index, not {self.parity.type}")


def want_mbarrier(mbarriers: Value, at: Value, want: Want) -> None:
    want(isinstance(mbarriers.type, Mbarriers) and at.type == INDEX_SCALAR, f"takes mbarriers, not {mbarriers.type}")


class ClusterBarrier(Asynchronous):
    """A barrier of all waves of all workgroups of the cluster."""

    check = parts_only

    def check_cluster(self, members: int, want: Want) -> None:
        want(members > 1, "needs a cluster of two workgroups or more")


class WaitPriorLaunch(Asynchronous):
    """Wait until all kernels launched before have ended and their writes are visible (griddepcontrol.wait).

    A kernel with this op may start while they still run (PDL), so no wave accesses global memory before it.
    """

    check = parts_only


class LaunchDependents(Asynchronous):
    """Let the next kernel start once all workgroups got here, or ended (PDL); no result depends on it."""

    check = parts_only


OPS: tuple[type[Op], ...] = (
    MakeMbarriers,
    Arrive,
    WaitMbarrier,
    ClusterBarrier,
    WaitPriorLaunch,
    LaunchDependents,
)
