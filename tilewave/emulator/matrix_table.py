"""The matrix instructions of the two chips: one row each, its passes and where it exists.

`v_mfma_f32_16x16x16_f16`: results in f32, A is 16×16, B 16×16 (K is the last number), operands in f16; `4b` means four
such products at once. A pass is four cycles. The passes are those that LLVM's wait states follow from.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewave.emulator.chips import CHIP_NAMES, OPINIONS, ChipName


class Entry(NamedTuple):
    """How many passes an instruction takes, and which chips have it."""

    passes: int
    chips: tuple[ChipName, ...] = CHIP_NAMES


NEW = tuple(chip for chip, has in OPINIONS.items() if has.newer_matrix)
OLD = tuple(chip for chip in CHIP_NAMES if chip not in NEW)
INSTRUCTIONS: dict[str, Entry] = {
    "f32_32x32x1_2b_f32": Entry(16),
    "f32_16x16x1_4b_f32": Entry(8),
    "f32_4x4x1_16b_f32": Entry(2),
    "f32_32x32x2_f32": Entry(16),
    "f32_16x16x4_f32": Entry(8),
    "f32_32x32x4_xf32": Entry(8, OLD),
    "f32_16x16x8_xf32": Entry(4, OLD),
    "f32_32x32x4_2b_f16": Entry(16),
    "f32_16x16x4_4b_f16": Entry(8),
    "f32_4x4x4_16b_f16": Entry(2),
    "f32_32x32x8_f16": Entry(8),
    "f32_16x16x16_f16": Entry(4),
    "f32_32x32x16_f16": Entry(8, NEW),
    "f32_16x16x32_f16": Entry(4, NEW),
    "f32_32x32x4_2b_bf16": Entry(16),
    "f32_16x16x4_4b_bf16": Entry(8),
    "f32_4x4x4_16b_bf16": Entry(2),
    "f32_32x32x8_bf16": Entry(8),
    "f32_16x16x16_bf16": Entry(4),
    "f32_32x32x16_bf16": Entry(8, NEW),
    "f32_16x16x32_bf16": Entry(4, NEW),
    "f32_32x32x16_fp8_fp8": Entry(8),
    "f32_32x32x16_fp8_bf8": Entry(8),
    "f32_32x32x16_bf8_fp8": Entry(8),
    "f32_32x32x16_bf8_bf8": Entry(8),
    "f32_16x16x32_fp8_fp8": Entry(4),
    "f32_16x16x32_fp8_bf8": Entry(4),
    "f32_16x16x32_bf8_fp8": Entry(4),
    "f32_16x16x32_bf8_bf8": Entry(4),
    "f32_32x32x64_f8f6f4": Entry(16, NEW),
    "f32_16x16x128_f8f6f4": Entry(8, NEW),
    "i32_32x32x4_2b_i8": Entry(16),
    "i32_16x16x4_4b_i8": Entry(8),
    "i32_4x4x4_16b_i8": Entry(2),
    "i32_32x32x16_i8": Entry(8),
    "i32_16x16x32_i8": Entry(4),
    "i32_32x32x32_i8": Entry(8, NEW),
    "i32_16x16x64_i8": Entry(4, NEW),
    "f64_16x16x4_f64": Entry(8),
    "f64_4x4x4_4b_f64": Entry(4),
}
