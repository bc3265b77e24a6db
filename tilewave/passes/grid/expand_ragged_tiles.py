"""Replace `ragged_tile` by the search for its group in the array of the groups' ends.

    %group, %first, %end = ragged_tile(%ends, %tile, %count) {block = 64}
  →
    %before = loop(%steps, [0]) { how many groups of a step have their first tile after them, at or before %tile }
    %start = read(%ends, [%before - 1]), %end = read(%ends, [%before])      0 where there is no such group
    %first = %start + (%tile - %start // 64 - %before) * 64

Every step reads a tile of ends at once, so that the search waits for memory twice however many groups there are. A tile
without rows gets rows before the first one and the group -1, whose weights and rows are all out of bounds: nothing is
loaded for it, and nothing stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Broadcast, Iota, Loop, RaggedTile, Read, Reduce, Select
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import I32, INDEX, INDEX_SCALAR, Scalar, Tile
from tilewave.mapping.ragged import NO_GROUP, RaggedGrid

ENDS_AT_ONCE = 32
"""The ends that a step of the search reads."""


def expand_ragged_tiles(kernel: Kernel) -> Kernel:
    taken = names(kernel)
    arguments = {v.name: v for v in kernel.body.args}

    def expand(op: Op) -> Sequence[Op] | None:
        return (
            _Search(op, Builder(taken, locate=lambda: op.loc), arguments).ops() if isinstance(op, RaggedTile) else None
        )

    return rewrite(kernel, expand)


class _Search:
    """The ops that find one tile's group."""

    def __init__(self, op: RaggedTile, builder: Builder, arguments: dict[str, Value]) -> None:
        self.op, self.builder, self.grid = op, builder, RaggedGrid(op.block)
        (groups,) = op.memory.type.extents
        self.groups = self.number(arguments[groups] if isinstance(groups, str) else builder.const(groups))
        self.tile = self.number(op.number)

    def number(self, v: Value) -> Number:
        return Number(self.builder, v)

    def ops(self) -> Sequence[Op]:
        group = self.number(self.builder.cast(self.groups_before(), INDEX))
        start, end = self.end_of(group - 1), self.end_of(group)
        first = self.grid.first_row(self.tile, start, group)
        has_rows = first < end
        instead = (NO_GROUP, -self.op.block, 0)
        for found, other, result in zip((group, first, end), instead, self.op.results, strict=True):
            otherwise = self.builder.const(other)
            self.builder.effect(Select, has_rows.value, found.value, otherwise, results=(result,))
        return self.builder.ops

    def groups_before(self) -> Value:
        """Return the number of groups that end before the tile's group begins."""
        builder = self.builder
        length = self.op.memory.type.extents[0]
        step = min(ENDS_AT_ONCE, length) if isinstance(length, int) else ENDS_AT_ONCE
        steps, none = (self.groups + (step - 1)) // step, builder.const(0, Scalar(I32))
        count, so_far = builder.fresh("step", INDEX_SCALAR), builder.fresh("groups", Scalar(I32))
        with builder.region():
            more = self.groups_of_a_step(self.number(count) * step, step)
            body = builder.block([count, so_far], [(self.number(so_far) + self.number(more)).value])
        result = builder.fresh("groups_before", Scalar(I32))
        builder.effect(Loop, steps.value, (none,), body, results=(result,))
        return result

    def groups_of_a_step(self, begin: Number, step: int) -> Value:
        builder, kind = self.builder, Tile((step,), INDEX)
        ends = builder.emit(
            Read, self.op.memory, (begin.value,), (0,), type=Tile((step,), self.op.memory.type.dtype), name="ends"
        )
        index = self.number(builder.emit(Iota, type=kind)) + self.everywhere(begin, kind)
        after = self.grid.first_tile(self.number(builder.cast(ends, INDEX)), index + 1)
        is_before, is_group = after <= self.everywhere(self.tile, kind), index < self.everywhere(self.groups, kind)
        one, none = (builder.const(n, Tile((step,), I32)) for n in (1, 0))
        counted = builder.emit(Select, is_group.value, one, none, type=none.type)
        counted = builder.emit(Select, is_before.value, counted, none, type=none.type)
        return builder.emit(Reduce, counted, (0,), "sum", type=Scalar(I32))

    def everywhere(self, n: Number, kind: Tile) -> Number:
        return self.number(self.builder.emit(Broadcast, n.value, (), type=kind))

    def end_of(self, group: Number) -> Number:
        """Return where a group ends; 0 for one that is none."""
        dtype = self.op.memory.type.dtype
        one = self.builder.emit(Read, self.op.memory, (group.value,), (0,), type=Tile((1,), dtype))
        found = self.builder.emit(Reduce, one, (0,), "max", type=Scalar(dtype))
        return self.number(self.builder.cast(found, INDEX))
