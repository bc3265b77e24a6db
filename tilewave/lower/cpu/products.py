"""Products of tiles in memory: blocks of sums in registers, to which rows of b times one element of a are added.

    acc[r, c…] += a[r, k] · b[c…, k]        for a few rows r and vectors of columns c…, step by step along k

Elements of b with one k must be contiguous: b is transposed where they are not. Where there are too few rows or columns
to pay for the transpose, vectors run along k instead, and the lanes of each sum are added at the end:

    sums[r, c] += a[r, k…] · b[c, k…]       for a few rows r and columns c, a vector at a time along k…
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewave.ir.types import DType, Tile
from tilewave.lower.cpu.loops import for_each
from tilewave.lower.cpu.memory import add, load, store, times, zero
from tilewave.lower.cpu.reductions import Flat, regrouped, without_axis
from tilewave.lower.cpu.target import CpuTarget
from tilewave.lower.elements import splat_constant, stored
from tilewave.lower.llvm import LlvmFunction, Typed, splat, vector
from tilewave.machine.register_blocks import block_of, dots_of


class TileInMemory(Protocol):
    @property
    def type(self) -> Tile: ...

    def address(self, f: LlvmFunction, index: Sequence[str]) -> str: ...


class TileOfElements(Protocol):
    @property
    def type(self) -> Tile: ...

    def element(self, f: LlvmFunction, index: Sequence[str], lanes: int = 1) -> str: ...


Put = Callable[[Sequence[str], str, int], None]
"""Consumer of sums: called with an index, a vector of contiguous sums from there, and its lanes."""


def multiply_tiles(
    f: LlvmFunction, target: CpuTarget, a: TileInMemory, transposed: TileInMemory, acc: TileOfElements, put: Put
) -> None:
    """Put acc + a · b, where a row of `transposed` has the elements of b for one k; one dtype, contiguous rows."""
    *batch, rows, columns = acc.type.shape
    dtype, depth = acc.type.dtype, a.type.shape[-1]
    lanes = lanes_of(target, dtype, columns)
    high, wide = block_of(target.vector_registers, rows, columns // lanes)
    kind = vector(lanes, stored(dtype))

    def block(index: list[str]) -> None:
        *outer, c, r = index
        first, left = times(f, r, high), times(f, c, wide * lanes)
        places = [(add(f, first, i), add(f, left, j * lanes)) for i in range(high) for j in range(wide)]

        def step(k: str, sums: list[Typed]) -> list[Typed]:
            across = [
                load(f, dtype, transposed.address(f, [*outer, k, add(f, left, j * lanes)]), lanes) for j in range(wide)
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

    # Columns outermost: a block's part of b stays in the L1 cache while the loop goes over the rows of a.
    for_each(f, (*batch, columns // (wide * lanes), rows // high), block)


def multiply_along_depth(
    f: LlvmFunction, target: CpuTarget, a: TileInMemory, b: TileInMemory, acc: TileOfElements, put: Put
) -> None:
    """Put acc + a · bᵀ; all of one dtype, and a and b are contiguous along k."""
    *batch, rows, columns = acc.type.shape
    dtype, depth = acc.type.dtype, a.type.shape[-1]
    lanes = lanes_of(target, dtype, depth)
    high, wide = dots_of(rows, columns)
    kind = vector(lanes, stored(dtype))
    places = [(i, j) for i in range(high) for j in range(wide)]

    def block(index: list[str]) -> None:
        *outer, r, c = index
        first, left = times(f, r, high), times(f, c, wide)

        def line(x: TileInMemory, row: str, k: str) -> str:
            return load(f, dtype, x.address(f, [*outer, row, times(f, k, lanes)]), lanes)

        def step(k: str, sums: list[Typed]) -> list[Typed]:
            xs = [line(a, add(f, first, i), k) for i in range(high)]
            ys = [line(b, add(f, left, j), k) for j in range(wide)]
            parts = zip(places, sums, strict=True)
            return [(kind, target.multiply_add(f, kind, xs[i], ys[j], s, dtype)) for (i, j), (_, s) in parts]

        zeros = [(kind, splat_constant(stored(dtype), zero(dtype), lanes))] * len(places)
        sums = f.loop(str(depth // lanes), zeros, step)
        each = lanes_added(f, [s for _, s in sums], lanes, dtype)
        for (i, j), one in zip(places, each, strict=True):
            at = [*outer, add(f, first, i), add(f, left, j)]
            put(at, f.value(f"fadd {stored(dtype)} {acc.element(f, at)}, {one}"), 1)

    for_each(f, (*batch, rows // high, columns // wide), block)


def lanes_added(f: LlvmFunction, vectors: Sequence[str], lanes: int, dtype: DType) -> list[str]:
    """Return the sum of each vector's lanes."""
    flat = Flat(dtype, (len(vectors), lanes), lanes, tuple(vectors))

    def both(x: str, y: str, n: int) -> str:
        return f.value(f"fadd {vector(n, stored(dtype))} {x}, {y}")

    return list(regrouped(f, without_axis(f, flat, 1, both), 1).vectors)


def turn(f: LlvmFunction, target: CpuTarget, x: TileInMemory, out: TileInMemory) -> None:
    """Transpose the last two axes of a tile, squares of vectors at a time."""
    *batch, rows, columns = x.type.shape
    dtype = x.type.dtype
    lanes = lanes_of(target, dtype, rows, columns)

    def square(index: list[str]) -> None:
        *outer, r, c = index
        first, left = times(f, r, lanes), times(f, c, lanes)
        lines = [load(f, dtype, x.address(f, [*outer, add(f, first, i), left]), lanes) for i in range(lanes)]
        for i, line in enumerate(_transposed(f, lines, lanes, dtype)):
            store(f, dtype, line, out.address(f, [*outer, add(f, left, i), first]), lanes)

    for_each(f, (*batch, rows // lanes, columns // lanes), square)


def _transposed(f: LlvmFunction, lines: Sequence[str], lanes: int, dtype: DType) -> list[str]:
    """Return the columns of a square of vectors: lines half the square apart swap halves, then each half likewise."""
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
    """Return the shuffle that takes the first (or second) half of every 2 · far lanes of two vectors."""
    places = [(i & ~far) + far * second + (lanes if i & far else 0) for i in range(lanes)]
    return ", ".join(f"i32 {place}" for place in places)


def lanes_of(target: CpuTarget, dtype: DType, *extents: int) -> int:
    """Return the lanes of the longest vectors that divide these extents."""
    lanes = max(target.vector_bytes // dtype.bytes, 1)
    while any(extent % lanes for extent in extents):
        lanes //= 2
    return lanes
