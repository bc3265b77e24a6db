"""Addresses: where the elements of a kernel's memories are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewave.ir.types import BOOL, DType, Memory
from tilewave.lower.llvm import LlvmFunction, vector
from tilewave.lower.numbers import in_memory, stored


@dataclass(frozen=True)
class Place:
    """A memory while a kernel runs: the address of its first element, and its strides in elements."""

    type: Memory
    pointer: str
    strides: tuple[str, ...]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def address(self, f: LlvmFunction, position: Sequence[str]) -> str:
        """The address of the element at `position`, one index an axis."""
        offset = "0"
        for index, stride in zip(position, self.strides, strict=True):
            if index != "0":
                step = index if stride == "1" else f.value(f"mul i64 {index}, {stride}")
                offset = step if offset == "0" else f.value(f"add i64 {offset}, {step}")
        return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {offset}")


def add(f: LlvmFunction, a: str, b: str | int) -> str:
    """a + b, where a constant may be known to be nothing."""
    if b in ("0", 0):
        return a
    if a == "0":
        return str(b)
    if a.lstrip("-").isdigit() and str(b).lstrip("-").isdigit():
        return str(int(a) + int(b))
    return f.value(f"add i64 {a}, {b}")


def load(f: LlvmFunction, dtype: DType, address: str, lanes: int = 1) -> str:
    """One element, or some that stand side by side."""
    kind = vector(lanes, in_memory(dtype))
    found = f.value(f"load {kind}, ptr {address}, align {dtype.bytes}")
    return f.value(f"trunc {kind} {found} to {vector(lanes, 'i1')}") if dtype == BOOL else found


def store(f: LlvmFunction, dtype: DType, x: str, address: str, lanes: int = 1) -> None:
    kind = vector(lanes, in_memory(dtype))
    if dtype == BOOL:
        x = f.value(f"zext {vector(lanes, 'i1')} {x} to {kind}")
    f.do(f"store {kind} {x}, ptr {address}, align {dtype.bytes}")


def inside(f: LlvmFunction, position: Sequence[str], shape: Sequence[int]) -> str:
    """Whether an element lies in a memory."""
    return all_of(f, [f.value(f"icmp ult i64 {p}, {n}") for p, n in zip(position, shape, strict=True)])


def whole_inside(f: LlvmFunction, at: Sequence[str], extents: Sequence[int], shape: Sequence[int]) -> str:
    """Whether a window lies in a memory with all its elements."""
    found = []
    for position, extent, size in zip(at, extents, shape, strict=True):
        # Unsigned: a position below 0 is beyond every end.
        found.append(f.value(f"icmp ule i64 {position}, {size - extent}") if size >= extent else "false")
    return all_of(f, found)


def all_of(f: LlvmFunction, conditions: Sequence[str]) -> str:
    result = "true"
    for c in conditions:
        result = c if result == "true" else f.value(f"and i1 {result}, {c}")
    return result


def zero(dtype: DType) -> str:
    return {"half": "0xH0000", "float": "0.0", "double": "0.0", "i1": "false"}.get(stored(dtype), "0")
