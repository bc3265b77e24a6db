"""How much a lane holds of a vector, and how much of one it may hold over a barrier."""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Value
from tilewave.ir.types import Vector

MOST_HELD_BYTES = 192
"""Of one vector over a barrier: a lane has 256 bytes of registers where a thousand of them share a processor."""


REGISTER_BYTES = 4


def loaded_bytes(v: Value, vector_bytes: int) -> int:
    """Of registers, of what loads bring that move so many bytes at once: what is narrower has a register to itself."""
    elements = prod(v.type.shape) if isinstance(v.type, Vector) else 0
    return elements * REGISTER_BYTES if vector_bytes < REGISTER_BYTES else held_bytes(v)


def held_bytes(v: Value) -> int:
    """That a lane holds."""
    return prod(v.type.shape) * v.type.dtype.bytes if isinstance(v.type, Vector) else 0
