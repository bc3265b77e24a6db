"""Sources of vector operands that are not a whole register of the same lane: bytes, halves, other lanes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewave.emulator.instruction import EXEC, Operand
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.numbers import LETTERS, NARROW, U16, U32, WIDE, Array
from tilewave.emulator.step import SCALAR_ROWS, Draft, Early, Reader, signed_reader, unsupported

LANE = np.arange(LANES)
ROW, IN_ROW = LANE & ~15, LANE & 15
EVERY = np.ones(LANES, bool)


def selected_source(draft: Draft, index: int, operand: Operand, letter: str) -> Reader:
    """Operand number `index`, honouring SDWA selections, DPP and op_sel."""
    part = draft.modifiers.get(f"src{index}_sel")
    if part and part != "DWORD":
        return _retyped(draft, _part(draft, operand, part), letter, operand)
    if index == 0 and is_dpp(draft.instruction.mnemonic):
        raw, pattern = draft.source(plain(operand), "u"), dpp_pattern(draft)
        draft.early.append(Early(operand.row, 2, "is read across lanes"))
        draft.early.append(Early(SCALAR_ROWS + EXEC, 5, "says which lanes read across lanes"))
        return _retyped(draft, lambda c: moved(c, pattern, raw(c)), letter, operand)
    halves = draft.instruction.flags("op_sel", ())
    if letter in NARROW and index < len(halves) and halves[index] and operand.kind == "vector":
        raw = draft.source(plain(operand), "u")
        return _retyped(draft, lambda c: raw(c) >> U32(16), letter, operand)
    return draft.source(operand, letter)


def plain(operand: Operand) -> Operand:
    """The operand without signs, to take its bits."""
    return Operand(operand.text, operand.kind, operand.row, operand.count, operand.number)


def is_dpp(mnemonic: str) -> bool:
    return mnemonic.endswith("_dpp")


PARTS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1")


def _part(draft: Draft, operand: Operand, part: str) -> Reader:
    """A byte or a word of a register, zero- or sign-extended."""
    assert part in PARTS
    kind, number = part.split("_")
    bits = 8 if kind == "BYTE" else 16
    shift, mask, sign = U32(int(number) * bits), U32((1 << bits) - 1), U32(1 << (bits - 1))
    raw = draft.source(plain(operand), "u")
    if operand.extended:
        return lambda c: (((raw(c) >> shift) & mask) ^ sign) - sign
    return lambda c: (raw(c) >> shift) & mask


def _retyped(draft: Draft, bits: Reader, letter: str, operand: Operand) -> Reader:
    if letter in WIDE:
        raise unsupported(draft.instruction, "64-bit operands have no parts")
    dtype = LETTERS[letter]
    if letter in NARROW:
        read: Reader = lambda c: bits(c).astype(U16).view(dtype)  # noqa: E731
    else:
        read = lambda c: np.ascontiguousarray(bits(c)).view(dtype)  # noqa: E731
    return signed_reader(read, operand) if letter in "fh" else read


# -- data-parallel primitives: a lane reads another lane's register ---------------------------------------------------


class Pattern(NamedTuple):
    """From which lane each lane reads, whether there is one, and which lanes are written."""

    lane: Array
    exists: Array
    written: Array
    zero_outside: bool


def dpp_pattern(draft: Draft) -> Pattern:
    lane, exists = _lanes(draft)
    rows, banks = _mask(draft, "row_mask"), _mask(draft, "bank_mask")
    written = ((rows >> (LANE // 16)) & 1).astype(bool) & ((banks >> (LANE % 16 // 4)) & 1).astype(bool)
    return Pattern(np.where(exists, lane, 0), exists, written, "bound_ctrl" in draft.modifiers)


def _mask(draft: Draft, name: str) -> int:
    mask = int(draft.modifiers.get(name, "0xf"), 0)
    assert 0 <= mask < 16
    return mask


def _lanes(draft: Draft) -> tuple[Array, Array]:
    modifiers, instruction = draft.modifiers, draft.instruction
    by = {name: instruction.integer(name) for name in ("row_shl", "row_shr", "row_ror", "row_newbcast", "row_bcast")
          if name in modifiers}  # fmt: skip
    assert all(0 <= n < 32 for n in by.values())
    match modifiers:
        case {"quad_perm": _}:
            picks = instruction.flags("quad_perm", ())
            assert all(0 <= n < 4 for n in picks)
            return (LANE & ~3) + np.array(picks)[LANE & 3], EVERY
        case {"row_shl": _}:
            return LANE + by["row_shl"], IN_ROW + by["row_shl"] < 16
        case {"row_shr": _}:
            return LANE - by["row_shr"], by["row_shr"] <= IN_ROW
        case {"row_ror": _}:
            return ROW + ((IN_ROW - by["row_ror"]) & 15), EVERY
        case {"row_newbcast": _}:
            return ROW + by["row_newbcast"], EVERY
        case {"row_mirror": _}:
            return ROW + 15 - IN_ROW, EVERY
        case {"row_half_mirror": _}:
            return (LANE & ~7) + 7 - (LANE & 7), EVERY
        case {"row_bcast": "15"}:
            return ROW - 1, LANE >= 16
        case {"row_bcast": "31"}:
            return (LANE & ~31) - 1, LANE >= 32
        case {"wave_shr": _}:
            return LANE - 1, LANE >= 1
        case {"wave_shl": _}:
            return LANE + 1, LANE < 63
        case {"wave_ror": _}:
            return (LANE - 1) & 63, EVERY
        case {"wave_rol": _}:
            return (LANE + 1) & 63, EVERY
        case _:
            raise unsupported(instruction, "its lane pattern is not known")


def moved(c: Convoy, pattern: Pattern, values: Array) -> Array:
    """What each lane reads; 0 where there is no lane to read from."""
    wide = np.broadcast_to(values, (c.count, LANES))
    return np.where(pattern.exists & c.on[:, pattern.lane], wide[:, pattern.lane], U32(0))


def written_lanes(c: Convoy, pattern: Pattern) -> Array:
    if pattern.zero_outside:
        return np.broadcast_to(pattern.written, c.on.shape)
    return pattern.written & pattern.exists & c.on[:, pattern.lane]
