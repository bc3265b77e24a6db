"""Loads and stores of lanes."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from tilewave.ir.core import Op, Value, Want
from tilewave.ir.ops.indexed import COMBINED
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import GLOBAL, GLOBAL_OR_SHARED, ON_LANES, SHARED, are_axes, are_indices, places
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Memory, Scalar, Type, Vector, elementwise
from tilewave.layouts.formulas import neighbours_last
from tilewave.records import dataclass

__all__ = [
    "Load",
    "LoadEach",
    "LoadTransposed",
    "LoadUnaligned",
    "Misalignment",
    "Store",
    "StoreEach",
    "StoreUnaligned",
]

CHUNK_BYTES = 16
"""The bytes of the widest access of a lane."""


@dataclass(frozen=True)
class Load(Computed):
    """Load elements of a memory into this lane's registers.

    Register (i, j, …) of the result holds the element at `at[a] + i · steps[0][a] + j · steps[1][a] + …` along each
    memory axis a. Out-of-bounds elements are 0 along the axes in `guard`; along others none may be out of bounds. Where
    `mask` is false, a lane loads nothing and holds 0. For a boundary tile, `own[a]` is the first register's position
    in the tile along memory axis a; registers from `within[a]` on are 0 and are not loaded. `begin[a]`, in a global
    memory, is the offset of the first register after `at[a]`.
    """

    levels = ON_LANES
    reads = places(memory=GLOBAL_OR_SHARED)

    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    steps: tuple[tuple[int, ...], ...]
    guard: tuple[int, ...] = ()
    own: tuple[Value, ...] = ()
    within: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()

    def check(self, want: Want) -> None:
        _want_steps(self, self.result.type, want)


@dataclass(frozen=True)
class LoadTransposed(Computed):
    """A transposing load from shared memory: groups of `lanes` neighbouring lanes load for each other.

    They read `rows` rows of `lanes` elements: each lane reads `rows` neighbours along the memory's last axis; the first
    `lanes` / `rows` lanes read the first row in order, the next ones the next row. Lane i gets element i of each row.
    `at` is where this lane reads; for each group of `rows` registers at positions as in `load`.
    """

    levels = ON_LANES
    reads = places(memory=SHARED)

    memory: Value
    at: tuple[Value, ...]
    steps: tuple[tuple[int, ...], ...]
    lanes: int
    rows: int

    mask: ClassVar[tuple[Value, ...]] = ()
    guard: ClassVar[tuple[int, ...]] = ()
    own: ClassVar[tuple[Value, ...]] = ()
    """No mask and no boundary: every lane takes part, and all of the tile is in bounds."""

    def check(self, want: Want) -> None:
        held = self.result.type
        _want_steps(self, held, want)
        whole = self.rows > 0 and self.lanes % self.rows == held.shape[-1] % self.rows == 0
        want(whole, f"{self.lanes} lanes do not hold {self.rows} rows each in {held}")

    def check_wave(self, lanes: int, want: Want) -> None:
        want(lanes % self.lanes == 0, f"{lanes} lanes are not groups of {self.lanes}")

    @property
    def read_steps(self) -> tuple[tuple[int, ...], ...]:
        """The `steps` of what this lane reads: the last axis is split into groups of neighbours along a row."""
        *front, last = self.steps
        return (*front, tuple(self.rows * far for far in last), (*[0] * (len(last) - 1), 1))

    @property
    def read_shape(self) -> tuple[int, ...]:
        *front, last = self.result.type.shape
        return (*front, last // self.rows, self.rows)


@dataclass(frozen=True)
class Store(Op):
    """Store this lane's registers, at positions as in `load`; elements out of bounds along `guard`, or from `within`
    on, are not stored. With `combine`, each is combined atomically with what the memory has."""

    levels = ON_LANES
    writes = places(memory=GLOBAL_OR_SHARED)

    x: Value
    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    steps: tuple[tuple[int, ...], ...]
    guard: tuple[int, ...] = ()
    own: tuple[Value, ...] = ()
    within: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    combine: str = ""

    @property
    def is_across_rows(self) -> bool:
        """Whether registers that are contiguous in memory are not numbered consecutively."""
        return neighbours_last(self.steps, len(self.at) - 1) != tuple(range(len(self.steps)))

    def check(self, want: Want) -> None:
        _want_steps(self, self.x.type, want)
        want(self.combine in COMBINED, f"{self.combine!r} is none of {', '.join(COMBINED[1:])}")


class LoadUnaligned(Load):
    """A `load` of unaligned neighbours along the last axis: the aligned chunks that contain them are loaded, and
    shifted."""


class StoreUnaligned(Store):
    """A `store` of neighbours along the last axis: one access where all are in bounds and aligned, which each lane
    checks at run time, and else one access per element."""


@dataclass(frozen=True)
class LoadEach(Computed):
    """A gather: each register from its position; `at[a]` is a vector of positions along axis a; 0 out of bounds."""

    levels = ON_LANES
    reads = places(memory=GLOBAL_OR_SHARED)

    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    run: int = 1
    """Each so many registers are neighbours along the memory's last axis, from a multiple of their number on."""

    def check(self, want: Want) -> None:
        _want_each(self, self.result.type, want)


