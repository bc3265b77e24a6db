"""Replace `ragged_tile` by the search for its group in the array of the groups' ends.

    %group, %first, %end = ragged_tile(%ends, %tile, %count) {block = 64}
  →
    %steps, %before = loop(%n, …) { steps of 32 groups whose tiles are all before the tile, and their tiles }
    %place, %before_1 = the groups of the step after them whose tiles are all before the tile, by bisection
    %start = read(%ends, [%group - 1]), %end_1 = read(%ends, [%group])      0 where there is no such group
    %length = %end_1 - %start, divided equally among the tiles of the group
    %first = %start + (%tile - %before_1) * %length, %end = min(%end_1, %first + %length)

Every step reads a tile of ends at once, and the sum of the tiles of some of its groups is a reduction, so that the
search waits for memory three times however many groups there are. A tile without rows gets rows before the first one
and the group -1, whose weights and rows are all out of bounds: nothing is loaded for it, and nothing stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import And, Broadcast, Iota, Loop, RaggedTile, Read, Reduce, Select
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import I32, INDEX, INDEX_SCALAR, Scalar, Tile
from tilewave.mapping.ragged import NO_GROUP, RaggedGrid

ENDS_AT_ONCE = 32
"""The ends that a step of the search reads, a power of two."""


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
        self.is_one_step = isinstance(groups, int) and groups <= ENDS_AT_ONCE
        self.tile = self.number(builder.cast(op.number, I32))

    def number(self, v: Value) -> Number:
        return Number(self.builder, v)

    def ops(self) -> Sequence[Op]:
        none = self.number(self.builder.const(0, Scalar(I32)))
        steps, before = (self.number(self.builder.const(0)), none) if self.is_one_step else self.steps_before()
        place, before = self.groups_before(steps, before)
        group = steps * ENDS_AT_ONCE + place
        start, end = self.end_of(group - 1), self.end_of(group)
        length = self.grid.length(end - start)
        first = self.grid.first_row(self.index(self.tile - before), start, length)
        has_rows, end = first < end, end.smaller(first + length)
        instead = (NO_GROUP, -self.op.block, 0)
        for found, other, result in zip((group, first, end), instead, self.op.results, strict=True):
            otherwise = self.builder.const(other)
            self.builder.effect(Select, has_rows.value, found.value, otherwise, results=(result,))
        return self.builder.ops

    def index(self, n: Number) -> Number:
        return self.number(self.builder.cast(n.value, INDEX))

    def steps_before(self) -> tuple[Number, Number]:
        """Return the number of steps whose groups are all before the tile's, and the number of their tiles."""
        builder, none = self.builder, self.builder.const(0, Scalar(I32))
        steps = (self.groups + (ENDS_AT_ONCE - 1)) // ENDS_AT_ONCE
        count = builder.fresh("step", INDEX_SCALAR)
        carried = [builder.fresh("steps", INDEX_SCALAR), *(builder.fresh(n, Scalar(I32)) for n in ("tiles", "before"))]
        with builder.region():
            found, tiles, before = map(self.number, carried)
            after = tiles + self.sum(self.tiles_of_step(self.number(count)))
            is_before = after <= self.tile
            more = found + is_before.choose(1, 0)
            yielded = [more.value, after.value, is_before.choose(after, before).value]
            body = builder.block([count, *carried], yielded)
        results = tuple(builder.fresh(v.name, v.type) for v in carried)
        begin = (builder.const(0), none, none)
        builder.effect(Loop, steps.value, begin, body, results=results)
        return self.number(results[0]), self.number(results[2])

    def groups_before(self, step: Number, before: Number) -> tuple[Number, Number]:
        """Return how many groups of a step are before the tile's, and the number of tiles before it."""
        tiles, kind = self.tiles_of_step(step), Tile((ENDS_AT_ONCE,), I32)
        index = self.number(self.builder.emit(Iota, type=Tile((ENDS_AT_ONCE,), INDEX)))
        none = self.builder.const(0, kind)
        place = self.number(self.builder.const(0))
        half = ENDS_AT_ONCE // 2
        while half:
            low, high = (self.everywhere(n) for n in (place, place + half))
            is_next = self.builder.binary(And, (low <= index).value, (index < high).value)
            more = self.number(self.builder.emit(Select, is_next, tiles.value, none, type=kind))
            after = before + self.sum(more)
            is_before = after <= self.tile
            place, before = place + is_before.choose(half, 0), is_before.choose(after, before)
            half //= 2
        return place, before

    def tiles_of_step(self, step: Number) -> Number:
        """Return the number of tiles of each group of a step; none for what is no group, whose end is read as 0."""
        begin = step * ENDS_AT_ONCE
        starts, ends = (self.ends(at) for at in (begin - 1, begin))
        return self.number(self.builder.cast(self.grid.tiles_of(ends - starts).value, I32))

    def ends(self, begin: Number) -> Number:
        dtype = self.op.memory.type.dtype
        kind = Tile((ENDS_AT_ONCE,), dtype)
        found = self.builder.emit(Read, self.op.memory, (begin.value,), (0,), type=kind, name="ends")
        return self.number(self.builder.cast(found, INDEX))

    def sum(self, tiles: Number) -> Number:
        return self.number(self.builder.emit(Reduce, tiles.value, (0,), "sum", type=Scalar(I32)))

    def everywhere(self, n: Number) -> Number:
        kind = Tile((ENDS_AT_ONCE,), n.value.type.dtype)
        return self.number(self.builder.emit(Broadcast, n.value, (), type=kind))

    def end_of(self, group: Number) -> Number:
        """Return where a group ends; 0 for one that is none."""
        dtype = self.op.memory.type.dtype
        one = self.builder.emit(Read, self.op.memory, (group.value,), (0,), type=Tile((1,), dtype))
        found = self.builder.emit(Reduce, one, (0,), "max", type=Scalar(dtype))
        return self.number(self.builder.cast(found, INDEX))
