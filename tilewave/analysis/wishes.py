"""What the author requested of the machine and did not get: the waves and instruction used instead, and why."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewave.ir.core import Kernel
from tilewave.ir.ops import Mma
from tilewave.ir.rewrite import walk
from tilewave.ir.types import dims


def not_as_asked(
    asked: Kernel, chosen: Kernel, taken: Kernel, instructions: Sequence[str], chip: str
) -> tuple[str, ...]:
    """Return sentences on which requests were not met.

    `chosen` is the kernel after the choice of instructions, `taken` the kernel of each lane.
    """
    said = []
    used = ", ".join(instructions)
    if asked.waves and prod(asked.waves) > 1 and asked.waves != taken.waves:
        more = prod(taken.waves) - prod(chosen.waves)
        why = f"{used} is computed by warpgroups, stacked along the rows" if instructions else f"{chip} has no other"
        also = f", and {more} more load the tiles" if more > 0 else ""
        said.append(f"waves: {dims(asked.waves)} were asked for, {dims(taken.waves)} were taken: {why}{also}")
    products = [op for op in walk(asked.body) if isinstance(op, Mma)]
    wishes = dict.fromkeys(op.wish or asked.matrix for op in products)
    for wish in wishes:
        if wish and instructions and wish not in instructions:
            said.append(f"mma_type: {wish} was asked for, {used} was taken: {chip} multiplies these dtypes so")
    return tuple(said)
