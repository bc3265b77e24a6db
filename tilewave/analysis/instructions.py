"""The matrix instruction of a product, which a pass in front has chosen."""

from __future__ import annotations

from tilewave.ir.faults import lacking
from tilewave.ir.ops import Mma
from tilewave.machine.matrix import BY_NAME, MatrixInstruction


def instruction_of(op: Mma) -> MatrixInstruction:
    if not op.instruction:
        raise lacking("choose_instructions", "this product has no matrix instruction yet", op.loc)
    return BY_NAME[op.instruction]
