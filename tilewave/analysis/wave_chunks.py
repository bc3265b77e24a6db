"""How a wave turns its sums into rows: it writes a chunk of them to a memory of its own and reads that along rows.

16 rows x 64 columns of f16, 64 lanes:
    written    row = lane % 16,                column = lane // 16 · 4 + 16 · block + e     8 bytes of a row
    read       row = lane // 8 + 8 · round,    column = lane % 8 · 8 + e                   16 bytes of a row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations

from tilewave.layouts.formulas import Layout, Term


@dataclass(frozen=True)
class WaveChunks:
    """Chunks of a tile whose sums waves hold as `layout` says; lanes read `width` neighbours at once."""

    layout: Layout
    rows: int
    columns: int
    width: int
    lanes: int

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks of registers a chunk has: of each batch, of rows and of columns."""
        return (*[1] * (len(self.layout.registers) - 3), self.columns // self.rows)

    def starts(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Of each chunk, in rows: its first block of registers, and how far it lies from the wave's first element."""
        blocks = zip(self.layout.registers[:-2], self.counts, strict=True)
        sizes = [max(step) for step in self.layout.steps]
        for first in combinations(*(range(0, blocks_there, count) for blocks_there, count in blocks)):
            yield first, tuple(i * size for i, size in zip(first, sizes, strict=False))

    def written(self) -> Layout:
        """A chunk in a wave's registers."""
        own = tuple(tuple(term for term in terms if term.of == "lane") for terms in self.layout.axes[-2:])
        registers = (*self.counts, *self.layout.registers[-2:])
        return Layout(registers, tuple(step[-2:] for step in self.layout.steps), own)

    def read(self) -> Layout:
        """A chunk as lanes read it."""
        per_row = self.columns // self.width
        axes = (Term("lane", 1, per_row),), (Term("lane", self.width, 1, per_row),)
        at_once = self.lanes // per_row
        return Layout((self.rows // at_once, self.width), ((at_once, 0), (0, 1)), axes)

    def stored(self) -> Layout:
        """The same in the tile, for the first chunk of each wave."""
        read, front = self.read(), len(self.layout.axes) - 2
        own = [tuple(term for term in terms if term.of == "wave") for terms in self.layout.axes[-2:]]
        axes = tuple(wave + lane for wave, lane in zip(own, read.axes, strict=True))
        return replace(read, steps=tuple((*[0] * front, *step) for step in read.steps), axes=(*[()] * front, *axes))
