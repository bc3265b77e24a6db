"""The layouts in which each tile of a kernel is needed, before `distribute_lanes` splits it among lanes.

An MMA decides the layout of its accumulator, a staged read how it is loaded, and what is computed from them follows:

    %z = mma(%x, %y, %acc)        %x, %y as the matrix instruction takes them, %acc and %z as it gives its sums
    %scaled = mul(%z, %factor)    as %z, and so is %factor
    write(%scaled, %c, …)         in the layout it has

A tile that is not available in the layout needed (`tied_layouts.py`) is listed in `mismatches`, with the ops that need
it; after `convert_layouts` there are none. It is listed as close to its use as is cheap: before a cast that makes it
larger, and before a broadcast.
"""

from __future__ import annotations

from math import prod

from tilewave.analysis.layouts_wished import LayoutsWished, is_tile
from tilewave.analysis.tied_layouts import Ties, TileLayouts, bodies, carried, carried_args, part_of
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Convert,
    Elementwise,
    ExtractSlice,
    HandOver,
    Loop,
    Mma,
    Permute,
    ReadIndexedShared,
    Reduce,
    Scatter,
    TakeOver,
    While,
    Write,
    WriteIndexed,
    WriteThrough,
)

WIDEST_BYTES = 16


class LayoutsNeeded(LayoutsWished):
    """`needed[v]` lists the layouts in which tile v is used; their order does not matter.

    `mismatches[v]` lists the ops that use v in a layout in which it is not available.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.needed: dict[Value, list[TileLayouts]] = {}
        self.mismatches: dict[Value, list[Op]] = {}
        self._had: dict[tuple[Value, TileLayouts], bool] = {}
        self._tied = Ties(kernel, self.sums, self._operands, self._wish, self.left_over, self.met).spread
        self._walk_back(kernel.body)

    def held(self, v: Value) -> TileLayouts:
        """Return the layout of a tile: that of its ties, or the preferred one where any is available."""
        return self._tied[v] if v in self._tied else self._wish(v)

    # -- the layouts needed, from the last use to the first

    def _walk_back(self, block: Block) -> None:
        for op in reversed(block.ops):
            self._needs(op)

    def _needs(self, op: Op) -> None:
        match op:
            case Write(tile) | WriteThrough(tile) | Scatter(tile) | HandOver(tile) | Convert(tile):
                self._need(op, tile, self.held(tile))
            case WriteIndexed(tile, _, at):
                for x in (tile, *at):
                    self._need(op, x, self.held(tile))
            case TakeOver(tile):
                self._held_as(op.result, self.held(op.result))
                self._need(op, tile, self.held(op.result))
            case Reduce(x):
                if is_tile(op.result):
                    self._held_as(op.result, self.held(op.result))
                self._need(op, x, self.held(x))
            case Mma(acc=acc):
                self._held_as(op.result, self.sums(op))
                self._need(op, acc, self.sums(op))
                for v, spread in self._operands(op):
                    self._need(op, v, spread)
            case Loop() | While():
                self._loop_needs(op)
            case _:
                for spread in self.needed.get(op.results[0], ()) if op.results else ():
                    for x, passed in self._made_of(op, spread):
                        self._need(op, x, passed)

    def _made_of(self, op: Op, spread: TileLayouts) -> list[tuple[Value, TileLayouts]]:
        """Return the tiles that a result is computed from lane by lane, with the layouts they need for `spread`."""
        match op:
            case Broadcast(x, axes) if is_tile(x):
                return [(x, tuple(layout.along(axes)[0] for layout in spread))]
            case Permute(x, axes):
                back = tuple(axes.index(i) for i in range(len(axes)))
                return [(x, tuple(layout.permuted(back) for layout in spread))]
            case Elementwise() | ReadIndexedShared():
                return [(x, spread) for x in op.operands if is_tile(x)]
            case ExtractSlice(x):
                return [(x, self.held(x))] if self.cuts(op) in (None, spread) else []
            case _:
                return []  # made of no tile; other ops are refused by `distribute_lanes`

    def cuts(self, op: ExtractSlice) -> TileLayouts | None:
        """Return the layout of a slice of a tile; None where lanes hold it in other than consecutive registers."""
        return part_of(self.held(op.x), op)

    def _loop_needs(self, op: Loop | While) -> None:
        ends = op.body.ops[-1]
        for result, *_, yielded, init in carried(op):
            self._held_as(result, self.held(result))
            self._need(ends, yielded, self.held(result))
            self._need(op, init, self.held(result))
        for body in bodies(op):
            self._walk_back(body)
            for v in carried_args(op, body):
                if is_tile(v):
                    self._held_as(v, self.held(v))

    def _need(self, op: Op, v: Value, spread: TileLayouts) -> None:
        """Record that `op` uses `v` in layout `spread`."""
        if not is_tile(v):
            return
        if not self._can_be_had(v, spread) and not self._is_smaller_before(v, spread):
            self.mismatches.setdefault(v, []).append(op)
        elif spread not in self.needed.setdefault(v, []):
            self.needed[v].append(spread)

    def _can_be_had(self, v: Value, spread: TileLayouts) -> bool:
        """Return whether a tile is available in a layout: held in it, or computable from operands held in theirs."""
        if v not in self._tied or self._tied[v] == spread:
            return True
        if (v, spread) not in self._had:
            parts = self._made_of(self._defs[v], spread) if v in self._defs else []
            self._had[v, spread] = bool(parts) and all(self._can_be_had(x, passed) for x, passed in parts)
        return self._had[v, spread]

    def is_tied(self, v: Value) -> bool:
        """Return whether a tile is available in one layout only."""
        return v in self._tied

    def _is_smaller_before(self, v: Value, spread: TileLayouts) -> bool:
        """Return whether converting what `v` is made from moves fewer bytes."""
        parts = self._made_of(self._defs[v], spread) if v in self._defs else []
        wrong = {x for x, passed in parts if not self._can_be_had(x, passed)}
        return bool(parts) and sum(map(_bytes, wrong)) < _bytes(v)

    def _held_as(self, v: Value, spread: TileLayouts) -> None:
        """Record that `v` is available in this layout only."""
        assert all(other == spread for other in self.needed.get(v, ())), f"{v} is needed as it cannot be had"
        self.needed[v] = [spread]


def _bytes(v: Value) -> int:
    return prod(v.type.shape) * v.type.dtype.bytes
