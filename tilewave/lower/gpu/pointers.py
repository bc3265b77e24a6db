"""Array accesses by 64-bit addresses, which the hardware does not check: an out-of-bounds lane loads the array's first
element instead, or nothing.

Terms that the innermost loop changes are added last, so that LLVM hoists all others out of the loop. Rows of a store
are addressed one from the other: a loop over tiles would keep the addresses of all rows in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewave.analysis.affine import Affine
from tilewave.ir.core import Value
from tilewave.ir.ops import Load, Store
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.memory import Chunks, GlobalAccess, GlobalPlace, bounds, from_raw
from tilewave.lower.gpu.ranges import INT32, within
from tilewave.lower.gpu.values import held


class Pointers:
    """The accesses of one load or store of a lane by pointers."""

    def __init__(self, memory: GlobalAccess, op: Load | Store, place: GlobalPlace) -> None:
        self.m, self.f, self.n, self.op, self.place = memory, memory.f, memory.n, op, place
        self.kind = memory.target.global_pointer
        self.sums = [self.n.positions.of(v) for v in op.at]
        self.inner = len(self.sums) - 1
        self.rows: dict[tuple[int, ...], str] = {}
        self.constants = tuple(s.constant if isinstance(op, Store) else 0 for s in self.sums)
        """The constant terms of the positions of a store, which its rows add."""
        self.inside: dict[tuple[int, int], str] = {}

    def unbroken(self, chunks: Chunks) -> int:
        """Return the largest aligned slice of a chunk that is inside the array as a whole or not at all."""
        begins = (offset[-1] for offset in chunks.offsets)
        whole = self.place.whole if self.inner in self.op.guard else 0
        most = max(1, self.place.alignment // self.place.bytes)
        there = self.m.whole_there(self.op, self.inner)
        return gcd(chunks.width, most, whole, there, self.sums[self.inner].divisor(), *begins)

    def load(self, raw: str, at: tuple[int, ...]) -> str:
        f, condition, where = self.f, self.condition(at), self.pointer(at)
        if condition and self.place.whole_rows and self.place.alignment < self.m.target.widest_bytes:
            target = self.m.target
            load = target.load_if_in_order if self.place.in_order else target.load_if
            return load(f, condition, raw, where)
        if condition and self.place.is_written:
            return self.m.load_if(condition, raw, lambda: self._loaded(raw, where))
        if condition:  # the array's first element can always be loaded, and discarded
            where = f.value(f"select i1 {condition}, {self.kind} {where}, {self.kind} {self.place.pointer}")
        x = self._loaded(raw, where)
        return f.value(f"select i1 {condition}, {raw} {x}, {raw} zeroinitializer") if condition else x

    def _loaded(self, raw: str, where: str) -> str:
        return self.f.value(f"load {raw}, {self.kind} {where}, align {bytes_of(raw)}")

    def store(self, raw: str, x: str, at: tuple[int, ...]) -> None:
        condition, where = self.condition(at), self.pointer(at)

        def write() -> None:
            if isinstance(self.op, Store) and self.op.combine:
                self._combine(raw, x, where)
            else:
                self.f.do(f"store {raw} {x}, {self.kind} {where}, align {bytes_of(raw)}")

        if condition:
            self.f.when(condition, write, lambda: None)
        else:
            write()

    def _combine(self, raw: str, x: str, where: str) -> None:
        """Combine the elements of a chunk with what the array has."""
        f, kind, count = self.f, in_memory(self.place.memory.dtype), bytes_of(raw) // self.place.bytes
        chunk = from_raw(f, x, raw, kind, count)
        each = (
            [chunk]
            if count == 1
            else [f.value(f"extractelement {held(kind, count)} {chunk}, i32 {i}") for i in range(count)]
        )
        self.m.combining(self.op.combine, self.place).in_a_run(where, each)  # type: ignore[union-attr]

    def pointer(self, at: tuple[int, ...]) -> str:
        row = at[:-1]
        if row not in self.rows:
            self.rows[row] = self._row_from_last(row) if isinstance(self.op, Store) else self._row((*row, 0))
        far = (at[-1] + self.constants[-1]) * self.place.bytes
        return self.f.value(f"getelementptr i8, {self.kind} {self.rows[row]}, i64 {far}") if far else self.rows[row]

    def _row_from_last(self, row: Sequence[int]) -> str:
        """Return the address of a row, relative to the row addressed last."""
        f, origin = self.f, tuple(-n for n in self.constants)
        last, found = next(reversed(self.rows.items()), (origin[:-1], ""))
        found = found or self._row(origin)
        for axis, (there, here) in enumerate(zip(last, row, strict=True)):
            if here != there:
                rows = f.value(f"mul i64 {self.place.strides[axis]}, {(here - there) * self.place.bytes}")
                found = f.value(f"getelementptr i8, {self.kind} {found}, i64 {rows}")
        return found

    def _row(self, steps: Sequence[int]) -> str:
        """Return the address `steps` from a lane's first register: loop-invariant terms first, then those of the loop,
        then constants, which all lanes have in common: rows then need no registers of their own between steps."""
        found = self.place.pointer
        still = [s.where(lambda v: not self._steps(v)) for s in self.sums]
        stepping = [s.where(self._steps) for s in self.sums]
        constants = [Affine(s.constant + step) for s, step in zip(self.sums, steps, strict=True)]
        for parts in (still, stepping, constants):
            far = self._bytes_of(parts)
            if far:
                found = self.f.value(f"getelementptr i8, {self.kind} {found}, i64 {far}")
        return found

    def _steps(self, v: Value) -> bool:
        return self.n.loop is not None and self.n.positions.loop_of(v) == self.n.loop

    def _bytes_of(self, parts: Sequence[Affine]) -> str:
        f, found = self.f, ""
        for axis, part in enumerate(parts):
            if part.terms or part.constant:
                far = self.n.sum(part, self._bits(part))
                far = f.value(f"sext i32 {far} to i64") if self._bits(part) == 32 else far
                far = far if axis == self.inner else f.value(f"mul i64 {far}, {self.place.strides[axis]}")
                found = f.value(f"add i64 {found}, {far}") if found else far
        return f.value(f"mul i64 {found}, {self.place.bytes}") if found else ""

    def _bits(self, part: Affine) -> int:
        return 32 if within(bounds(part, self.n.positions), INT32) else 64

    def condition(self, at: tuple[int, ...]) -> str:
        """Return whether this lane's elements at `at` are inside; "" if they always are."""
        truths = [self.is_inside(axis, at[axis]) for axis in self.op.guard]
        truths += filter(None, (self.m.is_there(self.op, axis, step) for axis, step in enumerate(at)))
        return self.m.all_of([*map(self.n.truth, self.op.mask), *truths])

    def is_inside(self, axis: int, step: int) -> str:
        if (axis, step) not in self.inside:
            whole = self.sums[axis].plus(step)
            bits = self._bits(whole)
            extent = self.m.extent(self.place, axis, bits)
            self.inside[axis, step] = self.f.value(f"icmp ult i{bits} {self.n.sum(whole, bits)}, {extent}")
        return self.inside[axis, step]


def bytes_of(raw: str) -> int:
    """Return the bytes of one access."""
    lanes, _, word = raw.strip("<>").rpartition(" x ")
    return int(word[1:]) // 8 * int(lanes or 1)
