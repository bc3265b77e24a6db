"""Loads from and stores to shared memory.

An address is the formula of `ir/placements.py` on numbers with a separate constant, so that registers that differ by a
constant share one address and have the rest in the instruction's immediate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial, reduce
from math import gcd, prod

import numpy as np

from tilewave.ir.ops import Load, LoadEach, LoadTransposed, Store, StoreEach
from tilewave.ir.placements import in_its_place, offset, row_elements, size_bytes
from tilewave.ir.types import Memory, Panels, Swizzle, SwizzledByBits
from tilewave.layouts.formulas import neighbours_last
from tilewave.lower.atomics import AtomicCombine
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.fragments import FragmentStore
from tilewave.lower.gpu.memory import Chunks
from tilewave.lower.gpu.numbers import OffsetNumber, numbers_of
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.unaligned import has_blocks, load_shared_blocks
from tilewave.lower.gpu.values import Held, held, rearranged, regrouped
from tilewave.records import dataclass


@dataclass(frozen=True)
class SharedPlace:
    memory: Memory
    pointer: str

    @property
    def bytes(self) -> int:
        return self.memory.dtype.bytes


class SharedAccess:
    """Loads from and stores to the memories of a workgroup."""

    def __init__(self, numbers: Registers) -> None:
        self.n, self.f, self.target = numbers, numbers.f, numbers.target
        self.note = ""
        """The metadata of every load."""

    def load(self, op: Load, place: SharedPlace) -> Held:
        kind = in_memory(place.memory.dtype)
        if has_blocks(op, place.memory):
            return self._load_in_blocks(op, place, kind)
        chunks = self._chunks(op, op.result.type.shape, place)
        condition = self._condition(op)
        parts = []
        for at in chunks.offsets:
            where = self._address(op, place, at)
            if condition:  # the first element can always be loaded, and discarded
                where = self.f.value(f"select i1 {condition}, {self._pointer} {where}, {self._pointer} {place.pointer}")
            parts.append(self._load(place, kind, chunks.width, where, self._alignment(op, place), condition))
        return Held(op.result.type.shape, kind, chunks.width, tuple(parts))

    def _load_in_blocks(self, op: Load, place: SharedPlace, kind: str) -> Held:
        """Load neighbours from the aligned blocks that they are in; by elements, lanes wait for the same banks."""
        shape, front = op.result.type.shape, (0,) * (len(op.at) - 1)
        first, last = (self._address(op, place, (*front, at)) for at in (0, shape[0] - 1))
        found = load_shared_blocks(self.f, first, last, kind, self._pointer, place.bytes)
        return Held(shape, kind, shape[0], (found,))

    def load_transposed(self, op: LoadTransposed, place: SharedPlace) -> Held:
        """Load transposed: each lane gives the address it reads, and gets elements that neighbouring lanes read."""
        kind, reads = in_memory(place.memory.dtype), self.target.transposing_reads
        assert reads is not None, f"{op.loc}: each lane reads for itself"
        chunks = Chunks.of(op.read_shape, op.read_steps, op.rows)
        parts = [
            reads.load_transposed(self.f, place.bytes, self._address(op, place, at), self.note) for at in chunks.offsets
        ]
        return Held(op.result.type.shape, kind, op.rows, tuple(parts))

    def store(self, op: Store, x: Held, place: SharedPlace) -> None:
        fragments = FragmentStore.of(self.n, op, place.memory)
        if fragments:
            fragments.write(x, place.pointer)
            return
        x, op = self._along_rows(x, op)
        chunks = self._chunks(op, x.shape, place)
        x = regrouped(self.f, x, chunks.width)
        condition = self._condition(op)

        def write() -> None:
            for at, part in _neighbours_first(place.memory, zip(chunks.offsets, x.parts, strict=True)):
                where, aligned = self._address(op, place, at), self._alignment(op, place)
                self.f.do(f"store {x.type} {part}, {self._pointer} {where}, align {aligned}")

        if condition:
            self.f.when(condition, write, lambda: None)
        else:
            write()

    def _along_rows(self, x: Held, op: Store) -> tuple[Held, Store]:
        """Return the registers, and the op, with neighbours in memory last."""
        order = neighbours_last(op.steps, len(op.at) - 1)
        if order == tuple(range(len(order))):
            return x, op
        places = np.arange(prod(x.shape)).reshape(x.shape).transpose(order)
        return rearranged(self.f, x, places.shape, places), replace(op, steps=tuple(op.steps[i] for i in order))

    def load_each(self, op: LoadEach, place: SharedPlace) -> Held:
        kind = in_memory(place.memory.dtype)
        parts = []
        for where, condition in self._elements(op, place):
            there = f"select i1 {condition}, {self._pointer} {where}, {self._pointer} {place.pointer}"
            parts.append(self._load(place, kind, 1, self.f.value(there), place.bytes, condition))
        return Held(op.result.type.shape, kind, 1, tuple(parts))

    def store_each(self, op: StoreEach, x: Held, place: SharedPlace) -> None:
        parts = regrouped(self.f, x, 1).parts
        combine = AtomicCombine(self.f, self.target.atomics, self._pointer, op.combine, place.memory.dtype)
        for part, (where, condition) in zip(parts, self._elements(op, place), strict=True):
            if op.combine:
                self.f.when(condition, partial(combine, where, part), lambda: None)
                continue
            text = f"store {x.kind} {part}, {self._pointer} {where}, align {place.bytes}"
            self.f.when(condition, partial(self.f.do, text), lambda: None)

    def _elements(self, op: LoadEach | StoreEach, place: SharedPlace) -> Iterator[tuple[str, str]]:
        """Yield the address of each register's element, and whether it is inside."""
        f, memory = self.f, place.memory
        assert memory.placement is None, f"{op.loc}: no formula reaches {memory}"
        axes = [regrouped(f, self.n.vector(v), 1) for v in op.at]
        wide = [[self._in_32_bits(x.kind, part) for part in x.parts] for x in axes]
        for positions in zip(*wide, strict=True):
            number, truths = "0", [self.n.truth(v) for v in op.mask]
            for (at, is_near), extent in zip(positions, memory.shape, strict=True):
                truths += [is_near, f.value(f"icmp ult i32 {at}, {extent}")]
                number = f.value(f"add i32 {f.value(f'mul i32 {number}, {extent}')}, {at}")
            bytes_ahead = f.value(f"mul i32 {number}, {place.bytes}")
            condition = reduce(lambda a, b: f.value(f"and i1 {a}, {b}"), filter(None, truths))
            yield f.value(f"getelementptr i8, {self._pointer} {place.pointer}, i32 {bytes_ahead}"), condition

    def _in_32_bits(self, kind: str, x: str) -> tuple[str, str]:
        """Return a position in 32 bits, and the condition that it fits, for wider ones: shared memory is small."""
        if kind == "i32":
            return x, ""
        short = self.f.value(f"trunc {kind} {x} to i32")
        return short, self.f.value(f"icmp eq {kind} {x}, {self.f.value(f'zext i32 {short} to {kind}')}")

    @property
    def _pointer(self) -> str:
        return self.target.shared_pointer

    def _chunks(self, op: Load | Store, shape: tuple[int, ...], place: SharedPlace) -> Chunks:
        """Return the widest chunks: an access must not cross a swizzled chunk, nor be unaligned to its words."""
        most = gcd(self.target.widest_bytes // place.bytes, self._alignment(op, place) // place.bytes)
        return Chunks.of(shape, op.steps, most)

    def _condition(self, op: Load | Store) -> str:
        assert not op.guard and not op.own, f"{op.loc}: shared memory has no boundary tiles"
        return self.n.truth(op.mask[0]) if op.mask else ""

    def _address(self, op: Load | LoadTransposed | Store, place: SharedPlace, at: tuple[int, ...]) -> str:
        position = numbers_of(self.n, op.at, at)
        if self.note:
            return self._address_in_slot(place, position)
        number = offset(place.memory, *position) * place.bytes
        assert isinstance(number, OffsetNumber)
        # The constant goes first: what is added to several addresses LLVM computes once, before the loop.
        found = place.pointer
        if number.constant:
            found = f"getelementptr (i8, {self._pointer} {found}, i32 {number.constant})"
        return self.f.value(f"getelementptr i8, {self._pointer} {found}, i32 {number.value or 0}")

    def _address_in_slot(self, place: SharedPlace, position: list[OffsetNumber]) -> str:
        """Return the address of a position whose slot is added to the base, to keep the offset in an immediate.

        The slot is added last, so that LLVM hoists the lane-dependent terms out of the loop.
        """
        memory, none = place.memory, OffsetNumber(self.f, "")
        slot = position[0] if len(position) > 2 else none
        number = offset(memory, *(none if p is slot else p for p in position)) * place.bytes
        far = slot * (size_bytes(memory) // memory.shape[0])
        base = self.f.value(f"getelementptr i8, {self._pointer} {place.pointer}, i32 {number.value or 0}")
        if far.value:
            base = self.f.value(f"getelementptr i8, {self._pointer} {base}, i32 {far.value}")
        constant = number.constant + far.constant
        return self.f.value(f"getelementptr inbounds nuw i8, {self._pointer} {base}, i32 {constant}")

    def _alignment(self, op: Load | Store, place: SharedPlace) -> int:
        """Return the known alignment of each chunk's address in bytes, up to the widest access."""
        placement = place.memory.placement
        chunk = placement.chunk if isinstance(placement, Swizzle | Panels) else 0
        column = self.n.positions.of(op.at[-1]).divisor()
        steps = (step[-1] for step in op.steps if step[-1] != 1)
        row = row_elements(place.memory) if len(op.at) > 1 else 0
        return gcd(self.target.widest_bytes, *(n * place.bytes for n in (row, column, chunk, *steps)))

    def _load(self, place: SharedPlace, kind: str, width: int, where: str, aligned: int, condition: str) -> str:
        of = held(kind, width)
        x = self.f.value(f"load {of}, {self._pointer} {where}, align {aligned}{self.note}")
        return self.f.value(f"select i1 {condition}, {of} {x}, {of} zeroinitializer") if condition else x


def _neighbours_first(
    memory: Memory, chunks: Iterable[tuple[tuple[int, ...], str]]
) -> Iterable[tuple[tuple[int, ...], str]]:
    """Order chunks with the same place in their rows one after the other, so that LLVM merges two stores into one."""
    if not isinstance(memory.placement, SwizzledByBits):
        return chunks
    return sorted(chunks, key=lambda chunk: in_its_place(memory, *chunk[0][-2:]))
