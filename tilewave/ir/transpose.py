"""A kernel that copies an array with its last two axes exchanged, through shared memory.

A workgroup takes a block of 256 bytes of 32 to 128 rows, and stores 128 bytes of each of its columns:

    rows:      lane i loads 16 bytes of an unaligned row (`load_unaligned`) and stores them to shared memory, where
               chunks of a row are swizzled by every chunk of rows, so that columns have no bank conflicts
    columns:   a lane loads one word of each of 16 bytes' worth of rows, transposes them among its registers, and stores
               16 bytes for each column that a word has

After the end of a row, and below the last one, there are zeros.
"""

from __future__ import annotations

from functools import cache

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import at_launch
from tilewave.ir.ops import (
    Allocate,
    Barrier,
    DivideBy,
    Lane,
    Load,
    LoadUnaligned,
    Rearrange,
    Reciprocal,
    ReciprocalShift,
    Store,
    Wave,
    Workgroup,
)
from tilewave.ir.pack import CHUNK_BYTES, WAVES
from tilewave.ir.types import INDEX_SCALAR, DType, Memory, Swizzled, Vector

RESIDENT = 4
"""Workgroups of an SM: enough bytes are in flight, and a lane has registers for what it loads."""
ROW_BYTES, COLUMN_BYTES, WORD_BYTES = 256, 128, 4
"""Bytes of a block along a row and along a column, and of a word of shared memory."""
SHIFTED_CHUNKS = 8
"""Chunks of a row that are swizzled: those that lanes read together."""


@cache
def transpose_rows(dtype: DType, rank: int, lanes: int) -> Kernel:
    """Return the kernel that sets `%columns`[…, c, r] to `%rows`[…, r, c], and to 0 where there is no row r."""
    return _Transpose(dtype, rank, lanes).kernel()


class _Transpose:
    def __init__(self, dtype: DType, rank: int, lanes: int) -> None:
        self.dtype, self.threads, self.lanes = dtype, WAVES * lanes, lanes
        self.chunk, self.word = CHUNK_BYTES // dtype.bytes, max(1, WORD_BYTES // dtype.bytes)
        self.block = COLUMN_BYTES // dtype.bytes, ROW_BYTES // dtype.bytes
        self.builder, self.numbers = Builder(), list[Value]()
        *self.outer, self.high, self.wide = (self.number(f"n{axis}") for axis in range(rank))
        self.padded = self.number("padded_rows")
        names = [n.value.name for n in (*self.outer, self.high, self.wide)]
        self.rows = self.builder.fresh("rows", Memory(tuple(names), dtype, "global"))
        transposed = (*names[:-2], names[-1], self.padded.value.name)
        self.columns = self.builder.fresh("columns", Memory(transposed, dtype, "global"))
        shared = Memory(self.block, dtype, "shared", Swizzled(self.chunk, SHIFTED_CHUNKS, self.chunk))
        self.shared = self.builder.fresh("block", shared)

    def number(self, name: str) -> Number:
        self.numbers.append(self.builder.fresh(name, INDEX_SCALAR))
        return Number(self.builder, self.numbers[-1])

    def asked(self, kind: type[Wave | Lane | Workgroup]) -> Number:
        return Number(self.builder, self.builder.emit(kind, type=INDEX_SCALAR))

    def kernel(self) -> Kernel:
        down, across = ((n + (side - 1)) // side for n, side in zip((self.padded, self.wide), self.block, strict=True))
        workgroups = down * across
        for n in self.outer:
            workgroups = workgroups * n
        self.builder.effect(Allocate, results=(self.shared,))
        *outer, column, row = self.place(self.asked(Workgroup), (*self.outer[1:], across, down))
        thread = self.asked(Wave) * self.lanes + self.asked(Lane)
        first = row * self.block[0], column * self.block[1]
        self.take(outer, first, thread)
        self.builder.effect(Barrier)
        self.leave(outer, first, thread)
        body = self.builder.block((self.rows, self.columns, *self.numbers))
        return at_launch(
            Kernel("transpose_rows", body, workgroups.value.name, "lane", (WAVES, 1), self.lanes, resident=RESIDENT)
        )

    def place(self, number: Number, sizes: tuple[Number, ...]) -> list[Number]:
        """Return the position of block `number` along each size; the last one varies fastest."""
        found: list[Number] = []
        rest = number.smaller((1 << 31) - 1)
        for n in reversed(sizes):
            made = (self.builder.emit(kind, n.value, type=INDEX_SCALAR) for kind in (Reciprocal, ReciprocalShift))
            quotient = rest.make(self.builder.emit(DivideBy, rest.value, n.value, *made, type=INDEX_SCALAR))
            found.insert(0, rest - quotient * n)
            rest = quotient
        return [rest, *found] if self.outer else found

    def take(self, outer: list[Number], first: tuple[Number, Number], thread: Number) -> None:
        """Emit the copy of rows to shared memory."""
        build, per_row = self.builder, self.block[1] // self.chunk
        taken = []
        for turn in range(self.block[0] * per_row // self.threads):
            at = thread + turn * self.threads
            here = at // per_row, at % per_row * self.chunk
            there = [x.value for x in (*outer, first[0] + here[0], first[1] + here[1])]
            guard = tuple(range(len(there) - 2, len(there)))
            steps = ((*[0] * (len(there) - 1), 1),)
            kind = Vector((self.chunk,), self.dtype)
            x = build.emit(LoadUnaligned, self.rows, tuple(there), (), steps, guard, type=kind, name="x")
            taken.append((x, tuple(n.value for n in here)))
        for x, here in taken:
            build.effect(Store, x, self.shared, here, (), ((0, 1),))

    def leave(self, outer: list[Number], first: tuple[Number, Number], thread: Number) -> None:
        """Emit the copy of columns from shared memory."""
        build, groups = self.builder, self.block[0] // self.chunk
        for turn in range(self.block[1] // self.word * groups // self.threads):
            at = thread + turn * self.threads
            here = at % groups * self.chunk, at // groups * self.word
            kind = Vector((self.chunk, self.word), self.dtype)
            x = build.emit(Load, self.shared, tuple(n.value for n in here), (), ((1, 0), (0, 1)), type=kind, name="y")
            there = [n.value for n in (*outer, first[1] + here[1], first[0] + here[0])]
            aside = (0,) * (len(there) - 2)
            steps = ((*aside, 1, 0), (*aside, 0, 1))
            guard = tuple(range(len(there) - 2, len(there)))
            build.effect(Store, self.transposed(x), self.columns, tuple(there), (), steps, guard)

    def transposed(self, x: Value) -> Value:
        """Return a lane's registers with rows and columns exchanged."""
        of_chunk = [self.word << bit for bit in range(self.chunk.bit_length() - 1)]
        of_word = [1 << bit for bit in range(self.word.bit_length() - 1)]
        kind, of_lane = Vector((self.word, self.chunk), self.dtype), (0,) * (self.lanes.bit_length() - 1)
        return self.builder.emit(Rearrange, x, (*of_chunk, *of_word), of_lane, type=kind, name="transposed")
