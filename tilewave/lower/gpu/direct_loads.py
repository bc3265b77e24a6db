"""Loads from global into shared memory that bypass registers.

One instruction moves a chunk for each lane of a wave to consecutive addresses from a base that is the same in all
lanes. The base is set once for several instructions: the offset in the instruction advances both the address that lanes
read and the one they write, so the window begins that much earlier, and lane offsets are reduced by the offset.

Arrays whose strides windows do not allow are copied through registers, one element at a time.
"""

from __future__ import annotations

from dataclasses import replace

from tilewave.ir.ops import CopyAsyncChunks, WaitAsync
from tilewave.ir.placements import row_elements
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.memory import Chunks, GlobalAccess, GlobalPlace
from tilewave.lower.gpu.numbers import OffsetNumber, numbers_of
from tilewave.lower.gpu.shared import SharedPlace
from tilewave.lower.gpu.target import DirectLoadTarget
from tilewave.lower.gpu.values import held, join
from tilewave.lower.gpu.windows import ArrayWindow

MOST_WINDOWS = 4
"""The most windows of one tile; each takes four scalar registers."""


class DirectLoads:
    """Emits the direct-to-shared loads of one kernel."""

    def __init__(self, memory: GlobalAccess, direct: DirectLoadTarget, lanes: int) -> None:
        self.m, self.n, self.f, self.direct, self.lanes = memory, memory.n, memory.f, direct, lanes

    def load_direct(self, op: CopyAsyncChunks, place: GlobalPlace, to: SharedPlace) -> None:
        if place.any_strides:
            self._by_hand(op, place, to)
            return
        chunk = op.shape[1] * place.bytes
        stretch = self.lanes * chunk
        at_once = self.direct.farthest // stretch + 1
        through_one = rounds_of_a_window(op.shape[0], at_once)
        for r in range(op.shape[0]):
            first = r - r % through_one
            if r % at_once == 0:
                where = self._place(op, to, r * stretch)
            if op.columns or r == first:  # with columns, a window per round: equal ones are left to LLVM
                in_front = (first % at_once + through_one - 1) * stretch
                window = _WindowInFront(self.m, op.of_round(r), place, in_front, _round(op, first))
            far = r % at_once * stretch
            near = self.f.value(f"add i32 {window.lane_offset(_round(op, r - first))}, {window.in_front - far}")
            self.direct.load_direct(self.f, where, chunk, window.token, near, window.offset, far)

    def wait(self, op: WaitAsync) -> None:
        self.direct.wait_async(self.f, op.pending // (self.lanes * self.n.target.widest_bytes))

    def _place(self, op: CopyAsyncChunks, to: SharedPlace, after: int) -> str:
        """Return the shared address `after` bytes after the beginning of a row."""
        row: OffsetNumber | int = 0
        for extent, at in zip(to.memory.shape[:-1], numbers_of(self.n, op.to_at, [0] * len(op.to_at)), strict=True):
            row = at + row * extent
        assert isinstance(row, OffsetNumber)
        number = row * (row_elements(to.memory) * to.bytes) + after
        return self.f.value(f"getelementptr i8, {self.n.target.shared_pointer} {to.pointer}, i32 {number.whole()}")

    def _by_hand(self, op: CopyAsyncChunks, place: GlobalPlace, to: SharedPlace) -> None:
        f, kind, width = self.f, in_memory(place.memory.dtype), op.shape[1]
        chunk = width * place.bytes
        pointer = self.n.target.shared_pointer
        elements = [
            self.m.load_any_strides(place, kind, *where)
            for r in range(op.shape[0])
            for where in self.m.each_of(op.of_round(r), place, _each(op, r))
        ]
        own = f.value(f"mul i32 {self.n.target.lane(f)}, {chunk}")
        for r in range(op.shape[0]):
            x = join(f, elements[r * width : (r + 1) * width], kind, 1)
            where = f.value(f"getelementptr i8, {pointer} {self._place(op, to, r * self.lanes * chunk)}, i32 {own}")
            f.do(f"store {held(kind, width)} {x}, {pointer} {where}, align {chunk}")


def rounds_of_a_window(rounds: int, at_once: int) -> int:
    """Return how many of a tile's `rounds` of loads go through one window.

    Each needs an offset in a vector register throughout the loop. Where there are many, windows begin at several rows
    instead and share the offsets: next to many accumulators LLVM would spill the offsets.
    """
    return rounds if rounds <= at_once else -(-rounds // MOST_WINDOWS)


def _round(op: CopyAsyncChunks, r: int) -> tuple[int, ...]:
    return tuple(r * step for step in op.steps[0])


def _each(op: CopyAsyncChunks, r: int) -> Chunks:
    """Return the elements of a round."""
    every = Chunks.of(op.shape, op.steps, 1)
    return replace(every, offsets=every.offsets[r * op.shape[1] : (r + 1) * op.shape[1]])


class _WindowInFront(ArrayWindow):
    """A window that begins `in_front` bytes before the first element accessed; those bytes are never accessed."""

    def __init__(
        self, memory: GlobalAccess, op: CopyAsyncChunks, place: GlobalPlace, in_front: int, after: tuple[int, ...]
    ) -> None:
        self.in_front = in_front
        super().__init__(memory, op, place, after)

    def _least(self, axis: int) -> int:
        """Return a lower bound of the position as a whole, tighter than that of its terms, which may subtract from a
        workgroup's number. Rows without a bounds check have offsets that several windows share."""
        return max(super()._least(axis), self.n.positions.ranges.of(self.op.at[axis])[0])

    def _window(self, pointer: str, size_bytes: str) -> str:
        if not self.in_front:
            return super()._window(pointer, size_bytes)
        f = self.f
        moved = f.value(f"getelementptr i8, {self.m.target.global_pointer} {pointer}, i64 -{self.in_front}")
        return super()._window(moved, f.value(f"add i64 {size_bytes}, {self.in_front}"))
