"""Products of tiles in memory: blocks of sums in registers, to which rows of b times one element of a are added.

    acc[r, c…] += a[r, k] · b[c…, k]        for a few rows r and vectors of columns c…, step by step along k

For that, elements of b with one k stand side by side: b is turned where it does not lie so already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewave.ir.types import DType, Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import add, load, store, times
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.llvm import LlvmFunction, Typed, splat, vector
from tilewave.lower.numbers import stored

ROWS, VECTORS = 8, 2
"""Of a block of sums, at most: 16 vectors, which leaves registers for rows of b."""


class TileInMemory(Protocol):
    @property
    def type(self) -> Tile: ...

    def address(self, f: LlvmFunction, index: Sequence[str]) -> str: ...


class TileOfElements(Protocol):
    @property
    def type(self) -> Tile: ...

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str: ...


Put = Callable[[Sequence[str], str, int], None]
"""What is done with sums: at an index, some side by side, so many."""


def multiply_tiles(
    f: LlvmFunction, target: CpuTarget, a: TileInMemory, turned: TileInMemory, acc: TileOfElements, put: Put
) -> None:
    """Put acc + a · b, where rows of `turned` are those of b for one k; all of one dtype, rows side by side."""
    *batch, rows, columns = acc.type.shape
    dtype, depth = acc.type.dtype, a.type.shape[-1]
    lanes = lanes_of(target, dtype, columns)
    high = next(n for n in range(min(rows, ROWS), 0, -1) if rows % n == 0)
    wide = next(n for n in range(VECTORS, 0, -1) if columns % (n * lanes) == 0)
    kind = vector(lanes, stored(dtype))

    def block(index: list[str]) -> None:
        *outer, r, c = index
        first, left = times(f, r, high), times(f, c, wide * lanes)
        places = [(add(f, first, i), add(f, left, j * lanes)) for i in range(high) for j in range(wide)]

        def step(k: str, sums: list[Typed]) -> list[Typed]:
            across = [
                load(f, dtype, turned.address(f, [*outer, k, add(f, left, j * lanes)]), lanes) for j in range(wide)
            ]
            found: list[Typed] = []
            for i in range(high):
                one = load(f, dtype, a.address(f, [*outer, add(f, first, i), k]))
                factor = splat(f, stored(dtype), one, lanes)
                for j, line in enumerate(across):
                    before = sums[i * wide + j][1]
                    found.append((kind, target.multiply_add(f, kind, factor, line, before, dtype)))
            return found

        begin = [(kind, acc.element(f, [*outer, *place], lanes)) for place in places]
        for place, (_, sum_) in zip(places, f.loop(str(depth), begin, step), strict=True):
            put([*outer, *place], sum_, lanes)

    for_each(f, (*batch, rows // high, columns // (wide * lanes)), block)


def turn(f: LlvmFunction, target: CpuTarget, x: TileInMemory, out: TileInMemory) -> None:
    """The last two axes of a tile change their places, squares of vectors at a time."""
    *batch, rows, columns = x.type.shape
    dtype = x.type.dtype
    lanes = lanes_of(target, dtype, rows, columns)

    def square(index: list[str]) -> None:
        *outer, r, c = index
        first, left = times(f, r, lanes), times(f, c, lanes)
        lines = [load(f, dtype, x.address(f, [*outer, add(f, first, i), left]), lanes) for i in range(lanes)]
        for i, line in enumerate(_turned(f, lines, lanes, dtype)):
            store(f, dtype, line, out.address(f, [*outer, add(f, left, i), first]), lanes)

    for_each(f, (*batch, rows // lanes, columns // lanes), square)


def _turned(f: LlvmFunction, lines: Sequence[str], lanes: int, dtype: DType) -> list[str]:
    """Rows of a square as its columns: halves change places between lines that are half the square apart, then within
    each half likewise."""
    found, kind, far = list(lines), vector(lanes, stored(dtype)), lanes // 2
    while far:
        pairs = [(i, i + far) for i in range(lanes) if not i & far]
        for one, other in pairs:
            a, b = found[one], found[other]
            masks = [_halves(lanes, far, second) for second in (0, 1)]
            found[one], found[other] = (
                f.value(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{mask}>") for mask in masks
            )
        far //= 2
    return found


def _halves(lanes: int, far: int, second: int) -> str:
    """Of each stretch of 2 · far lanes the first halves of two vectors side by side, or the second ones."""
    places = [(i & ~far) + far * second + (lanes if i & far else 0) for i in range(lanes)]
    return ", ".join(f"i32 {place}" for place in places)


def lanes_of(target: CpuTarget, dtype: DType, *extents: int) -> int:
    """The longest vectors in which these extents are whole."""
    lanes = max(target.vector_bytes // dtype.bytes, 1)
    while any(extent % lanes for extent in extents):
        lanes //= 2
    return lanes
