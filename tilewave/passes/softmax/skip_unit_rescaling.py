"""Skip the rescaling of sums where the factor is 1 in all lanes of a wave, as it is while the maximum stays.

    %larger = max(%largest, …)               …
    %shrink = exp2(sub(%largest, %larger))   %same = all_of(‹%shrink is 1, in all registers and lanes›)
    %sums_1 = mul(%sums, %shrink)        →   %sums_1 = loop(‹0 where %same, else 1›, [%sums]) { mul(%sums, %shrink) }
    %z = wgmma_registers(…, %sums_1)             %z = wgmma_registers(…, %sums_1)

x · 1 is x, so results are bit-identical. A lane has 64 sums or more for one or two factors, and the running maximum of
a row soon is the maximum of the next block too: in attention nearly all of this rescaling is unnecessary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.match import ANY, either, made
from tilewave.ir.ops import (
    AllOf,
    Broadcast,
    Equal,
    Exponential,
    Loop,
    Max,
    Mul,
    Not,
    ReduceLanes,
    ReduceRegisters,
    Sub,
    Wgmma,
    Yield,
)
from tilewave.ir.rewrite import names, rewrite, uses, walk
from tilewave.ir.types import BOOL, INDEX, INDEX_SCALAR, Scalar, Vector

LEAST_REGISTERS = 32
"""The least registers of sums per lane: with fewer, the test costs as much as the multiplication."""

GROWTH = made(Sub, "old", either(Max, "old", ANY))
FACTOR = made(Broadcast, made(Exponential, GROWTH | made(Mul, GROWTH)).named("factor"))
"""A factor of rows, 1 while a maximum stays: the exponential of the (scaled) difference between it and the next one."""


def skip_unit_rescaling(kernel: Kernel) -> Kernel:
    added_to = {op.acc for op in walk(kernel.body) if isinstance(op, Wgmma)}
    used, builder = uses(kernel), Builder(names(kernel))

    def skip(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Mul) or op.result not in added_to or used[op.result] > 1:
            return None
        found = FACTOR.match(op.b, kernel.defs)
        if found is None or prod(op.result.type.shape) < LEAST_REGISTERS:
            return None
        return _unless_one(op, found["factor"], kernel.lanes, builder)

    return rewrite(kernel, skip)


def _unless_one(op: Mul, factor: Value, lanes: int, builder: Builder) -> list[Op]:
    kind = factor.type
    with builder.region():
        builder.locate = lambda: op.loc
        is_one = builder.binary(Equal, factor, builder.const(1.0, kind))
        every_axis = tuple(range(len(kind.shape)))
        own = builder.emit(ReduceRegisters, is_one, every_axis, "all", type=Vector((1,), BOOL))
        bits = tuple(range(lanes.bit_length() - 1))
        agreed = builder.emit(AllOf, builder.emit(ReduceLanes, own, bits, "all", type=own.type), type=Scalar(BOOL))
        trips = builder.cast(builder.elementwise(Not, agreed), INDEX)
        counter = builder.fresh("once", INDEX_SCALAR)
        sums, product = (builder.fresh(op.result.name, op.result.type) for _ in range(2))
        body = (Mul(sums, op.b, results=(product,), loc=op.loc), Yield((product,), loc=op.loc))
        around = Loop(trips, (op.a,), Block((counter, sums), body), results=op.results, loc=op.loc)
        return [*builder.ops, around]
