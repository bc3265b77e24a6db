"""Tiles in vector registers: the vectors of their rows, and how they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from tilewave.ir.types import DType, Tile
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.elements import stored
from tilewave.lower.llvm import LlvmFunction, Typed, vector
from tilewave.records import dataclass


@dataclass(frozen=True)
class RowVectors:
    """A tile in registers: the vectors of each row (all axes but the last)."""

    type: Tile
    lanes: int
    rows: tuple[tuple[str, ...], ...]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def vector_type(self) -> str:
        return vector(self.lanes, stored(self.dtype))

    def element(self, f: LlvmFunction, index: Sequence[int]) -> str:
        *leading, last = index
        part = self.rows[flat(leading, self.type.shape[:-1])][last // self.lanes]
        return (
            part if self.lanes == 1 else f.value(f"extractelement {self.vector_type} {part}, i64 {last % self.lanes}")
        )

    def typed(self) -> list[Typed]:
        return [(self.vector_type, v) for row in self.rows for v in row]


def flat(index: Sequence[int], shape: Sequence[int]) -> int:
    number = 0
    for i, n in zip(index, shape, strict=True):
        number = number * n + i
    return number


class RegisterSpace:
    """Builds tiles in registers, vector by vector."""

    def __init__(self, f: LlvmFunction, target: CpuTarget) -> None:
        self.f, self.target = f, target

    def lanes(self, kind: Tile) -> int:
        lanes = self.target.vector_bytes // 4
        while kind.shape[-1] % lanes:
            lanes //= 2
        return lanes

    def build(self, kind: Tile, part: Callable[[tuple[int, ...], int, int], str]) -> RowVectors:
        """Return a tile from its vectors: part(row index, first column, lanes)."""
        lanes = self.lanes(kind)
        rows = tuple(
            tuple(part(index, first, lanes) for first in range(0, kind.shape[-1], lanes))
            for index in product(*map(range, kind.shape[:-1]))
        )
        return RowVectors(kind, lanes, rows)

    def from_elements(self, kind: Tile, element: Callable[[tuple[int, ...]], str]) -> RowVectors:
        def part(index: tuple[int, ...], first: int, lanes: int) -> str:
            if lanes == 1:
                return element((*index, first))
            whole, found = vector(lanes, stored(kind.dtype)), "poison"
            for lane in range(lanes):
                one = element((*index, first + lane))
                found = self.f.value(f"insertelement {whole} {found}, {stored(kind.dtype)} {one}, i64 {lane}")
            return found

        return self.build(kind, part)

    def rebuilt(self, like: RowVectors, values: Sequence[str]) -> RowVectors:
        """Return a tile of the same type from other vectors, row by row."""
        left: Iterator[str] = iter(values)
        return RowVectors(like.type, like.lanes, tuple(tuple(next(left) for _ in row) for row in like.rows))
