"""Which tiles must have the same layout, and which layout that is.

Constants and reads are available in any layout: they are rematerialized in each layout that is needed. An MMA
accumulator is not, nor what a loop carries or a reduction takes, nor what is computed from these. Such tiles are tied
to each other by the ops between them:

    %total = loop(%trips, [%zero]) … do (%i, %x) {
      %p = mma(%a, %b, %zero)       %p has the accumulator layout of the matrix instruction
      %y = add(%x, %p)              %x and %y are tied to %p, in whatever order they occur
      yield([%y])                   … and %total to %x and %y
    }

What a loop carries has one layout inside and after the loop. Where a tile is tied to two layouts the first one wins,
and what comes from the other is converted (`layouts_needed.py`). A converted tile, within waves or through shared
memory, is available in any layout again, and is tied to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Broadcast,
    Const,
    Convert,
    Elementwise,
    ExtractSlice,
    Iota,
    Loop,
    Mma,
    Permute,
    Read,
    ReadIndexedShared,
    Reduce,
    TakeOver,
    While,
)
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.layouts.formulas import Layout

TileLayouts = tuple[Layout, ...]
"""Layouts that cover a tile together; only one, unless lanes do not divide the tile."""

Passed = Callable[[TileLayouts], TileLayouts | None]
"""Maps the layout at one end of a tie to that at the other; None: no constraint."""


class Ties:
    """`spread[v]` is the layout of v, for every tile that is not available in any layout.

    `sums` gives the layout of an MMA's accumulator, `operands` those of its operands, `wish` the preferred layout of a
    tile without other constraints, `left_over` that of a reduction's result given that of its operand, and `met` that
    of values that waves stored in shared memory given that of their reduction.
    """

    def __init__(
        self,
        kernel: Kernel,
        sums: Callable[[Mma], TileLayouts],
        operands: Callable[[Mma], list[tuple[Value, TileLayouts]]],
        wish: Callable[[Value], TileLayouts],
        left_over: Callable[[Reduce, TileLayouts], TileLayouts],
        met: Callable[[Reduce, TileLayouts], TileLayouts],
    ) -> None:
        self.spread: dict[Value, TileLayouts] = {}
        self.ties: dict[Value, list[tuple[Value, Passed]]] = {}
        """For each tile, the tiles whose layout it decides."""
        self.one: dict[Value, tuple[Value, ...]] = {}
        """For each carried value, its names inside the loop and after it, which have the same layout."""
        self.made_of: dict[Value, Reduce] = {}
        """For each reduction's result, the reduction, whose operand decides its layout."""
        self.left_over, self.met = left_over, met
        ops = list(walk(kernel.body))
        self.defs = kernel.defs
        self.bound = _bound(ops, kernel.defs)
        for op in ops:
            self.tie(op)
        products = [op for op in ops if isinstance(op, Mma)]
        self.spread.update({op.result: sums(op) for op in products})  # first, because an accumulator's layout is fixed
        self.leave([op.result for op in products])
        for op in products:
            self.claim(op.acc, sums(op))
        for v in tuple(self.spread):
            for other, spread in self.pulled(v):
                self.hold(other, spread)
        for v, spread in (operand for op in products for operand in operands(op)):
            self.hold(v, spread)
        reduced = (op.x for op in ops if isinstance(op, Reduce) and not self.is_met(op))
        for v in sorted(reduced, key=lambda v: -prod(v.type.shape)):
            self.hold(v, wish(v))
        for op in self.made_of.values():
            if op.x not in self.bound:  # a constant is available in any layout, but its reduction is not
                self.spread[op.result] = left_over(op, wish(op.x))
                for name in (op.result, *self.leave((op.result,))):
                    for other, spread in self.pulled(name):
                        self.hold(other, spread)
        for v in sorted(
            self.bound, key=lambda v: -len(v.type.shape)
        ):  # what is repeated follows what it is repeated in
            if v not in self.spread:
                self.hold(v, wish(v))

    def claim(self, v: Value, spread: TileLayouts) -> tuple[Value, ...]:
        """Set the layout of `v` and of its other names inside and after a loop, unless decided; return those set."""
        if v not in self.bound or v in self.spread or v in self.made_of:
            return ()
        names = self.one.get(v, (v,))
        self.spread.update(dict.fromkeys(names, spread))
        return (*names, *self.leave(names))

    def leave(self, names: Sequence[Value]) -> tuple[Value, ...]:
        """Set the layouts of reductions of tiles that are decided, and of reductions of these; return the results."""
        found: tuple[Value, ...] = ()
        for op in self.made_of.values():
            if op.x in names and op.result not in self.spread:
                self.spread[op.result] = self.left_over(op, self.spread[op.x])
                found = (*found, op.result, *self.leave((op.result,)))
        return found

    def is_met(self, op: Reduce) -> bool:
        """Return whether a reduction reads what waves stored in shared memory, which is available in any layout."""
        return _is_exchanged(self.defs.get(op.x))

    def hold(self, v: Value, spread: TileLayouts) -> None:
        """Set the layout of `v` and of what is tied to it, where not decided before."""
        waiting = [(v, spread)]
        while waiting:
            for name in self.claim(*waiting.pop()):
                waiting += self.pulled(name)

    def pulled(self, v: Value) -> list[tuple[Value, TileLayouts]]:
        """Return what is tied to a decided tile, with the layouts that follow."""
        pulls = ((other, passed(self.spread[v])) for other, passed in self.ties.get(v, ()))
        return [(other, spread) for other, spread in pulls if spread is not None]

    def tie(self, op: Op) -> None:
        match op:
            case Loop() | While():
                for same in carried(op):
                    self.tie_all(same)
                    self.one.update(dict.fromkeys(same[:-2], same[:-2]))
            case TakeOver(x):
                self.tie_all((x, op.result))
            case Permute(x, axes):
                back = tuple(axes.index(i) for i in range(len(axes)))
                self.one_way(x, op.result, lambda s: tuple(layout.permuted(axes) for layout in s))
                self.one_way(op.result, x, lambda s: tuple(layout.permuted(back) for layout in s))
            case ExtractSlice(x):
                self.one_way(x, op.result, lambda s: part_of(s, op))
            case Broadcast(x, axes):
                self.one_way(op.result, x, lambda s: tuple(layout.along(axes)[0] for layout in s))
                if _only_adds_axes(op):
                    self.one_way(
                        x, op.result, lambda s: tuple(layout.spread_over(axes, op.result.type.rank) for layout in s)
                    )
            case Elementwise() | ReadIndexedShared():
                self.tie_all((*op.results, *op.operands))
            case Reduce(x) if isinstance(op.result.type, Tile):
                if self.is_met(op):
                    self.one_way(op.result, x, lambda s: self.met(op, s))
                    self.one_way(x, op.result, lambda s: self.left_over(op, s))
                else:
                    self.made_of[op.result] = op
            case _:
                pass  # its results are available in any layout, or `distribute_lanes` refuses it

    def tie_all(self, values: Sequence[Value]) -> None:
        mine = [v for v in dict.fromkeys(values) if v in self.bound]
        for one in mine:
            for other in mine:
                if other is not one:
                    self.one_way(one, other, lambda s: s)

    def one_way(self, one: Value, other: Value, passed: Passed) -> None:
        self.ties.setdefault(one, []).append((other, passed))


