"""The matrix instruction that products ask for: chips without a full-precision one drop operand bits, if allowed."""

from __future__ import annotations

from enum import Enum

from tilewave.errors import TargetError, here
from tilewave.ir.types import F32, DType
from tilewave.kernels.products import accumulator
from tilewave.lang.mma_types import MMAType
from tilewave.machine.chips import CHIPS
from tilewave.machine.matrix import instructions_for

FEWER_DIGITS = {F32: MMAType.F32_64xNx8_TF32}
"""The matrix instruction that drops low bits of a dtype's operands."""


class Digits(Enum):
    """The precision that products may use for their operands."""

    __hash__ = object.__hash__  # an Enum's own is a Python function, which each call of an operation would wait for

    ALL = "all"
    FEWER = "fewer"
    """Drop low bits where the chip has no instruction that keeps them."""


def instruction_for(target: str, dtype: DType, digits: Digits) -> MMAType | None:
    """Return the instruction to ask for where the chip has none that keeps all bits; else None."""
    chip, acc, fewer = CHIPS.get(target), accumulator(dtype), FEWER_DIGITS.get(dtype)
    if chip is None or fewer is None:
        return None
    if any(True for _ in instructions_for(chip.matrix, dtype.name, dtype.name, acc.name)):
        return None
    if digits is Digits.ALL:
        what = f"{chip.name} has no products of {dtype} that keep all its digits"
        remedy = "torch.set_float32_matmul_precision('high') lets it ignore some; or cast to f16 or bf16"
        raise TargetError(what, loc=here(), remedy=remedy)
    return fewer
