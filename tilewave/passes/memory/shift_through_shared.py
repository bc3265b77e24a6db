"""Shift a tile along an axis through shared memory, where each lane reads the elements that it needs.

    %y = shift(%x) {axis = 1, by = 4}   →   write(%x, %shifts, [%c0, %c512])
                                            %y = read(%shifts, [%c0, %c508])

The memory begins with as many zeros as the largest shift needs, written once. All shifts of tiles of one type along one
axis use the same memory: each one reads before the next one writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewave.errors import Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Const, Read, Shift, Write
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, Tile, Type

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
    """The memory of shifted tiles, with `zeros` before them along the axis."""

    value: Value
    zeros: int
    loc: Loc


class _Memories:
    def __init__(self, kernel: Kernel, shifts: Sequence[Shift]) -> None:
        self.builder = Builder(names(kernel))
        self.numbers: dict[int, Value] = {}
        self.of: dict[Way, _Memory] = {}
        for op in shifts:
            way = (op.x.type, op.axis)
            if way not in self.of:
                zeros = max(other.by for other in shifts if (other.x.type, other.axis) == way)
                kind = op.x.type
                shape = tuple(n + zeros if axis == op.axis else n for axis, n in enumerate(kind.shape))
                memory = self.builder.fresh("shifts", Memory(shape, kind.dtype, "shared"))
                self.of[way] = _Memory(memory, zeros, op.loc)

    def through(self, op: Shift) -> list[Op]:
        memory, axes = self.of[op.x.type, op.axis], tuple(range(len(op.x.type.shape)))
        return [
            Write(op.x, memory.value, self.at(op, memory.zeros), axes, loc=op.loc),
            Read(memory.value, self.at(op, memory.zeros - op.by), axes, results=op.results, loc=op.loc),
        ]

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

    def zeros(self, kind: Type, axis: int, memory: _Memory) -> list[Op]:
        shape = tuple(memory.zeros if a == axis else n for a, n in enumerate(kind.shape))
        zero = self.builder.fresh("zeros", Tile(shape, kind.dtype))
        begin, axes = (self.number(0),) * len(shape), tuple(range(len(shape)))
        made = Const(0.0 if kind.dtype.is_float else 0, results=(zero,), loc=memory.loc)
        return [made, Write(zero, memory.value, begin, axes, loc=memory.loc)]