def _only_adds_axes(op: Broadcast) -> bool:
    """Return whether all new axes have extent 1, so that nothing is repeated."""
    return prod(op.result.type.shape) == prod(op.x.type.shape)


def part_of(spread: TileLayouts, op: ExtractSlice) -> TileLayouts | None:
    """Return the layout of a slice of a tile, if lanes need not exchange elements."""
    extent, count = op.x.type.shape[op.axis], op.result.type.shape[op.axis]
    found = spread[0].part(op.axis, extent, op.first, count) if len(spread) == 1 else None
    return found and (found[0],)


def carried(op: Loop | While) -> Iterator[tuple[Value, ...]]:
    """Yield for each carried tile of a loop: its result, names inside, what is yielded, and its initial value."""
    return (same for same in op.carried if isinstance(same[0].type, Tile))


def bodies(op: Loop | While) -> list[Block]:
    return [op.body] if isinstance(op, Loop) else [op.condition, op.body]


def carried_args(op: Loop | While, body: Block) -> Sequence[Value]:
    return body.args[1:] if isinstance(op, Loop) else body.args


def _bound(ops: Sequence[Op], defs: Mapping[Value, Op]) -> dict[Value, None]:
    """Return accumulators, carried tiles, reduced tiles, and all that is computed from them, in program order."""
    reductions = [op for op in ops if isinstance(op, Reduce)]
    reduced = {v for op in reductions for v in _made_of(op.x, defs)}
    reduced |= {op.x for op in reductions if _is_exchanged(defs.get(op.x))}
    found: dict[Value, None] = {}
    for op in ops:
        found.update(dict.fromkeys(v for v in op.results if v in reduced))
        match op:
            case Mma() | TakeOver():
                found[op.result] = None
            case Reduce():
                found.update(dict.fromkeys(v for v in op.results if isinstance(v.type, Tile)))
            case Loop() | While():
                found.update(dict.fromkeys(v for same in carried(op) for v in same[:-2]))
            case Permute() | Broadcast() | ExtractSlice():
                if any(v in found for v in op.operands):
                    found[op.result] = None
            case Elementwise() if any(v in found for v in op.operands):
                found.update(dict.fromkeys(v for v in op.results if isinstance(v.type, Tile)))
            case _:
                pass  # its results are available in any layout, or `distribute_lanes` refuses it
    return found


def _made_of(v: Value, defs: Mapping[Value, Op]) -> Iterator[Value]:
    """Yield a tile and those it is computed from elementwise, so that none of them is read or made twice."""
    op = defs.get(v)
    if isinstance(op, (Elementwise, Permute, Convert)):
        for x in op.operands:
            if isinstance(x.type, Tile):
                yield from _made_of(x, defs)
        if not isinstance(op, Convert):  # a Convert's result is available in any layout
            yield v
    elif not isinstance(op, (Broadcast, Const, Iota)) and not _is_exchanged(op):
        yield v


def _is_exchanged(op: Op | None) -> bool:
    """Return whether an op reads what lanes exchange through shared memory, which is available in any layout."""
    return isinstance(op, Read) and is_in(op.memory, "shared")
