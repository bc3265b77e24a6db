"""Protocol that a CPU target implements for the lowering: vector width, multiplication, matrix unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewave.ir.types import Accumulator, DType
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
        a: Panel,
        b: Panel,
        acc: Sequence[Sequence[str]],
        lanes: int,
        dtype: DType,
    ) -> list[str]:
        """Return acc + a · bᵀ for two panels; acc and the result are rows of vectors, in one list."""
        ...

    def multiply_add(self, f: LlvmFunction, kind: str, a: str, b: str, acc: str, dtype: DType) -> str:
        """Return a · b + acc on vectors of type `kind`."""
        ...
