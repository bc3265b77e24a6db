"""The matrix instructions that an author may ask for, by Wave's names."""

from __future__ import annotations

from enum import Enum

from tilewave.errors import ConstraintError, Loc
from tilewave.lang.wave_words import GenericDot, ScaledMMAType

NAME_INSTRUCTION = "write mma_type=MMAType.F32_16x16x16_F16, or leave it out"


class MMAType(Enum):
    """The matrix instructions that can be asked for: accumulator, rows x columns x depth, inputs.

    They are those of a single wave, and the one of a warpgroup that is never chosen unasked.
    """

    F32_16x16x4_F32 = "f32_16x16x4_f32"
    F32_32x32x2_F32 = "f32_32x32x2_f32"
    F32_16x16x16_F16 = "f32_16x16x16_f16"
    F32_32x32x8_F16 = "f32_32x32x8_f16"
    F32_16x16x16_BF16 = "f32_16x16x16_bf16"
    F32_32x32x8_BF16 = "f32_32x32x8_bf16"
    F32_16x16x32_F16 = "f32_16x16x32_f16"
    F32_32x32x16_F16 = "f32_32x32x16_f16"
    F32_16x16x32_BF16 = "f32_16x16x32_bf16"
    F32_32x32x16_BF16 = "f32_32x32x16_bf16"
    F32_16x16x32_F8 = "f32_16x16x32_fp8_fp8"
    F32_16x16x32_F8_BF8 = "f32_16x16x32_fp8_bf8"
    F32_16x16x32_BF8_F8 = "f32_16x16x32_bf8_fp8"
    F32_16x16x32_BF8 = "f32_16x16x32_bf8_bf8"
    F32_32x32x16_F8 = "f32_32x32x16_fp8_fp8"
    F32_32x32x16_BF8 = "f32_32x32x16_bf8_bf8"
    I32_16x16x32_I8 = "i32_16x16x32_i8"
    I32_32x32x16_I8 = "i32_32x32x16_i8"
    I32_16x16x64_I8 = "i32_16x16x64_i8"
    I32_32x32x32_I8 = "i32_32x32x32_i8"
    F32_64xNx8_TF32 = "f32_64xNx8_tf32"
    """f32 operands whose last 13 bits are ignored."""

    F32_16x16x32_K8_F16 = "f32_16x16x32_k8_f16"
    """From here on: instructions of other chips, or chains of several. Each target takes its own with as many rows."""
    F32_32x32x16_K8_F16 = "f32_32x32x16_k8_f16"
    F32_16x16x32_K4_F8 = "f32_16x16x32_k4_fp8"
    F32_32x32x16_K4_F8 = "f32_32x32x16_k4_fp8"
    I32_16x16x16_I8 = "i32_16x16x16_i8"
    I32_32x32x8_I8 = "i32_32x32x8_i8"
    RDNA4_WAVE32_F32_16x16x16_F16 = "rdna4_wave32_f32_16x16x16_f16"
    GFX1250_F32_16x16x32_F16 = "gfx1250_f32_16x16x32_f16"


def instruction_asked(where: str, mma_type: object, loc: Loc) -> MMAType | None:
    """Return the instruction that an author asks for; None where the target chooses."""
    if mma_type is None or isinstance(mma_type, (GenericDot, ScaledMMAType)):
        return None
    if not isinstance(mma_type, MMAType):
        raise ConstraintError(f"{where}mma_type is {mma_type!r}, no MMAType", loc=loc, remedy=NAME_INSTRUCTION)
    return mma_type
