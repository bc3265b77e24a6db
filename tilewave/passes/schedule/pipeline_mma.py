"""Issue the first products of the next step before the products that depend on this step's are waited for.

    loop(%n, [%sums]) {                        ‹step 0, up to its dependent product›
      %x = wgmma_shared(%k, %q)                loop(%n - 1, [%sums, %p]) {
      %y = wgmma_shared(%v, %g)                  %z = wgmma_registers(%p, ‹%q of the step before›, %sums) {later}
      %p = ‹of %x and %y›                   →    %x = wgmma_shared(%k, %q) {later}
      %z = wgmma_registers(%p, %q, %sums)        %sums_1 = wait_mma(%z) {pending = 1}
      yield([%z])                                arrive(%empty, ‹stage of the step before›)
    }                                            %y = wgmma_shared(%v, %g) {later}
                                                 %p_1 = ‹of %x and %y when they are there›
                                                 yield([%sums_1, %p_1])
                                               }
                                               ‹the last step's dependent product›

As in the backward pass of attention, several products of a step depend on no other, and the dependent ones accumulate
into sums that the loop carries. Every number is computed from the same numbers in the same order, so results are
bit-identical. The matrix unit has work while a warpgroup waits for sums, releases a stage and computes on the products
of the next step. Of those as many are issued early as have registers beside the sums. Registers that are an operand of
a product are written while none is in flight, and none is in flight at the end of a step.

A dependent product may have sums that the step itself uses, as those that are added to an array. It is issued first of
those of the step before, and its sums are used while the others are multiplied. An operand that lanes store to shared
memory is stored at the end of its own step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilewave.analysis.program_slices import following, taken_by
from tilewave.analysis.residues import Residues
from tilewave.forks import cached_property
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Arrive,
    Barrier,
    Load,
    Loop,
    Store,
    TurnOp,
    WaitMbarrier,
    WaitMma,
    WaitOlderMma,
    Wgmma,
    WgmmaRegisters,
    Yield,
)
from tilewave.ir.remarks import RemarkKind
from tilewave.ir.rewrite import names, renamed, replace_values, rewrite, substitute, walk
from tilewave.ir.types import INDEX, Vector
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import LoopSchedule, Steps, without_invariants
from tilewave.transform.products_in_flight import ProductsInFlight

REGISTER_BITS = 32
ONE_STAGE = RemarkKind(
    "the pipeline of these tiles has one stage, so the next step's products are not issued before this step's end",
    "use smaller tiles or shorter steps",
)


@dataclass(frozen=True)
class PipelineMma:
    """`held_registers`: how many registers of a lane sums, operands and products in flight may take together."""

    held_registers: int

    def __repr__(self) -> str:
        return "PipelineMma()"

    def __call__(self, kernel: Kernel) -> Kernel:
        residues, builder = Residues(kernel), Builder(names(kernel))
        results: dict[Value, Value] = {}
        single: list[Op] = []

        def pipeline(op: Op) -> Sequence[Op] | None:
            before, loop = without_invariants(op) if isinstance(op, Loop) else ((), None)
            step = _Step.of(loop) if loop is not None else None
            if step is None:
                return None
            if not step.has_two_stages:
                single.extend(step.back if len(step.front) > 1 else ())  # else `delay_dependent_mma` may take the step
                return None
            trips, rotated = residues.constant(step.loop.trips), _Rotated(step, builder, self.held_registers)
            if trips is None or trips < 1:
                return [*before, *rotated.where_there_are_steps()]
            ops, values = rotated.steps(step.loop.init)
            results.update(zip(op.results, values, strict=True))
            return [*before, *ops]

        made = replace_values(rewrite(kernel, pipeline), results)
        return made.with_remarks(*(ONE_STAGE.at(op.loc) for op in single[:1]))


@dataclass(frozen=True)
class _Step:
    """A step with products that depend on no other, and products of these that accumulate into carried sums."""

    loop: Loop
    front: tuple[Wgmma, ...]
    back: tuple[Wgmma, ...]
    """Dependent products that accumulate."""
    used: tuple[Wgmma, ...]
    """Dependent products whose sums the step uses."""

    @staticmethod
    def of(loop: Loop) -> _Step | None:
        ops = loop.body.ops[:-1]
        products = [op for op in ops if isinstance(op, Wgmma)]
        inside = [op for op in walk(loop.body) if isinstance(op, (Wgmma, WaitMma, WaitOlderMma))]
        if inside != products or any(op.later for op in products):
            return None
        dependent = [*following(ops, {op.result for op in products})]
        stored = {op.memory for op in dependent if isinstance(op, Store)}
        dependent += [op for op in products if stored.intersection(op.read)]
        back = tuple(op for op in products if op in dependent and op.acc in loop.body.args)
        used = tuple(op for op in products if op in dependent and op not in back)
        step = _Step(loop, tuple(op for op in products if op not in dependent), back, used)
        return step if back and step.front and step.can_rotate else None

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.loop.body.ops[:-1]

    @property
    def yielded(self) -> tuple[Value, ...]:
        return self.loop.body.ops[-1].operands

    @property
    def can_rotate(self) -> bool:
        """Whether the dependent products only accumulate, and no other carried value depends on a product."""
        used = [v for op in self.ops for v in taken_by(op)]
        for product in self.back:
            if used.count(product.acc) != 1 or product.result in used or self.yielded.count(product.result) != 1:
                return False
            if self.loop.body.args[1 + self.yielded.index(product.result)] != product.acc:
                return False
        found = {v for op in following(self.ops, {op.result for op in self.front}) for v in op.results}
        found |= {op.result for op in self.front}
        others = [v for v in self.yielded if all(v != op.result for op in self.back)]
        effects = [op for op in self.ops if op.has_effect and not isinstance(op, (Arrive, WaitMbarrier))]
        return found.isdisjoint(others) and (self.can_use_later(effects) if self.used else not effects)

    def can_use_later(self, effects: Sequence[Op]) -> bool:
        """Whether the products whose sums are used can be issued first in the next step, and what uses them after."""
        stored = {op.memory for op in effects if isinstance(op, Store)}
        readers = [op for op in self.ops if stored.intersection(op.read)]
        known = all(op in self.tail or isinstance(op, (Store, Barrier)) for op in effects)
        is_last = not any(op in self.tail for op in (*self.back, *self.used, *readers))
        waits = any(isinstance(op, WaitMbarrier) for op in self.last)
        return known and is_last and not waits and all(op in self.used for op in readers)

    @cached_property
    def tail(self) -> tuple[Op, ...]:
        """The ops that use the sums of products that do not accumulate, with the turns in which they are added."""
        after = following(self.ops, {op.result for op in self.used}) if self.used else []
        after += [
            op for i, op in enumerate(self.ops) if isinstance(op, Arrive) and _reader(self.ops[:i][::-1]) in self.used
        ]
        return tuple(op for op in self.ops if op in after or (self.used and isinstance(op, TurnOp)))

    @cached_property
    def waits(self) -> tuple[WaitMbarrier, ...]:
        """The waits for tiles of the products whose sums are used."""
        those = [(i, op) for i, op in enumerate(self.ops) if isinstance(op, WaitMbarrier)]
        return tuple(op for i, op in those if _reader(self.ops[i:]) in self.used)

    @cached_property
    def again(self) -> tuple[tuple[Op, ...], ...]:
        """What makes initial values of the products whose sums are used, these products, and what makes positions for
        their tail: in the next step all of it is computed again, in this order, and then the tail."""
        begin = self.feeders({op.acc for op in self.used} | {v for op in self.waits for v in op.operands})
        places = self.feeders({v for op in self.tail for v in taken_by(op)})
        return (*begin, *self.waits), self.used, tuple(op for op in places if op not in begin), self.tail

    def feeders(self, wanted: set[Value]) -> tuple[Op, ...]:
        """Return the ops, which follow from no product, that make values."""
        made = {op.result for op in (*self.front, *self.used)}
        dependent = [*following(self.ops, made), *self.front, *self.used, *self.tail]
        found: list[Op] = []
        for op in reversed(self.ops):
            is_free = not (op.has_effect or op.read or op.blocks or op in dependent)
            if is_free and not wanted.isdisjoint(op.results):
                found.append(op)
                wanted.update(op.operands)
        return tuple(reversed(found))

    @property
    def has_two_stages(self) -> bool:
        return all(op.mbarriers.type.shape[0] > 1 for op in self.last if isinstance(op, Arrive))

    @cached_property
    def last(self) -> tuple[Op, ...]:
        """The ops that the next step issues: dependent products, the waits for their own tiles, and later arrivals."""
        ops = self.ops
        first = min(ops.index(op) for op in self.back)
        found: list[Op] = []
        for i, op in enumerate(ops):
            waits = isinstance(op, WaitMbarrier) and _reader(ops[i:]) in self.back
            leaves = isinstance(op, Arrive) and i > first and op not in self.tail
            if op in self.back or waits or leaves:
                found.append(op)
        return tuple(found)

    @cached_property
    def own(self) -> tuple[Op, ...]:
        """The ops of a step that belong to no dependent product."""
        later = (*self.last, *self.used, *self.tail, *self.waits)
        return tuple(op for op in self.ops if op not in later)

    @cached_property
    def first(self) -> tuple[Op, ...]:
        return tuple(op for op in self.own if op not in self.put_off)

    @property
    def put_off(self) -> tuple[Op, ...]:
        """The ops with which the next step begins: they make operands of dependent products. Where a tail has sums too,
        lanes have registers for all sums only if they hold no operand from step to step."""
        return tuple(self.written_last) if self.used else ()

    @cached_property
    def handed_on(self) -> tuple[Value, ...]:
        """Values of a step that its last ops use, without sums and the number of the step."""
        made = {*self.loop.body.args[1:], *(v for op in self.ops for v in op.results)}
        again = [op for part in self.again for op in part]
        own = {op.acc for op in self.back} | {v for op in (*again, *self.put_off) for v in op.results}
        ops = (*self.put_off, *self.last, *again)
        return tuple(dict.fromkeys(v for op in ops for v in taken_by(op) if v in made and v not in own))

    @property
    def carried_on(self) -> tuple[Value, ...]:
        """Values that the new loop carries: sums before the dependent products, and what these use."""
        sums = {op.result: op.acc for op in self.back}
        return (*(sums.get(v, v) for v in self.yielded), *self.handed_on)

    def needed_by(self, wanted: Sequence[Op]) -> list[Op]:
        """Return the first ops that some of them need, with all waits for mbarriers before them, and these too."""
        at = max(self.first.index(op) for op in wanted)
        found = {id(op) for op in wanted}
        waits = any(isinstance(op, Wgmma) for op in wanted)
        values = {v for op in wanted for v in taken_by(op)}
        for op in reversed(self.first[: at + 1]):
            if (waits and isinstance(op, WaitMbarrier)) or not values.isdisjoint(op.results):
                found.add(id(op))
                values.update(taken_by(op))
        return [op for op in self.first if id(op) in found]

    @cached_property
    def written_last(self) -> list[Op]:
        """Ops that write registers or shared memory which a product takes as an operand, and what follows from them."""
        held = {op.a for op in self.back if isinstance(op, WgmmaRegisters)}
        makers = [op for op in self.own if held.intersection(op.results)]
        own = {v for op in makers for v in op.operands if _is_half(v)}
        makers += [op for op in self.own if own.intersection(op.results) and op not in makers]
        after = following(self.own, {v for op in makers for v in op.results})
        ends = [op for op in self.own if isinstance(op, (Store, Barrier)) or (isinstance(op, Arrive) and op.stored)]
        return [op for op in self.own if op in makers or op in after or op in ends]


class _Tail(NamedTuple):
    """The products whose sums are used, in the step after theirs: what they need, they themselves, what uses them."""

    before: Sequence[Op]
    products: Sequence[Wgmma]
    after: Sequence[Op]


class _Rotated:
    """Builds a loop whose dependent products are issued one step later."""

    def __init__(self, step: _Step, builder: Builder, most: int) -> None:
        self.step, self.builder, self.most, self.loc = step, builder, most, step.loop.loc

    def where_there_are_steps(self) -> list[Op]:
        """Return the new loop inside a loop of one or zero trips, for trip counts that may be zero."""
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
        first = Block(loop.body.args, (*step.first, Yield(step.carried_on)))
        with self.builder.region():
            self.builder.locate = lambda: self.loc
            carried = Steps(first, suffix="").in_place(init, self.builder)
            values = LoopSchedule(replace(loop, init=carried), self.others()).expand(self.builder)
            return list(self.builder.ops), values

    def others(self) -> tuple[Steps, Steps]:
        """Return the loop over all steps but the first, and the last dependent products."""
        step, (index, *sums), b = self.step, self.step.loop.body.args, self.builder
        held = {v: self.fresh(v) for v in step.handed_on}
        after = {op.acc: self.fresh(op.result) for op in step.back}
        args = (index, *sums, *held.values())
        carried = Yield(tuple(after.get(v, v) for v in step.carried_on), loc=self.loc)
        ends = Yield(tuple({op.acc: op.result for op in step.back}.get(v, v) for v in sums))
        begin, before = self.before(index, held)
        last, trips = [substitute(op, before) for op in step.last], Number(b, step.loop.trips)
        steady = (*begin, *self.round(last, after, self.tail(before)), carried)
        begin, before = self.before(index, held)
        tail, last = self.tail(before), [substitute(op, before) for op in step.last]
        final = (*begin, *tail.before, *tail.products, *tail.after, *last, ends)
        one = Number(b, b.const(1))
        return Steps(Block(args, steady), (trips - 1).value, one), Steps(Block(args, final), first=trips)

    def before(self, index: Value, held: Mapping[Value, Value]) -> tuple[tuple[Op, ...], dict[Value, Value]]:
        """Return the ops that the step before put off, with its number, and the values of that step."""
        copied = renamed(Block((), self.step.put_off), self.fresh).ops
        both = zip(self.step.put_off, copied, strict=True)
        new = {v: other for op, copy in both for v, other in zip(op.results, copy.results, strict=True)}
        with self.builder.region():
            before = {**held, index: (Number(self.builder, index) - 1).value}
            self.builder.ops += [substitute(op, before) for op in copied]
            return tuple(self.builder.ops), {**before, **new}

    def tail(self, before: Mapping[Value, Value]) -> _Tail:
        """Return copies of the products whose sums are used, and of what they need and what uses them; `before` are the
        values of the step before."""
        begin, used, places, tail = self.step.again
        copied = renamed(Block((), (*begin, *used, *places, *tail)), self.fresh)
        ops = [substitute(op, before) for op in copied.ops]
        first, last = len(begin), len(begin) + len(used)
        return _Tail(ops[:first], [op for op in ops[first:last] if isinstance(op, Wgmma)], ops[last:])

    def round(self, last: Sequence[Op], after: dict[Value, Value], tail: _Tail) -> Iterator[Op]:
        """Yield one step. `last`, `tail`: the ops of the step before that it issues; `after`: the sums after `last`."""
        step, flight = self.step, ProductsInFlight(self.builder)
        yield from (*tail.before, *map(flight.begin, tail.products))
        yield from (flight.begin(op) if isinstance(op, Wgmma) else op for op in last if not isinstance(op, Arrive))
        yield from (flight.wait(op.result, op.result, op) for op in tail.products)
        yield from tail.after
        issued: list[Op] = []
        for product in step.front[: self.early]:
            yield from self.issued(product, issued, flight)
        for op in last:
            if isinstance(op, Wgmma):
                yield flight.wait(op.result, after[op.acc], op)
        yield from (op for op in last if isinstance(op, Arrive))
        for product in step.front[self.early :]:
            yield from self.issued(product, issued, flight)
        rest = [op for op in step.first if op not in issued and op not in step.written_last]
        ending = [op for op in step.written_last if op not in step.put_off]
        for op in (*rest, *ending):
            ends = isinstance(op, Arrive) or op in ending
            for product in step.front:
                taken = product.result in taken_by(op) or (ends and self.comes_before(product, op))
                if taken and product.result in flight:
                    yield flight.wait(product.result, product.result, product)
            yield op
        for product in step.front:
            if product.result in flight:
                yield flight.wait(product.result, product.result, product)

    def comes_before(self, product: Op, op: Op) -> bool:
        """Whether an op that must find a product ended comes after it."""
        return not isinstance(op, Arrive) or self.step.ops.index(product) < self.step.ops.index(op)

    def issued(self, product: Wgmma, issued: list[Op], flight: ProductsInFlight) -> Iterator[Op]:
        """Yield what a product needs, unless it is issued already, and the product."""
        for op in self.step.needed_by([product]):
            if op not in issued:
                issued.append(op)
                yield flight.begin(op) if isinstance(op, Wgmma) else op

    @property
    def early(self) -> int:
        """How many products of the next step have registers beside the sums and the operands in flight."""
        step = self.step
        held = [op.a for op in (*step.front, *step.back) if isinstance(op, WgmmaRegisters)]
        taken, count = sum(map(_registers, (*(op.acc for op in (*step.back, *step.used)), *held))), 0
        for product in step.front:
            taken += _registers(product.result)
            count += taken <= self.most
        return count

    def fresh(self, v: Value) -> Value:
        return self.builder.fresh(v.name, v.type)


def _reader(ops: Sequence[Op]) -> Op | None:
    """Return the first op that reads or stores tiles."""
    return next((op for op in ops if isinstance(op, (Wgmma, Load, Store))), None)


def _is_half(v: Value) -> bool:
    return isinstance(v.type, Vector) and v.type.dtype.bits == REGISTER_BITS // 2


def _registers(v: Value) -> int:
    return prod(v.type.shape) * v.type.dtype.bits // REGISTER_BITS if isinstance(v.type, Vector) else 0