@dataclass(frozen=True)
class Misalignment(Computed):
    """The elements between the last multiple of 16 bytes and an element of a global memory, by the array's address."""

    levels = ON_LANES
    hands_on = places(memory=GLOBAL)

    memory: Value
    at: tuple[Value, ...]

    @property
    def chunk(self) -> int:
        """The elements of 16 bytes, or one where an element has as many."""
        return max(1, CHUNK_BYTES // self.memory.type.dtype.bytes)

    def check(self, want: Want) -> None:
        memory = self.memory.type
        want(isinstance(memory, Memory) and memory.space == "global", f"{memory} has no addresses of arrays")
        want(len(self.at) == memory.rank and are_indices(self.at), f"{memory} needs {memory.rank} positions")
        want(self.result.type == INDEX_SCALAR, "it is an index")


@dataclass(frozen=True)
class StoreEach(Op):
    """A scatter: each register to its position; out-of-bounds elements are not stored."""

    levels = ON_LANES
    writes = places(memory=GLOBAL_OR_SHARED)

    x: Value
    memory: Value
    at: tuple[Value, ...]
    mask: tuple[Value, ...]
    run: int = 1
    """Each so many registers are neighbours along the memory's last axis, from a multiple of their number on."""
    combine: str = ""
    """How each element is combined with what the memory has, atomically; empty: it replaces it."""

    def check(self, want: Want) -> None:
        _want_each(self, self.x.type, want)
        want(self.combine in COMBINED, f"{self.combine!r} is none of {', '.join(COMBINED[1:])}")


def _want_steps(op: Load | LoadTransposed | Store, held: Type, want: Want) -> None:
    memory = _want_moved(op, held, want)
    want(are_indices(op.at), "positions are of type index")
    fits = len(op.steps) == len(held.shape) and all(len(step) == memory.rank for step in op.steps)
    want(fits, f"{list(map(list, op.steps))} do not step through {memory} for each axis of {held}")
    want(are_axes(op.guard, memory.rank), f"{memory} has no axes {list(op.guard)}")
    if isinstance(op, LoadTransposed):
        return
    whole = not op.own or len(op.own) == memory.rank
    want(whole and len(op.own) == len(op.within), f"{memory} has other axes than {list(op.within)}")
    want(are_indices(op.own) and all(n >= 0 for n in op.within), "places in a tile are of type index")
    begins = not op.begin or (len(op.begin) == memory.rank and memory.space == "global" and not op.own)
    want(begins and all(n >= 0 for n in op.begin), f"nothing begins {list(op.begin)} further on in {memory}")


def _want_each(op: LoadEach | StoreEach, held: Type, want: Want) -> None:
    _want_moved(op, held, want)
    each = all(v.type == elementwise(held, INDEX) for v in op.at)
    want(each, f"each element of {held} needs a position")
    in_runs = op.run >= 1 and prod(held.shape) % op.run == 0
    want(in_runs, f"the registers of {held} are no runs of {op.run}")


def _want_moved(op: Load | LoadTransposed | Store | LoadEach | StoreEach, held: Type, want: Want) -> Memory:
    """Check the positions of a load or store, and return the type of its memory."""
    memory = op.memory.type
    want(isinstance(memory, Memory) and isinstance(held, Vector), f"moves a vector, {held}, and a memory, {memory}")
    assert isinstance(memory, Memory)
    want(held.dtype == memory.dtype and memory.space != "packed", f"{held} and {memory} do not go together")
    want(len(op.at) == memory.rank, f"{memory} needs {memory.rank} positions, not {len(op.at)}")
    want(len(op.mask) <= 1 and all(v.type == Scalar(BOOL) for v in op.mask), "is masked by one truth value")
    return memory


OPS: tuple[type[Op], ...] = (
    Load,
    LoadTransposed,
    Store,
    LoadUnaligned,
    StoreUnaligned,
    Misalignment,
    LoadEach,
    StoreEach,
)
