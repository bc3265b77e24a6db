"""Accesses of global memory through windows: descriptors with a base and a size, which clip what is outside."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, lcm

from tilewave.analysis.affine import Affine
from tilewave.ir.core import Value
from tilewave.ir.ops import CopyAsyncChunks, Load, Store
from tilewave.lower.gpu.memory import OUTSIDE, Chunks, GlobalAccess, GlobalPlace, bounds, shape_of
from tilewave.lower.gpu.ranges import INT32, within
from tilewave.lower.launch_arguments import LARGEST_WINDOW, Reach


class ArrayWindow:
    """The window on an array that one load or store of a wave accesses, moved by `after` elements along each axis."""

    def __init__(
        self,
        memory: GlobalAccess,
        op: Load | Store | CopyAsyncChunks,
        place: GlobalPlace,
        after: tuple[int, ...] = (),
    ) -> None:
        self.m, self.f, self.n, self.op, self.place = memory, memory.f, memory.n, op, place
        after = after or (0,) * len(op.at)
        self.sums = [self.n.positions.of(v).plus(step) for v, step in zip(op.at, after, strict=True)]
        self.lane = [self._lane_part(s) for s in self.sums]
        self.inner = len(self.sums) - 1
        self.stepping = [self._loop_part(axis) for axis in range(len(self.sums))]
        self.rows: dict[tuple[int, ...], str] = {}
        assert memory.target.windows is not None
        self.windows = memory.target.windows
        self._note_reach()
        self.token = self._open()
        self.offset = self._shared_offset()

    def _lane_part(self, s: Affine) -> Affine:
        """Return the terms that differ between lanes, never negative: the window begins at the smallest."""
        part = s.where(self.n.positions.varies)
        low = bounds(part, self.n.positions)[0]
        return part.plus(-low) if low < 0 else part

    def _loop_part(self, axis: int) -> Affine:
        """Return the terms that the innermost loop changes, if they fit a 32-bit offset; for dynamic sizes the launch
        checks that they do."""
        if self.n.loop is None or (axis != self.inner and self.place.is_large):
            return Affine()
        part = self.sums[axis].where(self._steps)
        low, high = bounds(part, self.n.positions)
        fits = self.place.is_open(axis) or high * self.place.bytes <= LARGEST_WINDOW
        return part if low >= 0 and fits else Affine()

    def _steps(self, v: Value) -> bool:
        return not self.n.positions.varies(v) and self.n.positions.loop_of(v) == self.n.loop

    def _note_reach(self) -> None:
        shape = shape_of(self.op)
        begin = () if isinstance(self.op, CopyAsyncChunks) else self.op.begin
        span = [
            far + sum((n - 1) * step[axis] for n, step in zip(shape, self.op.steps, strict=True))
            for axis, far in enumerate(begin or (0,) * len(self.sums))
        ]
        far = [
            bounds(self.lane[axis] + self.stepping[axis], self.n.positions)[1] + span[axis]
            for axis in range(len(self.sums))
        ]
        beyond = tuple(self._beyond(axis) + span[axis] for axis in range(len(self.sums)))
        direct = isinstance(self.op, CopyAsyncChunks)
        grain = shape[-1] * self.place.bytes if direct else 1
        self.m.note(
            Reach(
                self.place.name,
                self.place.bytes,
                tuple(far),
                grain,
                beyond if self.place.memory.is_open else (),
                shape[-1] if direct and self.place.is_open(self.inner) else 1,
            )
        )

    def _beyond(self, axis: int) -> int:
        """Return how far past the array's end the window reaches: a tile begins inside, the other terms move it on."""
        own = bounds(self.lane[axis], self.n.positions)[1]
        if not self.stepping[axis].terms:
            return own
        rest = self.sums[axis] + self.lane[axis].times(-1) + self.stepping[axis].times(-1)
        return own + max(0, -bounds(rest, self.n.positions)[0])

    def _open(self) -> str:
        f, place = self.f, self.place
        offset = "0"
        for axis, s in enumerate(self.sums):
            rest = s + self.lane[axis].times(-1) + self.stepping[axis].times(-1)
            if rest.terms or rest.constant:
                far = self.n.sum(rest, 64)
                far = far if axis == self.inner else f.value(f"mul i64 {far}, {place.strides[axis]}")
                offset = far if offset == "0" else f.value(f"add i64 {offset}, {far}")
        size = self.m.span_bytes(place)
        pointer = place.pointer
        if offset != "0":
            moved = f.value(f"mul i64 {offset}, {place.bytes}")
            pointer = f.value(f"getelementptr i8, {self.m.target.global_pointer} {pointer}, i64 {moved}")
            left = f.value(f"sub i64 {size}, {moved}")
            size = f.call("i64", "llvm.smax.i64", [("i64", left), ("i64", "0")])
        size = f.call("i64", "llvm.umin.i64", [("i64", size), ("i64", str(LARGEST_WINDOW))])
        return self._window(pointer, size)

    def _window(self, pointer: str, size_bytes: str) -> str:
        return self.windows.window(self.f, pointer, size_bytes)

    def _shared_offset(self) -> str:
        found = "0"
        for axis, part in enumerate(self.stepping):
            if part.terms:
                far = self._scaled(self.n.sum(part, 32), axis)
                found = far if found == "0" else self.f.value(f"add i32 {found}, {far}")
        return found

    def _scaled(self, x: str, axis: int) -> str:
        """Return steps along an axis in bytes."""
        if axis == self.inner:
            return self.f.value(f"mul nuw i32 {x}, {self.place.bytes}") if self.place.bytes > 1 else x
        return self.f.value(f"mul i32 {x}, {self.m.stride_bytes(self.place, axis)}")

    def load(self, raw: str, at: tuple[int, ...]) -> str:
        load = self.windows.load_in_order if self.place.is_written else self.windows.load
        return load(self.f, raw, self.token, self.lane_offset(at), self.offset)

    def store(self, raw: str, x: str, at: tuple[int, ...]) -> None:
        self.windows.store(self.f, raw, x, self.token, self.lane_offset(at), self.offset)

    def lane_offset(self, at: tuple[int, ...]) -> str:
        """Return the lane's byte offset of the chunk at `at`, relative to the first register's position."""
        f = self.f
        row = at[:-1]
        if row not in self.rows:
            self.rows[row] = self._row_offset(row)
        far = at[-1] * self.place.bytes
        found = f.value(f"add i32 {self.rows[row]}, {far}") if far else self.rows[row]
        inside = [self._is_inside(self.inner, at[-1])] if self.inner in self.op.guard else []
        for condition in filter(None, (*inside, self.m.is_there(self.op, self.inner, at[-1]))):
            found = f.value(f"select i1 {condition}, i32 {found}, i32 {OUTSIDE}")
        return found

    def _row_offset(self, row: tuple[int, ...]) -> str:
        f, found = self.f, "0"
        steps = (*row, 0)
        for axis, part in enumerate(self.lane):
            moved = part.plus(steps[axis])
            if moved.terms or moved.constant:
                far = self._scaled(self.n.sum(moved, 32), axis)
                found = far if found == "0" else f.value(f"add i32 {found}, {far}")
        conditions = [self._is_inside(axis, steps[axis]) for axis in self.op.guard if self._is_asked(axis)]
        conditions += filter(None, (self.m.is_there(self.op, axis, step) for axis, step in enumerate(row)))
        for condition in (*conditions, *map(self.n.truth, self.op.mask)):
            found = f.value(f"select i1 {condition}, i32 {found}, i32 {OUTSIDE}")
        return found

    def _is_asked(self, axis: int) -> bool:
        """Return whether rows need a bounds check: rows after the last are outside the window as well."""
        return axis != self.inner and not self._ends_window(axis)

    def _ends_window(self, axis: int) -> bool:
        return axis == 0 and self.place.is_open(axis) and self._least(axis) >= 0

    def _least(self, axis: int) -> int:
        """Return a lower bound of the positions along an axis."""
        return bounds(self.sums[axis], self.n.positions)[0]

    def _is_inside(self, axis: int, step: int) -> str:
        whole = self.sums[axis].plus(step)
        bits = 32 if within(bounds(whole, self.n.positions), INT32) else 64
        extent = self.m.extent(self.place, axis, bits)
        return self.f.value(f"icmp ult i{bits} {self.n.sum(whole, bits)}, {extent}")

    def unbroken(self, chunks: Chunks) -> int:
        """Return the largest slice of a chunk that is inside the array as a whole or not at all."""
        there = self.m.whole_there(self.op, self.inner)
        if not there and self.inner not in self.op.guard:
            return chunks.width
        most = gcd(chunks.width, there, *(offset[-1] for offset in chunks.offsets))
        if self.inner not in self.op.guard:
            return most
        most = gcd(most, self.sums[self.inner].divisor())
        if self.place.is_open(self.inner):
            self.m.note(replace(self.m.reaches[self.place.name], whole=most))
            length = str(self.place.memory.extents[self.inner])
            self.n.multiples[length] = lcm(most, self.n.multiples.get(length, 1))
            return most
        return gcd(most, self.place.whole)
