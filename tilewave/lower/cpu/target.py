"""Protocol that a CPU target implements for the lowering: vector width, multiplication, matrix unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewave.ir.types import Accumulator, DType
from tilewave.lower.cpu.memory import Place, add, less, load
from tilewave.lower.elements import in_memory
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


@dataclass(frozen=True)
class Panel:
    """Part of a packed panel: `depth` elements of `rows` rows, in groups; the first is at `pointer`."""

    pointer: str
    rows: int
    depth: int
    group: int
    dtype: DType
    all_rows: int
    """The rows of the whole panel."""


@dataclass(frozen=True)
class OperandRows:
    """Rows of an operand in its memory, `depth` elements of each; the first is at `at`."""

    place: Place
    at: tuple[str, ...]
    row_axis: int
    depth_axis: int
    depth: int

    @property
    def dtype(self) -> DType:
        return self.place.dtype

    def element(self, f: LlvmFunction, row: str, k: str) -> str:
        """Load an element of a row, or of the last one of the memory where there are fewer."""
        at, (row_axis, depth_axis) = list(self.at), (self.row_axis, self.depth_axis)
        last = less(f, self.place.extents[row_axis], "1")
        below = add(f, at[row_axis], row)
        at[row_axis] = f.call("i64", "llvm.smin.i64", [("i64", below), ("i64", last)])
        depth, at[depth_axis] = add(f, at[depth_axis], k), "0"
        along = f.value(f"mul i64 {depth}, {self.place.strides[depth_axis]}")
        first = self.place.address(f, at)  # the same for all steps
        return load(f, self.dtype, f.value(f"getelementptr {in_memory(self.dtype)}, ptr {first}, i64 {along}"))


class MatrixUnit(Protocol):
    """Matrix instructions with separate registers that hold one block of sums."""

    def begin(self, f: LlvmFunction) -> None: ...

    def end(self, f: LlvmFunction) -> None: ...

    def zero(self, f: LlvmFunction, kind: Accumulator) -> None: ...

    def load(self, f: LlvmFunction, kind: Accumulator, buffer: str) -> None: ...

    def store(self, f: LlvmFunction, kind: Accumulator, buffer: str) -> None: ...

    def multiply(self, f: LlvmFunction, a: Panel, b: Panel, kind: Accumulator) -> None: ...


class CpuTarget(Protocol):
    @property
    def vector_bytes(self) -> int: ...

    @property
    def vector_registers(self) -> int: ...

    @property
    def fuses(self) -> bool:
        """Whether it has fused multiply-add."""
        ...

    @property
    def matrix_unit(self) -> MatrixUnit | None: ...

    def multiply_panels(
        self,
        f: LlvmFunction,
        a: Panel | OperandRows,
        b: Panel,
        acc: Sequence[Sequence[str]],
        lanes: int,
        dtype: DType,
    ) -> list[str]:
        """Return acc + a · bᵀ for panels, or rows and a panel; acc and the result are rows of vectors, in one list."""
        ...

    def multiply_add(self, f: LlvmFunction, kind: str, a: str, b: str, acc: str, dtype: DType) -> str:
        """Return a · b + acc on vectors of type `kind`."""
        ...
