"""A count of some ops that is carried through all loops around them.

loop(%tiles) {                      %end = loop(%tiles, [%c0]) do (…, %count) {
  ‹op›                       →        ‹ops in the place of the op, and the count after them: %after›
}                                     yield([%after])
                                    }
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Loop, While, Yield
from tilewave.ir.rewrite import walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass

Change = Callable[[Any, Value], tuple[list[Op], Value]]
"""Makes the ops that take the place of an op, from the count before it, and the count after them."""


def carry_count(body: Block, counted: Callable[[Op], bool], change: Change, builder: Builder, name: str) -> Block:
    """Return a block, at whose begin the count is 0, with other ops in the place of those that are `counted`."""
    with builder.region():
        zero = builder.const(0)
        first = builder.ops
    ops, _ = _Count(counted, change, builder, name).carried(body, zero)
    return replace(body, ops=(*first, *ops))


@dataclass(frozen=True)
class _Count:
    counted: Callable[[Op], bool]
    change: Change
    builder: Builder
    name: str

    def carried(self, block: Block, count: Value) -> tuple[list[Op], Value]:
        """Return the ops of a block that begins after `count`, and the count after it."""
        found: list[Op] = []
        for op in block.ops:
            if self.counted(op):
                ops, count = self.change(op, count)
                found += ops
            elif isinstance(op, (Loop, While)) and any(map(self.counted, walk(op.body))):
                found.append(self.around(op, count))
                count = found[-1].results[-1]
            else:
                found.append(op)
        return found, count

    def around(self, op: Loop | While, count: Value) -> Op:
        inside, result = (self.fresh() for _ in range(2))
        ops, after = self.carried(op.body, inside)
        end = ops.pop()
        assert isinstance(end, Yield)
        body = Block((*op.body.args, inside), (*ops, replace(end, values=(*end.values, after))))
        new = replace(op, init=(*op.init, count), body=body, results=(*op.results, result))
        if isinstance(new, While):
            return replace(new, condition=replace(new.condition, args=(*new.condition.args, self.fresh())))
        return new

    def fresh(self) -> Value:
        return self.builder.fresh(self.name, INDEX_SCALAR)
