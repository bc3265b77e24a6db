"""Skip tiles without rows: a ragged grid has up to one a group, whose products would be stored nowhere.

    %has_rows = less(%first, %stop)                     %has_rows = less(%first, %stop)
    %end = select(%has_rows, %stop, 0)                  loop(select(%has_rows, 1, 0)) {
    %sum = loop(%steps, [%zero]) {…}                →     %sum = loop(%steps, [%zero]) {…}
    write_indexed(%sum, %y, ‹rows before %end›)           write_indexed(%sum, %y, ‹rows before %stop›)
                                                        }

A workgroup with one tile ends early, a persistent one goes on to its next tile. The condition is found in the writes:
where it does not hold, each of them stores rows before row 0, or elements at negative positions, which are nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce

from tilewave.analysis.bounded_rows import holders
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Allocate, And, Loop, Select, Yield
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import map_blocks, names, substitute_block, walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, Scalar

STORED_ANYWAY = RemarkKind(
    "this is stored for tiles without rows too, so they are computed like others",
    "store what does not depend on the rows of a tile in another kernel",
)


def skip_empty_tiles(kernel: Kernel) -> Kernel:
    stored = {op: holders(op, kernel.defs) for op in walk(kernel.body) if _acts(op)}
    if not any(stored.values()):
        return kernel
    skipping = _Skipping(kernel, stored)
    body = skipping.block(kernel.body)
    return replace(kernel, body=body).with_remarks(*skipping.remarks)


def _acts(op: Op) -> bool:
    return op.has_effect and not op.ends_blocks and not op.blocks and not isinstance(op, Allocate)


class _Skipping:
    """`stored`: the values that must hold for each op with an effect to have it."""

    def __init__(self, kernel: Kernel, stored: dict[Op, frozenset[Value]]) -> None:
        self.stored, self.builder = stored, Builder(names(kernel))
        self.remarks: list[Remark] = []

    def block(self, block: Block) -> Block:
        inner = replace(block, ops=tuple(map_blocks(op, self.block) for op in block.ops))
        conditions = self.conditions(block)
        if not conditions:
            return inner
        last = max(i for i, op in enumerate(block.ops) if conditions.intersection(op.results)) + 1
        found = [v for op in block.ops for v in op.results if v in conditions]
        return replace(inner, ops=self.skipped(inner.ops[:last], inner.ops[last:], found))

    def conditions(self, block: Block) -> frozenset[Value]:
        """Return the values of a block without which nothing after them has an effect."""
        effects = [op for outer in block.ops for op in _with_inner(outer) if op in self.stored]
        made = {v for op in block.ops if not op.blocks for v in op.results}
        each = [self.stored[op] & made for op in effects]
        found = frozenset.intersection(*each) if each else frozenset()
        if not found and any(each):
            self.remarks.append(
                STORED_ANYWAY.at(next(op.loc for op, own in zip(effects, each, strict=True) if not own))
            )
        ends = [op for op in block.ops if isinstance(op, Yield) and op.operands]
        return frozenset() if ends else found

    def skipped(self, before: Sequence[Op], after: Sequence[Op], conditions: Sequence[Value]) -> tuple[Op, ...]:
        loc = after[0].loc
        self.builder.locate = lambda: loc
        with self.builder.region():
            holds = reduce(partial(self.builder.binary, And), conditions)
            one, none, yes = self.builder.const(1), self.builder.const(0), self.builder.const(True, Scalar(BOOL))
            trips = self.builder.emit(Select, holds, one, none, type=INDEX_SCALAR, name="once")
            counted = list(self.builder.ops)
        outside = [op for op in after if isinstance(op, (Allocate, Yield))]
        inside = [op for op in after if not isinstance(op, (Allocate, Yield))]
        body = Block((self.builder.fresh("tile", INDEX_SCALAR),), (*inside, Yield((), loc=loc)))
        body = substitute_block(body, dict.fromkeys(conditions, yes))  # so that later passes see the bounds themselves
        loop = Loop(trips, (), body, loc=loc)
        kept = [op for op in outside if isinstance(op, Allocate)]
        ends = [op for op in outside if isinstance(op, Yield)]
        return (*before, *kept, *counted, loop, *ends)


def _with_inner(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)
