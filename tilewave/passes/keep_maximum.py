"""A running maximum that only shifts exponents stays as it is while nothing grows too large without it.

    %x = matrix_shared(%q, %k)                 %x = matrix_shared(%q, %k)
    %larger = max(‹largest of %x›, %old)       %p_0 = exp2(%x - %old), %sum_0 = %sum + ‹sum of %p_0›
    %shrink = exp2(%old - %larger)             %fits = agree(‹sums of %p_0 in each lane are small›)
    %p = exp2(%x - %larger)               →    %p, %larger, %sum_1, %acc_1 =
    %sum_1 = %sum · %shrink + ‹sum of %p›          loop(‹0 where %fits, else 1›, [%p_0, %old, %sum_0, %acc]) {
    %acc_1 = mul(%acc, %shrink)                      ‹as it was, from the product on›
    %z = matrix_held(%p, %v, %acc_1)               }
                                               %z = matrix_held(%p, %v, %acc_1)

Why it is right. Let the maximum be less by k. Then every p is larger by a factor 2^(c·k), and so are the sums, and the
products that are added up; where the author divides one by another, or adds c · maximum to the logarithm of a sum, k is
gone. That this is all that becomes of them, in the loop and behind it, is proved op by op (analysis/rescaling.py), so
any maximum is as good as another as long as no number leaves its dtype. No p is below 0, so a lane's own sum of them
that is at most 2¹⁵ proves that each p is, which f16 holds, and sums of f32 hold 2¹¹² of those. Floats have the same
digits whatever their exponent; and p that vanish, vanish with the true maximum all the more. A sum that is larger,
infinite or no number at all is a no: then the product is made again, whose operands still lie where they did, and the
step is computed as the author wrote it. All waves of a group go the same way, since they make the product together. The
first step of all has no maximum yet, and does not try.

It saves the search for the maximum, and most factors of the sums: a fifth of what a lane computes in attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.analysis.excerpts import following, made_in, renamed_op, taken_by
from tilewave.analysis.rescaling import SAME, Change, Rescaling
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Agree,
    Broadcast,
    Cast,
    Exp,
    Exp2,
    Exp2Flushed,
    GroupProduct,
    LessEqual,
    Loop,
    MatrixHeld,
    Max,
    Mul,
    Not,
    Or,
    ReduceRegisters,
    Sub,
    Yield,
)
from tilewave.ir.rewrite import names, walk
from tilewave.ir.types import BOOL, F32, INDEX, Scalar
from tilewave.layouts.fragments import GROUP

LARGEST_SUM = 32768.0
"""Of what a lane holds of a row: half of what the smallest dtype of an operand, f16, can hold."""


def keep_maximum(kernel: Kernel) -> Kernel:
    makers = {v: op for op in walk(kernel.body) for v in op.results}
    builder = Builder(names(kernel))
    return replace(kernel, body=_in_block(kernel.body, makers, builder))


def _in_block(block: Block, makers: dict[Value, Op], builder: Builder) -> Block:
    ops: list[Op] = []
    for at, op in enumerate(block.ops):
        found = _Softmax.of(op, makers) if isinstance(op, Loop) else None
        if found is not None and found.is_only_a_scale(block.ops[at + 1 :]):
            ops.append(found.tried_without(builder))
        else:
            inner = {name: _in_block(part, makers, builder) for name, part in op.parts() if isinstance(part, Block)}
            ops.append(replace(op, **inner) if inner else op)  # type: ignore[arg-type]
    return replace(block, ops=tuple(ops))


@dataclass(frozen=True)
class _Softmax:
    """A loop over products whose results are raised to powers, shifted by the largest so far."""

    loop: Loop
    makers: dict[Value, Op]
    product: GroupProduct
    weighted: MatrixHeld
    """The product that takes what became of the first."""
    largest: Max
    old: Value
    """The maximum as the loop carries it."""

    @staticmethod
    def of(loop: Loop, makers: dict[Value, Op]) -> _Softmax | None:
        *ops, end = loop.body.ops
        products = [op for op in walk(loop.body) if isinstance(op, GroupProduct)]
        if len(products) != 2 or not all(op in ops for op in products) or not isinstance(products[1], MatrixHeld):
            return None
        behind = following(ops, {products[0].result})
        for arg, after in zip(loop.body.args[1:], end.operands, strict=True):
            op = makers.get(after)
            if isinstance(op, Max) and op in behind and arg in op.operands:
                return _Softmax(loop, makers, products[0], products[1], op, arg)
        return None

    # -- whether any maximum is as good

    def is_only_a_scale(self, behind: Sequence[Op]) -> bool:
        rate = self.rate
        floats = [v.type.dtype for v in self.loop.body.args if v.type.dtype.is_float]
        if rate is None or len(self.proofs) != 1 or any(dtype != F32 for dtype in floats):
            return False
        inside = self.changes(rate)
        *ops, end = self.loop.body.ops
        if not inside.follow(ops):
            return False
        carried = zip(self.loop.body.args[1:], end.operands, strict=True)
        as_carried = all(inside.of(after) == _now(inside.of(before)) for before, after in carried)
        results = {v: inside.of(after) for v, after in zip(self.loop.results, end.operands, strict=True)}
        known = {v: change for v, change in results.items() if change is not None}
        return as_carried and Rescaling(self.makers, known).follow(behind)

    @property
    def proofs(self) -> list[ReduceRegisters]:
        """Sums of what the second product takes, where that is a power, and so not below 0."""
        cast = self.makers.get(self.weighted.a)
        weights = cast.x if isinstance(cast, Cast) else self.weighted.a
        if not isinstance(self.makers.get(weights), (Exp, Exp2, Exp2Flushed)):
            return []
        sums = [op for op in self.computed if isinstance(op, ReduceRegisters) and op.how == "sum"]
        return [op for op in sums if op.x == weights]

    def is_factor(self, op: Op) -> bool:
        """Whether it is the power of how much the maximum grew, which is 1 where it did not."""
        grown = self.makers.get(op.x) if isinstance(op, (Exp, Exp2, Exp2Flushed)) else None
        if isinstance(grown, Mul):
            grown = next((m for v in grown.operands if isinstance(m := self.makers.get(v), Sub)), None)
        return isinstance(grown, Sub) and (grown.a, grown.b) == (self.old, self.largest.result)

    @property
    def rate(self) -> float | None:
        """How much a power changes with the maximum."""
        changes = Rescaling(self.makers, self.shifts)
        changes.follow(self.loop.body.ops)
        powers = [changes.of(op.result) for op in self.computed if isinstance(op, (Exp2, Exp2Flushed))]
        return next((-p.power[0] for p in powers if p is not None and p.power[0] < 0), None)

    @property
    def shifts(self) -> dict[Value, Change]:
        return {self.old: Change(shift=(-1.0, 0.0)), self.largest.result: Change(shift=(0.0, -1.0))}

    def changes(self, rate: float) -> Rescaling:
        """With sums, carried from step to step, that all go with the maximum as it was before."""
        carried = [v for v in self.loop.body.args[1:] if v.type.dtype.is_float and v != self.old]
        return Rescaling(self.makers, {**self.shifts, **{v: Change(power=(rate, 0.0)) for v in carried}})

    # -- the step, twice

    @property
    def computed(self) -> list[Op]:
        """What becomes of the first product, up to what the second one takes."""
        *ops, _ = self.loop.body.ops
        cast = self.makers.get(self.weighted.a)
        ends = {self.weighted, cast} if isinstance(cast, Cast) else {self.weighted}
        later = following(ops, {self.weighted.result})
        return [op for op in following(ops, {self.product.result}) if op not in ends and op not in later]

    @property
    def outputs(self) -> list[Value]:
        """What others take of it."""
        others = [op for op in self.loop.body.ops if op not in self.computed]
        taken = {v for op in others for v in taken_by(op)}
        return [v for op in self.computed for v in op.results if v in taken]

    def tried_without(self, builder: Builder) -> Loop:
        *ops, end = self.loop.body.ops
        at = ops.index(self.product) + 1
        own, outputs = self.computed, self.outputs
        needed = _needs([op for op in ops[at:] if op not in own], own)
        rest = [op for op in ops[at:] if op not in own and op not in needed]
        with builder.region():
            builder.locate = lambda: self.product.loc
            tried, fits = self.attempt(builder)
            first = (Number(builder, self.loop.body.args[0]) < 1).value
            again = builder.cast(builder.elementwise(Or, builder.elementwise(Not, fits), first), INDEX)
            exactly = Loop(again, tuple(tried), self.as_written(builder), results=tuple(outputs), loc=self.product.loc)
            made = [*builder.ops, exactly]
        return replace(self.loop, body=replace(self.loop.body, ops=(*ops[:at], *needed, *made, *rest, end)))

    def attempt(self, builder: Builder) -> tuple[list[Value], Value]:
        """The step with the old maximum: what it gives, and whether that is small enough."""
        new: dict[Value, Value] = {self.largest.result: self.old}
        ones: set[Value] = set()
        for op in self.computed:
            kept = _without_factor(op, ones)
            if op is self.largest:
                continue
            if kept is not None:
                new[op.result] = new.get(kept, kept)
            elif self.is_factor(op) or (isinstance(op, Broadcast) and op.x in ones):
                new[op.result] = builder.const(1.0, op.result.type)
                ones.add(op.result)
            else:
                new |= {v: builder.fresh(v.name, v.type) for v in made_in(Block((), (op,)))}
                builder.ops.append(renamed_op(op, new))
        (proof,) = self.proofs
        small = builder.elementwise(LessEqual, new[proof.result], builder.const(LARGEST_SUM, proof.result.type))
        fits = builder.emit(Agree, small, GROUP, type=Scalar(BOOL))
        return [new.get(v, v) for v in self.outputs], fits

    def as_written(self, builder: Builder) -> Block:
        """The product once more, and the step with the maximum that it has."""
        again = (self.product, *self.computed)
        new = {v: builder.fresh(v.name, v.type) for v in made_in(Block((), again))}
        ops = [renamed_op(op, new) for op in again]
        args = (
            builder.fresh("once", self.loop.body.args[0].type),
            *(builder.fresh(v.name, v.type) for v in self.outputs),
        )
        return Block(args, (*ops, Yield(tuple(new[v] for v in self.outputs), loc=self.product.loc)))


def _now(change: Change | None) -> Change | None:
    """What goes with the maximum as it was, as it goes with the new one."""
    if change is None or change == SAME:
        return change
    return Change((0.0, change.power[0]), (0.0, change.shift[0]))


def _without_factor(op: Op, ones: set[Value]) -> Value | None:
    """What is multiplied by 1."""
    if not isinstance(op, Mul) or ones.isdisjoint(op.operands):
        return None
    return op.b if op.a in ones else op.a


def _needs(ops: Sequence[Op], users: Sequence[Op]) -> list[Op]:
    """Those of some ops that others take something of, directly or not."""
    taken = {v for op in users for v in taken_by(op)}
    found: list[Op] = []
    for op in reversed(ops):
        if not taken.isdisjoint(op.results):
            taken.update(taken_by(op))
            found.insert(0, op)
    return found
