"""Keep the sums of packed products in the registers of the matrix unit for as long as a loop adds to them.

    %sum = loop(%trips, [%zero]) … mma(%x, %y, %acc)   →  %acc_0 = zero_accumulator()
                                                          %acc_1 = loop(%trips, [%acc_0]) … accumulate(%x, %y, %acc)
                                                          %sum = read_accumulator(%acc_1)

A matrix unit holds one set of sums at a time; a product whose sums are used inside the loop loads and reads them in
each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Accumulate,
    Const,
    LoadAccumulator,
    Loop,
    Mma,
    ReadAccumulator,
    ReadPanel,
    Yield,
    ZeroAccumulator,
)
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite, substitute_block, uses, walk
from tilewave.ir.types import Accumulator, Tile

SUMS_USED = RemarkKind(
    "the loop uses this accumulator in every step, so it is moved out of the matrix unit and back each time",
    "use it after the loop",
)
SEVERAL = RemarkKind(
    "the loop has {count} products, and the matrix unit holds one accumulator: accumulators are moved in and out in "
    "every step",
    "give each product a separate loop",
)


def use_matrix_unit(kernel: Kernel) -> Kernel:
    panels = {op.result for op in walk(kernel.body) if isinstance(op, ReadPanel)}
    zeros = {op.result for op in walk(kernel.body) if isinstance(op, Const) and op.value == 0}
    used, builder = uses(kernel), Builder(names(kernel))
    remarks: list[Remark] = []

    def packed(op: Op) -> bool:
        return isinstance(op, Mma) and op.a in panels and op.b in panels

    def kept(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop):
            return None
        products = [p for p in walk(op.body) if packed(p)]
        if len(products) == 1 and (place := _carried(op, products[0], used)) is not None:
            return _keep(op, products[0], place, op.init[place] in zeros, builder)
        here = [p for p in products if p in op.body.ops]
        reason = SEVERAL if len(products) > 1 else SUMS_USED
        remarks.extend(reason.at(p.loc, count=len(products)) for p in here)
        return None

    def around(op: Op) -> Sequence[Op] | None:
        return _in_and_out(op, builder) if isinstance(op, Mma) and packed(op) else None

    return rewrite(rewrite(kernel, kept), around).with_remarks(*remarks)


def _carried(loop: Loop, product: Op, used: object) -> int | None:
    """Return the index of the product's sums among a loop's carried values; None where another op uses them."""
    assert isinstance(product, Mma)
    last = loop.body.ops[-1]
    if product not in loop.body.ops or not isinstance(last, Yield) or product.acc not in loop.body.args[1:]:
        return None
    place = loop.body.args.index(product.acc) - 1
    counts = [used[v] for v in (product.acc, product.result)]  # type: ignore[index]
    return place if last.values[place] == product.result and counts == [1, 1] else None


def _keep(loop: Loop, product: Op, place: int, from_zero: bool, builder: Builder) -> list[Op]:
    assert isinstance(product, Mma) and isinstance(product.acc.type, Tile)
    kind = Accumulator(product.acc.type.shape, product.acc.type.dtype)
    first, inside, after, last = (builder.fresh(product.acc.name, kind) for _ in range(4))
    taken: Op = ZeroAccumulator(results=(first,), loc=loop.loc)
    if not from_zero:
        taken = LoadAccumulator(loop.init[place], results=(first,), loc=loop.loc)
    step = Accumulate(product.a, product.b, inside, results=(after,), loc=product.loc)
    ops = tuple(step if op == product else op for op in loop.body.ops)
    args = _at(loop.body.args, place + 1, inside)
    body = substitute_block(Block(args, ops), {product.result: after})
    kept = replace(loop, init=_at(loop.init, place, first), body=body, results=_at(loop.results, place, last))
    return [taken, kept, ReadAccumulator(last, results=(loop.results[place],), loc=loop.loc)]


def _at(values: tuple[Value, ...], place: int, new: Value) -> tuple[Value, ...]:
    return (*values[:place], new, *values[place + 1 :])


def _in_and_out(product: Mma, builder: Builder) -> list[Op]:
    assert isinstance(product.acc.type, Tile)
    kind = Accumulator(product.acc.type.shape, product.acc.type.dtype)
    before, after = (builder.fresh(product.acc.name, kind) for _ in range(2))
    return [
        LoadAccumulator(product.acc, results=(before,), loc=product.loc),
        Accumulate(product.a, product.b, before, results=(after,), loc=product.loc),
        ReadAccumulator(after, results=product.results, loc=product.loc),
    ]
