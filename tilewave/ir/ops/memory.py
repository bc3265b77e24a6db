"""Memory accesses of whole tiles"""

from __future__ import annotations

from tilewave.ir.core import Block, Op, Value, Want
from tilewave.ir.ops.arith import Const, Elementwise
from tilewave.ir.ops.control import Yield
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.placements import is_in, size_bytes
from tilewave.ir.rules import (
    GLOBAL,
    GLOBAL_OR_SHARED,
    ON_BOTH,
    ON_TILES,
    SHARED,
    are_axes,
    are_indices,
    places,
    want_yields,
)
from tilewave.ir.types import INDEX_SCALAR, Memory, Tile, Type
from tilewave.records import dataclass

__all__ = [
    "Allocate",
    "Gather",
    "Overlay",
    "Prefetch",
    "Read",
    "Scatter",
    "Write",
    "WriteThrough",
]

FORMULA: tuple[type[Op], ...] = (Const, Elementwise, Yield)
"""The ops allowed in a formula for the positions of a tile's elements."""


@dataclass(frozen=True)
class Allocate(Op):
    """Allocate a shared memory of this workgroup, uninitialized."""

    levels = ON_BOTH
    gives = 1

    def check(self, want: Want) -> None:
        want(is_in(self.result, "shared"), f"makes a shared memory, not {self.result.type}")


@dataclass(frozen=True)
class Overlay(Computed):
    """A memory that aliases the first bytes of a shared memory; a write to either invalidates the other."""

    levels = ON_BOTH
    hands_on = places(memory=SHARED)

    memory: Value

    def check(self, want: Want) -> None:
        under, over = self.memory.type, self.result.type
        shared = is_in(self.memory, "shared") and is_in(self.result, "shared")
        want(shared, f"lays a shared memory over another, not {over} over {under}")
        assert isinstance(under, Memory) and isinstance(over, Memory)
        want(size_bytes(over) <= size_bytes(under), f"{over} is longer than {under}")


@dataclass(frozen=True)
class Read(Computed):
    """The tile whose first element is at `at`; result axis i is memory axis `axes[i]`; 0 out of bounds."""

    levels = ON_TILES
    reads = places(memory=GLOBAL_OR_SHARED)

    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    through: str = ""
    per_lane: int = 0
    spread: str = ""
    """The distribution over lanes: empty, as its use needs it; "rows" or "columns", as the matrix instruction takes its
    left or right operand, `per_lane` neighbours each; "linear", neighbouring lanes load chunks of `per_lane`;
    "blocks", each loads such chunks of `rows_per_lane` neighbouring rows."""
    rows_per_lane: int = 1
    transposed: tuple[int, ...] = ()
    """(lanes, rows): groups of so many neighbouring lanes load so many rows for each other, and each gets a column of
    them; empty: each lane loads what it holds."""
    guard: tuple[int, ...] = ()
    """The memory axes along which the tile may be partly or wholly out of bounds; set by `predicate_edges`."""
    within: tuple[int, ...] = ()
    """The part of the tile that is loaded along each of its axes; the rest is 0. Empty: all of it."""
    ahead: tuple[int, ...] = ()
    """The distance, along each memory axis, to the tile that is read next, so that it can be prefetched; empty where
    it is not known. It may be out of bounds."""

    def check(self, want: Want) -> None:
        _want_window(self, self.result.type, want)
        _want_within(self, self.result.type, want)
        known = len(self.ahead) in (0, self.memory.type.rank)
        want(known, f"{list(self.ahead)} are not distances along the axes of {self.memory.type}")
        lanes = not self.transposed or (len(self.transposed) == 2 and is_in(self.memory, "shared"))
        want(lanes, f"lanes do not read {self.memory.type} for each other as {list(self.transposed)}")


@dataclass(frozen=True)
class Write(Op):
    """Store a tile, first element at `at`, axis i along memory axis `axes[i]`, but no out-of-bounds elements."""

    levels = ON_TILES
    writes = places(memory=GLOBAL_OR_SHARED)

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    per_lane: int = 0
    guard: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    """The part of the tile that is stored along each of its axes; empty: all of it."""

    def check(self, want: Want) -> None:
        _want_window(self, self.tile.type, want)
        _want_within(self, self.tile.type, want)


