"""How a wave transposes its accumulator into rows: it writes a chunk to shared memory of its own and reads rows back.

16 rows x 64 columns of f16, 64 lanes:
    written    row = lane % 16,                column = lane // 16 · 4 + 16 · block + e     8 bytes of a row
    read       row = lane // 8 + 8 · round,    column = lane % 8 · 8 + e                   16 bytes of a row

A lane reads what it then stores with one instruction: 16 bytes, or as many as the row stride of the array is a multiple
of. Neighbouring lanes store neighbouring elements, so stores are coalesced however few bytes each lane has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product as combinations
from math import gcd

from tilewave.analysis.layouts_needed import WIDEST_BYTES
from tilewave.ir.placements import offset, size_bytes
from tilewave.ir.types import DType, Memory, Padded, Placement, Swizzled, Type
from tilewave.layouts.formulas import Layout, Term
from tilewave.machine.banks import Kind, Ports, ports
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

BANKS_BYTES = 128
"""Rows of this many bytes begin in the same bank."""
PAD_BYTES, CHUNK_BYTES, PERIODS = (8, 4, 16), (16, 8, 4), (16, 8, 4, 2)
"""Paddings and swizzles in the order of trying: of equal bank conflicts, `chunk_memory` takes the first."""


def stored_width(memory: Type) -> int:
    """Return how many elements a lane may store at once; dynamic row lengths are taken to be aligned, as most are."""
    assert isinstance(memory, Memory)
    row, size = memory.extents[-1], memory.dtype.bytes
    return gcd(row * size if isinstance(row, int) else 0, WIDEST_BYTES) // size


@dataclass(frozen=True)
class WaveChunks:
    """Chunks of a tile whose accumulator waves hold in `layout`, with consecutive blocks along its last two axes of
    registers; lanes read `width` elements at once."""

    layout: Layout
    rows: int
    columns: int
    width: int
    lanes: int

    @staticmethod
    def of(layout: Layout, width: int, columns: int, lanes: int) -> WaveChunks | None:
        """Return chunks of `columns` columns; None where waves hold no whole chunks, or lanes read no whole rows."""
        steps = tuple(step[-2:] for step in layout.steps[-2:])
        block = Layout(_inside(layout), steps, _of_lanes(layout)).positions(1, lanes)
        rows, wide = (int(n) + 1 for n in block.reshape(-1, 2).max(axis=0))
        found = WaveChunks(layout, rows, columns, width, lanes)
        whole = columns % wide == 0 == layout.registers[-3] * wide % columns and width <= columns <= width * lanes
        return found if whole and rows % found.rows_at_once == 0 else None

    @property
    def counts(self) -> tuple[int, ...]:
        """The extents of a chunk in registers: one block of rows, and as many blocks of columns as it is wide."""
        blocks = self.columns // max(self.layout.steps[-3])
        return (*[1] * (len(self.layout.registers) - 3), blocks, *_inside(self.layout))

    def starts(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield each chunk's first registers and its offset from the wave's first element, row by row, so that a lane
        needs few positions at a time."""
        steps = self.layout.steps
        firsts = [range(0, there, n) for there, n in zip(self.layout.registers, self.counts, strict=True)]
        order = sorted(range(len(firsts)), key=lambda axis: steps[axis][-1] > 0)
        for found in combinations(*(firsts[axis] for axis in order)):
            first = tuple(found[order.index(axis)] for axis in range(len(order)))
            moves = [tuple(n * far for far in step) for n, step in zip(first, steps, strict=True)]
            yield first, tuple(map(sum, zip(*moves, strict=True)))

    @property
    def rows_at_once(self) -> int:
        return self.lanes * self.width // self.columns

    def written(self) -> Layout:
        """Return the layout of a chunk in a wave's registers, as it is written."""
        return Layout(self.counts, tuple(step[-2:] for step in self.layout.steps), _of_lanes(self.layout))

    def read(self) -> Layout:
        """Return the layout of a chunk as lanes read it back."""
        high, per_row = self.rows_at_once, self.columns // self.width
        axes = (Term("lane", 1, per_row),) if high > 1 else (), (Term("lane", self.width, 1, per_row),)
        return Layout((self.rows // high, self.width), ((high, 0), (0, 1)), axes)

    def stored(self) -> Layout:
        """Return the layout of `read` within the tile, for the first chunk of each wave."""
        read, front = self.read(), len(self.layout.axes) - 2
        own = [tuple(term for term in terms if term.of == "wave") for terms in self.layout.axes[-2:]]
        axes = tuple(wave + lane for wave, lane in zip(own, read.axes, strict=True))
        return replace(read, steps=tuple((*[0] * front, *step) for step in read.steps), axes=(*[()] * front, *axes))


def _inside(layout: Layout) -> tuple[int, ...]:
    """Return the registers of a block that are in one chunk; registers of different rows go to different chunks."""
    return tuple(1 if step[-2] else n for n, step in zip(layout.registers[-2:], layout.steps[-2:], strict=True))


def _of_lanes(layout: Layout) -> tuple[tuple[Term, ...], ...]:
    """Return the row and column of a lane's first register within what its wave holds."""
    return tuple(tuple(term for term in terms if term.of == "lane") for terms in layout.axes[-2:])


# -- shared memory of chunks ------------------------------------------------------------------------------------------


def chunk_memory(
    machine: Chip, layout: Layout, memory: Type, waves: int, room_bytes: int, row_bytes: Sequence[int], width: int = 0
) -> Memory | None:
    """Return a shared memory, waves x rows x columns, for the first chunk width that fits; None where none does.

    `width`: the elements that a lane stores at once; 0: as many as the rows of the memory are aligned for.
    """
    dtype = memory.dtype
    for columns in (n // dtype.bytes for n in row_bytes):
        chunks = WaveChunks.of(layout, width or stored_width(memory), columns, machine.lanes)
        if chunks is None:
            continue
        placements: list[Placement] = [*_paddings(dtype), *_swizzles(columns, dtype)]
        kinds = [Memory((waves, chunks.rows, columns), dtype, "shared", placement) for placement in placements]
        there = [kind for kind in kinds if size_bytes(kind) <= room_bytes]
        if there:
            return min(there, key=partial(conflicts, ports(machine.shared), chunks))
    return None


def _paddings(dtype: DType) -> Iterator[Padded]:
    """Yield paddings, tried before swizzles: addresses within a chunk then differ by immediate offsets."""
    return (Padded(bytes // dtype.bytes) for bytes in PAD_BYTES if bytes >= dtype.bytes)


def _swizzles(columns: int, dtype: DType) -> Iterator[Swizzled]:
    every = max(1, BANKS_BYTES // (columns * dtype.bytes))  # this many rows are in different banks without a swizzle
    for chunk in (bytes // dtype.bytes for bytes in CHUNK_BYTES if bytes >= dtype.bytes):
        yield from (Swizzled(chunk, period, every) for period in PERIODS if columns // chunk % period == 0)


@lru_cache(maxsize=256)
def conflicts(ports: Ports, chunks: WaveChunks, memory: Memory) -> int:
    """Return the cycles of bank conflicts while one chunk is written and read."""
    size = memory.dtype.bytes

    def waited(kind: Kind, layout: Layout) -> int:
        width = gcd(layout.registers[-1] * size, _grain_bytes(memory)) // size
        first = layout.positions(1, chunks.lanes)[..., ::width, :]
        at = offset(memory, 0, first[..., 0], first[..., 1]) * size
        ideal, actual = ports.of(kind, width * size).cycles(at.reshape(chunks.lanes, -1).T)
        return actual - ideal

    return waited("write", chunks.written()) + waited("read", chunks.read())


def _grain_bytes(memory: Memory) -> int:
    """Return the alignment of the addresses of rows and of their chunks."""
    match memory.placement:
        case Padded(elements) | Swizzled(elements):
            return elements * memory.dtype.bytes
    raise NotImplementedError(f"no rule for the addresses of {memory.placement}")
