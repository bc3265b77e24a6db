"""Skip a select at run time where a scalar proves that its mask is true everywhere.

    %either = or(broadcast(%whole), %seen)         %trips = cast(not(%whole))
    %x = select(%either, %scores, %hidden)     →   %x = loop(%trips, [%scores]) { ‹%seen›; select(%seen, …) }

A mask that is false only at the border of a tile then costs nothing in all other steps: neither the select nor the
comparisons that compute the mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dead_code import eliminate_dead_code
from tilewave.ir.match import either, made, of_type
from tilewave.ir.ops import Broadcast, Loop, Not, Or, Select, Yield
from tilewave.ir.rewrite import map_blocks, names, renamed
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Scalar, Vector

LEAST_REGISTERS = 16
"""The least registers that are masked: with fewer, the test costs as much as the select."""

PROVEN = either(Or, made(Broadcast, of_type(Scalar(BOOL), "whole")), "mask")
"""A mask that is true where a scalar is."""


def drop_true_masks(kernel: Kernel) -> Kernel:
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
