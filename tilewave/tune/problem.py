"""What is to be tiled: a kernel's work in dims, how it is cut in symbols, and sizes; a config of a space cuts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewave.cost.work import UNSAID, CutWork
from tilewave.lang.constraints import (
    Constraint,
    GridConstraint,
    ReorderingConstraint,
    WorkgroupConstraint,
    WorkgroupMapping,
)
from tilewave.lang.cutting import cut_work
from tilewave.lang.symbols import Symbol
from tilewave.trace import TileWork
from tilewave.tune.space import IN_PLACE, NUM_STAGES, SPLIT

Config = Mapping[Symbol, int]
"""A value for each symbol that is to be decided."""


@dataclass(frozen=True)
class TiledProblem:
    """A kernel whose sizes are known and whose tiles are not."""

    work: TileWork
    constraints: tuple[Constraint, ...]
    values: Mapping[Symbol, Any]
    """Sizes and other symbols, as far as they are known."""
    in_fixed_order: bool = False
    """Whether results are batch-invariant."""

    def sized(self, sizes: Mapping[Symbol, int]) -> TiledProblem:
        return replace(self, values={**self.values, **sizes})

    @property
    def is_ordered(self) -> bool:
        """Whether the author gives the order of tiles, or loops over them."""
        return any(isinstance(c, (WorkgroupMapping, ReorderingConstraint, GridConstraint)) for c in self.constraints)

    @property
    def has_tile_order(self) -> bool:
        """Whether workgroups share operands, so that the order of tiles makes a difference."""
        grid = [c for c in self.constraints if isinstance(c, WorkgroupConstraint) and c.primary]
        return len(self.work.products) == 1 and len(grid) > 1

    def cut(self, config: Config) -> CutWork:
        """Return the launch that a config makes of the problem."""
        work = cut_work(self.work, self.constraints, {**self.values, **config})
        knobs = config.get(SPLIT, work.split), config.get(NUM_STAGES, UNSAID), config.get(IN_PLACE, UNSAID)
        return replace(work, in_fixed_order=self.in_fixed_order).with_knobs(*knobs)
