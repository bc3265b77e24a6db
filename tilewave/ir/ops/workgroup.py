"""The workgroup id and its tile"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Pure
from tilewave.ir.rules import GLOBAL, ON_BOTH, ON_TILES, are_indices, places, want_results
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.records import dataclass

__all__ = [
    "RaggedTile",
    "TileInGroup",
    "TileOf",
    "Workgroup",
]

T = TypeVar("T")

MOST_WORKGROUPS = 2**31 - 1
"""The limit of the first grid dimension in HIP and CUDA."""


class Workgroup(Pure):
    """The workgroup id, in launch order."""

    levels = ON_BOTH

    def check(self, want: Want) -> None:
        want_results(self, want, INDEX_SCALAR)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


@dataclass(frozen=True)
class TileOf(Pure):
    """The (batch, row, column) of the number-th tile of a grid for `workgroups`; `map_workgroups` decides the order."""

    levels = ON_TILES
    gives = 3

    number: Value
    rows: int
    cols: int
    batches: int
    workgroups: int
    sides: tuple[Value, ...] = ()
    """Values, known at the launch, for those of the four fields above that are 0, in their order."""

    def check(self, want: Want) -> None:
        want(self.number.type == INDEX_SCALAR, f"takes an index, not {self.number.type}")
        said = (self.rows, self.cols, self.batches, self.workgroups)
        want(said.count(0) == len(self.sides), f"{said.count(0)} of its sides are open, and {len(self.sides)} given")
        want(are_indices(self.sides), "its sides are of type index")
        tiles = self.rows * self.cols * self.batches
        want(tiles <= MOST_WORKGROUPS, f"deals {tiles} tiles, more than any launch")
        want_results(self, want, *[INDEX_SCALAR] * 3)

    def with_sides(self, found: Sequence[T]) -> tuple[int | T, int | T, int | T, int | T]:
        """Return rows, columns, batches and workgroups, with `found` for the dynamic ones."""
        left = iter(found)
        rows, cols, batches, workgroups = (
            n or next(left) for n in (self.rows, self.cols, self.batches, self.workgroups)
        )
        return rows, cols, batches, workgroups

    def bound(self, numbers: Sequence[int]) -> TileOf:
        """Return the op with `numbers` for its dynamic sides."""
        rows, cols, batches, workgroups = self.with_sides(numbers)
        return TileOf(self.number, rows, cols, batches, workgroups, results=self.results, loc=self.loc)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


@dataclass(frozen=True)
class RaggedTile(Op):
    """The group, the first row and the end of the rows of a tile of a ragged grid; -1, -block and 0 where it has none.

    `memory` has the end of each group's rows, and falls nowhere. The numbers of tiles are `mapping.RaggedGrid`'s.
    """

    levels = ON_TILES
    gives = 3
    has_effect = False
    reads = places(memory=GLOBAL)

    memory: Value
    number: Value
    count: Value
    """The number of tiles."""
    block: int
    """The rows of a tile."""

    def check(self, want: Want) -> None:
        ends = self.memory.type
        is_list = isinstance(ends, Memory) and ends.rank == 1 and ends.dtype.is_int
        want(is_list, f"reads the ends of groups from one axis of integers, not from {ends}")
        want(are_indices((self.number, self.count)), "its number and count are of type index")
        want(self.block >= 1, f"has tiles of {self.block} rows")
        want_results(self, want, *[INDEX_SCALAR] * 3)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


@dataclass(frozen=True)
class TileInGroup(Op):
    """The (row, column) of tiles that is computed in the place of another one of the same group of a ragged grid.

    Row by row as tiles come, those of a group are computed in bands: `band` rows of tiles for all columns, then the
    next ones. Tiles without rows stay where they are.
    """

    levels = ON_TILES
    gives = 2
    has_effect = False
    reads = places(memory=GLOBAL)

    memory: Value
    """The end of each group's rows, as in `RaggedTile`."""
    row: Value
    column: Value
    columns: Value
    """The number of columns of tiles."""
    block: int
    band: int

    def check(self, want: Want) -> None:
        ends = self.memory.type
        is_list = isinstance(ends, Memory) and ends.rank == 1 and ends.dtype.is_int
        want(is_list, f"reads the ends of groups from one axis of integers, not from {ends}")
        want(are_indices((self.row, self.column, self.columns)), "its row and columns are of type index")
        want(self.block >= 1 and self.band >= 1, f"has tiles of {self.block} rows, in bands of {self.band}")
        want_results(self, want, *[INDEX_SCALAR] * 2)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


OPS: tuple[type[Op], ...] = (
    Workgroup,
    TileOf,
    RaggedTile,
    TileInGroup,
)
