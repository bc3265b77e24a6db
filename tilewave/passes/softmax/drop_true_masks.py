"""Skip a select at run time where a scalar proves that its mask is true everywhere.

    %either = or(broadcast(%whole), %seen)         %trips = cast(not(%whole))
    %x = select(%either, %scores, %hidden)     →   %x = loop(%trips, [%scores]) { ‹%seen›; select(%seen, …) }

A mask that is false only at the border of a tile then costs nothing in all other steps: neither the select nor the
comparisons that compute the mask.

Where a workgroup computes several tiles, the comparisons that are left compare constant column offsets with a bound per
tile, not one position per register:

    loop(%tiles) {                                            loop(%tiles) {
      …                                                         …
      %places = add(broadcast(%first), ramp() {[8, 1]})     →   %far = sub(%rows, broadcast(%first))
      %seen = less_equal(%places, %rows)                        %seen = less_equal(ramp() {[8, 1]}, %far)

The positions of a lane's columns are the same for all tiles. As values they would be hoisted out of the loop over tiles
and occupy 32 registers during the products; as `ramp` steps they are constants of the comparison. Positions do not
overflow, so both comparisons are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.register_positions import RegisterPositions
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.match import either, made, of_type
from tilewave.ir.ops import Broadcast, Less, LessEqual, Loop, Not, Or, Ramp, Select, Sub, Yield
from tilewave.ir.rewrite import map_blocks, names, renamed, rewrite_block, rewrite_outermost, walk
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Scalar, Vector

LEAST_REGISTERS = 16
"""The least registers that are masked: with fewer, the test costs as much as the select."""

PROVEN = either(Or, made(Broadcast, of_type(Scalar(BOOL), "whole")), "mask")
"""A mask that is true where a scalar is."""


def drop_true_masks(kernel: Kernel) -> Kernel:
    dropped = _dropped(kernel)
    return replace(dropped, body=rewrite_outermost(dropped.body, _Comparing(dropped).in_tiles))


def _dropped(kernel: Kernel) -> Kernel:
    builder = Builder(names(kernel))

    def block(old: Block) -> Block:
        ops: list[Op] = []
        defs: dict[Value, Op] = {}
        for inner in old.ops:
            op = map_blocks(inner, block)
            match op:
                case Select(condition) if _is_large(op) and (found := PROVEN.match(condition, defs)) is not None:
                    ops += _at_the_border(op, found["whole"], found["mask"], defs, builder)
                case _:
                    ops.append(op)
            defs.update(dict.fromkeys(op.results, op))
        return replace(old, ops=tuple(ops))

    changed = replace(kernel, body=block(kernel.body))
    return eliminate_dead_code(changed) if changed != kernel else kernel  # DCE of the comparisons that moved into loops


def _is_large(op: Select) -> bool:
    return isinstance(op.result.type, Vector) and prod(op.result.type.shape) >= LEAST_REGISTERS


def _at_the_border(op: Select, whole: Value, condition: Value, defs: Mapping[Value, Op], builder: Builder) -> list[Op]:
    with builder.region():
        builder.locate = lambda: op.loc
        trips = builder.cast(builder.elementwise(Not, whole), INDEX)
        counter, x, masked = (
            builder.fresh(name, kind)
            for name, kind in (("once", INDEX_SCALAR), (op.a.name, op.a.type), (op.result.name, op.result.type))
        )
        select = replace(op, condition=condition, a=x, results=(masked,))
        deciding = tuple(_deciding(condition, defs))
        copied = renamed(Block((), (*deciding, select)), lambda v: builder.fresh(v.name, v.type))
        last = copied.ops[-1].result
        body = Block((counter, x), (*copied.ops, Yield((last,), loc=op.loc)))
        return [*builder.ops, Loop(trips, (op.a,), body, results=op.results, loc=op.loc)]


def _deciding(v: Value, defs: Mapping[Value, Op]) -> list[Op]:
    """Return the ops of this block that compute a condition, as far as they compute vectors."""
    op = defs.get(v)
    if op is None or not op.is_pure or op.blocks or not isinstance(v.type, Vector):
        return []
    found: list[Op] = []
    for operand in op.operands:
        found += [before for before in _deciding(operand, defs) if before not in found]
    return [*found, op]


# -- comparisons in loops over tiles -----------------------------------------------------------------------------------


class _Comparing:
    def __init__(self, kernel: Kernel) -> None:
        self.defs = kernel.defs
        self.builder = Builder(names(kernel))

    def in_tiles(self, op: Op) -> Sequence[Op] | None:
        """Return a loop over tiles that decide the trips of inner loops, with its comparisons rewritten."""
        if not isinstance(op, Loop) or not any(_steps_differ(inner, op) for inner in op.body.ops):
            return None
        return [replace(op, body=rewrite_block(op.body, self.compared))]

    def compared(self, op: Op) -> Sequence[Op] | None:
        if not isinstance(op, (Less, LessEqual)) or op.a.type.dtype != INDEX or not isinstance(op.a.type, Vector):
            return None
        places = RegisterPositions.of(op.a, self.defs)
        if places is None or not places.numbers or not any(places.steps):
            return None
        b = self.builder
        with b.region():
            b.locate = lambda: op.loc
            far = self.less(op.b, places.numbers)
            steps = b.emit(Ramp, places.steps, type=Vector(places.shape, INDEX))
            if places.axes is not None:
                steps = b.emit(Broadcast, steps, places.axes, type=op.a.type)
            return [*b.ops, replace(op, a=steps, b=far)]

    def less(self, v: Value, numbers: Sequence[Value]) -> Value:
        """Return `v` minus `numbers`, subtracted before the broadcast where `v` is one."""
        maker, b = self.defs.get(v), self.builder
        if isinstance(maker, Broadcast):
            return b.emit(Broadcast, self.less(maker.x, numbers), maker.axes, type=v.type)
        for number in numbers:
            other = number if v.type == INDEX_SCALAR else b.emit(Broadcast, number, type=v.type)
            v = b.binary(Sub, v, other)
        return v


def _steps_differ(inner: Op, tiles: Loop) -> bool:
    """Whether `inner` is a loop that contains loops and whose trip count is computed per tile."""
    made = {*tiles.body.args, *(v for op in tiles.body.ops for v in op.results)}
    return isinstance(inner, Loop) and inner.trips in made and any(isinstance(op, Loop) for op in walk(inner.body))
