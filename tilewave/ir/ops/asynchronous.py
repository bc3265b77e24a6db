"""Asynchronous ops: copies that bypass registers, mbarriers, clusters, and dependent launches

`copy` is complete when it is done; after a `copy_async` or a TMA op the copy is in flight, and the op decides how
completion is observed:

    copy                  a box, complete when the op is done
    copy_async            a box, moved by lanes                      `wait_async` counts bytes
    copy_async_chunks     one wave's share, chunk by chunk           `wait_async` counts bytes
    tma_load              a box, moved by TMA                        completes on an mbarrier; `wait_mbarrier` waits
    tma_load_multicast    a box for several CTAs, a part from each   completes on the mbarriers of all of them
    tma_store             a box from shared to global memory         `wait_tma_stores` counts copies
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.ops.mbarriers import MBARRIERS, Asynchronous, want_mbarrier
from tilewave.ir.placements import is_in
from tilewave.ir.rules import GLOBAL, ON_BOTH, ON_LANES, ON_TILES, SHARED, are_axes, are_indices, parts_only, places
from tilewave.ir.types import BOOL, F32, Memory, Padded, Scalar, Vector
from tilewave.records import dataclass

__all__ = [
    "Copy",
    "CopyAsync",
    "CopyAsyncChunks",
    "CopyToShared",
    "TmaCopy",
    "TmaLoad",
    "TmaLoadMulticast",
    "TmaStore",
    "WaitAsync",
    "WaitMma",
    "WaitOlderMma",
    "WaitTmaStores",
]

# -- copies from global to shared memory


class CopyToShared(Op):
    """A copy from global to shared memory that bypasses registers."""

    reads = places(memory=GLOBAL)
    writes = places(to=SHARED)
    passes_lanes_by = True


@dataclass(frozen=True)
class Copy(CopyToShared):
    """Copy a box of a global memory to shared memory, complete when the op is done; out-of-bounds elements are 0.

    The box has the shape of `to`'s last axes, as many as `axes`, whose entry i names the memory axis that box axis i
    runs along; `at` is its first element in `memory`, `to_at` the indices before those axes. On the lane level wave 0
    of the workgroup makes the copy, and continues when it is complete. `rows_used` may hold a number of rows, along the
    last axis but one; the others may be anything.
    """

    levels = ON_BOTH

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]
    rows_used: tuple[Value, ...] = ()

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        want(len(self.rows_used) <= 1 and are_indices(self.rows_used), "uses a number of its rows")


@dataclass(frozen=True)
class CopyAsync(CopyToShared):
    """Start the copy of a box, as in `copy`, to shared memory; `wait_async` waits for it."""

    levels = ON_TILES

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    axes: tuple[int, ...]
    guard: tuple[int, ...] = ()
    """The memory axes along which the box may be out of bounds; set by `predicate_edges`."""

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        want(are_axes(self.guard, self.memory.type.rank), f"{self.memory.type} has no such axes to guard")


@dataclass(frozen=True)
class CopyAsyncChunks(CopyToShared):
    """Start the copy of chunks, one per lane of a wave, to shared memory; `wait_async` waits for them.

    `shape` is rounds x neighbours. In each round every lane takes one chunk, at positions as in `load`; elements out of
    bounds along `guard` are 0. Chunks are stored contiguously, lane after lane and round after round, in row order of
    `to` from the beginning of row `to_at`: lanes choose what they load, not where it is stored. `columns` are the
    positions of each round's chunk along the last axis, where a swizzle differs between rounds; if empty, all rounds
    use `at[-1]`.
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
    """No mask: every lane takes part."""

    def of_round(self, r: int) -> CopyAsyncChunks:
        """Return the op as it is for round r, whose chunks are at `at` and r steps from there."""
        return replace(self, at=(*self.at[:-1], self.columns[r]), columns=()) if self.columns else self

    def check(self, want: Want) -> None:
        memory, to = self.memory.type, self.to.type
        rank = memory.rank
        shared = isinstance(to, Memory) and to.space == "shared" and not isinstance(to.placement, Padded)
        want(is_in(self.memory, "global") and shared and memory.dtype == to.dtype, f"copies {memory} to {to}")
        want(are_axes(self.guard, rank), f"{memory} has no axes {list(self.guard)}")
        want(len(self.at) == rank and are_indices(self.at), f"{memory} needs {rank} positions")
        want(len(self.to_at) == len(to.shape) - 1 and are_indices(self.to_at), f"{to} needs the index of a row")
        want(
            len(self.shape) == 2 and min(self.shape) > 0,
            f"{list(self.shape)} is not chunks per lane x elements per chunk",
        )
        fits = len(self.steps) == 2 and all(len(step) == rank for step in self.steps)
        want(fits and self.steps[1] == (*[0] * (rank - 1), 1), f"chunks run along the last axis of {memory}")
        each = not self.columns or len(self.columns) == self.shape[0]
        want(each and are_indices(self.columns), f"{len(self.columns)} columns are not one for each chunk of a lane")
        want(to.shape[-1] % self.shape[1] == 0, f"chunks of {self.shape[1]} do not fit rows of {to}")


@dataclass(frozen=True)
class WaitAsync(Op):
    """Wait until at most the last `pending` bytes of this workgroup's, or wave's, copies by lanes are in flight."""

    levels = ON_BOTH

    pending: int

    check = parts_only


