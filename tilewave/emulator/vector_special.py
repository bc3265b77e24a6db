"""Vector instructions with unusual operands: carries, lane operations, divisions and mixed formats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewave.emulator.division import DIVISION
from tilewave.emulator.instruction import EXEC, Operand
from tilewave.emulator.machine import LANES, Convoy, lanes_of, mask_of
from tilewave.emulator.numbers import (
    I64,
    LETTERS,
    MASK32,
    U32,
    U64,
    Array,
)
from tilewave.emulator.sources import selected_source
from tilewave.emulator.step import SCALAR_ROWS, Draft, Early, Execute, nothing
from tilewave.emulator.vector_mixed import MIXED
from tilewave.emulator.vector_table import count_ones

LANE = np.arange(LANES)


def _spread(c: Convoy, values: Array) -> Array:
    return np.broadcast_to(values, (c.count, LANES))


def _nop(draft: Draft) -> Execute:
    draft.unit = "scalar"
    return nothing


# -- moves between registers and lanes ---------------------------------------------------------------------------------


def _next(operand: Operand, step: int) -> Operand:
    return Operand(operand.text, operand.kind, operand.row + step)


def _move_pair(draft: Draft) -> Execute:
    picks = draft.instruction.flags("op_sel", (0, 0))
    sources = [o if o.is_constant else _next(o, pick) for o, pick in zip(draft.operands[1:3], picks, strict=False)]
    a, b = (draft.source(o, "u") for o in sources)
    row = draft.operands[0].row
    draft.vector_writes += [row, row + 1]
    for target, source in zip((row, row + 1), sources, strict=True):
        scalars = SCALAR_ROWS if source.kind == "scalar" else 0
        draft.flows[target] = () if source.is_constant else (source.row + scalars,)

    def execute(c: Convoy) -> None:
        first, second = a(c).copy(), b(c).copy()
        c.put(c.vu, row, first)
        c.put(c.vu, row + 1, second)

    return execute


def _swap(draft: Draft) -> Execute:
    a, b = (o.row for o in draft.operands)
    draft.vector_reads += [a, b]
    draft.vector_writes += [a, b]

    def execute(c: Convoy) -> None:
        first, second = c.vu[a, c.sel].copy(), c.vu[b, c.sel].copy()
        c.put(c.vu, a, second)
        c.put(c.vu, b, first)

    return execute


def _lane_swap(step: int) -> Callable[[Draft], Execute]:
    """The upper lanes of the first register and the lower lanes of the second change places."""
    upper = (LANE & step) != 0
    below, above = LANE[upper] - step, LANE[~upper] + step

    def build(draft: Draft) -> Execute:
        first, second = (o.row for o in draft.operands)
        draft.vector_reads += [first, second]
        draft.vector_writes += [first, second]
        draft.early += [Early(row, 2, "changes lanes") for row in (first, second)]

        def execute(c: Convoy) -> None:
            a, b = c.vu[first, c.sel].copy(), c.vu[second, c.sel].copy()
            new_a, new_b = a.copy(), b.copy()
            new_a[:, upper], new_b[:, ~upper] = b[:, below], a[:, above]
            c.put(c.vu, first, new_a)
            c.put(c.vu, second, new_b)

        return execute

    return build


def _takes_lanes(draft: Draft, value: Operand | None, lane: Operand | None) -> None:
    """What an instruction that picks lanes needs early."""
    if value is not None and value.kind == "vector":
        draft.early.append(Early(value.row, 1, "is read lane by lane"))
    if lane is not None and lane.kind == "scalar":
        draft.early.append(Early(SCALAR_ROWS + lane.row, 4, "selects a lane"))
    draft.early.append(Early(SCALAR_ROWS + EXEC, 4, "says which lanes there are"))


def _read_first_lane(draft: Draft) -> Execute:
    value, write = draft.source(draft.operands[1], "u"), draft.scalar_target(draft.operands[0], 32)
    _takes_lanes(draft, draft.operands[1], None)

    def execute(c: Convoy) -> None:
        first = np.argmax(c.on, axis=1)  # 0 where no lane is on, as the hardware does
        write(c, _spread(c, value(c))[np.arange(c.count), first].astype(U64))

    return execute


def _read_lane(draft: Draft) -> Execute:
    value = draft.source(draft.operands[1], "u")
    lane = draft.scalar_source(draft.operands[2], 32)
    _takes_lanes(draft, draft.operands[1], draft.operands[2])
    write = draft.scalar_target(draft.operands[0], 32)

    def execute(c: Convoy) -> None:
        picks = (lane(c) & U64(63)).astype(I64)
        write(c, _spread(c, value(c))[np.arange(c.count), picks].astype(U64))

    return execute


def _write_lane(draft: Draft) -> Execute:
    value, lane = (draft.scalar_source(o, 32) for o in draft.operands[1:3])
    row = draft.operands[0].row
    draft.vector_reads.append(row)
    draft.vector_writes.append(row)
    draft.keeps_rest = True
    draft.flows[row] = ()  # paths know registers, not lanes, and LLVM keeps whole tuples there, unwritten parts too
    _takes_lanes(draft, None, draft.operands[2])

    def execute(c: Convoy) -> None:
        c.vu[row, c.indices, (lane(c) & U64(63)).astype(I64)] = value(c).astype(U32)

    return execute


def _count_below(upper: int) -> Callable[[Draft], Execute]:
    below = np.array([(1 << max(0, min(32, lane - upper))) - 1 for lane in range(LANES)], U32)

    def build(draft: Draft) -> Execute:
        mask, start = (draft.source(o, "u") for o in draft.operands[1:3])
        write = draft.target(draft.operands[0], "u")
        return lambda c: write(c, count_ones(_spread(c, mask(c)) & below) + start(c))

    return build


# -- integers ----------------------------------------------------------------------------------------------------------


def _three_way_logic(letter: str) -> Callable[[Draft], Execute]:
    """Every function of three bits, by its table of eight."""

    def build(draft: Draft) -> Execute:
        a, b, third = (selected_source(draft, at, o, letter) for at, o in enumerate(draft.operands[1:4]))
        write, table = draft.target(draft.operands[0], letter), draft.instruction.integer("bitop3")

        def execute(c: Convoy) -> None:
            x, y, z = a(c), b(c), third(c)
            result = np.zeros((c.count, LANES), LETTERS[letter])
            for row in range(8):
                if table >> row & 1:
                    result |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
            write(c, result)

        return execute

    return build


def _carrying(formula: Callable[[Array, Array, Array], Array], *, carry_in: bool) -> Callable[[Draft], Execute]:
    def build(draft: Draft) -> Execute:
        operands = draft.operands
        a, b = (selected_source(draft, at, operands[2 + at], "u") for at in (0, 1))
        carry = draft.scalar_source(operands[4], 64) if carry_in else None
        write, write_carry = draft.target(operands[0], "u"), draft.scalar_target(operands[1], 64)

        def execute(c: Convoy) -> None:
            given = lanes_of(carry(c)).astype(I64) if carry else np.zeros((1, 1), I64)
            total = formula(a(c).astype(I64), b(c).astype(I64), given)
            outside = _spread(c, (total < 0) | (total > MASK32)) & c.on
            write(c, total.astype(U32))
            write_carry(c, mask_of(outside))

        return execute

    return build


def _multiply_add_wide(letter: str, wide_letter: str) -> Callable[[Draft], Execute]:
    wide = LETTERS[wide_letter]

    def build(draft: Draft) -> Execute:
        operands = draft.operands
        a, b = (draft.source(o, letter) for o in operands[2:4])
        third = draft.source(operands[4], wide_letter)
        write, write_carry = draft.target(operands[0], wide_letter), draft.scalar_target(operands[1], 64)

        def execute(c: Convoy) -> None:
            product, addend = a(c).astype(wide) * b(c).astype(wide), third(c)
            total = product + addend
            carry = total.view(U64) < product.view(U64)
            if wide_letter == "I":
                carry = carry ^ (product < 0) ^ (addend < 0)  # bit 64 of the sign-extended sum
            write(c, total)
            write_carry(c, mask_of(_spread(c, carry) & c.on))

        return execute

    return build


SPECIAL: dict[str, Callable[[Draft], Execute]] = {
    "nop": _nop,
    "pk_mov_b32": _move_pair,
    "swap_b32": _swap,
    "permlane32_swap_b32": _lane_swap(32),
    "permlane16_swap_b32": _lane_swap(16),
    "readfirstlane_b32": _read_first_lane,
    "readlane_b32": _read_lane,
    "writelane_b32": _write_lane,
    "mbcnt_lo_u32_b32": _count_below(0),
    "mbcnt_hi_u32_b32": _count_below(32),
    "bitop3_b32": _three_way_logic("u"),
    "bitop3_b16": _three_way_logic("s"),
    "add_co_u32": _carrying(lambda a, b, c: a + b, carry_in=False),
    "sub_co_u32": _carrying(lambda a, b, c: a - b, carry_in=False),
    "subrev_co_u32": _carrying(lambda a, b, c: b - a, carry_in=False),
    "addc_co_u32": _carrying(lambda a, b, c: a + b + c, carry_in=True),
    "subb_co_u32": _carrying(lambda a, b, c: a - b - c, carry_in=True),
    "subbrev_co_u32": _carrying(lambda a, b, c: b - a - c, carry_in=True),
    "mad_u64_u32": _multiply_add_wide("u", "U"),
    "mad_i64_i32": _multiply_add_wide("i", "I"),
    **DIVISION,
    **MIXED,
}
