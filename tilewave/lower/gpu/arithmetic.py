"""Elementwise ops of the lane level: indices in 32 bits where their bounds allow it, narrow floats in f32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewave.analysis.ranges import ANY
from tilewave.ir import ops as ir
from tilewave.ir.core import Op, Value
from tilewave.ir.types import BOOL, F32, I32, I64, INDEX, DType
from tilewave.lower.elements import splat_constant
from tilewave.lower.gpu.floats import FloatConversions
from tilewave.lower.gpu.functions import function
from tilewave.lower.gpu.ranges import LaneRanges
from tilewave.lower.gpu.target import Float8Pairs
from tilewave.lower.llvm import LlvmFunction, Typed, vector
from tilewave.lower.numbers import KEEPING_BITS, elementwise, is_narrow

INDEX_WORDS: dict[type[Op], str] = {ir.Add: "add", ir.Sub: "sub", ir.Mul: "mul"}


def resized(f: LlvmFunction, x: str, old: str, new: str, lanes: int, is_negative: bool = True) -> str:
    """Return an integer in another width."""
    if old == new:
        return x
    word = "trunc" if int(new[1:]) < int(old[1:]) else ("sext" if is_negative else "zext")
    return f.value(f"{word} {vector(lanes, old)} {x} to {vector(lanes, new)}")


UPPER_PRODUCT = "upper_product"
"""The target function for the upper half of a product, where LLVM has an intrinsic that no pass expands."""


class LaneArithmetic:
    """Elementwise ops on operands whose LLVM element types are given with them."""

    def __init__(
        self, f: LlvmFunction, ranges: LaneRanges, functions: Mapping[str, str], float8: Float8Pairs | None
    ) -> None:
        """`functions`: the target's LLVM intrinsics; `float8`: its hardware conversions."""
        self.f, self.ranges, self.functions = f, ranges, functions
        self.floats = FloatConversions(f, float8)

    def apply(self, op: Op, operands: Sequence[Typed], lanes: int) -> str:
        """Return the result of an elementwise op as elements of the result's dtype."""
        old = op.operands[-1].type.dtype
        if isinstance(op, ir.Cast):
            return self._cast(op, operands[0], lanes)
        if isinstance(op, ir.DivideBy):
            return self._divided(op, operands)
        if old == INDEX:
            return self._index(op, operands, lanes)
        values = [x for _, x in operands]
        if not is_narrow(old) or isinstance(op, KEEPING_BITS):
            return self._number(op, values, old, lanes)
        wide = [self.floats.widen(x, old, lanes) for x in values]
        result = self._number(op, wide, F32, lanes)
        return result if op.result.type.dtype == BOOL else self.floats.narrow(result, old, lanes)

    def _number(self, op: Op, operands: list[str], dtype: DType, lanes: int) -> str:
        if isinstance(op, ir.Function):
            return function(self.f, op, operands[0], dtype, lanes, self.functions)
        return elementwise(self.f, op, operands, dtype, lanes, self.ranges.of)

    def _cast(self, op: ir.Cast, operand: Typed, lanes: int) -> str:
        kind, x = operand
        old, new = op.x.type.dtype, op.result.type.dtype
        if old == INDEX:
            old = I32 if kind == "i32" else I64
        if new == INDEX:
            new = I32 if self.ranges.bits(op.result) == 32 else I64
        return self.floats.cast(x, old, new, lanes)

    def _divided(self, op: ir.DivideBy, operands: Sequence[Typed]) -> str:
        """Return the upper half of 2x · factor, which is x · factor >> 31, shifted by the rest: all in 32 bits."""
        f = self.f
        x, _, factor, shift = (resized(f, value, kind, "i32", 1) for kind, value in operands)
        twice, left = f.value(f"shl i32 {x}, 1"), f.value(f"sub i32 {shift}, 31")
        upper = self._upper_product(twice, factor)
        return resized(f, f.value(f"lshr i32 {upper}, {left}"), "i32", f"i{self.ranges.bits(op.result)}", 1, False)

    def _upper_product(self, a: str, b: str) -> str:
        """Return the upper half of a product of two unsigned 32-bit numbers."""
        f = self.f
        if UPPER_PRODUCT in self.functions:
            return f.call("i32", self.functions[UPPER_PRODUCT], [("i32", a), ("i32", b)])
        wide = f.value(f"mul nuw i64 {resized(f, a, 'i32', 'i64', 1, False)}, {resized(f, b, 'i32', 'i64', 1, False)}")
        return resized(f, f.value(f"lshr i64 {wide}, 32"), "i64", "i32", 1)

    def _index(self, op: Op, operands: Sequence[Typed], lanes: int) -> str:
        values = [v for v in op.operands if v.type.dtype == INDEX]
        gives_index = op.result.type.dtype == INDEX
        everything = [*values, *([op.result] if gives_index else [])]
        bits = max(self.ranges.bits(v) for v in everything)
        found = [
            self._widened(x, bits, v, lanes) if v.type.dtype == INDEX else x[1]
            for v, x in zip(op.operands, operands, strict=True)
        ]
        result = self._index_op(op, found, bits, lanes)
        if not gives_index:
            return result
        return resized(self.f, result, f"i{bits}", f"i{self.ranges.bits(op.result)}", lanes)

    def _widened(self, x: Typed, bits: int, v: Value, lanes: int) -> str:
        return resized(self.f, x[1], x[0], f"i{bits}", lanes, self.ranges.of(v)[0] < 0)

    def _index_op(self, op: Op, operands: list[str], bits: int, lanes: int) -> str:
        kind = vector(lanes, f"i{bits}")
        match op:
            case ir.FloorDiv(a, b) | ir.Mod(a, b) if self.ranges.of(a)[0] >= 0 and self.ranges.of(b)[0] > 0:
                if self.ranges.of(a)[1] < self.ranges.of(b)[0]:
                    return operands[0] if isinstance(op, ir.Mod) else splat_constant(f"i{bits}", "0", lanes)
                word = "urem" if isinstance(op, ir.Mod) else "udiv"
                return self.f.value(f"{word} {kind} {operands[0]}, {operands[1]}")
            case ir.Add() | ir.Sub() | ir.Mul():
                return self.f.value(f"{INDEX_WORDS[type(op)]}{self._flags(op)} {kind} {operands[0]}, {operands[1]}")
            case _:
                return elementwise(self.f, op, operands, I32 if bits == 32 else I64, lanes, self.ranges.of)

    def _flags(self, op: ir.Binary) -> str:
        """Return the no-wrap flags: indices never overflow, and non-negative ones allow `nuw` as well."""
        bounds = [self.ranges.of(v) for v in (op.a, op.b, op.result)]
        if bounds[-1] == ANY:
            return ""
        return " nuw nsw" if all(low >= 0 for low, _ in bounds) else " nsw"
