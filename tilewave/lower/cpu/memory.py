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
    extents: tuple[str, ...]
    """Numbers, and values that hold those which are open."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def group(self) -> tuple[int, int]:
        """Of packed panels: the rows of one, and how deep a group of them is."""
        *_, rows, depth = self.type.extents
        assert isinstance(rows, int) and isinstance(depth, int), f"{self.type}: panels have rows of a known number"
        return rows, depth

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
    if is_number(a) and is_number(str(b)):
        return str(int(a) + int(b))
    return f.value(f"add i64 {a}, {b}")


def less(f: LlvmFunction, a: str, b: str) -> str:
    """a - b, where both may be known."""
    if is_number(a) and is_number(b):
        return str(int(a) - int(b))
    return a if b == "0" else f.value(f"sub i64 {a}, {b}")


def times(f: LlvmFunction, a: str, b: int) -> str:
    """a · b, where a may be known."""
    if is_number(a):
        return str(int(a) * b)
    return a if b == 1 else f.value(f"mul i64 {a}, {b}")


def product(f: LlvmFunction, a: str, b: str) -> str:
    """a · b, where either may be known."""
    if is_number(b):
        return times(f, a, int(b))
    return times(f, b, int(a)) if is_number(a) else f.value(f"mul i64 {a}, {b}")


def parts(f: LlvmFunction, a: str, b: int) -> str:
    """How many whole parts of b there are in a length, which may be known."""
    if is_number(a):
        return str(int(a) // b)
    return a if b == 1 else f.value(f"udiv i64 {a}, {b}")


def is_number(x: str) -> bool:
    return x.lstrip("-").isdigit()


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


def inside(f: LlvmFunction, position: Sequence[str], sizes: Sequence[str]) -> str:
    """Whether an element lies in a memory."""
    return all_of(f, [f.value(f"icmp ult i64 {p}, {n}") for p, n in zip(position, sizes, strict=True)])


def whole_inside(f: LlvmFunction, at: Sequence[str], extents: Sequence[int], sizes: Sequence[str]) -> str:
    """Whether a window lies in a memory with all its elements."""
    found = []
    for position, extent, size in zip(at, extents, sizes, strict=True):
        if not is_number(size):
            found.append(f.value(f"icmp uge i64 {size}, {extent}"))
        elif int(size) < extent:
            found.append("false")
            continue
        # Unsigned: a position below 0 is beyond every end.
        found.append(f.value(f"icmp ule i64 {position}, {add(f, size, -extent)}"))
    return all_of(f, found)


def all_of(f: LlvmFunction, conditions: Sequence[str]) -> str:
    result = "true"
    for c in conditions:
        result = c if result == "true" else f.value(f"and i1 {result}, {c}")
    return result


def zero(dtype: DType) -> str:
    return {"half": "0xH0000", "float": "0.0", "double": "0.0", "i1": "false"}.get(stored(dtype), "0")
