"""Program slices: some ops of a program, the loops around them, and what decides their positions and trip counts.

loop(%n, [%zero, %first])           →  loop(%n, [%first])
  tma_load(%a, [%at], …)        tma_load(%a, [%at], …)
  %z = wgmma_shared(…, %sum)            %next = add(%at, %c64)
  %next = add(%at, %c64)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Loop, While, Yield
from tilewave.ir.rewrite import walk

Wanted = Callable[[Op], bool]


def excerpt(block: Block, wanted: Wanted) -> Block:
    """Return the wanted ops of a block and what they need; loops carry no other values."""
    needed: set[Value] = set()
    size = -1
    while size != len(needed):
        size = len(needed)
        for op in reversed(list(walk(block))):
            needed.update(_needs(op, wanted, needed))
    return _cut(block, wanted, needed)


def _has(op: Op, wanted: Wanted) -> bool:
    return any(wanted(inner) for block in op.blocks for inner in walk(block))


def _stays(op: Op, wanted: Wanted, needed: set[Value]) -> bool:
    return wanted(op) or _has(op, wanted) or any(v in needed for v in op.results)


def _needs(op: Op, wanted: Wanted, needed: set[Value]) -> Sequence[Value]:
    if isinstance(op, Yield) or not _stays(op, wanted, needed):
        return ()
    if not isinstance(op, (Loop, While)):
        return op.operands
    found = [op.trips] if isinstance(op, Loop) else list(_ends(op.condition))
    for carried, stays in zip(_carried(op), _kept(op, needed), strict=True):
        found += carried if stays else ()
    return found


def _end(block: Block) -> Yield:
    end = block.ops[-1]
    assert isinstance(end, Yield)
    return end


def _ends(block: Block) -> tuple[Value, ...]:
    return _end(block).values


def _carried(op: Loop | While) -> list[tuple[Value, ...]]:
    """Return for each carried value of a loop: its initial value, its names inside, the next value, and the result."""
    args = [op.body.args[1:]] if isinstance(op, Loop) else [op.condition.args, op.body.args]
    return list(zip(op.init, *args, _ends(op.body), op.results, strict=True))


def _kept(op: Loop | While, needed: set[Value]) -> list[bool]:
    return [any(v in needed for v in carried[1:-2] + carried[-1:]) for carried in _carried(op)]


def _cut(block: Block, wanted: Wanted, needed: set[Value]) -> Block:
    ops = [_cut_op(op, wanted, needed) for op in block.ops if isinstance(op, Yield) or _stays(op, wanted, needed)]
    return replace(block, ops=tuple(ops))


def _cut_op(op: Op, wanted: Wanted, needed: set[Value]) -> Op:
    if not isinstance(op, (Loop, While)):
        return op
    kept = _kept(op, needed)

    def those(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(v for v, stays in zip(values, kept, strict=True) if stays)

    first = 1 if isinstance(op, Loop) else 0
    args = (*op.body.args[:first], *those(op.body.args[first:]))
    end = replace(_end(op.body), values=those(_ends(op.body)))
    body = _cut(Block(args, (*op.body.ops[:-1], end)), wanted, needed)
    cut = replace(op, init=those(op.init), body=body, results=those(op.results))
    if isinstance(cut, While):
        condition = replace(cut.condition, args=those(cut.condition.args))
        return replace(cut, condition=_cut(condition, wanted, needed))
    return cut


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
