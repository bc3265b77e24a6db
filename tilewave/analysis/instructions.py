"""The matrix instruction of an `mma`, as `select_mma` chose it, and the layouts in which lanes hold its blocks."""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.faults import lacking
from tilewave.ir.ops import Mma
from tilewave.layouts.fragments import Fragment
from tilewave.machine.matrix import BY_NAME, MatrixInstruction


def instruction_of(op: Mma) -> MatrixInstruction:
    if not op.instruction:
        raise lacking("select_mma", "this product has no matrix instruction yet", op.loc)
    return BY_NAME[op.instruction]


def fragment_of(op: Mma) -> Fragment:
    """Return the fragment of one block of an MMA that each wave computes by itself."""
    return replace(instruction_of(op).fragment(op.depth), in_order=op.neighbours if op.in_order else "")
