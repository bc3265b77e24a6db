"""Issue a product that depends on another one step later, together with the first product of the next step.

    loop(%n, [%largest, %sums]) {           ‹step 0, up to its second product›
      %x = wgmma_shared(%q, %k)            loop(%n - 1, [%largest, %sums, %p]) {
      %p, %shrink = ‹of %x, %largest›         %x = wgmma_shared(%q, %k) {later}
      %s = mul(%sums, %shrink)          →     %y = wgmma_registers(%p, ‹%v of the step before›, %sums) {later}
      %z = wgmma_registers(%p, %v, %s)            %p_1, %shrink = ‹of %x when it is there, while %y is under way›
      yield([…, %z])                          %s = mul(‹%y when it is there›, %shrink)
    }                                         yield([…, %s, %p_1])
                                            }
                                            ‹the last step's second product›

Every value is computed from the same values in the same order, so results are bit-identical. A warpgroup no longer
waits for a product whose result it does not need yet. Registers that are an operand of a product in flight must not be
written: the next operand is computed after that product ends. No product is in flight at the end of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewave.analysis.program_slices import following, taken_by
from tilewave.analysis.residues import Residues
from tilewave.forks import cached_property
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Arrive,
    Fma,
    Loop,
    Mul,
    WaitMbarrier,
    WaitMma,
    Wgmma,
    WgmmaRegisters,
    WgmmaShared,
    Yield,
)
from tilewave.ir.rewrite import names, replace_values, rewrite, substitute, walk
from tilewave.ir.types import F32, INDEX, Vector
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import LoopSchedule, Steps


def delay_dependent_mma(kernel: Kernel) -> Kernel:
    residues, builder = Residues(kernel), Builder(names(kernel))
    results: dict[Value, Value] = {}

    def lag(op: Op) -> Sequence[Op] | None:
        step = _Step.of(op) if isinstance(op, Loop) else None
        if step is None:
            return None
        trips, delayed = residues.constant(step.loop.trips), _Delayed(step, builder)
        if trips is None or trips < 1:
            return delayed.where_there_are_steps()
        ops, values = delayed.steps(step.loop.init)
        results.update(zip(op.results, values, strict=True))
        return ops

    return replace_values(rewrite(kernel, lag), results)


@dataclass(frozen=True)
class _Step:
    """One step of a loop whose second product depends on the first, and accumulates into sums that the loop carries."""

    loop: Loop
    first: Wgmma
    wait_second: WaitMbarrier
    second: Wgmma
    leave_second: Arrive
    carried: int
    """The index of the accumulator among the values that the loop carries."""

    @staticmethod
    def of(loop: Loop) -> _Step | None:
        *ops, end = loop.body.ops
        assert isinstance(end, Yield)
        products = [op for op in ops if isinstance(op, Wgmma)]
        if len(products) != 2 or products[1].result not in end.values:
            return None
        if any(isinstance(op, WaitMma) for op in walk(loop.body)):
            return None  # `pipeline_mma` has taken the loop inside
        first, second = products
        at = ops.index(second)
        before, after = ops[at - 1], ops[at + 1] if at + 1 < len(ops) else None
        if not isinstance(before, WaitMbarrier) or not isinstance(after, Arrive):
            return None
        step = _Step(loop, first, before, second, after, end.values.index(second.result))
        return step if step.can_lag else None

    @property
    def can_lag(self) -> bool:
        """Whether only the accumulator depends on the second product, and the first product does not."""
        *ops, end = self.loop.body.ops
        late, those = self.late, self.last
        is_last = (
            not any(self.second.result in taken_by(op) for op in ops) and end.operands.count(self.second.result) == 1
        )
        chained = any(op is self.second for op in following(ops, {self.first.result}))
        moves = all(not op.has_effect or isinstance(op, Arrive) for op in late)
        return is_last and chained and moves and self.first not in late and not any(op in late for op in those[::2])

    @property
    def sums(self) -> Value:
        """The accumulator as the loop carries it."""
        return self.loop.body.args[1 + self.carried]

    @property
    def last(self) -> tuple[Op, ...]:
        """The ops that are issued one step later."""
        return self.wait_second, self.second, self.leave_second

    @cached_property
    def late(self) -> list[Op]:
        """Ops that depend on the accumulator of the previous step, ops that write an operand of the product in flight,
        and mbarrier arrivals for stages that such ops read."""
        *ops, _ = self.loop.body.ops
        found = [op for op in following(ops, {self.sums}) if op not in self.last]
        if isinstance(self.second, WgmmaRegisters):
            found += [op for op in ops if self.second.a in op.results and op not in found]
        reads = [ops.index(op) for op in found if any(isinstance(p, Wgmma) for b in op.blocks for p in walk(b))]
        found += [
            op
            for op in ops
            if isinstance(op, Arrive) and op not in self.last and ops.index(op) > min(reads, default=len(ops))
        ]
        return sorted(found, key=ops.index)

    @cached_property
    def early(self) -> list[Op]:
        *ops, _ = self.loop.body.ops
        return [op for op in ops if op not in self.late and op not in self.last]

    @property
    def handed_on(self) -> tuple[Value, ...]:
        """Values of its step that the second product uses, without the accumulator."""
        made = {*self.loop.body.args, *(v for op in self.loop.body.ops for v in op.results)}
        taken = [v for op in self.last for v in taken_by(op) if v in made and v != self.second.acc]
        return tuple(dict.fromkeys(taken))

    @property
    def computed_meanwhile(self) -> tuple[Value, ...]:
        """Carried f32 sums and products computed from the first product, which no other op of the step uses."""
        *_, end = self.loop.body.ops
        own = [op for op in following(self.early, {self.first.result}) if isinstance(op, (Add, Mul, Fma))]
        found = [op.result for op in own if op.result in end.operands and op.result.type.dtype == F32]
        taken = {v for op in self.early for v in taken_by(op)}
        return tuple(v for v in found if isinstance(v.type, Vector) and v not in taken)

    @property
    def carried_on(self) -> tuple[Value, ...]:
        """Values that the new loop carries: the accumulator before the second product, and that product's operands."""
        *_, end = self.loop.body.ops
        return (*(self.second.acc if v == self.second.result else v for v in end.operands), *self.handed_on)


