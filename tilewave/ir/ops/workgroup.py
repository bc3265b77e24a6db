"""Which workgroup, which tile"""

from __future__ import annotations

from dataclasses import dataclass

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Pure
from tilewave.ir.rules import ON_BOTH, ON_TILES, want_results
from tilewave.ir.types import INDEX_SCALAR

MOST_WORKGROUPS = 2**31 - 1
"""HIP and CUDA both hold the first grid dimension in 31 bits."""


class Workgroup(Pure):
    """The number of this workgroup, in launch order."""

    levels = ON_BOTH

    def check(self, want: Want) -> None:
        want_results(self, want, INDEX_SCALAR)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


@dataclass(frozen=True)
class TileOf(Pure):
    """The (batch, row, column) of the number-th tile of a grid dealt to `workgroups`; MapWorkgroups decides it."""

    levels = ON_TILES
    gives = 3

    number: Value
    rows: int
    cols: int
    batches: int
    workgroups: int

    def check(self, want: Want) -> None:
        want(self.number.type == INDEX_SCALAR, f"takes an index, not {self.number.type}")
        tiles = self.rows * self.cols * self.batches
        want(tiles <= MOST_WORKGROUPS, f"deals {tiles} tiles, more than any launch")
        want_results(self, want, *[INDEX_SCALAR] * 3)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return ()


OPS: tuple[type[Op], ...] = (
    Workgroup,
    TileOf,
)
