"""A single consumer warpgroup issues the product of the next step before it waits for the previous one.

    loop(%steps, [%sums, %step]) {             %begun = loop(%steps, [%sums, %step]) {
      wait_mbarrier(%full, %slot, …)             wait_mbarrier(%full, %slot, …)
      %z = wgmma_shared(…, %acc)                 %z = wgmma_shared(…, %acc) {later}
      arrive(%empty, %slot)                  →   wait_older_mma() {pending = 1}
      yield([%z, …])                             loop(‹0 in the first step›) { arrive(%empty, ‹slot before›) }
    }                                            yield([%z, …])
                                               }
                                               %sums = wait_mma(%begun)
                                               arrive(%empty, ‹last slot›)

Between the end of one product and the first instruction of the next, waves arrive on the mbarrier of the free stage,
test whether the next stage is full, and compute its address. Two warpgroups hide that time for each other; a single one
leaves the matrix unit idle. Products into one accumulator execute in order either way, so results are bit-identical. A
stage is released one step later, so the pipeline must have enough of them; and small products wait for memory anyway,
which needs all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.ranges import ranges_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Arrive,
    Loop,
    Mod,
    Role,
    WaitMbarrier,
    WaitMma,
    WaitOlderMma,
    Wgmma,
)
from tilewave.ir.rewrite import map_blocks, names, rewrite_block, walk
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass

LEAST_STAGES = 3
"""One stage is multiplied, one is released as the next product begins, and one is filled meanwhile."""


@dataclass(frozen=True)
class OverlapMma:
    """`least_work`: the fewest multiplications of a step for which the next product is issued early."""

    least_work: int

    def __repr__(self) -> str:
        return "OverlapMma()"

    def __call__(self, kernel: Kernel) -> Kernel:
        ranges, builder = ranges_of(kernel), Builder(names(kernel))

        def overlap(op: Op) -> Sequence[Op] | None:
            step = _Step.of(op, self.least_work) if isinstance(op, Loop) else None
            if step is None or ranges.of(step.loop.trips)[0] < 1:
                return None
            return _overlapped(step, builder)

        ops = [
            map_blocks(op, lambda body: rewrite_block(body, overlap)) if _multiplies_alone(op) else op
            for op in kernel.body.ops
        ]
        return replace(kernel, body=replace(kernel.body, ops=tuple(ops)))


def _multiplies_alone(op: Op) -> bool:
    """Whether `op` is the role of a single warpgroup with a single product."""
    if not isinstance(op, Role) or op.last - op.first != Wgmma.group.waves:
        return False
    return sum(isinstance(inner, Wgmma) for inner in walk(op.body)) == 1


@dataclass(frozen=True)
class _Step:
    """An iteration of a loop that waits for a stage, multiplies it, and releases it."""

    loop: Loop
    product: Wgmma
    leave: Arrive
    count: Value
    """The step number, which the loop carries, and from which the stage index derives."""

    @property
    def stages(self) -> int:
        return int(self.leave.mbarriers.type.shape[0])

    @staticmethod
    def of(loop: Loop, least_work: int) -> _Step | None:
        *ops, end = loop.body.ops
        products = [op for op in ops if isinstance(op, Wgmma) and not op.later]
        waits = [op for op in ops if isinstance(op, WaitMbarrier)]
        leaves = [op for op in ops if isinstance(op, Arrive)]
        if not len(products) == len(waits) == len(leaves) == 1 or products[0].result not in end.operands:
            return None
        if prod(products[0].shape) < least_work or leaves[0].mbarriers.type.shape[0] < LEAST_STAGES:
            return None
        slot = next((op for op in ops if leaves[0].at in op.results), None)
        if not isinstance(slot, Mod) or slot.a not in loop.body.args[1:]:
            return None
        return _Step(loop, products[0], leaves[0], slot.a)

    @property
    def sums(self) -> Value:
        """The accumulator as the loop returns it."""
        return self.after(self.product.result)

    def after(self, yielded: Value) -> Value:
        end = self.loop.body.ops[-1]
        return self.loop.results[end.operands.index(yielded)]

    @property
    def counted(self) -> Value:
        """The step number after the last step."""
        return self.loop.results[self.loop.body.args.index(self.count) - 1]


def _overlapped(step: _Step, b: Builder) -> list[Op]:
    loop, leave = step.loop, step.leave
    b.locate = lambda: leave.loc
    begun = b.fresh(f"{step.sums.name}_begun", step.sums.type)

    def slot_before(count: Value) -> Value:
        slot: Number = (Number(b, count) - 1) % step.stages
        return slot.value

    with b.region():
        for op in loop.body.ops:
            if op is step.product:
                b.ops.append(replace(step.product, later=True))  # type: ignore[call-arg]
                b.effect(WaitOlderMma, 1)
                has_before = Number(b, loop.body.args[0]).differs(0).choose(1, 0).value
                before = slot_before(step.count)
                with b.region():
                    b.ops.append(replace(leave, at=before))
                    once = b.block((b.fresh("once", INDEX_SCALAR),), ())
                b.effect(Loop, has_before, (), once)
            elif op is not leave:
                b.ops.append(op)
        body = replace(loop.body, ops=tuple(b.ops))
    results = tuple(begun if v == step.sums else v for v in loop.results)
    with b.region():
        b.ops.append(replace(loop, body=body, results=results))
        b.ops.append(WaitMma(begun, results=(step.sums,), loc=step.product.loc))
        b.ops.append(replace(leave, at=slot_before(step.counted)))
        return list(b.ops)
