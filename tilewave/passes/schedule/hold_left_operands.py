"""Hold the left operands of narrow products in registers, where they are the same in all steps of a loop.

    loop(%n, …) {                                  %rows = load(%k, ‹the rows of each lane›)
      %x = wgmma_shared(%k, [%m, %o], %q)     →    loop(%n, …) {
                                                     %x = wgmma_registers(%rows, %q)

A product of 64 rows with 64 columns, both in shared memory, reads 128 bytes a cycle, all that there is; with its left
operand in registers it reads half. So it is with the scores and the gradients of weights in the backward pass of
attention, of which all products of a step take much from shared memory. Where sums and operands leave no registers, or
where a loop has one such product only, operands stay in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import Lane, Load, Loop, Store, Wave, Wgmma, WgmmaRegisters, WgmmaShared
from tilewave.ir.rewrite import names, rewrite
from tilewave.ir.types import INDEX_SCALAR, Memory, Vector
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import without_invariants

HALF_BITS, REGISTER_BITS, LEAST = 16, 32, 2
"""The bits of an operand's elements and of a register, and the fewest products for which operands are held."""


@dataclass(frozen=True)
class HoldLeftOperands:
    """`held_registers`: how many registers of a lane sums and operands may take together."""

    held_registers: int

    def __repr__(self) -> str:
        return "HoldLeftOperands()"

    def __call__(self, kernel: Kernel) -> Kernel:
        builder = Builder(names(kernel))

        def hold(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop):
                return None
            before, loop = without_invariants(op)
            those = _held(loop)
            if len(those) < LEAST or _registers(loop, those) > self.held_registers:
                return None
            with builder.region():
                builder.locate = lambda: op.loc
                new = {id(product): _in_registers(product, builder) for product in those}
                ops = tuple(new.get(id(x), x) for x in loop.body.ops)
                return [*before, *builder.ops, replace(loop, body=replace(loop.body, ops=ops))]

        return rewrite(kernel, hold)


def _held(loop: Loop) -> list[WgmmaShared]:
    """Return the products whose left operands are the same in all steps, and too tall for their columns."""
    made = {*loop.body.args, *(v for op in loop.body.ops for v in op.results)}
    stored = {op.memory for op in loop.body.ops if isinstance(op, Store)} | {
        v for op in loop.body.ops for v in op.written
    }
    return [
        op
        for op in loop.body.ops
        if isinstance(op, WgmmaShared)
        and op.a not in stored
        and made.isdisjoint(op.a_at)
        and 0 not in op.transposed
        and op.a.type.dtype.bits == HALF_BITS
        and op.shape[0] == op.group.rows >= op.shape[1]
        and set(op.acc.type.shape[:-4]) <= {1}
    ]


def _registers(loop: Loop, those: Sequence[WgmmaShared]) -> int:
    """Return the registers of all sums, and of operands."""
    products = [op for op in loop.body.ops if isinstance(op, Wgmma)]
    held = [op.a for op in products if isinstance(op, WgmmaRegisters)]
    sums = sum(prod(v.type.shape) * v.type.dtype.bits for v in (*(op.acc for op in products), *held)) // REGISTER_BITS
    lanes = WgmmaShared.group.waves * 32
    return sums + sum(op.shape[0] * op.shape[2] * HALF_BITS // REGISTER_BITS // lanes for op in those)


def _in_registers(op: WgmmaShared, builder: Builder) -> WgmmaRegisters:
    """Emit the load of the left operand as lanes hold it, and return the product of it."""
    memory = op.a.type
    assert isinstance(memory, Memory)
    wave, lane = (Number(builder, builder.emit(cls, type=INDEX_SCALAR)) for cls in (Wave, Lane))
    *front, row, column = op.a_at
    first = Number(builder, row) + wave % op.group.waves * (op.group.rows // op.group.waves) + lane // 4
    at = (*front, first.value, (Number(builder, column) + lane % 4 * 2).value)
    *batch, _, _, _, _ = op.acc.type.shape
    shape = (*batch, op.shape[0] // op.group.rows, op.shape[2] // 8, 2, 2)
    moves = [(0, 0)] * len(batch) + [(op.group.rows, 0), (0, 8), (8, 0), (0, 1)]
    steps = tuple((*[0] * len(front), *far) for far in moves)
    held: Value = builder.emit(Load, op.a, at, (), steps, type=Vector(shape, memory.dtype), name=op.a.name)
    transposed = tuple(side for side in op.transposed if side)
    rest = op.b, op.b_at, op.acc, op.shape, op.instruction, op.adds, op.ignored_bits, transposed, op.later
    return WgmmaRegisters(held, *rest, op.columns_used, results=op.results, loc=op.loc)
