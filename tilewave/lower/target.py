"""What the lowering asks of a CPU: how wide its vectors are, and how it multiplies and adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewave.ir.types import DType
from tilewave.lower.llvm import Function


@dataclass(frozen=True)
class Panel:
    """Part of a packed panel: `depth` elements of `rows` rows, in groups; the first is at `pointer`."""

    pointer: str
    rows: int
    depth: int
    group: int
    dtype: DType


class CpuTarget(Protocol):
    @property
    def vector_bytes(self) -> int: ...

    def multiply_panels(
        self,
        f: Function,
        a: Panel,
        b: Panel,
        acc: Sequence[Sequence[str]],
        lanes: int,
        dtype: DType,
    ) -> list[str]:
        """acc + a · bᵀ for two panels; acc is rows of vectors, and so is the result, in one list."""
        ...

    def multiply_add(self, f: Function, kind: str, a: str, b: str, acc: str, dtype: DType) -> str:
        """a · b + acc on vectors of type `kind`."""
        ...

    def cast(self, f: Function, x: str, old: DType, new: DType) -> str:
        """One number in another dtype."""
        ...
