"""What comes by itself: copies that pass the lanes by, barriers with phases, other kernels

One verb, and what differs behind it: `copy` is over when it is done; a `copy_async` is on its way then, and its name
says how one learns that it has come:

    copy                  a box, there when the op is done
    copy_async            a box, lanes move it                       `await_async` counts bytes
    copy_async_chunks     its share of one wave, chunk by chunk      `await_async` counts bytes
    copy_async_signal     a box, the copy engine moves it            it tells a signal; `await` waits for that
    copy_async_cluster    the same, for two workgroups, half each    it tells the signals of both
    copy_async_out        a box from shared memory to a global one   `await_async_out` counts copies
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.placements import lies_in
from tilewave.ir.rules import GLOBAL, ON_BOTH, ON_LANES, ON_TILES, SHARED, are_axes, are_indices, parts_only, places
from tilewave.ir.types import BOOL, F32, I64, INDEX_SCALAR, Memory, Padded, Scalar, Signals, Vector

SIGNALS = ("signals",)


class Asynchronous(Op):
    """What the machine does by itself, beside the waves that ask for it and wait for it."""

    levels = ON_LANES


# -- copies from a global memory to a shared one


class CopyToShared(Op):
    """What a global memory holds goes to shared memory, past the registers of lanes."""

    reads = places(memory=GLOBAL)
    writes = places(to=SHARED)
    passes_lanes_by = True


@dataclass(frozen=True)
class Copy(CopyToShared):
    """A box of a global memory goes to shared memory, and is there when this is done; 0 where it lies outside.

    The box has the shape of `to`'s last axes, as many as `axes`, whose entry i names the memory axis that box axis i
    runs along; `at` is its first element in `memory`, `to_at` the indices in front of those axes. On the lane level
    wave 0 of the workgroup makes it, and goes on when it is made.
    """

    levels = ON_BOTH

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)


@dataclass(frozen=True)
class CopyAsync(CopyToShared):
    """A box, as in `copy`, is on its way to shared memory; `await_async` tells when it is there."""

    levels = ON_TILES

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]
    guard: tuple[int, ...] = ()
    """The memory axes along which the box may hang over; decided by guard_edges."""

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        want(are_axes(self.guard, self.memory.type.rank), f"{self.memory.type} has no such axes to guard")


@dataclass(frozen=True)
class CopyAsyncChunks(CopyToShared):
    """Chunks, of a wave's lanes, are on their way to shared memory; `await_async` tells when they are there.

    `shape` is rounds x neighbours. In each round every lane takes one chunk, at positions as in `load`, and what lies
    outside along `guard` is 0. Lane l's chunk goes right behind that of lane l - 1, and a round behind the one before,
    as rows stand in `to` from the beginning of row `to_at` on: lanes choose what they take, not where it goes.
    `columns`: where along the last axis each round's chunk lies, where chunks change places from round to round; else
    at `at[-1]` in all of them.
    """

    levels = ON_LANES

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    shape: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    columns: tuple[Value, ...] = ()
    guard: tuple[int, ...] = ()

    mask: ClassVar[tuple[Value, ...]] = ()
    """Every lane takes part."""

    def of_round(self, r: int) -> CopyAsyncChunks:
        """As it is for round r, whose chunks lie at `at` and as many steps from there."""
        return replace(self, at=(*self.at[:-1], self.columns[r]), columns=()) if self.columns else self

    def check(self, want: Want) -> None:
        memory, to = self.memory.type, self.to.type
        rank = memory.rank
        shared = isinstance(to, Memory) and to.space == "shared" and not isinstance(to.placement, Padded)
        want(lies_in(self.memory, "global") and shared and memory.dtype == to.dtype, f"brings {memory} to {to}")
        want(are_axes(self.guard, rank), f"{memory} has no axes {list(self.guard)}")
        want(len(self.at) == rank and are_indices(self.at), f"{memory} needs {rank} positions")
        want(len(self.to_at) == len(to.shape) - 1 and are_indices(self.to_at), f"{to} needs the index of a row")
        want(len(self.shape) == 2 and min(self.shape) > 0, f"{list(self.shape)} are not rounds and neighbours")
        fits = len(self.steps) == 2 and all(len(step) == rank for step in self.steps)
        want(fits and self.steps[1] == (*[0] * (rank - 1), 1), f"chunks run along the last axis of {memory}")
        each = not self.columns or len(self.columns) == self.shape[0]
        want(each and are_indices(self.columns), f"{len(self.columns)} columns are not one for each round")
        want(to.shape[-1] % self.shape[1] == 0, f"chunks of {self.shape[1]} do not fit rows of {to}")


@dataclass(frozen=True)
class AwaitAsync(Op):
    """Go on when at most the last `pending` bytes are on their way of what this workgroup, or wave, copies by lanes."""

    levels = ON_BOTH

    pending: int

    check = parts_only


class SignalledCopy(CopyToShared, Asynchronous):
    """A box that the copy engine brings; a signal tells when it is there."""

    writes = places(to=SHARED, signals=SIGNALS)

    memory: Value
    to: Value
    to_at: tuple[Value, ...]

    @property
    def box(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.to.type.shape[len(self.to_at) :]
        return shape

    @property
    def box_bytes(self) -> int:
        size: int = prod(self.box) * self.to.type.dtype.bytes
        return size


@dataclass(frozen=True)
class CopyAsyncSignal(SignalledCopy):
    """A box, as in `copy`, that one lane asks the copy engine for; it arrives some time later, and tells a signal."""

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    signals: Value
    signal: Value
    axes: tuple[int, ...]

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        _want_signal(self.signals, self.signal, want)


@dataclass(frozen=True)
class CopyAsyncCluster(SignalledCopy):
    """As `copy_async_signal`, for workgroups of a cluster: where `together` holds, each gets a part for all who share.

    There are `shares` of these, whose numbers in the cluster are `apart` from each other. Parts are of the rows, the
    last axis but one: the first workgroup brings the first part to all, to the same place in each one's shared memory,
    and tells the same signal of each; the second brings the second. Where it does not hold, a workgroup gets the whole
    box for itself. `full` signals expect the same bytes either way.
    """

    writes = places(to=SHARED, signals=SIGNALS)

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    signals: Value
    signal: Value
    together: Value
    axes: tuple[int, ...]
    shares: int = 2
    apart: int = 1

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        _want_signal(self.signals, self.signal, want)
        box = self.box
        cut = self.shares > 1 and len(box) > 1 and prod(box[:-2]) == 1 and box[-2] % self.shares == 0
        want(cut, f"a box of {list(box)} has no {self.shares} parts")
        want(self.together.type == Scalar(BOOL), f"is decided by a truth value, not {self.together.type}")

    def check_cluster(self, members: int, want: Want) -> None:
        whole = members % (self.shares * self.apart) == 0
        want(whole, f"is done by {self.shares} workgroups {self.apart} apart, and a cluster has {members}")

    def share(self, rank: Any) -> Any:
        """Which part a workgroup brings, by its number in the cluster."""
        return rank // self.apart % self.shares

    def sharers(self, rank: int) -> range:
        """The numbers in the cluster of those who share a box with a workgroup."""
        first = rank - self.share(rank) * self.apart
        return range(first, first + self.shares * self.apart, self.apart)


# -- and from shared memory to a global one


@dataclass(frozen=True)
class CopyAsyncOut(Asynchronous):
    """A box of shared memory goes to a global memory at some later time; nothing is stored outside the memory.

    `more`: the next one of this wave goes with it, and both are awaited as one.
    """

    reads = places(source=SHARED)
    writes = places(memory=GLOBAL)
    passes_lanes_by = True

    source: Value
    source_at: tuple[Value, ...]
    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    more: bool = False

    def check(self, want: Want) -> None:
        _want_box(self, self.source, self.source_at, want)


@dataclass(frozen=True)
class AwaitAsyncOut(Asynchronous):
    """Go on when at most `pending` of this wave's copies out, joined ones as one, still read shared memory."""

    pending: int

    check = parts_only


