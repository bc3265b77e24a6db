"""Memory accesses at positions that the kernel computes or loads, element by element"""

from __future__ import annotations

from typing import ClassVar

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.arith import Elementwise
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import GLOBAL, GLOBAL_OR_SHARED, ON_TILES, SHARED, places, same_axes, want_results
from tilewave.ir.types import INDEX, Memory, Tile, Type, elementwise
from tilewave.records import dataclass

__all__ = [
    "ReadIndexed",
    "ReadIndexedShared",
    "WriteIndexed",
]

COMBINED = ("", "add", "min", "max", "and", "or")
"""How a `write_indexed` combines an element with what the memory has; empty: it replaces it."""


@dataclass(frozen=True)
class ReadIndexed(Elementwise):
    """The elements of a memory at positions, `at[a]` along axis a; 0 out of bounds. The kernel does not write it."""

    levels = ON_TILES
    reads = places(memory=GLOBAL)

    memory: Value
    at: tuple[Value, ...]
    in_runs: bool = False
    """Whether neighbours along the tile's last axis are neighbours in memory."""

    def check(self, want: Want) -> None:
        _want_positions(self, self.result.type, want)
        want_results(self, want, elementwise(self.at[-1].type, self.memory.type.dtype))

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return same_axes(self.result, *self.at)


@dataclass(frozen=True)
class ReadIndexedShared(Computed):
    """The elements of a workgroup's memory at positions, `at[a]` along axis a, as its last writes left them; 0 out of
    bounds."""

    levels = ON_TILES
    reads = places(memory=SHARED)

    memory: Value
    at: tuple[Value, ...]

    in_runs: ClassVar[bool] = False

    def check(self, want: Want) -> None:
        _want_positions(self, self.result.type, want)
        want_results(self, want, elementwise(self.at[-1].type, self.memory.type.dtype))

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return same_axes(self.result, *self.at)


@dataclass(frozen=True)
class WriteIndexed(Op):
    """Store the elements of a tile at positions, `at[a]` along axis a, but no out-of-bounds elements.

    With `combine`, each element is combined atomically with what the memory has, in any order.
    """

    levels = ON_TILES
    writes = places(memory=GLOBAL_OR_SHARED)

    tile: Value
    memory: Value
    at: tuple[Value, ...]
    in_runs: bool = False
    """Whether neighbours along the tile's last axis are neighbours in memory."""
    combine: str = ""

    @property
    def is_atomic(self) -> bool:
        return bool(self.combine)

    def check(self, want: Want) -> None:
        _want_positions(self, self.tile.type, want)
        want(self.tile.type.dtype == self.memory.type.dtype, f"{self.tile.type} and {self.memory.type} differ in dtype")
        want(self.combine in COMBINED, f"{self.combine!r} is none of {', '.join(COMBINED[1:])}")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return same_axes(self.tile, *self.at)


def _want_positions(op: ReadIndexed | ReadIndexedShared | WriteIndexed, tile: Type, want: Want) -> None:
    memory = op.memory.type
    want(isinstance(memory, Memory) and isinstance(tile, Tile), f"moves a tile, {tile}, and a memory, {memory}")
    assert isinstance(memory, Memory)
    want(len(op.at) == memory.rank, f"{memory} needs {memory.rank} positions, not {len(op.at)}")
    each = all(v.type == elementwise(tile, INDEX) for v in op.at)
    want(each, f"each element of {tile} needs a position of type index")


OPS: tuple[type[Op], ...] = (ReadIndexed, ReadIndexedShared, WriteIndexed)
