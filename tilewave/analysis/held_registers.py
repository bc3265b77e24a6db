"""How much a lane holds of a vector, and how much of one it may hold over a barrier."""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Value
from tilewave.ir.types import Vector

MOST_HELD_BYTES = 192
"""Of one vector over a barrier: a lane has 256 bytes of registers where a thousand of them share a processor."""


def held_bytes(v: Value) -> int:
    """That a lane holds."""
    return prod(v.type.shape) * v.type.dtype.bytes if isinstance(v.type, Vector) else 0
