"""Deferred rescaling: an online softmax keeps its old maximum while no exponential grows too large with it.

    %x = wgmma_shared(%q, %k)                 %x = wgmma_shared(%q, %k)
    %larger = max(‹largest of %x›, %old)       %p_0 = exp2(%x - %old), %sum_0 = %sum + ‹sum of %p_0›
    %shrink = exp2(%old - %larger)             %fits = agree(‹sums of %p_0 in each lane are small›)
    %p = exp2(%x - %larger)               →    %p, %larger, %sum_1, %acc_1 =
    %sum_1 = %sum · %shrink + ‹sum of %p›          loop(‹0 where %fits, else 1›, [%p_0, %old, %sum_0, %acc]) {
    %acc_1 = mul(%acc, %shrink)                      ‹as it was, from the product on›
    %z = wgmma_registers(%p, %v, %acc_1)               }
                                               %z = wgmma_registers(%p, %v, %acc_1)

Correctness. Let the maximum be too small by k. Every p is then larger by a factor 2^(c·k), and so are the sums and the
accumulated products; where the author divides one by another, or adds c · maximum to the logarithm of a sum, k cancels.
The pass proves op by op (analysis/rescaling.py) that nothing else is computed from them, in the loop and after it, so
any maximum is valid as long as no number leaves the range of its dtype. No p is negative, so a lane's own sum of at
most 2¹⁵ proves that each p is at most that, which f16 can represent, and an f32 sum can add 2¹¹² of them. Floats have
the same precision at any exponent, and p that underflow would underflow with the true maximum all the more. A sum that
is larger, infinite or NaN fails the test: the product is computed again, from operands that are still in place, and the
step is computed as the author wrote it. All waves of a warpgroup take the same branch, since they compute the product
together. The first step has no maximum yet and is always computed as written.

The pass saves the maximum and most rescaling of the sums: a fifth of what a lane computes in attention.

Where that cannot be proved, the rescaling is still skipped where the factor is 1 in all lanes of a wave, as it is while
the maximum stays. x · 1 is x, so results are bit-identical, and a lane has 64 sums or more for one or two factors:

    %larger = max(%largest, …)               …
    %shrink = exp2(sub(%largest, %larger))   %same = all_of(‹%shrink is 1, in all registers and lanes›)
    %sums_1 = mul(%sums, %shrink)        →   %sums_1 = loop(‹0 where %same, else 1›, [%sums]) { mul(%sums, %shrink) }
    %z = wgmma_registers(…, %sums_1)         %z = wgmma_registers(…, %sums_1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.program_slices import following, taken_by
from tilewave.analysis.rescaling import SAME, Change, Rescaling
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.match import ANY, OpPattern, either, made
from tilewave.ir.ops import (
    Agree,
    AllOf,
    Broadcast,
    Cast,
    Equal,
    Exp2,
    Exp2Flushed,
    Exponential,
    LessEqual,
    Loop,
    Max,
    Mul,
    Not,
    Or,
    ReduceLanes,
    ReduceRegisters,
    Sub,
    Wgmma,
    WgmmaRegisters,
    Yield,
)
from tilewave.ir.rewrite import made_in, names, rename, rewrite, uses, walk
from tilewave.ir.types import BOOL, F32, INDEX, INDEX_SCALAR, Scalar, Vector
from tilewave.records import dataclass

LARGEST_SUM = 32768.0
"""The limit of a lane's partial row sum: half of what f16, the smallest operand dtype, can represent."""

LEAST_REGISTERS = 32
"""The least registers of sums per lane: with fewer, the test for 1 costs as much as the multiplication."""


def _exponential(growth: OpPattern) -> OpPattern:
    """Return the pattern of a factor: the exponential of the (scaled) difference between two maxima."""
    return made(Exponential, growth | either(Mul, growth, ANY))


FACTOR = _exponential(made(Sub, "old", "larger"))
FACTOR_OF_ROWS = made(Broadcast, _exponential(made(Sub, "old", either(Max, "old", ANY))).named("factor"))
"""A factor of rows, 1 while a maximum stays."""


def defer_rescaling(kernel: Kernel) -> Kernel:
    deferred = replace(kernel, body=_in_block(kernel.body, kernel.defs, Builder(names(kernel))))
    return _skipping_units(deferred)


def _in_block(block: Block, defs: Mapping[Value, Op], builder: Builder) -> Block:
    ops: list[Op] = []
    for at, op in enumerate(block.ops):
        found = _Softmax.of(op, defs) if isinstance(op, Loop) else None
        if found is not None and found.is_only_a_scale(block.ops[at + 1 :]):
            ops.append(found.tried_without(builder))
        else:
            inner = {name: _in_block(part, defs, builder) for name, part in op.parts() if isinstance(part, Block)}
            ops.append(replace(op, **inner) if inner else op)  # type: ignore[arg-type]
    return replace(block, ops=tuple(ops))


