"""Move tiles that loops use from outside into the loops, so that a loop's tiles can be split without those around it.

    %mask = less(%places, %end) : tile<1024xbool>      loop(%rows, []) do (%row: index) {
    loop(%rows, []) do (%row: index) {             →     %mask_1 = less(%places_1, %end) : tile<1024xbool>
      … select(%mask, …)                                 … select(%mask_1, …)

What is cheap is rematerialized in each step. What is expensive to compute, or read from a memory that is written, is
kept in shared memory, and each step reads it from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field

from tilewave.analysis.axes import DEAR, Axes
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Allocate, Broadcast, Const, Elementwise, Iota, Permute, Read, Write
from tilewave.ir.rewrite import map_blocks, rename, substitute, walk, with_ops
from tilewave.ir.types import INDEX_SCALAR, Memory, Tile
from tilewave.records import dataclass

CHEAP: tuple[type[Op], ...] = (Elementwise, Const, Iota, Broadcast, Permute, Read)


def sunk(block: Block, is_cut: Callable[[Value], bool], written: Collection[Value], builder: Builder) -> Block:
    """Return the block with the tiles that regions use along an axis of a tile to be split moved into the regions.

    Memories in `written` may change between the place where a tile is read and the region that uses it.
    """
    return _Sinking(block, is_cut, written, builder).block()


@dataclass
class _Sinking:
    of: Block
    is_cut: Callable[[Value], bool]
    written: Collection[Value]
    builder: Builder
    kept: dict[Value, Value] = field(default_factory=dict)
    """Memories of tiles that are expensive to compute."""
    moved: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.makers = {v: op for op in self.of.ops for v in op.results if isinstance(v.type, Tile)}
        self.axes = Axes(self.of.ops)

    def block(self) -> Block:
        ops = [map_blocks(op, self.region) for op in self.of.ops]
        if not self.moved:
            return self.of
        return with_ops(self.of, _without_dead_code([made for op in ops for made in self.with_memory(op)], self.moved))

    def region(self, region: Block) -> Block:
        """Return a region with copies of the tiles it uses along the axes of tiles to be split."""
        made = {v for op in walk(region) for v in op.results}
        large = (v for v in made if isinstance(v.type, Tile) and self.is_cut(v))
        labels = {label for v in large for label in self.axes.of(v)}
        used = dict.fromkeys(v for op in walk(region) for v in op.operands)
        taken = [v for v in used if v in self.makers and labels.intersection(self.axes.of(v))]
        if not taken:
            return region
        new: dict[Value, Value] = {}
        with self.builder.region():
            for v in taken:
                self.copy(v, new)
            return Block(region.args, (*self.builder.ops, *(substitute(op, new) for op in region.ops)))

    def copy(self, v: Value, new: dict[Value, Value]) -> None:
        """Map v in `new` to a tile of the same contents that is made in the region."""
        if v in new:
            return
        op = self.makers[v]
        self.moved.add(v)
        if not self.is_cheap(op):
            new[v] = self.read(op, v)
            return
        labels = set(self.axes.of(v))
        for operand in op.operands:
            if operand in self.makers and labels.intersection(self.axes.of(operand)):
                self.copy(operand, new)
        mine = self.builder.fresh(v.name, v.type)
        self.builder.ops.append(rename(op, {**new, v: mine}))
        new[v] = mine

    def is_cheap(self, op: Op) -> bool:
        changes = isinstance(op, Read) and op.memory in self.written
        return isinstance(op, CHEAP) and not isinstance(op, DEAR) and not changes

    def read(self, op: Op, v: Value) -> Value:
        """Return a fresh read of the memory that keeps tile `v`; all reads of a tile share one memory."""
        if v not in self.kept:
            self.kept[v] = self.builder.fresh(v.name, Memory(v.type.shape, v.type.dtype, "shared"))
        mine = self.builder.fresh(v.name, v.type)
        zero, at, axes = self.whole(op, v)
        self.builder.ops += (zero, Read(self.kept[v], at, axes, results=(mine,), loc=op.loc))
        return mine

    def with_memory(self, op: Op) -> Iterator[Op]:
        """Yield an op, then the ops that write its tiles to the memories that regions read."""
        yield op
        for v in op.results:
            if v in self.kept:
                memory = self.kept[v]
                zero, at, axes = self.whole(op, v)
                yield from (Allocate(results=(memory,), loc=op.loc), zero, Write(v, memory, at, axes, loc=op.loc))

    def whole(self, op: Op, v: Value) -> tuple[Const, tuple[Value, ...], tuple[int, ...]]:
        """Return a zero, the position and the axes of a tile that fills a whole memory."""
        zero = Const(0, results=(self.builder.fresh("c0", INDEX_SCALAR),), loc=op.loc)
        rank = len(v.type.shape)
        return zero, (zero.result,) * rank, tuple(range(rank))


def _without_dead_code(ops: Sequence[Op], moved: Collection[Value]) -> list[Op]:
    """Return the ops without those whose tiles were moved and are unused now."""
    used = Counter(v for op in ops for v in _operands(op))
    left = []
    for op in reversed(ops):
        if op.results and all(v in moved and not used[v] for v in op.results):
            used.subtract(_operands(op))
        else:
            left.append(op)
    return left[::-1]


def _operands(op: Op) -> Iterator[Value]:
    yield from op.operands
    for block in op.blocks:
        for inner in walk(block):
            yield from inner.operands
