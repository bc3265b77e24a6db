"""Exchange of a word with the lane whose number differs in one bit, by AMD instructions.

    bit 0, 1    quad_perm: four lanes in any order          bit 4    a swizzle of 32 lanes, or a swap of rows
    bit 2       two mirrors: 7 - lane, then 3 - lane        bit 5    from any lane to any, or a swap of halves
    bit 3       row_ror: a row of 16 rotated by half

Exchanges within a row are part of the instruction that uses them, so they are free (data-parallel primitives, DPP).
Where lanes that differ in bits 0 and 1 have equal words, one mirror is enough for bit 2.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewave.lower.llvm import LlvmFunction

NEIGHBOUR, NEXT_PAIR, MIRRORED = 0b10_11_00_01, 0b01_00_11_10, 0b00_01_10_11
"""quad_perm: the source among four lanes, two bits for each lane."""
ROW_ROTATED_BY_8, HALF_ROW_MIRRORED = 0x128, 0x141
"""DPP controls: row_ror:8 and row_half_mirror."""
OTHER_ROW = 0x1F | 0x10 << 10
"""ds_swizzle: keep all bits of the lane's number, set none, flip the one of 16."""
IN_A_ROW = {0: (NEIGHBOUR,), 1: (NEXT_PAIR,), 2: (HALF_ROW_MIRRORED, MIRRORED), 3: (ROW_ROTATED_BY_8,)}
SWAPS = {4: "llvm.amdgcn.permlane16.swap", 5: "llvm.amdgcn.permlane32.swap"}
ROW_BITS = 4


def in_a_row(f: LlvmFunction, word: str, bit: int, same: Collection[int]) -> str:
    """Return the word of a lane in the same row of 16."""
    controls = (HALF_ROW_MIRRORED,) if bit == 2 and {0, 1} <= set(same) else IN_A_ROW[bit]
    for control in controls:
        kinds = [("i32", "poison"), ("i32", word), ("i32", str(control)), ("i32", "15"), ("i32", "15"), ("i1", "true")]
        word = f.call("i32", "llvm.amdgcn.update.dpp.i32", kinds)
    return word


def of_other_row(f: LlvmFunction, word: str) -> str:
    return f.call("i32", "llvm.amdgcn.ds.swizzle", [("i32", word), ("i32", str(OTHER_ROW))])


def swapped(f: LlvmFunction, word: str, bit: int) -> tuple[str, str]:
    """Return the words of both lanes, that of the lane without the bit first."""
    pair = f.call("{ i32, i32 }", SWAPS[bit], [("i32", word), ("i32", word), ("i1", "false"), ("i1", "false")])
    first, second = (f.value(f"extractvalue {{ i32, i32 }} {pair}, {i}") for i in (0, 1))
    return first, second
