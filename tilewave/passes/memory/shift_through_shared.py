"""Shift a tile along an axis through shared memory, where each lane reads the elements that it needs.

    %y = shift(%x) {axis = 1, by = 4}   →   write(%x, %shifts, [%c0, %c512])
                                            %y = read(%shifts, [%c0, %c508])

The memory has as many zeros before and after the tile as the furthest shift of either direction needs, written once.
All shifts of tiles of one type along one axis use the same memory: each one reads before the next one writes. Shifts of
one tile with no other between them write it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewave.errors import Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Const, Read, Shift, Write
from tilewave.ir.rewrite import blocks_in, names, rewrite, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, Tile, Type
from tilewave.records import dataclass

Way = tuple[Type, int]
"""The type of the tile that is shifted, and the axis."""


def shift_through_shared(kernel: Kernel) -> Kernel:
    shifts = [op for op in walk(kernel.body) if isinstance(op, Shift)]
    if not shifts:
        return kernel
    found = _Memories(kernel, shifts)
    moved = rewrite(kernel, lambda op: found.through(op) if isinstance(op, Shift) else None)
    return replace(moved, body=in_front(found.front(), moved.body))


@dataclass(frozen=True)
class _Memory:
    """The memory of shifted tiles, with zeros before and after them along the axis."""

    value: Value
    before: int
    after: int
    loc: Loc


class _Memories:
    def __init__(self, kernel: Kernel, shifts: Sequence[Shift]) -> None:
        self.builder = Builder(names(kernel))
        self.numbers: dict[int, Value] = {}
        self.of: dict[Way, _Memory] = {}
        for op in shifts:
            if _way(op) not in self.of:
                self.of[_way(op)] = self.memory(op, [other.by for other in shifts if _way(other) == _way(op)])
        self.held_already = {v for block in blocks_in(kernel.body) for v in _of_the_same_tile(block)}

    def memory(self, op: Shift, ways: Sequence[int]) -> _Memory:
        before, after, kind = max(0, *ways), -min(0, *ways), op.x.type
        shape = tuple(n + before + after if axis == op.axis else n for axis, n in enumerate(kind.shape))
        return _Memory(self.builder.fresh("shifts", Memory(shape, kind.dtype, "shared")), before, after, op.loc)

    def through(self, op: Shift) -> list[Op]:
        memory, axes = self.of[_way(op)], tuple(range(len(op.x.type.shape)))
        moved = Read(memory.value, self.at(op, memory.before - op.by), axes, results=op.results, loc=op.loc)
        if op.result in self.held_already:
            return [moved]
        return [Write(op.x, memory.value, self.at(op, memory.before), axes, loc=op.loc), moved]

    def at(self, op: Shift, begin: int) -> tuple[Value, ...]:
        """Return the position of a window that begins at `begin` along the op's axis."""
        return tuple(self.number(begin if axis == op.axis else 0) for axis in range(len(op.x.type.shape)))

    def number(self, n: int) -> Value:
        if n not in self.numbers:
            self.numbers[n] = self.builder.fresh(f"c{n}", INDEX_SCALAR)
        return self.numbers[n]

    def front(self) -> list[Op]:
        """Return the allocations, the writes of zeros, and the constants that all of it needs."""
        zeros = [op for (kind, axis), memory in self.of.items() for op in self.zeros(kind, axis, memory)]
        loc = next(iter(self.of.values())).loc
        numbers = [Const(n, results=(v,), loc=loc) for n, v in self.numbers.items()]
        return [*(Allocate(results=(m.value,), loc=m.loc) for m in self.of.values()), *numbers, *zeros]

    def zeros(self, kind: Type, axis: int, memory: _Memory) -> Iterator[Op]:
        for length, begin in ((memory.before, 0), (memory.after, memory.before + kind.shape[axis])):
            if not length:
                continue
            shape = tuple(length if a == axis else n for a, n in enumerate(kind.shape))
            zero = self.builder.fresh("zeros", Tile(shape, kind.dtype))
            at = tuple(self.number(begin if a == axis else 0) for a in range(len(shape)))
            yield Const(0.0 if kind.dtype.is_float else 0, results=(zero,), loc=memory.loc)
            yield Write(zero, memory.value, at, tuple(range(len(shape))), loc=memory.loc)


def _way(op: Shift) -> Way:
    return op.x.type, op.axis


def _of_the_same_tile(block: Block) -> Iterator[Value]:
    """Yield the results of shifts of the tile that the last shift of that way in the block wrote."""
    held: dict[Way, Value] = {}
    for op in block.ops:
        if op.blocks:
            held.clear()  # a loop's own shifts may use the memory
        if isinstance(op, Shift):
            if held.get(_way(op)) == op.x:
                yield op.result
            held[_way(op)] = op.x
