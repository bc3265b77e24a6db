"""In which layouts each tile of a kernel is needed, before its lanes are told apart.

A product decides how its sums are held, a staged read how it is loaded, and whatever is computed from them follows:

    %z = mma(%x, %y, %acc)        %x, %y as the matrix instruction takes them, %acc and %z as it gives its sums
    %scaled = mul(%z, %factor)    as %z, and so is %factor
    write(%scaled, %c, …)         as it comes
"""

from __future__ import annotations

from math import prod

from tilewave.analysis.ties import Spread, Ties, bodies, carried, carried_args
from tilewave.errors import TargetError
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.fragments import Fragment, GroupFragment
from tilewave.ir.layouts import linear
from tilewave.ir.ops import (
    Broadcast,
    Elementwise,
    HandOver,
    Loop,
    Mma,
    Permute,
    Read,
    Scatter,
    TakeOver,
    While,
    Write,
    WriteThrough,
)
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile

WIDEST_BYTES = 16


class Spreads:
    """`needed[v]` are the spreads in which tile v is used, in no order that matters."""

    def __init__(self, kernel: Kernel, rows: dict[str, int], groups: frozenset[str]) -> None:
        self.waves = kernel.waves if len(kernel.waves) == 2 else (prod(kernel.waves), 1)
        self.lanes = kernel.lanes * prod(kernel.waves)
        self.rows, self.groups = rows, groups
        self.needed: dict[Value, list[Spread]] = {}
        self._makers: dict[Value, Op] = {}
        for op in walk(kernel.body):
            self._makers.update(dict.fromkeys(op.results, op))
        self._block_rows = next((rows[op.instruction] for op in walk(kernel.body) if isinstance(op, Mma)), 16)
        self._tied = Ties(kernel, self.sums, self._wish).spread
        self._walk_back(kernel.body)

    # -- how a tile is held where it is made

    def held(self, v: Value) -> Spread:
        """As what it is tied to, or, where it can be had in any layout, as suits it best."""
        return self._tied[v] if v in self._tied else self._wish(v)

    def _wish(self, v: Value) -> Spread:
        """As what it is made of was read, or, where nobody has a wish, in the widest chunks."""
        return self._as_read(v) or self._plain(v.type.shape, v.type.dtype.bytes)

    def maker(self, v: Value) -> Op | None:
        return self._makers.get(v)

    def is_group(self, op: Mma) -> bool:
        """Whether groups of waves compute it together, from operands that no lane holds."""
        return op.instruction in self.groups

    def fragment(self, op: Mma) -> Fragment:
        return Fragment(self.rows[op.instruction], op.depth)

    def sums(self, op: Mma) -> Spread:
        fragment = GroupFragment(op.depth) if self.is_group(op) else self.fragment(op)
        return (fragment.sums(op.acc.type.shape, self.waves, turned=True),)

    def operand(self, op: Mma, side: int) -> Spread:
        return (self.fragment(op).operand((op.a, op.b)[side].type.shape, self.waves, side),)

    def _as_read(self, v: Value) -> Spread | None:
        op = self._makers.get(v)
        match op:
            case Read(spread=spread) if spread:
                return self._read(op)
            case Permute(x, axes):
                found = self._as_read(x)
                return found and tuple(layout.permuted(axes) for layout in found)
            case Elementwise():
                return next((s for x in op.operands if _is_tile(x) and (s := self._as_read(x))), None)
            case _:
                return None

    def _read(self, op: Read) -> Spread:
        shape = op.result.type.shape
        match op.spread:
            case "linear":  # chunks run along the memory's last axis, wherever that is in the tile
                order = sorted(range(len(shape)), key=lambda i: op.axes[i])
                back = tuple(order.index(i) for i in range(len(shape)))
                spread = linear(tuple(shape[i] for i in order), op.per_lane, self.lanes)
                return tuple(layout.permuted(back) for layout in spread)
            case "rows" | "columns":
                block = Fragment(self._block_rows, op.per_lane * 64 // self._block_rows)
                return (block.operand(shape, self.waves, 0 if op.spread == "rows" else 1),)
        raise NotImplementedError(f"{op.loc}: lanes cannot share a tile {op.spread}")

    def _plain(self, shape: tuple[int, ...], element_bytes: int) -> Spread:
        width = max(1, WIDEST_BYTES // element_bytes)
        while shape[-1] % width or (width > 1 and prod(shape) // width < self.lanes):
            width //= 2
        return linear(shape, width, self.lanes)

    # -- how it is needed, from the last use to the first

    def _walk_back(self, block: Block) -> None:
        for op in reversed(block.ops):
            self._needs(op)

    def _needs(self, op: Op) -> None:
        match op:
            case Write(tile) | WriteThrough(tile) | Scatter(tile) | HandOver(tile):
                self._need(tile, self.held(tile))
            case TakeOver(tile):
                self._held_as(op, op.result, self.held(op.result))
                self._need(tile, self.held(op.result))
            case Mma(a, b, acc):
                self._held_as(op, op.result, self.sums(op))
                self._need(acc, self.sums(op))
                if not self.is_group(op):
                    self._need(a, self.operand(op, 0))
                    self._need(b, self.operand(op, 1))
            case Loop() | While():
                self._loop_needs(op)
            case Broadcast(x, axes) if _is_tile(x):
                for spread in self.needed.get(op.result, ()):
                    self._need(x, tuple(layout.along(axes)[0] for layout in spread))
            case Permute(x, axes):
                back = tuple(axes.index(i) for i in range(len(axes)))
                for spread in self.needed.get(op.result, ()):
                    self._need(x, tuple(layout.permuted(back) for layout in spread))
            case Elementwise():
                for spread in self.needed.get(op.result, ()):
                    for x in op.operands:
                        self._need(x, spread)
            case _:
                pass  # it takes no tile; one that does is refused where it is cut among lanes

    def _loop_needs(self, op: Loop | While) -> None:
        for result, *_, yielded, init in carried(op):
            self._held_as(op, result, self.held(result))
            self._need(yielded, self.held(result))
            self._need(init, self.held(result))
        for body in bodies(op):
            self._walk_back(body)
            for v in carried_args(op, body):
                if _is_tile(v):
                    self._held_as(op, v, self.held(v))

    def _need(self, v: Value, spread: Spread) -> None:
        if _is_tile(v) and spread not in self.needed.setdefault(v, []):
            self.needed[v].append(spread)

    def _held_as(self, op: Op, v: Value, spread: Spread) -> None:
        """`v` can be had in this spread only."""
        if any(other != spread for other in self.needed.get(v, ())):
            raise TargetError(
                f"{op.name}: its result, {v.type}, is held by lanes in one way and needed in another",
                loc=op.loc,
                remedy="write it to a memory and read it from there in a kernel of its own",
            )
        self.needed[v] = [spread]


def _is_tile(v: Value) -> bool:
    return isinstance(v.type, Tile)
