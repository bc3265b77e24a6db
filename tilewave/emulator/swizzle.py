"""The lane patterns of ds_swizzle_b32, from the number that encodes them or from their names."""

from __future__ import annotations

import re

import numpy as np

from tilewave.emulator.instruction import Instruction
from tilewave.emulator.machine import LANES
from tilewave.emulator.numbers import Array
from tilewave.emulator.step import unsupported

LANE = np.arange(LANES)
NAMED = re.compile(r'swizzle\((\w+),\s*"?([\w,\s]*)"?\)')


def swizzled_lanes(instruction: Instruction) -> Array:
    """From which lane each lane reads."""
    text = instruction.modifiers.get("offset", "0")
    if text.startswith("swizzle("):
        return _named(instruction, text)
    code = int(text, 0)
    assert 0 <= code < 1 << 16
    if code & 0x8000:
        return _quad([(code >> (2 * lane)) & 3 for lane in range(4)])
    return _bits(code & 31, (code >> 5) & 31, (code >> 10) & 31)


def _quad(picks: list[int]) -> Array:
    assert len(picks) == 4 and all(0 <= n < 4 for n in picks)
    result: Array = (LANE & ~3) + np.array(picks)[LANE & 3]
    return result


def _bits(kept: int, ones: int, flipped: int) -> Array:
    assert all(0 <= mask < 32 for mask in (kept, ones, flipped))
    return (LANE & 32) | ((((LANE & 31) & kept) | ones) ^ flipped)


def _named(instruction: Instruction, text: str) -> Array:
    found = NAMED.fullmatch(text)
    if found is None:
        raise unsupported(instruction, "this lane pattern is not known")
    match found[1]:
        case "QUAD_PERM":
            return _quad([int(x) for x in found[2].split(",")])
        case "BITMASK_PERM":
            masks = found[2].strip()
            kept = sum(1 << (4 - at) for at, char in enumerate(masks) if char in "pi")
            ones = sum(1 << (4 - at) for at, char in enumerate(masks) if char == "1")
            flipped = sum(1 << (4 - at) for at, char in enumerate(masks) if char == "i")
            return _bits(kept, ones, flipped)
        case "BROADCAST":
            size, lane = (int(x) for x in found[2].split(","))
            return _bits(32 - size, lane, 0)
        case "SWAP":
            return _bits(31, 0, int(found[2]))
        case "REVERSE":
            return _bits(31, 0, int(found[2]) - 1)
        case _:
            raise unsupported(instruction, f"the lane pattern {found[1]} is not known")
