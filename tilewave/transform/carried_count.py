"""A count that is carried to a loop and on from it, through all loops around it.

loop(%tiles) {                      %end = loop(%tiles, [%c0]) do (…, %count) {
  loop(%n) { … }             →        ‹ops in the place of the loop, and the count after them: %after›
}                                     yield([%after])
                                    }
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Loop, While, Yield
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR

Change = Callable[[Loop, Value], tuple[list[Op], Value]]
"""Makes the ops that take the place of a loop, from the count before it, and the count after it."""


def carry_count(body: Block, loop: Loop, change: Change, builder: Builder) -> Block:
    """Return a block, outside of which the count begins with 0, with other ops in the place of a loop."""
    with builder.region():
        zero = builder.const(0)
        first = builder.ops
    ops, _ = _carried(body, loop, zero, change, builder)
    return replace(body, ops=(*first, *ops))


def _carried(block: Block, loop: Loop, count: Value, change: Change, builder: Builder) -> tuple[list[Op], Value]:
    found: list[Op] = []
    for op in block.ops:
        if op is loop:
            ops, count = change(loop, count)
            found += ops
        elif isinstance(op, (Loop, While)) and any(inner is loop for inner in walk(op.body)):
            found.append(_around(op, loop, count, change, builder))
            count = found[-1].results[-1]
        else:
            found.append(op)
    return found, count


def _around(op: Loop | While, loop: Loop, count: Value, change: Change, builder: Builder) -> Op:
    inside, result = (builder.fresh("exchanges", INDEX_SCALAR) for _ in range(2))
    ops, after = _carried(op.body, loop, inside, change, builder)
    end = ops.pop()
    assert isinstance(end, Yield)
    body = Block((*op.body.args, inside), (*ops, replace(end, values=(*end.values, after))))
    new = replace(op, init=(*op.init, count), body=body, results=(*op.results, result))
    if isinstance(new, While):
        looked_at = builder.fresh("exchanges", INDEX_SCALAR)
        return replace(new, condition=replace(new.condition, args=(*new.condition.args, looked_at)))
    return new
