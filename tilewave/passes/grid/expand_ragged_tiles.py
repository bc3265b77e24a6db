"""Replace `ragged_tile` by the search for its group in the array of the groups' ends.

    %group, %first, %end = ragged_tile(%ends, %tile, %count) {block = 64}
  →
    %tiles = loop(%n, …) { the sum of the tiles of all groups }
    %group, %first, %end = loop(1 if %tile < %tiles, else 0) {
      %steps, %before = loop(%n, …) { steps of 32 groups whose tiles are all before the tile, and their tiles }
      %place, %before_1 = the groups of the step after them whose tiles are all before the tile, by bisection
      %start = read(%ends, [%group - 1]), %end_1 = read(%ends, [%group])      0 where there is no such group
      %length = %end_1 - %start, divided equally among the tiles of the group
      yield([%group, %start + (%tile - %before_1) * %length, min(%end_1, %first + %length)])
    }

Every step reads a tile of ends at once, four steps do so at the same time, and the sum of the tiles of some groups is a
reduction, so that the search waits for memory a few times however many groups there are. The number of all tiles is the
same for all of them: persistent workgroups can add it up once. A tile without rows gets rows before the first one and
the group -1, whose weights and rows are all out of bounds: nothing is loaded for it, and nothing stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import And, Broadcast, Iota, Loop, RaggedTile, Read, Reduce, Select, TileInGroup
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import I32, INDEX, INDEX_SCALAR, Scalar, Tile
from tilewave.mapping.ragged import NO_GROUP, RaggedGrid

ENDS_AT_ONCE = 32
"""The ends that a step of the search reads, a power of two."""
STEPS_AT_ONCE = 4
Known = Callable[[Number, tuple[Number, ...]], tuple[Number, ...]]
"""Adds the tiles of a step to what is known of the steps before."""


def expand_ragged_tiles(kernel: Kernel) -> Kernel:
    taken = names(kernel)
    arguments = {v.name: v for v in kernel.body.args}

    def expand(op: Op) -> Sequence[Op] | None:
        match op:
            case TileInGroup():
                tile = next(user for user in kernel.users[op.results[0]] if isinstance(user, RaggedTile))
                return _Search(tile, op, Builder(taken, locate=lambda: op.loc), arguments).ops()
            case RaggedTile():
                if isinstance(kernel.defs.get(op.number), TileInGroup):
                    return []  # found there
                return _Search(op, None, Builder(taken, locate=lambda: op.loc), arguments).ops()
            case _:
                return None

    return rewrite(kernel, expand)


class _Search:
    """The ops that find one tile's group, and its place in the order of the group, if that has one."""

    def __init__(
        self, op: RaggedTile, order: TileInGroup | None, builder: Builder, arguments: dict[str, Value]
    ) -> None:
        self.op, self.order, self.builder, self.grid = op, order, builder, RaggedGrid(op.block)
        (groups,) = op.memory.type.extents
        self.groups = self.number(arguments[groups] if isinstance(groups, str) else builder.const(groups))
        self.is_one_step = isinstance(groups, int) and groups <= ENDS_AT_ONCE
        self.tile = self.number(builder.cast(order.row if order else op.number, I32))

    def number(self, v: Value) -> Number:
        return Number(self.builder, v)

    def ops(self) -> Sequence[Op]:
        group, before = self.found_now() if self.is_one_step else self.found_if_any()
        start, end = self.end_of(group - 1), self.end_of(group)
        tile, length = self.index(self.tile - before), self.grid.length(end - start)
        instead = [self.builder.const(n) for n in (NO_GROUP, -self.op.block, 0)]
        results = self.op.results
        if self.order:
            columns, most = self.number(self.order.columns), self.grid.tiles_of(end - start).larger(1)
            at = tile.smaller(most - 1), self.number(self.order.column)  # any place, for a tile without rows
            tile, column = self.grid.in_band(*at, (most, columns), self.order.band)
            results, instead = (*results, *self.order.results), [*instead, self.order.row, self.order.column]
        first = self.grid.first_row(tile, start, length)
        end = end.smaller(first + length)
        has_rows = first < end
        found = [group, first, end, *([self.index(before) + tile, column] if self.order else [])]
        for n, other, result in zip(found, instead, results, strict=True):
            self.builder.effect(Select, has_rows.value, n.value, other, results=(result,))
        return self.builder.ops

    def found_now(self) -> tuple[Number, Number]:
        """Return the group of the tile, and the tiles of all groups before."""
        none = self.number(self.builder.const(0, Scalar(I32)))
        steps, before = (self.number(self.builder.const(0)), none) if self.is_one_step else self.steps_before()
        place, before = self.groups_before(steps, before)
        return steps * ENDS_AT_ONCE + place, before

    def found_if_any(self) -> tuple[Number, Number]:
        """Return what `found_now` does, without a search where no group has the tile: all numbers from that of all
        tiles on, which may be many, have the group after the last one."""
        builder = self.builder
        none = self.number(builder.const(0, Scalar(I32)))
        (tiles,) = self.each_step((none,), lambda tiles, known: (known[0] + tiles,))
        once, kinds = (self.tile < tiles).choose(1, 0), {"group": INDEX_SCALAR, "before": Scalar(I32)}
        with builder.region():
            found = [n.value for n in self.found_now()]
            args = [builder.fresh(name, kind) for name, kind in kinds.items()]
            body = builder.block([builder.fresh("once", INDEX_SCALAR), *args], found)
        results = tuple(builder.fresh(name, kind) for name, kind in kinds.items())
        builder.effect(Loop, once.value, (self.groups.value, none.value), body, results=results)
        group, before = map(self.number, results)
        return group, before

    def index(self, n: Number) -> Number:
        return self.number(self.builder.cast(n.value, INDEX))

    def steps_before(self) -> tuple[Number, Number]:
        """Return the number of steps whose groups are all before the tile's, and the number of their tiles."""

        def add(tiles: Number, known: tuple[Number, ...]) -> tuple[Number, ...]:
            found, after, before = known
            after = after + tiles
            is_before = after <= self.tile
            return found + is_before.choose(1, 0), after, is_before.choose(after, before)

        none = self.number(self.builder.const(0, Scalar(I32)))
        steps, _, before = self.each_step((self.number(self.builder.const(0)), none, none), add)
        return steps, before

    def each_step(self, begin: tuple[Number, ...], add: Known) -> tuple[Number, ...]:
        """Return what `add` makes of its last result, beginning with `begin`, and the tiles of each step.

        An iteration takes several steps, whose reads do not wait for each other; steps after the last have no tiles.
        """
        builder, at_once = self.builder, ENDS_AT_ONCE * STEPS_AT_ONCE
        trips = (self.groups + (at_once - 1)) // at_once
        turn = builder.fresh("turn", INDEX_SCALAR)
        carried = [builder.fresh("known", n.value.type) for n in begin]
        with builder.region():
            known, first = tuple(map(self.number, carried)), self.number(turn) * STEPS_AT_ONCE
            for tiles in [self.sum(self.tiles_of_step(first + i)) for i in range(STEPS_AT_ONCE)]:
                known = add(tiles, known)
            body = builder.block([turn, *carried], [n.value for n in known])
        results = tuple(builder.fresh(v.name, v.type) for v in carried)
        builder.effect(Loop, trips.value, tuple(n.value for n in begin), body, results=results)
        return tuple(map(self.number, results))

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
