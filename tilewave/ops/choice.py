"""How the products of `tilewave.ops` are cut: a rule by shape and target.

Kernels whose tiles are left open are decided by `tilewave.tune`; these are to ask it too, in place of the rule.
"""

from __future__ import annotations

from enum import Enum
from math import prod

from tilewave.errors import TargetError, here
from tilewave.ir.types import F32, DType
from tilewave.kernels.linear import ProductBlocks
from tilewave.kernels.products import accumulator
from tilewave.lang.constraints import MMAType
from tilewave.machine.chips import CHIPS, Chip
from tilewave.machine.matrix import instructions_for

STEP_BYTES = 128
"""Of a step along K on a GPU: a line of its caches."""
CPU_STEP = 64
ON_A_GPU = ((128, 256), (128, 128), (64, 128), (64, 64))
ON_A_CPU = ((128, 256), (64, 128), (32, 64), (16, 32))
"""Tiles from large to small: a large one reads less, a small one leaves nobody without work."""
CPU_TILES = 8
"""As many tiles as four threads need for two each."""
FEWER_DIGITS = {F32: MMAType.F32_64xNx8_TF32}
"""The matrix instruction that ignores some digits of a dtype."""


class Digits(Enum):
    """What products may do with the digits of their factors."""

    ALL = "all"
    FEWER = "fewer"
    """Ignore some of them, where a chip cannot do better."""


def blocks_for(target: str, shape: tuple[int, ...], dtype: DType, digits: Digits, beside: int = 0) -> ProductBlocks:
    """The tile for products of this shape: the largest that gives everybody one.

    `beside` counts the arrays of the same shape that are read or written on the way: with one, a GPU's largest tile
    leaves too few registers.
    """
    chip = CHIPS.get(target)
    tiles, wanted = (ON_A_GPU[1 if beside else 0 :], chip.processors) if chip else (ON_A_CPU, CPU_TILES)
    m, n = next((tile for tile in tiles if _count(shape, tile) >= wanted), tiles[-1])
    if chip is None:
        return ProductBlocks(m, n, CPU_STEP)
    return ProductBlocks(m, n, STEP_BYTES // dtype.bytes, "grouped(8)", _instruction(chip, dtype, digits))


def _count(shape: tuple[int, ...], tile: tuple[int, int]) -> int:
    """Of tiles that cover the last two axes, in all batches."""
    *batch, rows, cols = shape
    return prod(batch) * -(-rows // tile[0]) * -(-cols // tile[1])


def _instruction(chip: Chip, dtype: DType, digits: Digits) -> MMAType | None:
    """The one to ask for, where the chip has none that keeps all digits."""
    acc = accumulator(dtype)
    fewer = FEWER_DIGITS.get(dtype)
    if fewer is None or any(True for _ in instructions_for(chip.matrix, dtype.name, dtype.name, acc.name)):
        return None
    if digits is Digits.ALL:
        what = f"{chip.name} has no products of {dtype} that keep all its digits"
        remedy = "torch.set_float32_matmul_precision('high') lets it ignore some; or cast to f16 or bf16"
        raise TargetError(what, loc=here(), remedy=remedy)
    return fewer
