"""Gathers and scatters of arrays: each lane's registers at positions that the kernel computes or loads.

Every position is compared with the array. Registers that are neighbours along the array's rows are moved at once. Where
the hardware checks bounds, one window covers the array, and out-of-bounds lanes get an offset outside of it. Arrays
that no window covers, and other hardware, take 64-bit addresses and predicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, lcm
from typing import Protocol

from tilewave.ir.ops import LoadEach, StoreEach
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.memory import OUTSIDE, RAW, GlobalAccess, GlobalPlace, from_raw, to_raw
from tilewave.lower.gpu.pointers import bytes_of
from tilewave.lower.gpu.values import Held, held, regrouped
from tilewave.lower.launch_arguments import LARGEST_WINDOW, Reach
from tilewave.lower.llvm import Typed

WORD_BYTES = 4
Position = list[Typed]
"""The position of a register along each axis, in 32 or 64 bits."""


class Neighbours(Protocol):
    """Accesses of so many neighbours of an array at a position; out-of-bounds ones load 0 and store nothing."""

    def load(self, raw: str, at: Position) -> str: ...

    def store(self, raw: str, x: str, at: Position) -> None: ...


class IndexedAccess:
    def __init__(self, memory: GlobalAccess) -> None:
        self.m, self.f, self.n, self.target = memory, memory.f, memory.n, memory.target

    def load_each(self, op: LoadEach, place: GlobalPlace) -> Held:
        access, positions = self._reached(op, place), self._positions(op)
        many = self._run(op, place)
        if not self._may_have_rows(place) or many == 1:
            return self._load(op, access, positions, place, many)
        kind = held(in_memory(place.memory.dtype), many)

        def in_rows() -> list[Typed]:
            return [(kind, x) for x in self._load(op, access, positions, place, many).parts]

        def one_by_one() -> list[Typed]:
            singles = self._load(op, access, positions, place, 1)
            return [(kind, x) for x in regrouped(self.f, singles, many).parts]

        found = self.f.choose(self._has_rows(place, many), in_rows, one_by_one)
        return Held(op.result.type.shape, in_memory(place.memory.dtype), many, tuple(x for _, x in found))

    def store_each(self, op: StoreEach, x: Held, place: GlobalPlace) -> None:
        if op.combine:
            self._combine_each(op, x, place)
            return
        access, positions = self._reached(op, place), self._positions(op)
        many = self._run(op, place)
        if not self._may_have_rows(place) or many == 1:
            self._store(access, positions, x, place, many)
            return
        self.f.when(
            self._has_rows(place, many),
            lambda: self._store(access, positions, x, place, many),
            lambda: self._store(access, positions, x, place, 1),
        )

    def _load(
        self, op: LoadEach, access: Neighbours, positions: Sequence[Position], place: GlobalPlace, width: int
    ) -> Held:
        """Load so many registers at once."""
        kind, raw = in_memory(place.memory.dtype), RAW[width * place.bytes]
        found = [access.load(raw, at) for at in positions[::width]]
        return Held(op.result.type.shape, kind, width, tuple(from_raw(self.f, x, raw, kind, width) for x in found))

    def _store(
        self, access: Neighbours, positions: Sequence[Position], x: Held, place: GlobalPlace, width: int
    ) -> None:
        """Store so many registers at once."""
        raw = RAW[width * place.bytes]
        for part, at in zip(regrouped(self.f, x, width).parts, positions[::width], strict=True):
            access.store(raw, to_raw(self.f, part, raw, x.kind, width), at)

    def _combine_each(self, op: StoreEach, x: Held, place: GlobalPlace) -> None:
        """Combine elements with what the array has, atomically among all workgroups."""
        combine = self.m.combining(op.combine, place)
        addresses = _Addresses(self, op, place)
        for part, at in zip(regrouped(self.f, x, 1).parts, self._positions(op), strict=True):
            addresses.where_inside(at, partial(combine, x=part))

    def _positions(self, op: LoadEach | StoreEach) -> list[Position]:
        axes = []
        for v in op.at:
            x = regrouped(self.f, self.n.vector(v), 1)
            axes.append([(x.kind, part) for part in x.parts])
        return [list(at) for at in zip(*axes, strict=True)]

    def _run(self, op: LoadEach | StoreEach, place: GlobalPlace) -> int:
        """Return how many registers one access moves: inside the array all or none."""
        widest = self.target.widest_bytes
        if self.target.windows is None:
            aligned = max(1, gcd(widest, place.alignment) // place.bytes)
            return 1 if place.any_strides else gcd(op.run, aligned, place.whole)
        # For rows of dynamic length, a condition of the launch or of the lanes, that it is a multiple.
        return gcd(op.run, widest // place.bytes, *(() if place.is_open(-1) else (place.whole,)))

    def _reached(self, op: LoadEach | StoreEach, place: GlobalPlace) -> Neighbours:
        if self.target.windows is None or self._may_have_rows(place):
            return _Addresses(self, op, place)
        return _Window(self, op, place, self._run(op, place))

    # -- arrays that no window covers

    def _may_have_rows(self, place: GlobalPlace) -> bool:
        """Return whether lanes find out if the array has contiguous rows: it may be larger than a window."""
        return self.target.windows is not None and (place.any_strides or place.is_large)

    def _has_rows(self, place: GlobalPlace, width: int) -> str:
        """Return whether the array has contiguous and aligned rows, and `width` divides their length."""
        f = self.f
        bits = f.value(f"ptrtoint {self.target.global_pointer} {place.pointer} to i64")
        for step in place.strides[:-1]:
            bits = f.value(f"or i64 {bits}, {f.value(f'mul i64 {step}, {place.bytes}')}")
        unaligned = f.value(f"and i64 {bits}, {WORD_BYTES - 1}")
        rest = f.value(f"urem i64 {place.extents[-1]}, {width}")
        apart = f.value(f"sub i64 {place.strides[-1]}, 1")
        wrong = f.value(f"or i64 {f.value(f'or i64 {unaligned}, {rest}')}, {apart}")
        return f.value(f"icmp eq i64 {wrong}, 0")


class _Window:
    """One window on the whole array."""

    def __init__(self, access: IndexedAccess, op: LoadEach | StoreEach, place: GlobalPlace, width: int) -> None:
        self.m, self.f, self.n, self.place = access.m, access.f, access.n, place
        assert access.target.windows is not None
        self.windows = access.target.windows
        self._note(width)
        size = self.m.span_bytes(place)
        size = self.f.call("i64", "llvm.umin.i64", [("i64", size), ("i64", str(LARGEST_WINDOW))])
        self.token = self.windows.window(self.f, place.pointer, size)
        self.extents = [self._extent(axis) for axis in range(place.memory.rank)]
        self.mask = [self.n.truth(v) for v in op.mask]

    def _note(self, width: int) -> None:
        place = self.place
        steps = tuple(LARGEST_WINDOW if isinstance(n, str) else n - 1 for n in place.memory.extents)
        is_open = place.memory.is_open
        beyond = (-1,) * len(steps) if is_open else ()
        whole = width if place.is_open(-1) else 1
        self.m.note(Reach(place.name, place.bytes, steps, beyond=beyond, whole=whole))
        if place.is_open(-1):
            length = str(place.memory.extents[-1])
            self.n.multiples[length] = lcm(width, self.n.multiples.get(length, 1))

    def _extent(self, axis: int) -> str:
        """Return an extent in 32 bits; the window covers fewer than 2³¹ elements, but an axis of stride 0 may be
        longer."""
        found = self.place.extents[axis]
        if not found.startswith("%"):
            return str(min(int(found), LARGEST_WINDOW))
        least = self.f.call("i64", "llvm.umin.i64", [("i64", found), ("i64", str(LARGEST_WINDOW))])
        return self.f.value(f"trunc i64 {least} to i32")

    def load(self, raw: str, at: Position) -> str:
        load = self.windows.load_in_order if self.place.is_written else self.windows.load
        return load(self.f, raw, self.token, self._offset(at), "0")

    def store(self, raw: str, x: str, at: Position) -> None:
        self.windows.store(self.f, raw, x, self.token, self._offset(at), "0")

    def _offset(self, at: Position) -> str:
        """Return the offset of a position in bytes; one outside the window if it is out of bounds."""
        f, found = self.f, "0"
        inside = list(self.mask)
        for axis, (kind, x) in enumerate(at):
            inside.append(
                f.value(f"icmp ult {kind} {x}, {self.extents[axis]}") if kind == "i32" else self._long(x, axis)
            )
            near = x if kind == "i32" else f.value(f"trunc i64 {x} to i32")
            is_last = axis == len(at) - 1
            by = str(self.place.bytes) if is_last else self.m.stride_bytes(self.place, axis)
            far = f.value(f"mul i32 {near}, {by}")
            found = f.value(f"add i32 {found}, {far}")
        return f.value(f"select i1 {self.m.all_of(inside)}, i32 {found}, i32 {OUTSIDE}")

    def _long(self, x: str, axis: int) -> str:
        return self.f.value(f"icmp ult i64 {x}, {self.place.extents[axis]}")


class _Addresses:
    """64-bit addresses, and accesses under a condition."""

    def __init__(self, access: IndexedAccess, op: LoadEach | StoreEach, place: GlobalPlace) -> None:
        self.m, self.f, self.target, self.place = access.m, access.f, access.target, place
        self.kind = in_memory(place.memory.dtype)
        self.mask = [access.n.truth(v) for v in op.mask]

    def load(self, raw: str, at: Position) -> str:
        where, condition = self._address(at)
        if condition and self.target.windows is None:
            load = self.target.load_if_in_order if self.place.in_order else self.target.load_if
            return load(self.f, condition, raw, where)
        if not condition:
            return self._loaded(raw, where)
        return self.m.load_if(condition, raw, lambda: self._loaded(raw, where))

    def _loaded(self, raw: str, where: str) -> str:
        return self.f.value(f"load {raw}, {self.target.global_pointer} {where}, align {self._alignment(raw)}")

    def _alignment(self, raw: str) -> int:
        """Return the alignment of an access in bytes; AMD chips move words at addresses of words."""
        aligned = bytes_of(raw)
        return aligned if self.target.windows is None else min(aligned, max(WORD_BYTES, self.place.bytes))

    def store(self, raw: str, x: str, at: Position) -> None:
        where, condition = self._address(at)
        if condition and self.target.windows is None:
            self.target.store_if(self.f, condition, raw, x, where)
            return
        store = f"store {raw} {x}, {self.target.global_pointer} {where}, align {self._alignment(raw)}"
        self._when(condition, lambda: self.f.do(store))

    def where_inside(self, at: Position, write: Callable[[str], None]) -> None:
        where, condition = self._address(at)
        self._when(condition, lambda: write(where))

    def _when(self, condition: str, write: Callable[[], None]) -> None:
        if condition:
            self.f.when(condition, write, lambda: None)
        else:
            write()

    def _address(self, at: Position) -> tuple[str, str]:
        """Return a position's address, and the condition under which it is in the array."""
        f, place = self.f, self.place
        wide = [x if kind == "i64" else f.value(f"sext {kind} {x} to i64") for kind, x in at]
        inside = [f.value(f"icmp ult i64 {x}, {extent}") for x, extent in zip(wide, place.extents, strict=True)]
        offset = self.m.flat(place, wide)
        where = f.value(f"getelementptr {self.kind}, {self.target.global_pointer} {place.pointer}, i64 {offset}")
        return where, self.m.all_of([*inside, *self.mask])
