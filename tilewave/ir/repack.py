"""Kernels that copy rows from where they lie to where the copy engine takes them, and back.

Rows that begin anywhere are copied into rows that begin on cache lines, 16 bytes a lane and all of an array in one
line: lane i of the launch makes chunk i of the copy.

    %at = …                                                      workgroup, wave and lane
    %row, %chunk = %at // %chunks, %at % %chunks
    %x = load_unaligned(%rows, [%row, %chunk * 8], [])           0 behind the end of the row
    store(%x, %padded, [%row, %chunk * 8], [])

On the way back a lane makes what is one aligned chunk of the array itself; only the first and the last one of a row are
stored element by element. Where chunks begin follows from the array's address: `%begin` and `%apart_0` say, in
elements, by how much its first row and each next one lie behind a multiple of 16 bytes. Any other numbers give the same
copy, but slowly.
"""

from __future__ import annotations

from functools import cache

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import at_launch
from tilewave.ir.ops import (
    DivideBy,
    Lane,
    LoadUnaligned,
    Reciprocal,
    ReciprocalShift,
    Store,
    StoreUnaligned,
    Wave,
    Workgroup,
)
from tilewave.ir.types import INDEX_SCALAR, DType, Memory, Vector

CHUNK_BYTES = 16
WAVES = 8
"""Of a workgroup: it makes 4 KiB of a copy."""
MOST_CHUNKS = 1 << 31
"""Of one copy: numbers below it are divided by multiplying."""


@cache
def pack_rows(dtype: DType, rank: int, lanes: int) -> Kernel:
    """`%padded` becomes `%rows`, and 0 behind the end of each row: its own are as long as a multiple of 16 bytes."""
    copy = _RowCopy(dtype, rank, lanes)
    padded = copy.size("padded_cols")
    *outer, chunk = copy.positions(padded // copy.width)
    at = (*outer, chunk * copy.width)
    rows, to = copy.memory("rows", copy.extents), copy.memory("padded", (*copy.extents[:-1], padded.value.name))
    copy.store(Store, copy.load(rows, at), to, at, (0,))
    return copy.kernel("pack_rows", (rows, to))


@cache
def unpack_rows(dtype: DType, rank: int, lanes: int) -> Kernel:
    """`%rows` becomes `%padded`."""
    copy = _RowCopy(dtype, rank, lanes)
    shift = copy.size("begin")
    # A row that begins within a chunk touches one more than its length asks for.
    *outer, chunk = copy.positions(copy.sizes[-1] // copy.width + 2)
    for axis, place in enumerate(outer):
        shift = shift + place * copy.size(f"apart_{axis}")
    at = (*outer, chunk * copy.width - shift % copy.width)
    rows, padded = (copy.memory(name, copy.extents) for name in ("rows", "padded"))
    copy.store(StoreUnaligned, copy.load(padded, at), rows, at, (0, rank - 1))
    return copy.kernel("unpack_rows", (rows, padded))


class _RowCopy:
    """What both copies have in common: arrays of open sizes, and a chunk for each lane."""

    def __init__(self, dtype: DType, rank: int, lanes: int) -> None:
        self.dtype, self.lanes, self.width = dtype, lanes, CHUNK_BYTES // dtype.bytes
        self.builder, self.args = Builder(), list[Value]()
        self.sizes = [self.size(f"n{axis}") for axis in range(rank)]
        self.extents = tuple(n.value.name for n in self.sizes)
        self.workgroups = ""

    def size(self, name: str) -> Number:
        """A number of the call."""
        self.args.append(self.builder.fresh(name, INDEX_SCALAR))
        return Number(self.builder, self.args[-1])

    def memory(self, name: str, extents: tuple[str, ...]) -> Value:
        return self.builder.fresh(name, Memory(extents, self.dtype, "global"))

    def positions(self, chunks: Number) -> list[Number]:
        """Where the chunk of this lane lies: along each outer axis, and which of its row; the first may be outside."""
        per_workgroup = WAVES * self.lanes
        total = chunks
        for n in self.sizes[:-1]:
            total = total * n
        self.workgroups = ((total + (per_workgroup - 1)) // per_workgroup).value.name
        workgroup, wave, lane = (
            Number(self.builder, self.builder.emit(kind, type=INDEX_SCALAR)) for kind in (Workgroup, Wave, Lane)
        )
        rest = (workgroup.smaller(MOST_CHUNKS // per_workgroup - 1) * WAVES + wave) * self.lanes + lane
        found = []
        for n in (chunks, *reversed(self.sizes[1:-1])):
            quotient = self.divided(rest, n)
            found.append(rest - quotient * n)
            rest = quotient
        return [rest, *reversed(found)] if len(self.sizes) > 1 else found

    def divided(self, x: Number, by: Number) -> Number:
        """x // by, which the launch knows: multiplied by what the launch makes of it."""
        made = (self.builder.emit(kind, by.value, type=INDEX_SCALAR) for kind in (Reciprocal, ReciprocalShift))
        return x.make(self.builder.emit(DivideBy, x.value, by.value, *made, type=INDEX_SCALAR))

    def load(self, memory: Value, at: tuple[Number, ...]) -> Value:
        guard, kind = (0, len(at) - 1), Vector((self.width,), self.dtype)
        parts = (memory, _values(at), (), self._steps(at), tuple(dict.fromkeys(guard)))
        return self.builder.emit(LoadUnaligned, *parts, type=kind, name="x")

    def store(self, kind: type[Store], x: Value, memory: Value, at: tuple[Number, ...], guard: tuple[int, ...]) -> None:
        self.builder.effect(kind, x, memory, _values(at), (), self._steps(at), tuple(dict.fromkeys(guard)))

    def _steps(self, at: tuple[Number, ...]) -> tuple[tuple[int, ...], ...]:
        return ((*[0] * (len(at) - 1), 1),)

    def kernel(self, name: str, memories: tuple[Value, ...]) -> Kernel:
        body = self.builder.block((*memories, *self.args))
        return at_launch(Kernel(name, body, self.workgroups, "lane", (WAVES, 1), self.lanes))


def _values(at: tuple[Number, ...]) -> tuple[Value, ...]:
    return tuple(x.value for x in at)
