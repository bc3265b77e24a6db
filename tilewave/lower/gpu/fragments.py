"""Stores of 16-bit sums to shared memory by stmatrix: four blocks of 8 x 8 at a time.

A lane holds two neighbours of row lane // 4 of each block; the instruction takes the address of one row from each lane:
row lane % 16 of the blocks on the left for lanes below 16, and of those 8 columns to the right for the others.

Where rows of the memory are columns of the blocks, the instruction transposes each block, and lanes give the addresses
of these rows: lane % 8 of the blocks above for lanes below 16, and of those 8 rows below for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as combinations
from math import prod

from tilewave.analysis.affine import Affine
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import FloorDiv, Lane, Mod, Store
from tilewave.ir.placements import offset, row_elements
from tilewave.ir.types import Memory, Panels, Swizzled
from tilewave.lower.gpu.asynchronous_target import AsynchronousTarget
from tilewave.lower.gpu.numbers import OffsetNumber, number_of
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.values import Held, regrouped
from tilewave.records import dataclass

BLOCK, PAIR = 8, 2
"""Rows and columns of a block, and the 16-bit elements of a register."""


@dataclass(frozen=True)
class FragmentStore:
    """A store of sums at `at`, without the lane's term of the address."""

    registers: Registers
    target: AsynchronousTarget
    op: Store
    memory: Memory
    at: tuple[Affine, ...]
    is_transposed: bool
    """Whether the store transposes blocks."""

    @staticmethod
    def of(registers: Registers, op: Store, memory: Memory) -> FragmentStore | None:
        """Return the store; None where lanes do not hold fragments, or rows of blocks are split in shared memory."""
        target, held = registers.target.asynchronous, op.x.type
        if target is None or op.mask or memory.dtype.bits != 16 or len(held.shape) < 3 or len(op.at) < 2:
            return None
        is_transposed = op.steps[-1][-2:] == (1, 0)
        rest = _without_lane(registers, op, is_transposed)
        chunk = memory.placement.chunk if isinstance(memory.placement, (Swizzled, Panels)) else BLOCK
        whole = chunk % BLOCK == 0 and row_elements(memory) % BLOCK == 0
        if rest is None or not whole or rest[-1].divisor() % BLOCK:
            return None
        if not _are_fragments(held.shape, op.steps, is_transposed):
            return None
        return FragmentStore(registers, target, op, memory, rest, is_transposed)

    def write(self, x: Held, pointer: str) -> None:
        """Store blocks in pairs along the columns; each has another 8 rows below it."""
        f = self.registers.f
        words = regrouped(f, x, PAIR).parts
        *lead, across, _, _ = x.shape
        base = f.value(f"ptrtoint {self.registers.target.shared_pointer} {pointer} to i32")
        for i, which in enumerate(combinations(*map(range, lead))):
            for j in range(0, across, 2):
                first = (i * across + j) * 2
                count = 4 if j + 1 < across else 2
                where = self.address((*which, j, 0, 0))
                spot = f.value(f"add i32 {base}, {where.whole()}")
                self.target.store_fragments(f, spot, list(words[first : first + count]), self.is_transposed)

    def address(self, register: Sequence[int]) -> OffsetNumber:
        """Return the offset in bytes of the row whose address this lane gives."""
        row, column = self.transposed_row() if self.is_transposed else self.row()
        here = []
        for axis, s in enumerate(self.at):
            far = sum(i * step[axis] for i, step in zip(register, self.op.steps, strict=True))
            here.append(number_of(self.registers, s.plus(far)))
        here[-2], here[-1] = here[-2] + row, here[-1] + column
        found = offset(self.memory, *here) * self.memory.dtype.bytes
        assert isinstance(found, OffsetNumber)
        return found

    def row(self) -> tuple[OffsetNumber, OffsetNumber]:
        """Return the row whose address this lane gives, and the first column of its block."""
        return self.of_lane("and i32 {}, 15", 15), self.of_lane("lshr i32 {}, 4", 1) * BLOCK

    def transposed_row(self) -> tuple[OffsetNumber, OffsetNumber]:
        below = self.of_lane("lshr i32 {}, 4", 1) * BLOCK
        beside = self.registers.f.value(f"lshr i32 {self.registers.target.lane(self.registers.f)}, 3")
        right = OffsetNumber(self.registers.f, self.registers.f.value(f"and i32 {beside}, 1"), 0, 1)
        return self.of_lane("and i32 {}, 7", 7) + below, right * BLOCK

    def of_lane(self, text: str, most: int) -> OffsetNumber:
        f = self.registers.f
        return OffsetNumber(f, f.value(text.format(self.registers.target.lane(f))), 0, most)


def _are_fragments(shape: tuple[int, ...], steps: tuple[tuple[int, ...], ...], is_transposed: bool) -> bool:
    """Return whether registers are blocks next to each other, two rows of blocks and two neighbours, or transposed."""
    nothing = (0,) * (len(steps[0]) - 2)
    sides = ((0, BLOCK), (BLOCK, 0), (0, 1))
    wanted = tuple((*nothing, *(side[::-1] if is_transposed else side)) for side in sides)
    return shape[-2:] == (2, 2) and steps[-3:] == wanted and prod(shape) > 0


def _without_lane(registers: Registers, op: Store, is_transposed: bool) -> tuple[Affine, ...] | None:
    """Return the positions without lane // 4 in the row and lane % 4 · 2 in the column (swapped for transposed blocks);
    None where lanes add anything else."""
    found, row = [], 1 if is_transposed else 2
    for axis, v in enumerate(op.at):
        s = registers.positions.of(v)
        own = {x: factor for x, factor in s.terms.items() if registers.positions.varies(x)}
        after = len(op.at) - axis
        if after == row:
            as_wanted = _is_lane_by_four(registers, own, FloorDiv, 1)
        elif after <= 2:
            as_wanted = _is_lane_by_four(registers, own, Mod, 2)
        else:
            as_wanted = not own
        if not as_wanted:
            return None
        found.append(replace(s, terms={x: factor for x, factor in s.terms.items() if x not in own}))
    return tuple(found)


def _is_lane_by_four(registers: Registers, terms: dict[Value, int], kind: type[Op], wanted: int) -> bool:
    """Return whether the only term is `wanted` times lane // 4 or lane % 4, as `kind` says."""
    if len(terms) != 1:
        return False
    ((v, factor),) = terms.items()
    maker = registers.positions.maker(v)
    if not isinstance(maker, (FloorDiv, Mod)) or not isinstance(maker, kind) or factor != wanted:
        return False
    return isinstance(registers.positions.maker(maker.a), Lane) and registers.positions.of(maker.b) == Affine(4)
