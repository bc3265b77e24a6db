"""Reverse the K loop of every second tile of a persistent workgroup, so that it starts where the previous one ended.

    loop(%tiles) do (%turn) {               loop(%tiles) do (%turn) {
      loop(%c64, [%zero]) do (%i, …) {   →    loop(%c64, [%zero]) do (%i, …) {
        %k = mul(%i, %c32)                      %back = sub(%c63, %i)
        …                                       %there = select(‹%turn is odd›, %back, %i)
                                                %k = mul(%there, %c32)

Neighbouring tiles share rows or columns of the operands, and the operands that were read last are still in a cache.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.analysis.tile_programs import only_adds_up
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import BATCH_INVARIANT, Block, Kernel, Op, Value
from tilewave.ir.ops import Const, Loop, Mma, While, Yield
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import map_blocks, names, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR

DOES_MORE = RemarkKind("this loop does more than accumulate products, so no tile iterates over K backwards")


ONE_WAY = RemarkKind("the kernel is batch-invariant, so no tile iterates over K backwards")


def alternate_k_direction(kernel: Kernel) -> Kernel:
    alternation = _Alternation(kernel)
    body = alternation.outside(kernel.body)
    if kernel.sums == BATCH_INVARIANT:
        reversed_ = next((op.loc for op in walk(kernel.body) if _multiplies(op)), None)
        return kernel if body == kernel.body or reversed_ is None else kernel.with_remarks(ONE_WAY.at(reversed_))
    return replace(kernel, body=body).with_remarks(*alternation.remarks)


class _Alternation:
    def __init__(self, kernel: Kernel) -> None:
        self.builder = Builder(names(kernel))
        self.remarks: list[Remark] = []

    def outside(self, block: Block) -> Block:
        """Return the block with K loops alternated inside loops over tiles."""
        ops: list[Op] = []
        for op in block.ops:
            inside = op.body.ops if isinstance(op, (Loop, While)) else ()
            self.remarks += [DOES_MORE.at(o.loc) for o in inside if _multiplies(o) and not only_adds_up(o)]
            if isinstance(op, (Loop, While)) and any(only_adds_up(inner) for inner in inside):
                ops += self.turning(op)
            else:
                ops.append(map_blocks(op, self.outside) if isinstance(op, (Loop, While)) else op)
        return replace(block, ops=tuple(ops))

    def turning(self, op: Loop | While) -> list[Op]:
        """Return the loop over tiles with a counter of its iterations and alternating K loops."""
        self.builder.locate = lambda: op.loc
        if isinstance(op, Loop):
            return [replace(op, body=self.there_and_back(op.body, op.body.args[0]))]
        turn, seen, end = (self.builder.fresh("turn", INDEX_SCALAR) for _ in range(3))
        zero = Const(0, results=(self.builder.fresh("no_turn", INDEX_SCALAR),), loc=op.loc)
        body = self.there_and_back(op.body, turn)
        with self.builder.region():
            after = (Number(self.builder, turn) + 1).value
            counted = list(self.builder.ops)
        *inner, last = body.ops
        assert isinstance(last, Yield)
        whole = Block((*body.args, turn), (*inner, *counted, replace(last, values=(*last.values, after))))
        condition = replace(op.condition, args=(*op.condition.args, seen))
        counting = replace(
            op, init=(*op.init, zero.result), condition=condition, body=whole, results=(*op.results, end)
        )
        return [zero, counting]

    def there_and_back(self, block: Block, turn: Value) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            ops.append(self.alternating(op, turn) if isinstance(op, Loop) and only_adds_up(op) else op)
        return replace(block, ops=tuple(ops))

    def alternating(self, op: Loop, turn: Value) -> Loop:
        index, *_ = op.body.args
        with self.builder.region():
            self.builder.locate = lambda: op.loc
            i = Number(self.builder, index)
            back = Number(self.builder, op.trips) - 1 - i
            there = (Number(self.builder, turn) % 2).equals(1).choose(back, i).value
            start = list(self.builder.ops)
        body = substitute_block(op.body, {index: there})
        return replace(op, body=replace(body, ops=(*start, *body.ops)))


def _multiplies(op: Op) -> bool:
    """Whether `op` is a loop with an `Mma` directly in its body."""
    return isinstance(op, Loop) and any(isinstance(inner, Mma) for inner in op.body.ops)
