"""Which elements of two memories share bytes, where one memory aliases the other.

x_shared, 4x8 of f16      a row is 16 bytes:    x[0, 0] x[0, 1] x[0, 2] …
over it, 2x8 of f32       a row is 32 bytes:    c[0, 0]         c[0, 1] …        c[0, 0] meets x[0, 0] and x[0, 1]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewave.ir.core import Block, Value
from tilewave.ir.ops import Overlay
from tilewave.ir.placements import offset, size_bytes
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory

Array = np.ndarray[Any, Any]
NONE = -1
"""Padding: bytes that belong to no element."""


def meeting(a: Memory, b: Memory) -> Array:
    """Return for each element of a, in row order, the elements of b at its bytes: elements of a x bytes of each."""
    of_byte = np.full(max(map(size_bytes, (a, b))), NONE, np.int64)
    starts = _starts(b)
    for byte in range(b.dtype.bytes):
        of_byte[starts + byte] = np.arange(len(starts))
    found: Array = of_byte[_starts(a)[:, None] + np.arange(a.dtype.bytes)]
    return found


def lower_memories(block: Block) -> dict[Value, Value]:
    """Return, for each memory that aliases another, the memory that was allocated."""
    found: dict[Value, Value] = {}
    for op in walk(block):
        if isinstance(op, Overlay):
            found[op.result] = found.get(op.memory, op.memory)
    return found


def _starts(memory: Memory) -> Array:
    """Return the offset of the first byte of each element."""
    position = np.indices(memory.shape).reshape(memory.rank, -1)
    found: Array = offset(memory, *position) * memory.dtype.bytes
    return found
