"""Register pressure: the bytes a lane holds of a vector, and how many of them it may keep across a barrier."""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Value
from tilewave.ir.types import Vector
from tilewave.machine.chips import Chip

MOST_HELD_BYTES = 192
"""The most bytes of one vector that a lane keeps across a barrier: with 1024 lanes on an SM a lane has 256 bytes."""


REGISTER_BYTES = 4
"""Bytes of one register; a load of fewer bytes fills a whole register (`loaded_bytes`)."""


def loaded_bytes(v: Value, vector_bytes: int) -> int:
    """Return the bytes of registers that loaded `v` takes; loads narrower than a register take one per element."""
    elements = prod(v.type.shape) if isinstance(v.type, Vector) else 0
    return elements * REGISTER_BYTES if vector_bytes < REGISTER_BYTES else held_bytes(v)


def held_bytes(v: Value) -> int:
    """Return how many bytes of a vector a lane holds; 0 for other values."""
    return prod(v.type.shape) * v.type.dtype.bytes if isinstance(v.type, Vector) else 0


MOST_IN_TURNS = 4
"""The most workgroups on an SM whose lanes load what they multiply."""
GROUP_WAVES = 4
"""The waves of a warpgroup, which multiplies the part of a sum."""
BESIDE = 40
"""Registers of such a lane beside its sums and what it loads: addresses, masks, and how far rows are shifted."""


def workgroups_in_turns(chip: Chip, lanes: int, sums: int, loaded_bytes: int, shared_bytes: int) -> int:
    """Return how many workgroups of so many lanes share an SM that load the operands of `sums` themselves.

    Unaligned rows are loaded in aligned blocks, twice as many bytes as they have.
    """
    held = REGISTER_BYTES * (sums + BESIDE * lanes) + 2 * loaded_bytes
    return max(1, min(MOST_IN_TURNS, chip.register_bytes // held, chip.shared.bytes // max(1, shared_bytes)))


def splits_in_turns(chip: Chip, sums: int, loaded_bytes: int) -> int:
    """Return how many workgroups of one warpgroup run at once that load what they multiply, parts of sums."""
    return chip.processors * workgroups_in_turns(chip, GROUP_WAVES * chip.lanes, sums, loaded_bytes, loaded_bytes)
