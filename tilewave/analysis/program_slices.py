"""Program slices: some ops of a program, the loops around them, and what decides their positions and trip counts.

loop(%n, [%zero, %first])           →  loop(%n, [%first])
  tma_load(%a, [%at], …)        tma_load(%a, [%at], …)
  %z = wgmma_shared(…, %sum)            %next = add(%at, %c64)
  %next = add(%at, %c64)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress

from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Loop, While, Yield
from tilewave.ir.rewrite import walk

Wanted = Callable[[Op], bool]


def excerpt(block: Block, wanted: Wanted) -> Block:
    """Return the wanted ops of a block and what they need; loops carry no other values."""
    ops = walk(block)
    return _Excerpt(frozenset(id(op) for op in ops if wanted(op) or _has(op, wanted)), block).cut(block)


def _has(op: Op, wanted: Wanted) -> bool:
    return any(wanted(inner) for block in op.blocks for inner in walk(block))


class _Excerpt:
    """The ops that stay, `always` those with these ids, and the values that they need."""

    def __init__(self, always: frozenset[int], block: Block) -> None:
        self.always = always
        self.needed: set[Value] = set()
        ops, size = list(walk(block))[::-1], -1
        while size != len(self.needed):
            size = len(self.needed)
            for op in ops:
                self.needed.update(self.needs(op))

    def stays(self, op: Op) -> bool:
        return id(op) in self.always or not self.needed.isdisjoint(op.results)

    def needs(self, op: Op) -> Sequence[Value]:
        if isinstance(op, Yield) or not self.stays(op):
            return ()
        if not isinstance(op, (Loop, While)):
            return op.operands
        found = [op.trips] if isinstance(op, Loop) else list(op.condition.yielded)
        for carried, stays in zip(op.carried, self.kept(op), strict=True):
            found += carried if stays else ()
        return found

    def kept(self, op: Loop | While) -> list[bool]:
        return [not self.needed.isdisjoint(same[:-2]) for same in op.carried]

    def cut(self, block: Block) -> Block:
        ops = [self.cut_op(op) for op in block.ops if isinstance(op, Yield) or self.stays(op)]
        return replace(block, ops=tuple(ops))

    def cut_op(self, op: Op) -> Op:
        if not isinstance(op, (Loop, While)):
            return op
        kept = self.kept(op)

        def those(values: Sequence[Value]) -> tuple[Value, ...]:
            return tuple(compress(values, kept))

        first = 1 if isinstance(op, Loop) else 0
        args = (*op.body.args[:first], *those(op.body.args[first:]))
        end = Yield(those(op.body.yielded), loc=op.body.ops[-1].loc)
        body = self.cut(Block(args, (*op.body.ops[:-1], end)))
        smaller = replace(op, init=those(op.init), body=body, results=those(op.results))
        if isinstance(smaller, While):
            condition = replace(smaller.condition, args=those(smaller.condition.args))
            return replace(smaller, condition=self.cut(condition))
        return smaller


def taken_by(op: Op) -> Iterator[Value]:
    """Yield the operands of an op and of the ops in its blocks."""
    yield from op.operands
    for block in op.blocks:
        for inner in walk(block):
            yield from inner.operands


def following(ops: Sequence[Op], values: set[Value]) -> list[Op]:
    """Return the ops that depend on some values."""
    known, found = set(values), []
    for op in ops:
        if not known.isdisjoint(taken_by(op)):
            known.update(op.results)
            found.append(op)
    return found
