"""Bank conflicts: how many cycles shared memory takes for one access of a wave.

Lanes of one phase that access different words of a bank are served one after the other. With 32 banks a 16-byte read
takes 8 phases of 8 lanes: {0–3, 20–23}, {4–7, 16–19}, {8–11, 28–31}, {12–15, 24–27}, then the same for lanes 32–63;
with 64 banks, 4 phases of 16 lanes. Other widths serve consecutive lanes (`chips.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from tilewave.emulator.chips import OPINIONS, QUADS_OF_8_LANES, ChipName

Direction = Literal["read", "write"]
WRITE_BYTES, WRITE_BANKS = 128, 32


class Cycles(NamedTuple):
    """What an access takes, and what it would take without conflicts."""

    taken: int
    least: int


@lru_cache(maxsize=64)
def phases(chip: ChipName, direction: Direction, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the lanes that shared memory serves together, one tuple per phase."""
    if direction == "read" and size in (12, 16):
        quads = OPINIONS[chip].quads if size == 16 else QUADS_OF_8_LANES
        return tuple(
            tuple(4 * quad + lane + half for quad in group for lane in range(4)) for half in (0, 32) for group in quads
        )
    width = OPINIONS[chip].read_bytes if direction == "read" and size >= 4 else WRITE_BYTES
    lanes = min(width // max(size, 4), 64)
    return tuple(tuple(range(first, first + lanes)) for first in range(0, 64, lanes))


def bank_count(chip: ChipName, direction: Direction, size: int) -> int:
    return OPINIONS[chip].read_banks if direction == "read" and size != 12 else WRITE_BANKS


def access_cycles(
    chip: ChipName, direction: Direction, size: int, addresses: Sequence[int], on: Sequence[bool]
) -> Cycles:
    """One access of 64 lanes at these byte addresses."""
    banks = bank_count(chip, direction, size)
    taken, groups = 0, phases(chip, direction, size)
    for group in groups:
        words: defaultdict[int, set[int]] = defaultdict(set)
        for lane in group:
            if on[lane]:
                for word in range(addresses[lane] // 4, -(-(addresses[lane] + size) // 4)):
                    words[word % banks].add(word)
        taken += max([1, *map(len, words.values())])
    return Cycles(taken, len(groups))