class TmaCopy(CopyToShared, Asynchronous):
    """A TMA load of a box, which completes on an mbarrier."""

    writes = places(to=SHARED, mbarriers=MBARRIERS)

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
class TmaLoad(TmaCopy):
    """Start a TMA load of a box, as in `copy`, by one lane; it completes on an mbarrier."""

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    mbarriers: Value
    mbarrier: Value
    axes: tuple[int, ...]
    rows_used: tuple[Value, ...] = ()

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        want(len(self.rows_used) <= 1 and are_indices(self.rows_used), "uses a number of its rows")
        want_mbarrier(self.mbarriers, self.mbarrier, want)


@dataclass(frozen=True)
class TmaLoadMulticast(TmaCopy):
    """A `tma_load` for the workgroups of a cluster: where `together` is true, each loads a part and multicasts it.

    A box is shared by `shares` workgroups, whose ranks in the cluster are `apart` from each other. Parts are of the
    rows, the last axis but one: the first workgroup multicasts the first part to the same address in the shared memory
    of each, completing on the same mbarrier of each; the second multicasts the second. Where `together` is false, a
    workgroup loads the whole box for itself. The `full` mbarriers expect the same bytes either way.
    """

    writes = places(to=SHARED, mbarriers=MBARRIERS)

    memory: Value
    at: tuple[Value, ...]
    to: Value
    to_at: tuple[Value, ...]
    mbarriers: Value
    mbarrier: Value
    together: Value
    axes: tuple[int, ...]
    shares: int = 2
    apart: int = 1

    def check(self, want: Want) -> None:
        _want_box(self, self.to, self.to_at, want)
        want_mbarrier(self.mbarriers, self.mbarrier, want)
        box = self.box
        cut = self.shares > 1 and len(box) > 1 and prod(box[:-2]) == 1 and box[-2] % self.shares == 0
        want(cut, f"a box of {list(box)} cannot be split into {self.shares} parts")
        want(self.together.type == Scalar(BOOL), f"takes together as a truth value, not {self.together.type}")

    def check_cluster(self, members: int, want: Want) -> None:
        whole = members % (self.shares * self.apart) == 0
        want(whole, f"multicasts in {self.shares} workgroups {self.apart} apart, and a cluster has {members}")

    def share(self, rank: Any) -> Any:
        """Return which part a workgroup multicasts, by its rank in the cluster."""
        return rank // self.apart % self.shares

    def peers(self, rank: int) -> range:
        """Return the ranks of the workgroups that share a box with this one."""
        first = rank - self.share(rank) * self.apart
        return range(first, first + self.shares * self.apart, self.apart)


# -- copies from shared to global memory


@dataclass(frozen=True)
class TmaStore(Asynchronous):
    """Start a TMA store of a box of shared memory to a global memory; out-of-bounds elements are not stored.

    `more`: the next store of this wave is in the same bulk group, so that both are waited for as one.
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
class WaitTmaStores(Asynchronous):
    """Wait until at most `pending` of this wave's bulk groups of TMA stores still read shared memory."""

    pending: int

    check = parts_only


def _want_box(
    op: Copy | CopyAsync | TmaLoad | TmaLoadMulticast | TmaStore,
    shared: Value,
    indices: tuple[Value, ...],
    want: Want,
) -> None:
    memory = op.memory.type
    spaces = is_in(op.memory, "global") and is_in(shared, "shared")
    want(spaces and memory.dtype == shared.type.dtype, f"copies between {memory} and {shared.type}")
    want(are_axes(op.axes, memory.rank) and op.axes != (), f"{memory} has no axes {list(op.axes)}")
    want(len(op.at) == memory.rank, f"{memory} needs {memory.rank} positions")
    want(len(indices) + len(op.axes) == len(shared.type.shape), f"{shared.type} needs an index for each leading axis")
    want(prod(shared.type.shape) > 0 and are_indices((*op.at, *indices)), "positions are of type index")


# -- asynchronous MMAs


@dataclass(frozen=True)
class WaitMma(Asynchronous):
    """Wait until at most the last `pending` of this wave's asynchronous MMAs are in flight, and give the sums of one
    that is complete.

    `meanwhile`: f32 vectors of the wave, summed up or multiplied here, that are computed before the wait.
    """

    gives = 1
    waits = True

    sums: Value
    meanwhile: tuple[Value, ...] = ()
    pending: int = 0

    def check(self, want: Want) -> None:
        floats = all(isinstance(v.type, Vector) and v.type.dtype == F32 for v in self.meanwhile)
        want(floats, "computes vectors of f32 meanwhile")
        want(self.pending >= 0, f"cannot leave {self.pending} MMAs in flight")
        want(self.result.type == self.sums.type, f"gives the sums it waits for, {self.sums.type}")


@dataclass(frozen=True)
class WaitOlderMma(Asynchronous):
    """Wait until at most the last `pending` of this wave's MMAs are in flight; operands of the others may change."""

    pending: int

    check = parts_only


OPS: tuple[type[Op], ...] = (
    Copy,
    CopyAsync,
    CopyAsyncChunks,
    WaitAsync,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    WaitTmaStores,
    WaitMma,
    WaitOlderMma,
)
