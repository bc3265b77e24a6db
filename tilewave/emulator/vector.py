"""Vector instructions that follow a row of a table: arithmetic, comparisons, packed halves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewave.emulator.float_table import (
    COMPARED,
    COMPARISONS,
    IN_IEEE_MODE,
    PACKED16,
    PACKED32,
    ROWS,
    TRANSCENDENTAL,
    clamped,
    classes,
)
from tilewave.emulator.instruction import EXEC, Operand, parse_operand
from tilewave.emulator.kernel import IEEE_MODE
from tilewave.emulator.machine import Convoy, lanes_of, mask_of
from tilewave.emulator.numbers import F16, LETTERS, U16, U32, Array, constant_bits
from tilewave.emulator.sources import dpp_pattern, is_dpp, selected_source, written_lanes
from tilewave.emulator.step import SCALAR_ROWS, Draft, Execute, Reader, Writer, unsupported
from tilewave.emulator.vector_mixed import MIXES
from tilewave.emulator.vector_special import SPECIAL
from tilewave.emulator.vector_table import Formula, saturating_add, saturating_subtract, two_halves

SUFFIXES = ("_e32", "_e64_dpp", "_e64", "_sdwa", "_dpp")
BY_HALVES = ("lshl_add_u64", "lshlrev_b64", "mov_b64", "mad_u64_u32", "mad_i64_i32")
SHIFTS_DOWN = ("lshrrev_b64", "ashrrev_i64")
SATURATING = {
    **{f"add_{kind}": saturating_add for kind in ("u32", "u16")},
    **{f"sub_{kind}": saturating_subtract for kind in ("u32", "u16")},
}
"""What clamping makes of sums of integers."""
NO_FLAGS, ALL_FLAGS = (0, 0, 0), (1, 1, 1)


def build_vector(draft: Draft) -> Execute | None:
    """The meaning of a vector instruction; None where there is none."""
    name = base_name(draft.instruction.mnemonic)
    draft.unit = "transcendental" if name.rsplit("_", 1)[0] in TRANSCENDENTAL else "vector"
    if "clamp" in draft.modifiers and not _clamps(name):
        raise unsupported(draft.instruction, "this instruction is known without clamp")
    execute = _built(draft, name)
    if name in BY_HALVES:
        draft.split_by_halves()
    if name in SHIFTS_DOWN:
        draft.follow_shift_down()
    return execute


def _clamps(name: str) -> bool:
    """Whether it is known with `clamp`; where conversions and comparisons have it, it is about exceptions."""
    if name in ROWS:
        return ROWS[name].result in "fhF" or name in SATURATING or name.startswith("cvt_")
    if name in PACKED16:
        return PACKED16[name][0].startswith("h")
    return name in PACKED32 or name in MIXES or name.startswith("cmp") or name == "cndmask_b32"


def _built(draft: Draft, name: str) -> Execute | None:
    if name in ROWS:
        return _by_row(draft, name)
    if name.startswith(("cmp_", "cmpx_")):
        return _compare(draft, name)
    if name in PACKED16:
        return _packed16(draft, *PACKED16[name], IN_IEEE_MODE.get(name))
    if name in PACKED32:
        return _packed32(draft, *PACKED32[name])
    if name == "cndmask_b32":
        return _select(draft)
    special = SPECIAL.get(name)
    return special(draft) if special else None


def base_name(mnemonic: str) -> str:
    """`add_f32` of `v_add_f32_e64_dpp`."""
    for suffix in SUFFIXES:
        if mnemonic.endswith(suffix):
            return mnemonic[2 : -len(suffix)]
    return mnemonic[2:]


def _by_row(draft: Draft, name: str) -> Execute:
    result, types, formula = ROWS[name]
    accumulates, types = types.endswith("+"), types.rstrip("+")
    if "clamp" in draft.modifiers:
        formula = SATURATING.get(name, formula)
    readers = [selected_source(draft, at, draft.operands[1 + at], letter) for at, letter in enumerate(types)]
    if accumulates:
        readers.append(draft.source(draft.operands[0], result))
    if name.startswith("cvt_pk"):
        draft.follow_first()
    return _computed(draft, result, formula, readers, IN_IEEE_MODE.get(name))


def _computed(
    draft: Draft, result: str, formula: Formula, readers: list[Reader], in_ieee_mode: Formula | None = None
) -> Execute:
    """Read, compute, round and clamp as the modifiers and the mode say, and write.

    `mul:2` and its like have no effect: the hardware scales results only where denormals are flushed.
    """
    write = _destination(draft, result, len(readers))
    clamps = "clamp" in draft.modifiers and result in "fhF"
    if clamps or in_ieee_mode:
        by_mode = _by_mode(formula, in_ieee_mode or formula, clamped if clamps else None)
        return lambda c: write(c, by_mode(c.machine.mode)(*(read(c) for read in readers)))
    match readers:
        case [a]:
            return lambda c: write(c, formula(a(c)))
        case [a, b]:
            return lambda c: write(c, formula(a(c), b(c)))
        case [a, b, third]:
            return lambda c: write(c, formula(a(c), b(c), third(c)))
        case _:
            raise AssertionError(draft.instruction.text)


def _by_mode(
    formula: Formula, in_ieee_mode: Formula, finish: Callable[[Array, int], Array] | None
) -> Callable[[int], Formula]:
    def of_mode(mode: int) -> Formula:
        chosen = in_ieee_mode if mode & IEEE_MODE else formula
        return chosen if finish is None else lambda *operands: finish(chosen(*operands), mode)

    return of_mode


def _destination(draft: Draft, letter: str, sources: int) -> Writer:
    part = draft.modifiers.get("dst_sel")
    if part and part != "DWORD":
        write = _part_writer(draft, part)
    else:
        halves = draft.instruction.flags("op_sel", ())
        upper = letter in "hsw" and len(halves) > sources and bool(halves[-1])
        write = draft.target(draft.operands[0], letter, half="high" if upper else "none")
        draft.shifts_result = upper
    if not is_dpp(draft.instruction.mnemonic):
        return write
    pattern = dpp_pattern(draft)
    return lambda c, v: write(c, v, written_lanes(c, pattern))


def _part_writer(draft: Draft, part: str) -> Writer:
    """Write a byte or a word of a register; the rest is kept, cleared or filled with the sign."""
    row = draft.operands[0].row
    draft.vector_writes.append(row)
    kind, number = part.split("_")
    bits = 8 if kind == "BYTE" else 16
    shift = int(number) * bits
    mask = ((1 << bits) - 1) << shift
    rest = draft.modifiers.get("dst_unused", "UNUSED_PAD")
    draft.shifts_result = True
    if rest == "UNUSED_PRESERVE":
        draft.vector_reads.append(row)
        draft.keeps_rest = True

    def write(c: Convoy, value: Array, where: Array | None = None) -> None:
        pattern = np.ascontiguousarray(value).view(U16 if value.dtype.itemsize == 2 else U32).astype(U32)
        placed = (pattern << U32(shift)) & U32(mask)
        if rest == "UNUSED_PRESERVE":
            placed = placed | (c.vu[row, c.sel] & U32(0xFFFFFFFF ^ mask))
        elif rest == "UNUSED_SEXT":
            negative = (placed >> U32(shift + bits - 1) & U32(1)).astype(bool)
            placed = np.where(negative, placed | U32(0xFFFFFFFF & ~((1 << (shift + bits)) - 1)), placed)
        c.put(c.vu, row, placed, where)

    return write


def _compare(draft: Draft, name: str) -> Execute:
    _, condition, type_name = name.split("_", 2)
    letter = COMPARED[type_name]
    a = selected_source(draft, 0, draft.operands[1], letter)
    b = selected_source(draft, 1, draft.operands[2], "u" if condition == "class" else letter)
    test = classes if condition == "class" else COMPARISONS[condition]
    write, sets_exec = draft.scalar_target(draft.operands[0], 64), name.startswith("cmpx_")
    draft.scalar_writes += [EXEC, EXEC + 1] if sets_exec else []

    def execute(c: Convoy) -> None:
        lanes = np.broadcast_to(test(a(c), b(c)), c.on.shape) & c.on
        mask = mask_of(lanes)
        write(c, mask)
        if sets_exec:
            c.put_scalar64(EXEC, mask)

    return execute


def _select(draft: Draft) -> Execute:
    operands = draft.operands
    letter = "f" if any(o.negated or o.absolute for o in operands[1:3]) else "u"
    a, b = selected_source(draft, 0, operands[1], letter), selected_source(draft, 1, operands[2], letter)
    chosen = draft.scalar_source(operands[3] if len(operands) > 3 else parse_operand("vcc"), 64)
    return _computed(draft, letter, _chosen, [a, b, lambda c: lanes_of(chosen(c))])


def _chosen(a: Array, b: Array, second: Array) -> Array:
    return np.where(second, b, a)


def _packed16(draft: Draft, types: str, formula: Formula, in_ieee_mode: Formula | None) -> Execute:
    count, dtype = len(types), LETTERS[types[0]]
    flags = draft.instruction.flags
    low, high = flags("op_sel", NO_FLAGS), flags("op_sel_hi", ALL_FLAGS)
    negate_low, negate_high = flags("neg_lo", NO_FLAGS), flags("neg_hi", NO_FLAGS)
    readers = [_pair_of_halves(draft, operand) for operand in draft.operands[1 : 1 + count]]
    write, clamps = draft.target(draft.operands[0], "u"), "clamp" in draft.modifiers and dtype is F16
    by_mode = _by_mode(formula, in_ieee_mode or formula, clamped if clamps else None)

    def half(value: Array, upper: int, negated: int) -> Array:
        bits: Array = (value >> U32(16) if upper else value).astype(U16).view(dtype)
        return -bits if negated else bits

    def execute(c: Convoy) -> None:
        values, compute = [read(c) for read in readers], by_mode(c.machine.mode)
        lower = compute(*[half(v, low[at], negate_low[at]) for at, v in enumerate(values)])
        upper = compute(*[half(v, high[at], negate_high[at]) for at, v in enumerate(values)])
        write(c, two_halves(np.ascontiguousarray(lower).view(U16), np.ascontiguousarray(upper).view(U16)))

    return execute


def _pair_of_halves(draft: Draft, operand: Operand) -> Reader:
    if not operand.is_constant:
        return draft.source(operand, "u")
    is_float = operand.kind == "float"
    bits = constant_bits(operand.text, operand.number, is_float, "h" if is_float else "u")
    value = np.array([[bits]], U32)
    return lambda c: value


def _packed32(draft: Draft, count: int, formula: Formula) -> Execute:
    flags = draft.instruction.flags
    low, high = flags("op_sel", NO_FLAGS), flags("op_sel_hi", ALL_FLAGS)
    negate_low, negate_high = flags("neg_lo", NO_FLAGS), flags("neg_hi", NO_FLAGS)
    row, operands = draft.operands[0].row, draft.operands[1 : 1 + count]
    lows = [_word(draft, operand, low[at], row) for at, operand in enumerate(operands)]
    highs = [_word(draft, operand, high[at], row + 1) for at, operand in enumerate(operands)]
    draft.vector_writes += [row, row + 1]
    clamps = "clamp" in draft.modifiers

    def side(c: Convoy, readers: list[Reader], signs: tuple[int, ...]) -> Array:
        values = [read(c) for read in readers]
        return formula(*[-v if signs[at] else v for at, v in enumerate(values)])

    def execute(c: Convoy) -> None:
        lower, upper = side(c, lows, negate_low), side(c, highs, negate_high)
        if clamps:
            lower, upper = (clamped(x, c.machine.mode) for x in (lower, upper))
        c.put(c.vf, row, lower)
        c.put(c.vf, row + 1, upper)

    return execute


def _word(draft: Draft, operand: Operand, pick: int, target: int) -> Reader:
    """One word of a pair, for one word of the result."""
    if operand.is_constant:
        return draft.source(operand, "f")
    row = operand.row + pick
    known = row + (SCALAR_ROWS if operand.kind == "scalar" else 0)
    draft.flows[target] = (*draft.flows.get(target, ()), known)
    return draft.source(Operand(operand.text, operand.kind, row), "f")
