"""Loads and stores of lanes.

Global memory is accessed through windows: uniform, loop-invariant terms move the window's first byte, in 64 bits; terms
that the loop changes are an offset shared by all lanes; the rest is an offset per lane. A lane that is out of bounds
gets an offset outside every window.

Arrays of any strides (other than 1 along the last axis, negative ones, distances beyond 2³¹ bytes) are accessed by
64-bit addresses instead, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as combinations
from math import gcd, lcm, prod
from typing import Protocol

from tilewave.analysis.affine import Affine
from tilewave.analysis.loads import run_of_neighbours
from tilewave.ir.core import Value
from tilewave.ir.ops import CopyAsyncChunks, Load, Loop, Store
from tilewave.ir.types import Memory
from tilewave.lower.atomics import AtomicCombine
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.positions import Positions
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.values import Held, cut, held, join, regrouped
from tilewave.lower.launch_arguments import LARGEST_WINDOW, Reach
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass

OUTSIDE = str(-(1 << 31))
"""A lane offset outside every window: windows are smaller than 2³¹ bytes."""
RAW = {1: "i8", 2: "i16", 4: "i32", 8: "<2 x i32>", 16: "<4 x i32>"}
"""The LLVM types of loads and stores, by bytes."""


@dataclass(frozen=True)
class GlobalPlace:
    """An array: its address, and its strides in elements, in 64 bits."""

    name: str
    memory: Memory
    pointer: str
    strides: tuple[str, ...]
    any_strides: bool
    alignment: int = 1
    """Bytes that its address, and each of its strides but the last, are multiples of."""
    is_written: bool = False
    """Whether this kernel also writes the array, so that a lane may access only its own elements."""
    whole_rows: bool = False
    """Whether the length of rows is a multiple of the alignment, also for a dynamic length."""
    in_order: bool = False
    """Whether loads stay where they are among stores and waits: this kernel writes the array, or the launch before it
    may."""

    @property
    def bytes(self) -> int:
        return self.memory.dtype.bytes

    @property
    def extents(self) -> tuple[str, ...]:
        """The extents as 64-bit LLVM values: constants, or launch values."""
        return tuple(f"%{extent}" if isinstance(extent, str) else str(extent) for extent in self.memory.extents)

    def is_open(self, axis: int) -> bool:
        """Return whether an extent is dynamic."""
        return isinstance(self.memory.extents[axis], str)

    @property
    def whole(self) -> int:
        """The number of elements that the length of rows is known to be a multiple of."""
        length = self.memory.extents[-1]
        return length if isinstance(length, int) else max(1, self.alignment // self.bytes) if self.whole_rows else 1

    @property
    def is_large(self) -> bool:
        """Whether the array has more bytes than a window, even if it is dense."""
        return not self.memory.is_open and prod(self.memory.shape) * self.bytes > LARGEST_WINDOW


@dataclass(frozen=True)
class Chunks:
    """Registers in groups of `width` neighbours along a memory's last axis, and the offset of each group."""

    width: int
    offsets: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(shape: tuple[int, ...], steps: Sequence[Sequence[int]], most: int, begin: tuple[int, ...] = ()) -> Chunks:
        width = gcd(run_of_neighbours(shape, steps), most)
        begin = begin or (0,) * len(steps[0])
        every = [
            tuple(
                far + sum(i * step[axis] for i, step in zip(register, steps, strict=True))
                for axis, far in enumerate(begin)
            )
            for register in combinations(*map(range, shape))
        ]
        return Chunks(width, tuple(every[::width]))

    def finer(self, width: int) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
        """Yield each chunk's offset and the offsets of its slices of `width`."""
        for offset in self.offsets:
            yield offset, [(*offset[:-1], offset[-1] + i) for i in range(0, self.width, width)]


class Reached(Protocol):
    """The accesses of one load or store to an array with contiguous rows."""

    def unbroken(self, chunks: Chunks) -> int:
        """Return the largest slice of a chunk that one access can move: inside the array as a whole or not at all."""
        ...

    def load(self, raw: str, at: tuple[int, ...]) -> str:
        """Load from `at`, relative to the first register's position."""
        ...

    def store(self, raw: str, x: str, at: tuple[int, ...]) -> None: ...


