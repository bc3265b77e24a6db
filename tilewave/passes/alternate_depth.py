"""A workgroup that computes tile after tile walks the depth to and fro: each second tile begins where the last ended.

    loop(%tiles) do (%turn) {               loop(%tiles) do (%turn) {
      loop(%c64, [%zero]) do (%i, …) {   →    loop(%c64, [%zero]) do (%i, …) {
        %k = mul(%i, %c32)                      %back = sub(%c63, %i)
        …                                       %there = select(‹%turn is odd›, %back, %i)
                                                %k = mul(%there, %c32)

Neighbouring tiles share rows or columns, and what was read last is still in a cache.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import WITH_EFFECT, Const, Loop, Mma, While, Yield
from tilewave.ir.rewrite import map_blocks, names, substitute_block, walk
from tilewave.ir.types import INDEX_SCALAR


def alternate_depth(kernel: Kernel) -> Kernel:
    return replace(kernel, body=_Alternation(kernel).outside(kernel.body))


class _Alternation:
    def __init__(self, kernel: Kernel) -> None:
        self.builder = Builder(names(kernel))

    def outside(self, block: Block) -> Block:
        """Looks for loops around loops over the depth."""
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, (Loop, While)) and any(_only_adds_up(inner) for inner in op.body.ops):
                ops += self.turning(op)
            else:
                ops.append(map_blocks(op, self.outside) if isinstance(op, (Loop, While)) else op)
        return replace(block, ops=tuple(ops))

    def turning(self, op: Loop | While) -> list[Op]:
        """The loop over tiles, which counts them."""
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
            ops.append(self.alternating(op, turn) if isinstance(op, Loop) and _only_adds_up(op) else op)
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


def _only_adds_up(op: Op) -> bool:
    """Whether a loop does nothing but add products to what it carries, so that the order of its rounds is free."""
    if not isinstance(op, Loop) or not op.init:
        return False
    products = {inner.result: inner for inner in op.body.ops if isinstance(inner, Mma)}
    inside = list(walk(op.body))
    end = inside[-1]
    if any(isinstance(inner, WITH_EFFECT) for inner in inside[:-1]) or not isinstance(end, Yield):
        return False
    carried = dict(zip(op.body.args[1:], end.values, strict=True))
    return all(_is_sum(v, arg, products) for arg, v in carried.items()) and _only_sums_use(op, set(carried), products)


def _is_sum(v: Value, arg: Value, products: dict[Value, Mma]) -> bool:
    while v in products:
        v = products[v].acc
    return v == arg


def _only_sums_use(op: Loop, carried: set[Value], products: dict[Value, Mma]) -> bool:
    """Whether nothing else in the loop looks at the sums so far."""
    sums = carried | set(products)
    users = [(inner, v) for inner in walk(op.body) for v in inner.operands if v in sums]
    return all(isinstance(u, Yield) or (isinstance(u, Mma) and v == u.acc and v not in (u.a, u.b)) for u, v in users)
