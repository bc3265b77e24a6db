"""How much of shared memory a kernel on lanes takes."""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Kernel, Value
from tilewave.ir.ops import Allocate, MakeMbarriers
from tilewave.ir.placements import elements, is_in
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Memory

MBARRIER_BYTES = 8
TILE_ALIGNMENT = 1 << 10
"""The alignment of tiles in shared memory, as swizzled ones need it."""


def shared_bytes(kernel: Kernel) -> int:
    """Return the bytes of a workgroup's tiles and mbarriers, with those between aligned tiles."""
    ops = list(walk(kernel.body))
    tiles = [memory_bytes(op.result) for op in ops if isinstance(op, Allocate) and is_in(op.result, "shared")]
    mbarriers = sum(prod(op.result.type.shape) for op in ops if isinstance(op, MakeMbarriers))
    return sum(size + -size % TILE_ALIGNMENT for size in tiles) + MBARRIER_BYTES * mbarriers


def memory_bytes(memory: Value) -> int:
    kind = memory.type
    assert isinstance(kind, Memory)
    return elements(kind) * kind.dtype.bytes
