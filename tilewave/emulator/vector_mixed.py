"""Vector instructions on mixed formats: multiply-adds with halves, dot products, 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewave.emulator.chips import OPINIONS
from tilewave.emulator.float_table import clamped
from tilewave.emulator.fused import fma
from tilewave.emulator.instruction import Operand
from tilewave.emulator.kernel import FP16_OVERFLOW
from tilewave.emulator.machine import LANES, Convoy
from tilewave.emulator.numbers import (
    F16,
    F32,
    F64,
    I8,
    I16,
    I64,
    LETTERS,
    U8,
    U16,
    U32,
    Array,
    from_bfloat16,
    to_float8,
    values_of,
)
from tilewave.emulator.sources import plain
from tilewave.emulator.step import Draft, Execute, Reader, signed_reader

NO_FLAGS = (0, 0, 0)


# -- multiply-adds and dot products ----------------------------------------------------------------------------------


def _mixed(draft: Draft) -> Reader:
    """A fused multiply-add whose operands are float32 or a half of a register."""
    from_half = draft.instruction.flags("op_sel_hi", NO_FLAGS)
    upper = draft.instruction.flags("op_sel", NO_FLAGS)
    readers = [_mixed_source(draft, o, from_half[at], upper[at]) for at, o in enumerate(draft.operands[1:4])]
    if "clamp" in draft.modifiers:
        return lambda c: clamped(fma(*[read(c).astype(F32) for read in readers]), c.machine.mode)
    return lambda c: fma(*[read(c).astype(F32) for read in readers])


def _mixed_source(draft: Draft, operand: Operand, from_half: int, upper: int) -> Reader:
    if not from_half:
        return draft.source(operand, "f")
    if operand.kind == "float":
        return draft.source(operand, "h")
    raw, shift = draft.source(plain(operand), "u"), U32(16 if upper else 0)
    return signed_reader(lambda c: (raw(c) >> shift).astype(U16).view(F16), operand)


def _mix(draft: Draft) -> Execute:
    value, write = _mixed(draft), draft.target(draft.operands[0], "f")
    return lambda c: write(c, value(c))


def _mix_low(draft: Draft) -> Execute:
    value, write = _mixed(draft), draft.target(draft.operands[0], "h", half="low")
    return lambda c: write(c, value(c).astype(F16))


def _mix_high(draft: Draft) -> Execute:
    value, write = _mixed(draft), draft.target(draft.operands[0], "h", half="high")
    return lambda c: write(c, value(c).astype(F16))


def _pieces(dtype: type[np.generic], wide: type[np.generic]) -> Callable[[Array], Array]:
    return lambda x: x[..., None].view(dtype).astype(wide)


def _bfloat_pieces(x: Array) -> Array:
    return from_bfloat16(x[..., None].view(U16)).astype(F64)


def _dot(pieces: Callable[[Array], Array], letter: str, *, accumulates: bool) -> Callable[[Draft], Execute]:
    def build(draft: Draft) -> Execute:
        operands = draft.operands
        a, b = draft.source(operands[1], "u"), draft.source(operands[2], "u")
        start = draft.source(operands[0] if accumulates else operands[3], letter)
        write = draft.target(operands[0], letter)

        def execute(c: Convoy) -> None:
            x, y = (pieces(np.ascontiguousarray(np.broadcast_to(read(c), (c.count, LANES)))) for read in (a, b))
            total = (x * y).sum(axis=-1) + start(c).astype(x.dtype)
            write(c, total.astype(LETTERS[letter]))

        return execute

    return build


# -- 8-bit floats ------------------------------------------------------------------------------------------------------


def _from_float8(format_name: str, *, pair: bool) -> Callable[[Draft], Execute]:
    def build(draft: Draft) -> Execute:
        values = values_of(OPINIONS[draft.chip].float8[format_name], 8).astype(F32)
        raw, row = draft.source(plain(draft.operands[1]), "u"), draft.operands[0].row
        part = draft.modifiers.get("src0_sel", "")
        draft.vector_writes += [row, row + 1] if pair else [row]
        if not pair:
            byte = U32(8 * int(part.split("_")[1])) if part.startswith("BYTE") else U32(0)
            return lambda c: c.put(c.vf, row, values[(raw(c) >> byte) & U32(255)])
        upper = part == "WORD_1" or draft.instruction.flags("op_sel", (0,))[0]
        shift = U32(16 if upper else 0)

        def execute(c: Convoy) -> None:
            bits = raw(c) >> shift
            c.put(c.vf, row, values[bits & U32(255)])
            c.put(c.vf, row + 1, values[(bits >> U32(8)) & U32(255)])

        return execute

    return build


def _to_float8(format_name: str) -> Callable[[Draft], Execute]:
    def build(draft: Draft) -> Execute:
        dtype = OPINIONS[draft.chip].float8[format_name]
        every = values_of(dtype, 8)
        largest = float(every[np.isfinite(every)].max())
        a, b = draft.source(draft.operands[1], "f"), draft.source(draft.operands[2], "f")
        upper = draft.instruction.flags("op_sel", NO_FLAGS)[-1]
        write = draft.target(draft.operands[0], "s", half="high" if upper else "low")
        draft.shifts_result = bool(upper)

        def execute(c: Convoy) -> None:
            limit = largest if c.machine.mode & FP16_OVERFLOW else None
            low, high = (to_float8(read(c), dtype, largest=limit) for read in (a, b))
            write(c, (low | (high << U32(8))).astype(U16))

        return execute

    return build


MIXES: dict[str, Callable[[Draft], Execute]] = {
    **{f"{name}_mix_f32": _mix for name in ("fma", "mad")},
    **{f"{name}_mixlo_f16": _mix_low for name in ("fma", "mad")},
    **{f"{name}_mixhi_f16": _mix_high for name in ("fma", "mad")},
}
MIXED: dict[str, Callable[[Draft], Execute]] = {
    **MIXES,
    "dot2_f32_f16": _dot(_pieces(F16, F64), "f", accumulates=False),
    "dot2c_f32_f16": _dot(_pieces(F16, F64), "f", accumulates=True),
    "dot2_f32_bf16": _dot(_bfloat_pieces, "f", accumulates=False),
    "dot2c_f32_bf16": _dot(_bfloat_pieces, "f", accumulates=True),
    "dot4_i32_i8": _dot(_pieces(I8, I64), "i", accumulates=False),
    "dot4c_i32_i8": _dot(_pieces(I8, I64), "i", accumulates=True),
    "dot4_u32_u8": _dot(_pieces(U8, I64), "u", accumulates=False),
    "dot2_i32_i16": _dot(_pieces(I16, I64), "i", accumulates=False),
    "cvt_f32_fp8": _from_float8("fp8", pair=False),
    "cvt_f32_bf8": _from_float8("bf8", pair=False),
    "cvt_pk_f32_fp8": _from_float8("fp8", pair=True),
    "cvt_pk_f32_bf8": _from_float8("bf8", pair=True),
    "cvt_pk_fp8_f32": _to_float8("fp8"),
    "cvt_pk_bf8_f32": _to_float8("bf8"),
}