@dataclass(frozen=True)
class Prefetch(Op):
    """Have the memory of a window of this shape fetched into a cache; it is accessed later. Nothing else changes."""

    levels = ON_TILES
    reads = places(memory=GLOBAL)

    memory: Value
    at: tuple[Value, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def check(self, want: Want) -> None:
        memory, rank = self.memory.type, len(self.at)
        want(is_in(self.memory, "global") and memory.rank == rank, f"fetches no window of {memory}")
        fits = are_axes(self.axes, rank) and len(self.axes) == len(self.shape) and min(self.shape, default=0) > 0
        want(are_indices(self.at) and fits, f"{memory} has no windows {list(self.shape)} along {list(self.axes)}")


@dataclass(frozen=True)
class WriteThrough(Op):
    """A `write` through a shared memory that stages parts of the tile; its contents are undefined afterwards.

    Where TMA copies them out, `shared` is groups x buffers x rows x columns: each warpgroup fills its buffers, row
    block by row block and column by column, and starts their stores. Where lanes do, it is waves x rows x columns: each
    wave writes its part, and reads it back along rows. With an `end`, rows of the memory from it on are not stored.
    """

    levels = ON_TILES
    writes = places(memory=GLOBAL_OR_SHARED, shared=SHARED)

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    shared: Value
    axes: tuple[int, ...]
    guard: tuple[int, ...] = ()
    end: tuple[Value, ...] = ()
    width: int = 0
    """How many elements a lane stores at once; 0: as many as the rows of the memory are aligned for."""

    def check(self, want: Want) -> None:
        _want_window(self, self.tile.type, want)
        want(self.width >= 0, f"stores no {self.width} elements at once")
        want(len(self.end) <= 1 and are_indices(self.end), "its end is one index")
        want(is_in(self.shared, "shared"), f"goes through a shared memory, not {self.shared.type}")
        same = self.shared.type.dtype == self.tile.type.dtype
        want(same, f"{self.shared.type} does not hold {self.tile.type.dtype}")


@dataclass(frozen=True)
class Gather(Computed):
    """The tile whose element (i, j, …) is at position `where(i, j, …)`; 0 out of bounds."""

    levels = ON_TILES
    reads = places(memory=GLOBAL_OR_SHARED)

    memory: Value
    where: Block
    through: str = ""
    part: bool = False
    """Whether the tile is a slice of a larger one, so that all of it may be out of bounds."""

    def check(self, want: Want) -> None:
        _want_positions(self, self.result.type, want)


@dataclass(frozen=True)
class Scatter(Op):
    """Store element (i, j, …) of a tile at `where(i, j, …)`; out-of-bounds elements are not stored."""

    levels = ON_TILES
    writes = places(memory=GLOBAL_OR_SHARED)

    tile: Value
    memory: Value
    where: Block
    part: bool = False
    """Whether the tile is a slice of a larger one, so that all of it may be out of bounds."""

    def check(self, want: Want) -> None:
        _want_positions(self, self.tile.type, want)


def _want_moved(op: Read | Write | WriteThrough | Gather | Scatter, tile: Type, want: Want) -> Memory:
    """Check the positions of an access, and return the type of its memory."""
    memory = op.memory.type
    want(isinstance(memory, Memory) and isinstance(tile, Tile), f"moves a tile, {tile}, and a memory, {memory}")
    assert isinstance(memory, Memory)
    want(tile.dtype == memory.dtype, f"{tile} and {memory} differ in dtype")
    want(memory.space != "packed", f"{memory} is read by read_panel, and written by prepack")
    return memory


def _want_window(op: Read | Write | WriteThrough, tile: Type, want: Want) -> None:
    memory = _want_moved(op, tile, want)
    rank = memory.rank
    want(len(op.at) == rank, f"{memory} needs {rank} positions, not {len(op.at)}")
    want(are_indices(op.at), "positions are of type index")
    fits = len(op.axes) == len(tile.shape) and are_axes(op.axes, rank)
    want(fits, f"axes {list(op.axes)} do not lay {tile} into {memory}")
    want(are_axes(op.guard, rank), f"{memory} has no axes {list(op.guard)} to guard")


def _want_within(op: Read | Write, tile: Type, want: Want) -> None:
    fits = len(op.within) == len(tile.shape) and all(0 <= n <= m for n, m in zip(op.within, tile.shape, strict=True))
    want(not op.within or fits, f"{list(op.within)} is no part of {tile}")


def _want_positions(op: Gather | Scatter, tile: Type, want: Want) -> None:
    memory = _want_moved(op, tile, want)
    args = [v.type for v in op.where.args]
    want(args == [INDEX_SCALAR] * len(tile.shape), f"{tile} needs an index per axis")
    want_yields(op.where, [INDEX_SCALAR] * memory.rank, want)
    strange = next((inner.name for inner in op.where.ops if not isinstance(inner, FORMULA)), "")
    want(not strange, f"{strange} has no place among the positions of a tile")


OPS: tuple[type[Op], ...] = (
    Allocate,
    Overlay,
    Read,
    Write,
    Prefetch,
    WriteThrough,
    Gather,
    Scatter,
)