@dataclass(frozen=True)
class _Softmax:
    """A loop with two products, the second on exponentials of the first, shifted by a running maximum."""

    loop: Loop
    defs: Mapping[Value, Op]
    product: Wgmma
    weighted: WgmmaRegisters
    """The second product, whose left operand is computed from the first."""
    largest: Max
    old: Value
    """The running maximum that the loop carries."""

    @staticmethod
    def of(loop: Loop, defs: Mapping[Value, Op]) -> _Softmax | None:
        *ops, end = loop.body.ops
        products = [op for op in walk(loop.body) if isinstance(op, Wgmma)]
        if len(products) != 2 or not all(op in ops for op in products) or not isinstance(products[1], WgmmaRegisters):
            return None
        rest = following(ops, {products[0].result})
        for arg, after in zip(loop.body.args[1:], end.operands, strict=True):
            op = defs.get(after)
            if isinstance(op, Max) and op in rest and arg in op.operands:
                return _Softmax(loop, defs, products[0], products[1], op, arg)
        return None

    # -- proof that any maximum is valid

    def is_only_a_scale(self, rest: Sequence[Op]) -> bool:
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
        return as_carried and Rescaling(self.defs, known).follow(rest)

    @property
    def proofs(self) -> list[ReduceRegisters]:
        """Sums of the second product's left operand, where that is an exponential, and so not negative."""
        cast = self.defs.get(self.weighted.a)
        weights = cast.x if isinstance(cast, Cast) else self.weighted.a
        if not isinstance(self.defs.get(weights), Exponential):
            return []
        sums = [op for op in self.computed if isinstance(op, ReduceRegisters) and op.how == "sum"]
        return [op for op in sums if op.x == weights]

    def is_factor(self, op: Op) -> bool:
        """Whether `op` is the rescaling factor, the exponential of the maximum's growth: 1 where it did not grow."""
        known = {"old": self.old, "larger": self.largest.result}
        return len(op.results) == 1 and FACTOR.match(op.results[0], self.defs, known) is not None

    @property
    def rate(self) -> float | None:
        """The rate at which an exponential changes with the maximum; None where none does."""
        changes = Rescaling(self.defs, self.shifts)
        changes.follow(self.loop.body.ops)
        powers = [changes.of(op.result) for op in self.computed if isinstance(op, (Exp2, Exp2Flushed))]
        return next((-p.power[0] for p in powers if p is not None and p.power[0] < 0), None)

    @property
    def shifts(self) -> dict[Value, Change]:
        return {self.old: Change(shift=(-1.0, 0.0)), self.largest.result: Change(shift=(0.0, -1.0))}

    def changes(self, rate: float) -> Rescaling:
        """Return the analysis that starts from carried sums which all scale with the old maximum."""
        carried = [v for v in self.loop.body.args[1:] if v.type.dtype.is_float and v != self.old]
        return Rescaling(self.defs, {**self.shifts, **{v: Change(power=(rate, 0.0)) for v in carried}})

    # -- the step with the old maximum, and as written

    @property
    def computed(self) -> list[Op]:
        """Ops computed from the first product, up to the operand of the second."""
        *ops, _ = self.loop.body.ops
        cast = self.defs.get(self.weighted.a)
        ends = {self.weighted, cast} if isinstance(cast, Cast) else {self.weighted}
        later = following(ops, {self.weighted.result})
        return [op for op in following(ops, {self.product.result}) if op not in ends and op not in later]

    @property
    def outputs(self) -> list[Value]:
        """Values of `computed` that other ops use."""
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
            repeated = builder.cast(builder.elementwise(Or, builder.elementwise(Not, fits), first), INDEX)
            exactly = Loop(
                repeated, tuple(tried), self.as_written(builder), results=tuple(outputs), loc=self.product.loc
            )
            made = [*builder.ops, exactly]
        return replace(self.loop, body=replace(self.loop.body, ops=(*ops[:at], *needed, *made, *rest, end)))

    def attempt(self, builder: Builder) -> tuple[list[Value], Value]:
        """Emit the step with the old maximum; return its values, and whether they are small enough."""
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
                builder.ops.append(rename(op, new))
        (proof,) = self.proofs
        small = builder.elementwise(LessEqual, new[proof.result], builder.const(LARGEST_SUM, proof.result.type))
        fits = builder.emit(Agree, small, Wgmma.group.waves, type=Scalar(BOOL))
        return [new.get(v, v) for v in self.outputs], fits

    def as_written(self, builder: Builder) -> Block:
        """Return the product again, and the step with the true maximum."""
        repeated = (self.product, *self.computed)
        new = {v: builder.fresh(v.name, v.type) for v in made_in(Block((), repeated))}
        ops = [rename(op, new) for op in repeated]
        args = (
            builder.fresh("once", self.loop.body.args[0].type),
            *(builder.fresh(v.name, v.type) for v in self.outputs),
        )
        return Block(args, (*ops, Yield(tuple(new[v] for v in self.outputs), loc=self.product.loc)))


def _now(change: Change | None) -> Change | None:
    """Return a change with the old maximum as a change with the new one."""
    if change is None or change == SAME:
        return change
    return Change((0.0, change.power[0]), (0.0, change.shift[0]))


def _without_factor(op: Op, ones: set[Value]) -> Value | None:
    """Return the operand that is multiplied by 1, if `op` is such a product."""
    if not isinstance(op, Mul) or ones.isdisjoint(op.operands):
        return None
    return op.b if op.a in ones else op.a


def _needs(ops: Sequence[Op], users: Sequence[Op]) -> list[Op]:
    """Return those of `ops` that `users` depend on, directly or not."""
    taken = {v for op in users for v in taken_by(op)}
    found: list[Op] = []
    for op in reversed(ops):
        if not taken.isdisjoint(op.results):
            taken.update(taken_by(op))
            found.insert(0, op)
    return found


# -- factors of 1 ------------------------------------------------------------------------------------------------------


def _skipping_units(kernel: Kernel) -> Kernel:
    """Return the kernel with a test before each rescaling of a product's sums, for factors that are all 1."""
    added_to = {op.acc for op in walk(kernel.body) if isinstance(op, Wgmma)}
    used, builder = uses(kernel), Builder(names(kernel))

    def skip(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Mul) or op.result not in added_to or used[op.result] > 1:
            return None
        found = FACTOR_OF_ROWS.match(op.b, kernel.defs)
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
