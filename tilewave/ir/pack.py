"""Kernels that pack unaligned rows into rows that TMA can load, and unpack them.

Rows of any alignment are copied into rows that begin on cache lines, 16 bytes per lane, with all rows of an array in
one index space: lane i of the launch makes chunk i of the copy.

    %at = …                                                      workgroup, wave and lane
    %row, %chunk = %at // %chunks, %at % %chunks
    %x = load_unaligned(%rows, [%row, %chunk * 8], [])           0 after the end of the row
    store(%x, %padded, [%row, %chunk * 8], [])

When unpacking, a lane makes one aligned chunk of the destination; only the first and the last chunk of a row are stored
element by element. Where chunks begin follows from the array's address: `%begin` and `%apart_0` are the offsets, in
elements, of its first row and of each next row after a multiple of 16 bytes. Other values give the same copy, but
slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tilewave.forks import cached_property
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Kernel, Value
from tilewave.ir.launch import at_launch
from tilewave.ir.ops import (
    And,
    DivideBy,
    Lane,
    LoadUnaligned,
    Loop,
    Reciprocal,
    ReciprocalShift,
    Store,
    StoreUnaligned,
    Wave,
    Workgroup,
)
from tilewave.ir.types import INDEX, INDEX_SCALAR, DType, Memory, Vector

CHUNK_BYTES = 16
WAVES = 8
"""Waves of a workgroup, which makes 4 KiB of a copy."""
RESIDENT = 8
"""Workgroups of an SM: full occupancy, so that enough bytes are in flight."""
MOST_CHUNKS = 1 << 31
"""The most chunks of one copy: smaller numbers are divided by multiplication with a reciprocal."""


@cache
def pack_rows(dtype: DType, rank: int, lanes: int, count: int = 1) -> Kernel:
    """Return the kernel that packs `%rows` into `%padded`, whose rows are multiples of 16 bytes and padded with 0.

    It packs `count` arrays in one launch: the first workgroups copy the first array, the next ones the next.
    """
    copies = _Copies(dtype, lanes)
    for _ in range(count):
        copies.add(_Packed(copies, rank))
    return copies.kernel("pack_rows")


@cache
def unpack_rows(dtype: DType, rank: int, lanes: int, count: int = 1) -> Kernel:
    """Return the kernel that unpacks `%padded` into `%rows`."""
    copies = _Copies(dtype, lanes)
    for _ in range(count):
        copies.add(_Unpacked(copies, rank))
    return copies.kernel("unpack_rows")


class _Copies:
    """A kernel of several copies; each workgroup makes a part of one."""

    def __init__(self, dtype: DType, lanes: int) -> None:
        self.dtype, self.lanes, self.width = dtype, lanes, CHUNK_BYTES // dtype.bytes
        self.builder = Builder()
        self.memories, self.numbers = list[Value](), list[Value]()
        self.added: list[_RowCopy] = []

    def add(self, copy: _RowCopy) -> None:
        self.added.append(copy)

    def kernel(self, name: str) -> Kernel:
        ends = self.ends()
        workgroup = Number(self.builder, self.builder.emit(Workgroup, type=INDEX_SCALAR))
        if len(self.added) == 1:
            self.added[0].emit(workgroup)
        for copy, begin, end in zip(self.added, (None, *ends), ends, strict=False) if len(self.added) > 1 else ():
            self.only(copy, workgroup, begin, end)
        body = self.builder.block((*self.memories, *self.numbers))
        return at_launch(Kernel(name, body, ends[-1].value.name, "lane", (WAVES, 1), self.lanes, resident=RESIDENT))

    def ends(self) -> list[Number]:
        """Return, for each copy, the number after that of its last workgroup."""
        found: list[Number] = []
        for copy in self.added:
            own = (copy.chunks + (WAVES * self.lanes - 1)) // (WAVES * self.lanes)
            found.append(found[-1] + own if found else own)
        return found

    def only(self, copy: _RowCopy, workgroup: Number, begin: Number | None, end: Number) -> None:
        """Emit a copy that only workgroups from `begin` to `end` run."""
        build = self.builder
        before = workgroup < end
        if begin is not None:
            before = before.make(build.binary(And, before.value, (begin <= workgroup).value))
        once = build.cast(before.value, INDEX)
        index = build.fresh("once", INDEX_SCALAR)
        with build.region():
            copy.emit(workgroup if begin is None else (workgroup - begin).larger(0))
            body = build.block((index,), ())
        build.effect(Loop, once, (), body)


class _RowCopy:
    """One copy: its arrays, and the code of a lane for one chunk."""

    def __init__(self, copies: _Copies, rank: int) -> None:
        self.copies, self.builder, self.width = copies, copies.builder, copies.width
        self.sizes = [self.number(f"n{axis}") for axis in range(rank)]
        self.extents = tuple(n.value.name for n in self.sizes)

    def number(self, name: str) -> Number:
        """Return a new scalar argument."""
        self.copies.numbers.append(self.builder.fresh(name, INDEX_SCALAR))
        return Number(self.builder, self.copies.numbers[-1])

    def memory(self, name: str, extents: tuple[str, ...]) -> Value:
        self.copies.memories.append(self.builder.fresh(name, Memory(extents, self.copies.dtype, "global")))
        return self.copies.memories[-1]

    @property
    def in_row(self) -> Number:
        """The number of chunks per row."""
        raise NotImplementedError

    @cached_property
    def chunks(self) -> Number:
        total = self.in_row
        for n in self.sizes[:-1]:
            total = total * n
        return total

    def emit(self, workgroup: Number) -> None:
        """Emit the code of a workgroup's lanes."""
        raise NotImplementedError

    def positions(self, workgroup: Number) -> list[Number]:
        """Return the position of this lane's chunk: along each outer axis, which may be out of bounds along the first,
        and which chunk of the row it is."""
        lanes = self.copies.lanes
        wave, lane = (Number(self.builder, self.builder.emit(kind, type=INDEX_SCALAR)) for kind in (Wave, Lane))
        rest = (workgroup.smaller(MOST_CHUNKS // (WAVES * lanes) - 1) * WAVES + wave) * lanes + lane
        found: list[Number] = []
        for n in (self.in_row, *reversed(self.sizes[1:-1])) if len(self.sizes) > 1 else ():
            quotient = self.divided(rest, n)
            found.append(rest - quotient * n)
            rest = quotient
        return [rest, *reversed(found)]

    def divided(self, x: Number, by: Number) -> Number:
        """Return x // by for a divisor known at the launch, by multiplication with its reciprocal."""
        made = (self.builder.emit(kind, by.value, type=INDEX_SCALAR) for kind in (Reciprocal, ReciprocalShift))
        return x.make(self.builder.emit(DivideBy, x.value, by.value, *made, type=INDEX_SCALAR))

    def load(self, memory: Value, at: Sequence[Number]) -> Value:
        guard, kind = dict.fromkeys((0, len(at) - 1)), Vector((self.width,), self.copies.dtype)
        parts = (memory, _values(at), (), _along_row(at), tuple(guard))
        return self.builder.emit(LoadUnaligned, *parts, type=kind, name="x")


class _Packed(_RowCopy):
    def __init__(self, copies: _Copies, rank: int) -> None:
        super().__init__(copies, rank)
        self.cols = self.number("padded_cols")
        self.rows = self.memory("rows", self.extents)
        self.padded = self.memory("padded", (*self.extents[:-1], self.cols.value.name))

    @cached_property
    def in_row(self) -> Number:
        found: Number = self.cols // self.width
        return found

    def emit(self, workgroup: Number) -> None:
        *outer, chunk = self.positions(workgroup)
        at = (*outer, chunk * self.width)
        x = self.load(self.rows, at)
        self.builder.effect(Store, x, self.padded, _values(at), (), _along_row(at), (0,))


class _Unpacked(_RowCopy):
    def __init__(self, copies: _Copies, rank: int) -> None:
        super().__init__(copies, rank)
        self.begin = self.number("begin")
        self.apart = [self.number(f"apart_{axis}") for axis in range(rank - 1)]
        self.rows, self.padded = (self.memory(name, self.extents) for name in ("rows", "padded"))

    @cached_property
    def in_row(self) -> Number:
        """The number of chunks per row: an unaligned row may touch one more than its length needs."""
        found: Number = self.sizes[-1] // self.width + 2
        return found

    def emit(self, workgroup: Number) -> None:
        *outer, chunk = self.positions(workgroup)
        shift = self.begin
        for place, apart in zip(outer, self.apart, strict=True):
            shift = shift + place * apart
        at = (*outer, chunk * self.width - shift % self.width)
        x, guard = self.load(self.padded, at), dict.fromkeys((0, len(at) - 1))
        self.builder.effect(StoreUnaligned, x, self.rows, _values(at), (), _along_row(at), tuple(guard))


def _along_row(at: Sequence[Number]) -> tuple[tuple[int, ...], ...]:
    return ((*[0] * (len(at) - 1), 1),)


def _values(at: Sequence[Number]) -> tuple[Value, ...]:
    return tuple(x.value for x in at)
