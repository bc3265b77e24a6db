"""Elements in LLVM IR: their types in registers and in memory, their constants, and an elementwise op on them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from tilewave.ir import casts
from tilewave.ir.core import Op
from tilewave.ir.types import BOOL, DType
from tilewave.lower.llvm import LlvmFunction, Typed, vector
from tilewave.records import dataclass

STORED = {"f16": "half", "f32": "float", "f64": "double", "bool": "i1", "index": "i64"}


def stored(dtype: DType) -> str:
    """Return the LLVM type of a number of this dtype in registers."""
    return STORED.get(dtype.name, f"i{dtype.bits}")


def in_memory(dtype: DType) -> str:
    return "i8" if dtype == BOOL else stored(dtype)


def literal(value: float, dtype: DType) -> str:
    """Return a constant of this dtype."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype.is_int:
        return str(int(value))  # LLVM reads the bits of an unsigned number that its signed type does not have
    rounded = np.asarray(casts.cast(float(value), dtype))
    if dtype.name == "f16":
        return f"0xH{int(rounded.view(np.uint16)):04X}"
    if dtype.name in ("f32", "f64"):
        return "0x" + struct.pack(">d", float(rounded)).hex().upper()
    return str(int(rounded.view(f"int{dtype.bits}")))


def atomic_word(how: str, dtype: DType) -> str:
    """Return LLVM's atomic operation that combines numbers of a dtype."""
    if how not in ("min", "max"):
        return f"f{how}" if dtype.is_float else how
    return f"f{how}imum" if dtype.is_float else how if dtype.is_signed else f"u{how}"


def splat_constant(kind: str, value: str, lanes: int) -> str:
    return value if lanes == 1 else f"<{', '.join(f'{kind} {value}' for _ in range(lanes))}>"


def suffix(kind: str) -> str:
    """Return a type's suffix in intrinsics: `v4f32` for <4 x float>."""
    lanes, _, element = kind.strip("<>").rpartition(" x ")
    names = {"float": "f32", "double": "f64", "half": "f16"}
    return (f"v{lanes}" if lanes else "") + names.get(element, element)


@dataclass(frozen=True)
class Written:
    """An elementwise op while it is emitted: `lanes` elements at once, its operands in `dtype`."""

    f: LlvmFunction
    op: Op
    operands: Sequence[str]
    dtype: DType
    lanes: int
    spelled: Callable[[str, str], str] | None = None
    """The target's exp, exp2, log, log2 and log10, called with the function's name; None for the common rows."""

    @property
    def kind(self) -> str:
        return vector(self.lanes, stored(self.dtype))

    def of_numbers(self, word: str) -> str:
        """Emit an instruction on all operands."""
        return self.f.value(f"{word} {self.kind} {', '.join(self.operands)}")

    def intrinsic(self, name: str, *more: Typed) -> str:
        arguments = [(self.kind, x) for x in self.operands]
        return self.f.call(self.kind, f"llvm.{name}.{suffix(self.kind)}", [*arguments, *more])

    def everywhere(self, number: str) -> str:
        return splat_constant(stored(self.dtype), number, self.lanes)

    def number(self, value: float) -> str:
        return self.everywhere(literal(value, self.dtype))

    def whole(self, value: int) -> str:
        return splat_constant("i32", str(value), self.lanes)

    def call(self, name: str, *operands: str) -> str:
        """Call an intrinsic on given numbers of the dtype."""
        return self.f.call(self.kind, f"llvm.{name}.{suffix(self.kind)}", [(self.kind, x) for x in operands])
