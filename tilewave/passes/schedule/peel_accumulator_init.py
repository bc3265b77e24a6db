"""The first product of a loop overwrites its accumulator, so that lanes need not write zeros to it before.

    %zeros = const() {value = 0.0}                 %sums = unset()
    loop(%steps, [%zeros]) (%i, %acc) {        →   loop(%steps, [%sums]) (%i, %acc) {
      %z = wgmma_shared(…, %acc)                    %adds = not_equal(%i, %zero)
      yield([%z])                                    %z = wgmma_shared(…, %acc, [%adds])
    }                                                yield([%z])
                                                   }

A product outside loops that adds to zeros overwrites its accumulator too. A lane has 128 sums or more; clearing them
takes as long as a good part of a step, while the matrix unit is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewave.analysis.ranges import ranges_of
from tilewave.ir.build import Builder
from tilewave.ir.core import BATCH_INVARIANT, Block, Kernel, Op, Value
from tilewave.ir.ops import Const, Loop, NotEqual, Unset, Wgmma
from tilewave.ir.remarks import Remark, RemarkKind
from tilewave.ir.rewrite import names, rewrite, uses, walk
from tilewave.ir.types import BOOL, INDEX_SCALAR, Scalar, Vector

MAYBE_NEVER = RemarkKind(
    "the trip count of this loop may be 0, and its initial zeros are then the result, so lanes write them",
    "give the loop's dimension a value in subs",
)
SUMS_USED = RemarkKind("this loop uses its accumulator before adding to it, so lanes write its initial zeros")

KEPT = RemarkKind(
    "the kernel is batch-invariant, so sums start from zero: without that zero a sum could be -0 instead of 0"
)


def peel_accumulator_init(kernel: Kernel) -> Kernel:
    """Rewrite loops of at least one trip whose initial zeros are used by nothing but one product."""
    zeros = {op.result for op in walk(kernel.body) if _is_zeros(op)}
    if kernel.sums == BATCH_INVARIANT:
        begun = [op.loc for op in walk(kernel.body) if isinstance(op, Loop) and zeros & {*op.init}]
        return kernel.with_remarks(*map(KEPT.at, begun))
    ranges, used, builder = ranges_of(kernel), uses(kernel), Builder(names(kernel))
    remarks: list[Remark] = []

    def begin(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop):
            return None
        counter, *carried = op.body.args
        added = [
            arg
            for first, arg in zip(op.init, carried, strict=True)
            if first in zeros and any(_adds_to(arg, inner) for inner in op.body.ops)
        ]
        if added and ranges.of(op.trips)[0] < 1:
            remarks.append(MAYBE_NEVER.at(op.loc))
            return None
        sums = [arg for arg in added if used[arg] == 1]
        remarks.extend(SUMS_USED.at(op.loc) for _ in added[len(sums) :])
        if not sums:
            return None
        unset = {arg: Unset(results=(builder.fresh(arg.name, arg.type),), loc=op.loc) for arg in sums}
        init = [unset[arg].result if arg in unset else v for v, arg in zip(op.init, carried, strict=True)]
        body = _telling(op.body, counter, sums, builder)
        return [*unset.values(), replace(op, init=tuple(init), body=body)]

    def alone(op: Op) -> Sequence[Op] | None:
        """Rewrite a product that adds to zeros, in or outside a loop."""
        if not isinstance(op, Wgmma) or op.acc not in zeros or op.adds:
            return None
        unset = Unset(results=(builder.fresh(op.acc.name, op.acc.type),), loc=op.loc)
        never = Const(False, results=(builder.fresh("adds", Scalar(BOOL)),), loc=op.loc)
        return [unset, never, replace(op, acc=unset.result, adds=(never.result,))]  # type: ignore[call-arg]

    return rewrite(rewrite(kernel, begin), alone).with_remarks(*remarks)


def _is_zeros(op: Op) -> bool:
    return isinstance(op, Const) and op.value == 0 and isinstance(op.result.type, Vector)


def _adds_to(sums: Value, op: Op) -> bool:
    return isinstance(op, Wgmma) and op.acc == sums and not op.adds


def _telling(body: Block, counter: Value, sums: Sequence[Value], builder: Builder) -> Block:
    """Return the body with `adds` of its products false in the first step, and true in the others."""
    zero = Const(0, results=(builder.fresh("zero", INDEX_SCALAR),), loc=body.ops[0].loc)
    later = NotEqual(counter, zero.result, results=(builder.fresh("adds", Scalar(BOOL)),), loc=zero.loc)
    ops = [
        replace(op, adds=(later.result,)) if any(_adds_to(v, op) for v in sums) else op  # type: ignore[call-arg]
        for op in body.ops
    ]
    return replace(body, ops=(zero, later, *ops))
