"""Which workgroup has which K steps of tiles that are split: consecutive ranges (stream-K) or equal parts (split-K).

2 tiles of 5 steps     Split among 3          Cut into 2 parts, the last step of which is beyond the tile
    tile 0             0 0 0 1 1              0 0 0 2 2 2
    tile 1             1 2 2 2 2              1 1 1 3 3 3
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.stream_k import LARGEST, MOST_TILES
from tilewave.ir.types import INDEX_SCALAR
from tilewave.machine.tuning import SplitTuning
from tilewave.mapping import larger, smaller
from tilewave.records import dataclass

KEPT = 1024
"""Cached answers; between calls mostly one size changes."""


def tiles_of(kernel: Kernel, builder: Builder) -> Any:
    """Return the number of tiles of a kernel with one tile per workgroup: an int, or a scalar of the launch."""
    if isinstance(kernel.workgroups, int):
        return kernel.workgroups
    return Number(builder, Value(kernel.workgroups, INDEX_SCALAR)).smaller(MOST_TILES)  # no launch has more


@dataclass(frozen=True)
class Split:
    """Stream-K: the steps of several tiles, split evenly among `workgroups`; formulas take numbers of any kind.

    Bounds are stated that later passes cannot derive for scalars of the launch, 0 workgroups included.
    """

    all_steps: Any
    workgroups: Any
    most: int = LARGEST
    """An upper bound of `all_steps`."""

    def first(self, workgroup: Any) -> Any:
        """Return the first step of a workgroup's range, which ends where the next one begins."""
        return smaller(workgroup * self.all_steps // self.workgroups, self.most)

    def workgroup_of(self, step: Any) -> Any:
        """Return the workgroup whose range has a step."""
        return larger((step + 1) * self.workgroups - 1, 0) // self.all_steps


@dataclass(frozen=True)
class EqualSplits:
    """Split-K: each of `tiles` in `parts` of equal steps, one part per workgroup; formulas take numbers of any kind.

    Neighbouring workgroups have the same part of neighbouring tiles.
    """

    tiles: Any
    steps: Any
    parts: Any

    @property
    def workgroups(self) -> Any:
        return self.tiles * self.parts

    @property
    def longest(self) -> Any:
        """Steps that every workgroup has; some of the last part's may be beyond the tile."""
        return (self.steps + self.parts - 1) // self.parts

    def tile(self, workgroup: Any) -> Any:
        return workgroup % self.tiles

    def first(self, workgroup: Any) -> Any:
        """Return the first step of a workgroup's part of its tile."""
        return workgroup // self.tiles * self.longest

    def workgroup_of(self, tile: Any, part: Any) -> Any:
        return tile + part * self.tiles


@lru_cache(maxsize=KEPT)
def splits_that_pay(
    tiles: int, steps: int, workgroups: int, step_bytes: int, sums_bytes: int, costs: SplitTuning
) -> int:
    """Return the best split-K factor for a small grid where `workgroups` run at once; 1: whole tiles are as fast.

    `step_bytes` are the bytes of an operand's row in one step, `sums_bytes` those of an accumulator tile. Used to
    choose tiles, or the number in a `SplitConstraint`.
    """
    quickest = steps * step_bytes, 1
    for parts in range(2, min(workgroups // max(1, tiles), steps) + 1):
        joined = costs.scattered_hand_overs if costs.is_scattered(parts, sums_bytes) else parts
        quickest = min(quickest, (-(-steps // parts) * step_bytes + joined * costs.hand_over_bytes, parts))
    return quickest[1]
