"""Split-K: workgroups compute the splits of a tile's sum side by side, or one after the other where tiles are many.

The numbers of tiles and steps are known, or scalars of the launch, which then chooses between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewave.analysis.shared_tiles import TileProgram
from tilewave.analysis.splits import tiles_of
from tilewave.ir.build import Number
from tilewave.ir.core import Kernel
from tilewave.ir.split_steps import steps_of_a_split
from tilewave.machine.tuning import SplitTuning
from tilewave.mapping import smaller
from tilewave.records import dataclass
from tilewave.transform.shared_tiles import SharedTiles, Turn


@dataclass(frozen=True)
class Item:
    """The work of a workgroup in a turn: a split of a tile."""

    tile: Number
    part: Number
    takes: Number
    """How many partial sums it adds to its own."""
    ends: Number
    """Whether the tile is complete afterwards."""


class SplitKBuilder(SharedTiles):
    def __init__(self, kernel: Kernel, tile: TileProgram, at_once: int, costs: SplitTuning) -> None:
        self.at_once, self.parts = at_once, tile.loop.split
        exact = isinstance(tile.steps, int) and tile.steps % self.parts == 0
        self.runs_on = exact or tile.ends_in_zeros
        super().__init__(kernel, tile.running_on if self.runs_on and not exact else tile, 0, costs)
        self.tiles = tiles_of(kernel, self.builder)
        self.most = costs.most_shared(at_once, self.parts)
        """The largest number of tiles that are shared, so that there are slots for all."""
        self.shares = self.tiles <= self.most
        """Whether workgroups share tiles: a bool, or a scalar of the launch."""
        self.slots = self.slots_needed()

    def slots_needed(self) -> int:
        if not isinstance(self.shares, bool):
            return max(self.at_once, self.most * (self.parts - 1))
        slots: int = self.tiles * (self.parts - 1) if self.shares else min(self.tiles, self.at_once)
        return slots

    def kernel(self) -> Kernel:
        self.prepare()
        if self.shares is True:
            self.one_item(self.shared())
        else:
            self.in_turns(self.either(lambda: 1, self.turns))
        grid = self.either(lambda: self.tiles * self.parts, lambda: smaller(self.tiles, self.at_once))
        return self.finished(grid)

    def turns(self) -> Any:
        """Return the turns of a workgroup that computes all splits of its tiles."""
        return (self.tiles + (self.at_once - 1) - self.own) // self.at_once * self.parts

    def compute(self, count: Number) -> None:
        if self.shares is False:
            self.one_item(self.alone(count))
            return
        pairs = zip(vars(self.shared()).values(), vars(self.alone(count)).values(), strict=True)
        self.one_item(Item(*(self.shares.choose(a, b) for a, b in pairs)))

    def shared(self) -> Item:
        """Return the split of a shared tile: later splits start first, and go to the workgroup of the first split."""
        part = (self.own // self.few + 1) % self.parts
        is_first = part.equals(0)
        return Item(self.own % self.few, part, is_first.choose(self.parts - 1, 0), is_first)

    def alone(self, count: Number) -> Item:
        """Return the split of a tile that one workgroup computes alone: each adds the sum of those before it."""
        tile, part = self.own + count // self.parts * self.at_once, count % self.parts
        return Item(tile, part, part.equals(0).choose(0, 1), part.equals(self.parts - 1))

    def one_item(self, item: Item) -> None:
        self.item = item
        sums = self.add_up(self.of_split(item))
        at_once = self.shares is True and self.tiles * self.parts <= self.at_once  # loads in flight take registers
        if at_once and self.takes_all(self.parts - 1):
            whole = self.take_all(sums, item.ends.choose(1, 0), item.tile, self.tiles, self.parts - 1)
        else:
            whole = self.take_over(sums, item.takes)
        self.hand_over(whole, item.ends.choose(0, 1))
        self.end(item.tile.value, whole, item.ends.choose(1, 0))

    def of_split(self, item: Item) -> Turn:
        each = steps_of_a_split(self.tile.steps_at(self.builder), self.parts)
        first = item.part * each
        trips = each if self.runs_on else (self.tile.steps_at(self.builder) - first).larger(0).smaller(each)
        return Turn(item.tile.value, first, first + trips, trips)

    def slot(self, other: Number) -> Any:
        return self.either(lambda: other * self.few + self.item.tile, lambda: self.own)

    @property
    def few(self) -> Any:
        """The number of tiles, where they are shared."""
        return smaller(self.tiles, self.most)

    def either(self, shared: Callable[[], Any], alone: Callable[[], Any]) -> Any:
        """Return `shared()` where tiles are shared, else `alone()`; with dynamic shapes the launch selects."""
        if isinstance(self.shares, bool):
            return shared() if self.shares else alone()
        return self.shares.choose(shared(), alone())
