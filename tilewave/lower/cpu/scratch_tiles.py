"""Tiles in scratch memory of a worker, and tiles that are computed where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewave.ir.types import DType, Memory, Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import Place, add, load, product, store, times
from tilewave.lower.cpu.products import Put
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.cpu.tile_uses import TileUses
from tilewave.lower.elements import in_memory, stored
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class ScratchTile:
    """A tile in memory, row-major unless `order` says otherwise."""

    type: Tile
    pointer: str
    order: tuple[int, ...] = ()
    """The axes in memory order, the contiguous one last."""
    strides: tuple[str, ...] = ()
    """The strides of the axes, for a tile that is part of a larger memory."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def lying(self) -> ScratchTile:
        """The tile with its axes in memory order."""
        order = self.order or tuple(range(len(self.type.shape)))
        kind = Tile(tuple(self.type.shape[axis] for axis in order), self.dtype)
        return ScratchTile(kind, self.pointer, (), tuple(self.strides[axis] for axis in order if self.strides))

    @property
    def is_transposed(self) -> bool:
        """Whether the last axis but one is the contiguous one."""
        *batch, one, other = range(len(self.type.shape))
        return self.order == (*batch, other, one)

    def address(self, f: LlvmFunction, index: Sequence[str]) -> str:
        number = "0"
        if self.strides:
            for i, stride in zip(index, self.strides, strict=True):
                number = add(f, number, product(f, i, stride))
            return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {number}")
        for axis in self.order or range(len(self.type.shape)):
            scaled = number if number == "0" else f.value(f"mul nuw nsw i64 {number}, {self.type.shape[axis]}")
            number = add(f, scaled, index[axis])
        return f.value(f"getelementptr {in_memory(self.dtype)}, ptr {self.pointer}, i64 {number}")

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str:
        """Load an element, or `lanes` of them along the last axis."""
        if lanes == 1 or not self.order or self.order[-1] == len(index) - 1:
            return load(f, self.dtype, self.address(f, index), lanes)
        found, kind = "poison", stored(self.dtype)
        for lane in range(lanes):
            one = self.element(f, [*index[:-1], add(f, index[-1], lane)])
            found = f.value(f"insertelement <{lanes} x {kind}> {found}, {kind} {one}, i64 {lane}")
        return found

    def put(self, f: LlvmFunction, index: Sequence[str], x: str, lanes: int = 1) -> None:
        store(f, self.dtype, x, self.address(f, index), lanes)


@dataclass(frozen=True)
class ComputedTile:
    """A tile without memory: its elements are computed where they are used."""

    type: Tile
    compute: Callable[[LlvmFunction, Sequence[str], int], str]
    """Computes elements along the last axis, from the first index and their number."""

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str:
        return self.compute(f, index, lanes)

    @property
    def dtype(self) -> DType:
        return self.type.dtype


HeldTile = ScratchTile | ComputedTile


@dataclass(frozen=True)
class ProductTile:
    """Sums of a product that are computed when their use is known."""

    type: Tile
    each: Callable[[Put], None]
    """Computes all sums and passes them on, some at a time."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype


class WorkerMemory:
    """The scratch memory of a worker; `bytes` is how much of it is allocated."""

    def __init__(self, f: LlvmFunction, base: str) -> None:
        self.f, self.base, self.bytes = f, base, 0

    def take(self, shape: Sequence[int], dtype: DType) -> str:
        """Allocate memory for a shape and return its address."""
        offset = self.bytes
        self.bytes += -(-prod(shape) * dtype.bytes // ALIGNMENT) * ALIGNMENT
        return self.f.value(f"getelementptr i8, ptr {self.base}, i64 {offset}")

    def allocate(self, kind: Memory) -> Place:
        """Allocate a row-major memory."""
        strides = [str(prod(kind.shape[axis + 1 :])) for axis in range(kind.rank)]
        return Place(kind, self.take(kind.shape, kind.dtype), tuple(strides), tuple(map(str, kind.shape)))


class ScratchSpace:
    """The scratch memory in which ops on tiles make new ones."""

    def __init__(self, f: LlvmFunction, memory: WorkerMemory, target: CpuTarget, uses: TileUses) -> None:
        self.f, self.memory, self.target, self.uses = f, memory, target, uses

    def new(self, kind: Tile) -> ScratchTile:
        return ScratchTile(kind, self.memory.take(kind.shape, kind.dtype))

    def fill(self, kind: Tile, element: Callable[[list[str]], str]) -> ScratchTile:
        """Return a new tile whose elements are computed one by one."""
        tile = self.new(kind)
        for_each(self.f, kind.shape, lambda index: tile.put(self.f, index, element(index)))
        return tile

    def kept(self, x: HeldTile) -> ScratchTile:
        """Return x in memory, copied if it is not there."""
        return x if isinstance(x, ScratchTile) else self.copied(x)

    def copied(self, x: HeldTile) -> ScratchTile:
        """Return a copy in a new tile, computed in vectors."""
        tile, lanes = self.new(x.type), self.lanes(x.type.shape[-1])
        self.for_each_vector(x.type.shape, lanes, lambda at: tile.put(self.f, at, x.element(self.f, at, lanes), lanes))
        return tile

    def in_rows(self, x: HeldTile) -> ScratchTile:
        """Return x in memory with its last axis contiguous, copied if it is not."""
        return x if isinstance(x, ScratchTile) and not x.order else self.copied(x)

    def lanes(self, extent: int) -> int:
        lanes = self.target.vector_bytes // 4
        while extent % lanes:
            lanes //= 2
        return lanes

    def for_each_vector(self, shape: Sequence[int], lanes: int, part: Callable[[list[str]], None]) -> None:
        """Call `part` with the first index of every `lanes` neighbours along the last axis."""
        *outer, last = shape
        for_each(self.f, (*outer, last // lanes), lambda index: part([*index[:-1], times(self.f, index[-1], lanes)]))
