"""An operand that a loop takes alike in every step is held in registers, where lanes have some to spare.

    copy(%q, …, %x)                                copy(%q, …, %x)
    loop(%n) {                                     barrier()
      %s = matrix_shared(%x, [%m], %k, …)      →   %held = load(%x, ‹each lane's own›)
      …                                            barrier()
    }                                              loop(%n) { %s = matrix_held(%held, %k, …) … }

The matrix unit then reads one operand of a step from shared memory and not two, and what the other lay in is free for
the next tile's as soon as lanes have it. No bit changes. Lanes write these registers in front of the loop, where no
product is under way: while one is, the assembler wants the registers of every operand left alone (its note C7513), or
lets all products wait for each other.

Registers are few. `beside` are those that a lane needs for all but sums and operands; where they do not all fit, some
would be spilled, and the operand stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.excerpts import following, made_in, renamed_op
from tilewave.errors import Loc
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Barrier, Copy, GroupProduct, Lane, Load, Loop, MatrixHeld, MatrixShared, Wave
from tilewave.ir.reasons import Declined, Reason
from tilewave.ir.rewrite import map_blocks, names, rewrite_block, walk
from tilewave.ir.types import INDEX_SCALAR, Type, Vector
from tilewave.layouts.formulas import Layout
from tilewave.layouts.fragments import GROUP, GroupFragment
from tilewave.machine.chips import Chip

COPYING = 40
"""Registers of each lane that asks for copies."""
HELD_BITS = 16
"""Of an element that the matrix unit takes from registers."""
FEW_REGISTERS = Reason(
    "every step takes the same {bytes:,} bytes of {memory}, and lanes have {left} registers left for the {needed} that "
    "would hold them, so each step reads them from shared memory",
    "take fewer columns a step",
)


@dataclass(frozen=True)
class HoldOperands:
    """`beside`: registers of a lane for all but sums and operands; None: nothing is held."""

    machine: Chip
    beside: int | None = None

    def __repr__(self) -> str:
        return f"HoldOperands({'' if self.beside is None else self.beside})"

    def __call__(self, kernel: Kernel) -> Kernel:
        groups = prod(kernel.waves) // GROUP
        if self.beside is None or not groups:
            return kernel
        holding = _Holding(kernel, self.registers(groups) - self.beside)
        body = holding.block(kernel.body, frozenset())
        return replace(kernel, body=body).declining(*holding.declined)

    def registers(self, groups: int) -> int:
        """Of each lane that multiplies, where one wave of the workgroup copies; of one group, two workgroups share a
        processor."""
        units, workgroups = self.machine.matrix_units, 2 if groups == 1 else 1
        left = units.registers - workgroups * COPYING
        return left // (groups * workgroups) // units.register_grain * units.register_grain


class _Holding:
    def __init__(self, kernel: Kernel, room: int) -> None:
        self.builder, self.room = Builder(names(kernel)), room
        self.copied = {op.to: op.memory for op in walk(kernel.body) if isinstance(op, Copy)}
        self.declined: list[Declined] = []

    def block(self, block: Block, filled: frozenset[Value]) -> Block:
        """`filled`: the memories that copies around this block fill."""
        here = filled.union(_filled(block.ops))
        ops = [new for op in block.ops for new in self.op(op, here)]
        return replace(block, ops=tuple(ops))

    def op(self, op: Op, filled: frozenset[Value]) -> list[Op]:
        before: list[Op] = []
        operands = _Operand.of(op, filled) if isinstance(op, Loop) else []
        for operand in operands if self.has_room(op, operands) else ():
            more, op = self.hold(op, operand)
            before += more
        others = filled.difference(operand.product.a for operand in operands)  # loops inside hold none of these again
        return [*before, map_blocks(op, lambda inner: self.block(inner, others))]

    def has_room(self, loop: Op, operands: Sequence[_Operand]) -> bool:
        """Whether what products of the loop add up, and what lanes hold for them, leave registers for operands."""
        if not operands:
            return False
        products = [op for block in loop.blocks for op in block.ops if isinstance(op, GroupProduct)]
        held = [op.result for op in products] + [op.a for op in products if isinstance(op, MatrixHeld)]
        left, needed = self.room - sum(_registers(v.type) for v in held), sum(_registers(x.type) for x in operands)
        if left < needed:
            first = operands[0]
            facts = {"memory": self.copied[first.product.a].name, "bytes": first.bytes}
            self.declined.append(FEW_REGISTERS.at(first.loc, **facts, left=max(left, 0), needed=needed))
        return left >= needed

    def hold(self, loop: Op, operand: _Operand) -> tuple[list[Op], Op]:
        """What stands in front of a loop, and the loop, whose products take what lanes hold."""
        assert isinstance(loop, Loop)
        with self.builder.region():
            self.builder.locate = lambda: operand.loc
            new = {v: self.builder.fresh(v.name, v.type) for op in operand.placed_by for v in op.results}
            self.builder.ops += [renamed_op(op, new) for op in operand.placed_by]
            held = self.load(operand, [new.get(v, v) for v in operand.at])
            before = list(self.builder.ops)
        body = rewrite_block(loop.body, lambda op: [operand.product_with(op, held)] if operand.is_of(op) else None)
        return before, replace(loop, body=body)

    def load(self, operand: _Operand, at: list[Value]) -> Value:
        """As each lane holds sums of that shape; all waves meet before and behind, where none has another role."""
        b, layout = self.builder, operand.layout
        numbers = {of: Number(b, b.emit(cls, type=INDEX_SCALAR)) for of, cls in (("lane", Lane), ("wave", Wave))}
        front = len(at) - layout.rank
        for axis, terms in enumerate(layout.axes, front):
            for term in terms:
                at[axis] = (Number(b, at[axis]) + term.value(numbers[term.of])).value
        steps = tuple((*[0] * front, *step) for step in layout.steps)
        b.effect(Barrier)
        held = b.emit(Load, operand.product.a, tuple(at), (), steps, type=operand.type, name="held")
        b.effect(Barrier)
        return held


@dataclass(frozen=True)
class _Operand:
    """What products of a loop take from one place, in every step."""

    product: MatrixShared
    """One of them."""
    placed_by: tuple[Op, ...]
    """The ops of the loop that say where it lies, the same in every step."""

    @staticmethod
    def of(loop: Loop, filled: frozenset[Value]) -> list[_Operand]:
        """Each once: of 16 bits, along its depth, and in a memory that is filled in front of the loop alone."""
        makers = {v: op for op in loop.body.ops for v in op.results}
        changing = set(made_in(loop.body)) - set(makers)
        changing |= {v for op in following(loop.body.ops, set(loop.body.args)) for v in op.results}
        still = filled.difference(_filled(walk(loop.body)))
        found: list[_Operand] = []
        for op in walk(loop.body):
            if not isinstance(op, MatrixShared) or op.a not in still or any(x.is_of(op) for x in found):
                continue
            if op.a.type.dtype.bits == HELD_BITS and 0 not in op.turned and changing.isdisjoint(op.a_at):
                found.append(_Operand(op, _closure(op.a_at, makers)))
        return found

    @property
    def at(self) -> tuple[Value, ...]:
        return self.product.a_at

    @property
    def loc(self) -> Loc:
        return self.product.loc

    @property
    def layout(self) -> Layout:
        rows, _, depth = self.product.shape
        batch = self.product.acc.type.shape[:-4]
        return GroupFragment(depth).sums((*batch, rows, depth), (GROUP, 1))

    @property
    def type(self) -> Vector:
        return Vector(self.layout.registers, self.product.a.type.dtype)

    @property
    def bytes(self) -> int:
        """Of all lanes of a group together."""
        rows, _, depth = self.product.shape
        return rows * depth * HELD_BITS // 8

    def is_of(self, op: Op) -> bool:
        """Whether a product takes it."""
        mine = self.product
        if not isinstance(op, MatrixShared) or op.a != mine.a or op.a_at != mine.a_at:
            return False
        return (op.shape[0], op.shape[2]) == (mine.shape[0], mine.shape[2])

    def product_with(self, op: Op, held: Value) -> Op:
        assert isinstance(op, MatrixShared)
        rest = (op.shape, op.instruction, op.adds, op.ignored_bits, op.turned, op.later)
        return MatrixHeld(held, op.b, op.b_at, op.acc, *rest, results=op.results, loc=op.loc)


def _filled(ops: Iterable[Op]) -> set[Value]:
    return {op.to for op in ops if isinstance(op, Copy)}


def _closure(values: Sequence[Value], makers: dict[Value, Op]) -> tuple[Op, ...]:
    """The ops that make these values, those of which they make them first."""
    found: dict[Op, None] = {}
    for v in values:
        if v in makers:
            found.update(dict.fromkeys((*_closure(makers[v].operands, makers), makers[v])))
    return tuple(found)


def _registers(kind: Type) -> int:
    assert isinstance(kind, Vector)
    return prod(kind.shape) * kind.dtype.bytes // 4