def _want_box(
    op: Copy | CopyAsync | CopyAsyncSignal | CopyAsyncCluster | CopyAsyncOut,
    shared: Value,
    indices: tuple[Value, ...],
    want: Want,
) -> None:
    memory = op.memory.type
    spaces = lies_in(op.memory, "global") and lies_in(shared, "shared")
    want(spaces and memory.dtype == shared.type.dtype, f"copies between {memory} and {shared.type}")
    want(are_axes(op.axes, memory.rank) and op.axes != (), f"{memory} has no axes {list(op.axes)}")
    want(len(op.at) == memory.rank, f"{memory} needs {memory.rank} positions")
    want(len(indices) + len(op.axes) == len(shared.type.shape), f"{shared.type} needs an index for each leading axis")
    want(prod(shared.type.shape) > 0 and are_indices((*op.at, *indices)), "positions are of type index")


# -- products


@dataclass(frozen=True)
class AwaitProducts(Asynchronous):
    """The sums of a product that was begun earlier, there when at most the last `pending` of this wave's products are
    still under way.

    `meanwhile`: numbers of the wave's own, of f32 and summed up or multiplied here, that are computed before it waits.
    """

    gives = 1
    awaits = True

    sums: Value
    meanwhile: tuple[Value, ...] = ()
    pending: int = 0

    def check(self, want: Want) -> None:
        floats = all(isinstance(v.type, Vector) and v.type.dtype == F32 for v in self.meanwhile)
        want(floats, "computes vectors of f32 meanwhile")
        want(self.pending >= 0, f"cannot leave {self.pending} products under way")
        want(self.result.type == self.sums.type, f"gives the sums it awaits, {self.sums.type}")


