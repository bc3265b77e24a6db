"""Peel the boundary steps and boundary tiles of dynamic shapes, so that all others need no predicates.

    loop(%steps, [%zero]) {                              loop(%whole, [%zero]) {
      %x = read(%a, [%m, %k]) {guard = [0, 1]}             %x = read(%a, [%m, %k]) {guard = [0]}
      …                                            →       …
    }                                                    }
                                                         loop(min(%steps - %whole, 1), [%sums_inside]) {
                                                           %x_edge = read(%a, [%m, %k_edge]) {guard = [0, 1]}
                                                           …
                                                         }

    write(%sums, %c, [%m, %n]) {guard = [0, 1]}    →     loop(%inside) { write(%sums, %c, [%m, %n]) }
                                                         loop(1 - %inside) { write(%sums, …) {guard = [0, 1]} }

Inside, no element is past the end of a row, and bounds masks fold. The number of steps inside is a scalar of the
launch. Where every step begins inside its memory, as those of a loop along it do, few boundary steps are left: one,
where steps are as long as their tiles. With static sizes, `predicate_edges` finds all that itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewave.analysis.accesses import Access, sizes
from tilewave.analysis.affine import Affine, Sums
from tilewave.analysis.positions import scalars_of
from tilewave.analysis.ranges import ranges_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import is_open
from tilewave.ir.ops import (
    Add,
    Allocate,
    Broadcast,
    Iota,
    Less,
    Loop,
    Max,
    Min,
    Overlay,
    Role,
    Select,
    Sub,
    While,
    Write,
    WriteThrough,
    Yield,
)
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Extent, Scalar
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import LoopSchedule, Steps

AROUND = (Loop, While, Role)
"""Ops whose blocks contain accesses."""
Guards = Mapping[int, tuple[int, ...]]
"""The axes that need no predicate, by the identity of an op."""
Reached = tuple[int, frozenset[tuple[Value, int]], int, Extent]
"""The begin of elements (a constant, and multiples of values), their number, and the extent that they are inside."""


def peel_edges(kernel: Kernel) -> Kernel:
    return replace(kernel, body=_Separation(kernel).block(kernel.body)) if is_open(kernel) else kernel


@dataclass(frozen=True)
class StepEdge:
    """The position of a tile in each step of a loop: `each` · step + `first` + the rest, along a dynamic extent."""

    extent: str
    size: int
    each: int
    first: int
    rest: tuple[tuple[Value, int], ...]

    def whole_steps(self, builder: Builder) -> Number:
        """Return how many steps are inside the memory; zero or less where none is."""
        left = Number(builder, Value(self.extent, INDEX_SCALAR)) - (self.size + self.first)
        for v, factor in self.rest:
            left = left - Number(builder, v) * factor
        found: Number = left // self.each + 1
        return found

    @property
    def most_steps_past_the_end(self) -> int:
        """The largest number of steps that begin inside, and do not end there."""
        return -(-(self.size - 1) // self.each)


class _Separation:
    def __init__(self, kernel: Kernel) -> None:
        self.sums, self.ranges, self.taken = Sums(kernel), ranges_of(kernel), names(kernel)
        self.scalars = scalars_of(kernel.body)
        self.defs = kernel.defs

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        *_, last = (-1, *(i for i, op in enumerate(block.ops) if isinstance(op, AROUND)))
        for op in block.ops[: last + 1]:
            ops += self.loop(op) if isinstance(op, Loop) else [map_blocks(op, self.block)]
        return replace(block, ops=(*ops, *self.straight(block.ops[last + 1 :])))

    # -- loops

    def loop(self, loop: Loop) -> list[Op]:
        """Return the loop over the steps that are inside, then the loop over the boundary steps."""
        guards: dict[int, tuple[int, ...]] = {}
        edges: dict[StepEdge, None] = {}
        for op in loop.body.ops:
            if isinstance(op, Access):
                found = self.edges(op, loop)
                guards[id(op)] = tuple(found)
                edges.update(dict.fromkeys(found.values()))
        if not edges:
            return [map_blocks(loop, self.block)]
        builder = Builder(self.taken, locate=lambda: loop.loc)
        whole = self.whole_steps(loop, list(edges), builder)
        body = self.block(replace(loop.body, ops=self.without(loop.body.ops, guards)))
        most = max(edge.most_steps_past_the_end for edge in edges)
        few = self.ranges.of(loop.trips)[1] <= most or all(self.begins_inside(edge, loop.trips) for edge in edges)
        rest = Number(builder, loop.trips) - whole
        rest = rest.smaller(most) if few else rest
        parts = Steps(body, whole.value, yields="inside"), Steps(loop.body, rest.value, whole, suffix="edge")
        LoopSchedule(loop, parts).expand(builder)
        return builder.ops

    def begins_inside(self, edge: StepEdge, trips: Value) -> bool:
        """Whether the tile of every step begins before its memory ends: there are no more steps than cover it."""
        by = [v for v, factor in edge.rest if factor == edge.each]
        if len(by) != len(edge.rest) or len(by) > 1:
            return False
        covering = Value(edge.extent, INDEX_SCALAR), edge.each
        ends = self.ends(trips, by[0] if by else None)
        return any(self.scalars.rounded_up(end) == covering and edge.first <= less * edge.each for end, less in ends)

    def ends(self, trips: Value, first: Value | None) -> Iterator[tuple[Value, int]]:
        """Yield (n, m) such that a loop has at most n - m trips, or n - m - first trips."""
        match self.defs.get(trips):
            case Max(a, b):
                for x, least in ((a, b), (b, a)):
                    if self.scalars.constant(least) == 0:  # any bound holds for a loop without trips
                        yield from self.ends(x, first)
            case Min(a, b):
                yield from (*self.ends(a, first), *self.ends(b, first))
            case Sub(a, b) if b == first:
                yield from self.ends(a, None)
            case Sub(a, b) if (less := self.scalars.constant(b)) is not None:
                yield from ((end, less + more) for end, more in self.ends(a, first))
            case _ if first is None:
                yield trips, 0
            case _:
                pass  # no bound is known

    def edges(self, op: Access, loop: Loop) -> dict[int, StepEdge]:
        """Return the predicated axes along which a loop moves its tile, step by step."""
        tile = sizes(op)
        inner = {v for o in walk(loop.body) for v in o.results}
        index, found = loop.body.args[0], {}
        for axis in op.guard:
            extent, where = op.memory.type.extents[axis], self.sums.of(op.at[axis])
            rest = tuple((v, factor) for v, factor in where.terms.items() if v != index)
            each = where.terms.get(index, 0) or self.only_step(index, tile.get(axis, 1))
            known = each > 0 and not any(v in inner or v in loop.body.args for v, _ in rest)
            if isinstance(extent, str) and known and self.ranges.of(op.at[axis])[0] >= 0:
                found[axis] = StepEdge(extent, tile.get(axis, 1), each, where.constant, rest)
        return found

    def only_step(self, index: Value, size: int) -> int:
        """Return `size` as the step of a loop of one trip at most; else 0, because the tile does not move."""
        return size if self.ranges.of(index) == (0, 0) else 0

    def whole_steps(self, loop: Loop, edges: Sequence[StepEdge], builder: Builder) -> Number:
        found = Number(builder, loop.trips)
        for edge in edges:
            found = found.smaller(edge.whole_steps(builder))
        not_below: Number = found.larger(0)
        return not_below

    # -- code after loops

    def straight(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Return the end of a block that writes results, once for tiles that are inside and once for boundary tiles."""
        guards = {id(op): self.open_axes(op) for op in ops if isinstance(op, Access)}
        if not any(guards[id(op)] for op in ops if isinstance(op, (Write, WriteThrough))):
            return ops
        first = next(i for i, op in enumerate(ops) if guards.get(id(op)))
        numbers = [op for op in ops[first:] if _is_number(op)]
        parted = [op for op in ops[first:] if not _is_number(op) and not isinstance(op, Yield)]
        ends = [op for op in ops[first:] if isinstance(op, Yield)]
        made = {v for op in parted for v in op.results}
        moved = any(made.intersection(op.operands) for op in (*numbers, *ends))
        if moved or any(isinstance(op, (Allocate, Overlay)) for op in parted):
            return ops
        builder = Builder(self.taken, locate=lambda: parted[0].loc)
        inside = self.inside([op for op in parted if isinstance(op, Access)], guards, builder)
        self.once(inside, self.without(parted, guards), builder)
        self.once(1 - inside, tuple(map(Copier(builder, "edge").renamed, parted)), builder)
        return (*ops[:first], *numbers, *builder.ops, *ends)

    def open_axes(self, op: Access) -> tuple[int, ...]:
        """Return the predicated axes along which a comparison at run time decides whether the tile is inside."""
        extents = op.memory.type.extents
        return tuple(a for a in op.guard if isinstance(extents[a], str) and self.ranges.of(op.at[a])[0] >= 0)

    def without(self, ops: Sequence[Op], guards: Guards) -> tuple[Op, ...]:
        """Return the ops with fewer predicates, and without masks that are always true then."""
        reached = {place for op in ops if isinstance(op, Access) for place in self.reached(op, guards.get(id(op), ()))}
        defs = {v: op for op in ops for v in op.results}
        held: set[Value] = set()
        chosen: dict[Value, Value] = {}
        found: list[Op] = []
        for op in _with_fewer_guards(ops, guards):
            match op := substitute(op, chosen):
                case Less() if self.compared(op, defs) in reached:
                    held.add(op.result)
                case Broadcast(x) if x in held:
                    held.add(op.result)
                case Select(condition, x) if condition in held:
                    chosen[op.result] = x
                    continue
                case _:
                    pass  # it is no mask
            found.append(op)
        return tuple(found)

    def reached(self, op: Access, axes: Sequence[int]) -> Iterator[Reached]:
        tile = sizes(op)
        for axis in axes:
            yield self.place(self.sums.of(op.at[axis]), tile.get(axis, 1), op.memory.type.extents[axis])

    def compared(self, op: Less, defs: Mapping[Value, Op]) -> Reached | None:
        """Return the elements that a comparison checks against an extent; None where it is no bounds check."""
        places, end = defs.get(op.a), defs.get(op.b)
        if not isinstance(end, Broadcast):
            return None
        parts = [defs.get(v) for v in places.operands] if isinstance(places, Add) else [places]
        starts = [part for part in parts if isinstance(part, Broadcast)]
        if sum(isinstance(part, Iota) for part in parts) != 1 or len(starts) != len(parts) - 1:
            return None
        start = self.sums.of(starts[0].x) if starts else Affine()
        return self.place(start, op.a.type.shape[0], end.x.name)

    def place(self, start: Affine, size: int, extent: Extent) -> Reached:
        return start.constant, frozenset(start.terms.items()), size, extent

    def inside(self, ops: Sequence[Access], guards: Guards, builder: Builder) -> Number:
        """Return 1 where every tile is inside its memory, else 0."""
        ends = {
            (op.at[axis], sizes(op).get(axis, 1), op.memory.type.extents[axis]) for op in ops for axis in guards[id(op)]
        }
        found = Number(builder, builder.const(1))
        for at, size, extent in sorted(ends, key=str):
            within = Number(builder, at) + size <= Number(builder, Value(str(extent), INDEX_SCALAR))
            found = within.choose(found, 0)
        return found

    def once(self, trips: Number, ops: Sequence[Op], builder: Builder) -> None:
        body = Block((builder.fresh("once", INDEX_SCALAR),), (*ops, Yield((), loc=ops[-1].loc)))
        builder.effect(Loop, trips.value, (), body)


def _with_fewer_guards(ops: Sequence[Op], guards: Guards) -> tuple[Op, ...]:
    return tuple(
        replace(op, guard=tuple(a for a in op.guard if a not in guards[id(op)])) if guards.get(id(op)) else op  # type: ignore[attr-defined,call-arg]
        for op in ops
    )


def _is_number(op: Op) -> bool:
    """Whether `op` computes an index or a condition."""
    kinds = [v.type for v in op.results]
    return op.is_pure and bool(kinds) and all(isinstance(k, Scalar) and k.dtype in (INDEX, BOOL) for k in kinds)