class _Delayed:
    """Builds a loop whose second product is delayed by one step."""

    def __init__(self, step: _Step, builder: Builder) -> None:
        self.step, self.builder = step, builder
        self.loc = step.loop.loc

    def where_there_are_steps(self) -> list[Op]:
        """Return the delayed loop inside a loop of one or zero trips, for trip counts that may be zero."""
        loop = self.step.loop
        args = tuple(map(self.fresh, loop.body.args))
        ops, values = self.steps(args[1:])
        with self.builder.region():
            self.builder.locate = lambda: self.loc
            once = self.builder.cast((Number(self.builder, loop.trips) > 0).value, INDEX)
            body = Block(args, (*ops, Yield(values, loc=self.loc)))
            return [*self.builder.ops, replace(loop, trips=once, body=body)]

    def steps(self, init: tuple[Value, ...]) -> tuple[list[Op], tuple[Value, ...]]:
        """Return the ops of all steps, one at least, and the values that the loop then carries."""
        step, loop = self.step, self.step.loop
        first = Block(loop.body.args, (*step.early, *step.late, Yield(step.carried_on)))
        with self.builder.region():
            self.builder.locate = lambda: self.loc
            carried = Steps(first, suffix="").in_place(init, self.builder)
            values = LoopSchedule(replace(loop, init=carried), self.others()).expand(self.builder)
            return list(self.builder.ops), values

    def others(self) -> tuple[Steps, Steps]:
        """Return the loop over all steps but the first, and the delayed product of the last one.

        The loop carries the accumulator as it was before that product, and also the other values that it uses.
        """
        step, (index, *sums), b = self.step, self.step.loop.body.args, self.builder
        before = {v: self.fresh(v) for v in step.handed_on}
        after = self.fresh(step.second.result)
        delayed = [substitute(op, {**before, step.second.acc: step.sums}) for op in step.last]
        args = (index, *sums, *before.values())
        carried = Yield(tuple(after if v == step.sums else v for v in step.carried_on), loc=self.loc)
        ends = Yield(tuple(step.second.result if v == step.sums else v for v in sums))
        trips = (Number(b, step.loop.trips) - 1).value
        steady = Steps(Block(args, (*self.round(delayed, after), carried)), trips, Number(b, b.const(1)))
        return steady, Steps(Block(args, (*delayed, ends)))

    def round(self, delayed: Sequence[Op], after: Value) -> Iterator[Op]:
        """Yield one step. `delayed`: the ops of the previous step that it issues; `after`: the sums after them."""
        step = self.step
        begun_first, begun_second = self.fresh(step.first.result), self.fresh(step.second.result)
        wait_second, second, leave = delayed
        for op in step.early:
            if op is not step.first:
                yield op
                continue
            yield begin(step.first, begun_first)
            yield wait_second
            yield begin(second, begun_second)
            yield WaitMma(begun_first, pending=1, results=step.first.results, loc=step.first.loc)
        yield WaitMma(begun_second, step.computed_meanwhile, results=(after,), loc=second.loc)
        yield leave
        yield from (substitute(op, {step.sums: after}) for op in step.late)

    def fresh(self, v: Value) -> Value:
        return self.builder.fresh(v.name, v.type)


def begin(product: Op, sums: Value) -> Op:
    """Return the product issued asynchronously, without a wait."""
    assert isinstance(product, (WgmmaShared, WgmmaRegisters))
    return replace(product, later=True, results=(sums,))