class GlobalAccess:
    """Loads from and stores to arrays; `reach` makes the accesses of an array with contiguous rows."""

    def __init__(self, numbers: Registers, reach: Callable[[GlobalAccess, Load | Store, GlobalPlace], Reached]) -> None:
        self.n, self.f, self.target, self.reach = numbers, numbers.f, numbers.target, reach
        self.reaches: dict[str, Reach] = {}

    def load(self, op: Load, place: GlobalPlace) -> Held:
        shape = op.result.type.shape
        kind = in_memory(place.memory.dtype)
        if place.any_strides:
            chunks = Chunks.of(shape, op.steps, 1, op.begin)
            found = [self.load_any_strides(place, kind, *where) for where in self.each_of(op, place, chunks)]
            return Held(shape, kind, 1, tuple(found))
        chunks = Chunks.of(shape, op.steps, self.target.widest_bytes // place.bytes, op.begin)
        reached = self.reach(self, op, place)
        fine = reached.unbroken(chunks)
        parts = []
        for _, pieces in chunks.finer(fine):
            raw = RAW[fine * place.bytes]
            loaded = [reached.load(raw, at) for at in pieces]
            parts.append(join(self.f, [from_raw(self.f, x, raw, kind, fine) for x in loaded], kind, fine))
        return Held(shape, kind, chunks.width, tuple(parts))

    def store(self, op: Store, x: Held, place: GlobalPlace) -> None:
        if place.any_strides:
            chunks = Chunks.of(x.shape, op.steps, 1, op.begin)
            where = self.each_of(op, place, chunks)
            for part, (offset, condition) in zip(regrouped(self.f, x, 1).parts, where, strict=True):
                self.store_any_strides(place, x.kind, part, offset, condition, op.combine)
            return
        most = self.target.widest_bytes // place.bytes
        if op.combine:
            most = gcd(most, self.target.atomics.most_in_a_run(op.combine, place.memory.dtype))
        chunks = Chunks.of(x.shape, op.steps, most, op.begin)
        reached = self.reach(self, op, place)
        fine = reached.unbroken(chunks)
        raw = RAW[fine * place.bytes]
        for part, (_, pieces) in zip(regrouped(self.f, x, chunks.width).parts, chunks.finer(fine), strict=True):
            for piece, at in zip(cut(self.f, part, x.kind, chunks.width, fine), pieces, strict=True):
                out = to_raw(self.f, piece, raw, x.kind, fine)
                reached.store(raw, out, at)

    def note(self, reach: Reach) -> None:
        """Record the reach of a window."""
        known = self.reaches.get(reach.name, reach)
        self.reaches[reach.name] = replace(
            reach,
            steps=tuple(map(max, reach.steps, known.steps)),
            grain=max(reach.grain, known.grain),
            beyond=tuple(map(max, reach.beyond, known.beyond)),
            whole=lcm(reach.whole, known.whole),
        )

    def moved_bytes(self, loop: Loop, places: Mapping[Value, object]) -> int:
        """Return a divisor of the bytes by which each step of a loop advances its windows along rows; 0 for none."""
        found = 0
        for op in loop.body.ops:
            place = places.get(op.memory) if isinstance(op, (Load, CopyAsyncChunks)) else None
            if isinstance(place, GlobalPlace) and not place.any_strides:
                found = gcd(found, self.n.positions.of(op.at[-1]).terms.get(loop.body.args[0], 0) * place.bytes)  # type: ignore[attr-defined]
        return found

    # -- whole arrays

    def span_bytes(self, place: GlobalPlace) -> str:
        """Return the bytes from an array's first to its last, inclusive."""
        f, last = self.f, "1"
        for extent, stride in zip(place.extents, place.strides, strict=True):
            steps = f.value(f"sub i64 {extent}, 1") if extent.startswith("%") else str(int(extent) - 1)
            far = f.value(f"mul i64 {stride}, {steps}")
            last = f.value(f"add i64 {last}, {far}")
        return f.value(f"mul i64 {last}, {place.bytes}")

    def extent(self, place: GlobalPlace, axis: int, bits: int) -> str:
        """Return an extent in `bits`, for positions that fit them."""
        found = place.extents[axis]
        return self.f.value(f"trunc i64 {found} to i32") if found.startswith("%") and bits == 32 else found

    def stride_bytes(self, place: GlobalPlace, axis: int) -> str:
        """Return a stride in bytes, in 32 bits, for offsets within a window."""
        short = self.f.value(f"trunc i64 {place.strides[axis]} to i32")
        return self.f.value(f"mul i32 {short}, {place.bytes}")

    # -- arrays of any strides: an element at a time

    def each_of(
        self, op: Load | Store | CopyAsyncChunks, place: GlobalPlace, chunks: Chunks
    ) -> Iterator[tuple[str, str]]:
        """Yield the offset in elements of each register, and the condition under which it may be accessed."""
        f = self.f
        sums = [self.n.positions.of(v) for v in op.at]
        for offsets in chunks.offsets:
            here = [self.n.sum(s.plus(o), 64) for s, o in zip(sums, offsets, strict=True)]
            inside = [f.value(f"icmp ult i64 {here[a]}, {place.extents[a]}") for a in op.guard]
            there = (self.is_there(op, axis, offset) for axis, offset in enumerate(offsets))
            yield self.flat(place, here), self.all_of([*inside, *filter(None, there), *map(self.n.truth, op.mask)])

    def flat(self, place: GlobalPlace, positions: Sequence[str]) -> str:
        found = "0"
        for at, stride in zip(positions, place.strides, strict=True):
            far = self.f.value(f"mul i64 {at}, {stride}")
            found = self.f.value(f"add i64 {found}, {far}")
        return found

    def is_there(self, op: Load | Store | CopyAsyncChunks, axis: int, step: int) -> str:
        """Return whether the register at `step` is in the valid part of a padded tile; "" if it always is."""
        if isinstance(op, CopyAsyncChunks) or not op.own:
            return ""
        whole = self.n.positions.of(op.own[axis]).plus(step)
        if bounds(whole, self.n.positions)[1] < op.within[axis]:
            return ""
        return self.f.value(f"icmp ult i32 {self.n.sum(whole, 32)}, {op.within[axis]}")

    def is_never_there(self, op: Load | Store, axis: int, step: int) -> bool:
        """Return whether the register at `step` is outside the valid part in every lane."""
        return (
            bool(op.own)
            and bounds(self.n.positions.of(op.own[axis]).plus(step), self.n.positions)[0] >= op.within[axis]
        )

    def whole_there(self, op: Load | Store | CopyAsyncChunks, axis: int) -> int:
        """Return a number of elements along an axis that are valid all or none; 0: any number."""
        if isinstance(op, CopyAsyncChunks) or not op.own:
            return 0
        return gcd(self.n.positions.of(op.own[axis]).divisor(), op.within[axis])

    def all_of(self, truths: Sequence[str]) -> str:
        found = truths[0] if truths else ""
        for truth in truths[1:]:
            found = self.f.value(f"and i1 {found}, {truth}")
        return found

    def load_any_strides(self, place: GlobalPlace, kind: str, offset: str, condition: str) -> str:
        f = self.f
        if condition and (place.is_written or place.memory.is_open):  # a dynamic array may have no elements at all
            return self.load_if(condition, kind, lambda: self.load_any_strides(place, kind, offset, ""))
        if condition:  # the array's first element can always be loaded, and discarded
            offset = f.value(f"select i1 {condition}, i64 {offset}, i64 0")
        where = f.value(f"getelementptr {kind}, {self.target.global_pointer} {place.pointer}, i64 {offset}")
        x = f.value(f"load {kind}, {self.target.global_pointer} {where}, align {place.bytes}")
        return f.value(f"select i1 {condition}, {kind} {x}, {kind} {_zero(kind)}") if condition else x

    def load_if(self, condition: str, kind: str, load: Callable[[], str]) -> str:
        """Return what `load` loads where the condition holds; else 0, without an access."""
        ((_, x),) = self.f.choose(condition, lambda: [(kind, load())], lambda: [(kind, "zeroinitializer")])
        return x

    def store_any_strides(
        self, place: GlobalPlace, kind: str, x: str, offset: str, condition: str, combine: str = ""
    ) -> None:
        f = self.f

        def write() -> None:
            where = f.value(f"getelementptr {kind}, {self.target.global_pointer} {place.pointer}, i64 {offset}")
            if combine:
                self.combining(combine, place)(where, x)
            else:
                f.do(f"store {kind} {x}, {self.target.global_pointer} {where}, align {place.bytes}")

        if condition:
            f.when(condition, write, lambda: None)
        else:
            write()

    def combining(self, how: str, place: GlobalPlace) -> AtomicCombine:
        return AtomicCombine(self.f, self.target.atomics, self.target.global_pointer, how, place.memory.dtype)


def from_raw(f: LlvmFunction, x: str, raw: str, kind: str, width: int) -> str:
    """Return a loaded value in the type that lanes hold."""
    to = held(kind, width)
    return x if raw == to else f.value(f"bitcast {raw} {x} to {to}")


def to_raw(f: LlvmFunction, x: str, raw: str, kind: str, width: int) -> str:
    """Return a held value in the type that a store moves."""
    of = held(kind, width)
    return x if raw == of else f.value(f"bitcast {of} {x} to {raw}")


def shape_of(op: Load | Store | CopyAsyncChunks) -> tuple[int, ...]:
    """Return the shape of the registers that a lane moves."""
    match op:
        case CopyAsyncChunks(shape=shape):
            return shape
        case Store(x):
            stored: tuple[int, ...] = x.type.shape
            return stored
        case Load():
            loaded: tuple[int, ...] = op.result.type.shape
            return loaded


def bounds(s: Affine, positions: Positions) -> tuple[int, int]:
    """Return the smallest and the largest value of a sum."""
    low = high = s.constant
    for v, factor in s.terms.items():
        ends = [factor * end for end in positions.ranges.of(v)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _zero(kind: str) -> str:
    return "0" if kind.startswith("i") else "0.0" if kind != "half" else "0xH0000"