@dataclass(frozen=True)
class AwaitOlderProducts(Asynchronous):
    """Go on when at most the last `pending` of this wave's products are under way; what the others read is free."""

    pending: int

    check = parts_only


# -- barriers with phases


@dataclass(frozen=True)
class MakeSignals(Asynchronous):
    """Barriers that each turn when `arrivals` arrivals, and all bytes they were told to expect, have come.

    A fresh one is in phase 0. The wave that makes them does so for the workgroup; others see them behind a barrier.
    """

    gives = 1

    arrivals: int

    def check(self, want: Want) -> None:
        made = self.result.type
        want(isinstance(made, Signals) and self.arrivals > 0, "makes signals")
        want(len(made.shape) == 1 and made.dtype == I64, "makes a row of signals")


@dataclass(frozen=True)
class Arrive(Asynchronous):
    """This wave has come to signal `at`; what it did before is seen by whoever waits for the phase that this ends.

    `expect` bytes more must be copied in before that phase can end. `waves`: so many neighbours, counted from wave 0,
    arrive once together, when all of them have come. `members`: at the same signal of each of the cluster's workgroups.
    `seen`: what this wave loaded from the memory that it releases here; the arrival waits until it is in registers.
    """

    writes = places(signals=SIGNALS)

    signals: Value
    at: Value
    expect: int = 0
    waves: int = 1
    members: int = 1
    seen: tuple[Value, ...] = ()

    def check(self, want: Want) -> None:
        _want_signal(self.signals, self.at, want)
        want(self.waves > 0, "is the arrival of one wave at least")
        want(all(isinstance(v.type, Vector) for v in self.seen), "waits for vectors")

    def check_cluster(self, members: int, want: Want) -> None:
        want(self.members in (1, members), f"arrives in {self.members} workgroups, and a cluster has {members}")
        alone = self.members == 1 or not self.expect
        want(alone, "tells other workgroups to expect nothing: each expects its own bytes")


@dataclass(frozen=True)
class Await(Asynchronous):
    """Go on when signal `at` is no longer in the phase whose parity is `parity` (0 or 1)."""

    reads = places(signals=SIGNALS)

    signals: Value
    at: Value
    parity: Value

    def check(self, want: Want) -> None:
        _want_signal(self.signals, self.at, want)
        want(self.parity.type == INDEX_SCALAR, f"takes a phase's parity as an index, not {self.parity.type}")


def _want_signal(signals: Value, at: Value, want: Want) -> None:
    want(isinstance(signals.type, Signals) and at.type == INDEX_SCALAR, f"takes signals, not {signals.type}")


# -- other workgroups, other kernels


class ClusterBarrier(Asynchronous):
    """No wave goes on before all waves of all workgroups of the cluster have come here."""

    check = parts_only

    def check_cluster(self, members: int, want: Want) -> None:
        want(members > 1, "is for the workgroups of a cluster, and there is one alone")


class AwaitEarlier(Asynchronous):
    """Go on when all kernels launched before have ended, and what they wrote is there.

    A kernel that has this may start while they still run, so no wave touches global memory in front of it.
    """

    check = parts_only


class LetNextStart(Asynchronous):
    """The kernel launched next may start once all workgroups have come here, or ended; no result depends on it."""

    check = parts_only


OPS: tuple[type[Op], ...] = (
    Copy,
    CopyAsync,
    CopyAsyncChunks,
    AwaitAsync,
    CopyAsyncSignal,
    CopyAsyncCluster,
    CopyAsyncOut,
    AwaitAsyncOut,
    AwaitProducts,
    AwaitOlderProducts,
    MakeSignals,
    Arrive,
    Await,
    ClusterBarrier,
    AwaitEarlier,
    LetNextStart,
)
