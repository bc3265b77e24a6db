"""Tiles go from global to shared memory past the registers, where lanes can load them there.

    %x = read(%a, [%m, %k]) {per_lane = 8, spread = linear}      →   copy_async(%a, [%m, %k], %x_shared, [])
    write(%x, %x_shared, [%c0, %c0])                                 copy_async(%b, [%n, %k], %y_shared, [])
    %y = read(%b, [%n, %k]) {per_lane = 8, spread = linear}          await_async()
    write(%y, %y_shared, [%c0, %c0])                                 %x_part = read(%x_shared, [%c0, %c0])
    %x_part = read(%x_shared, [%c0, %c0])

A wave fills one stretch of shared memory at a time, lane behind lane, so that every wave must have whole stretches of a
tile. All tiles that a block stages or none: what is brought needs a second buffer where it is brought ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.positions import Positions
from tilewave.interp.tiles import touched
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Allocate, AwaitAsync, CopyAsync, Read, Write, Yield
from tilewave.ir.placements import elements, lies_in
from tilewave.ir.rewrite import map_blocks, walk
from tilewave.ir.types import Memory, Padded, Swizzled
from tilewave.machine.chips import Chip


@dataclass(frozen=True)
class LoadIntoShared:
    """`slots`: how many steps of a loop shared memory will hold at once."""

    machine: Chip
    slots: int = 1

    def __repr__(self) -> str:
        return f"LoadIntoShared({self.machine.name}, slots={self.slots})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if self.machine.widest_load_bytes not in self.machine.direct_load_bytes:
            return kernel
        finder = _Finder(kernel, self.machine)
        moves = [move for found in finder.blocks(kernel.body) for move in found]
        if not moves or self._bytes(kernel, {move.write.memory for move in moves}) > self.machine.shared.bytes:
            return kernel
        return replace(kernel, body=_Writer(moves).block(kernel.body))

    def _bytes(self, kernel: Kernel, brought: set[Value]) -> int:
        """What shared memory must hold; what is brought, once for every step."""
        taken = (op.result for op in walk(kernel.body) if isinstance(op, Allocate) and lies_in(op.result, "shared"))
        return sum(_size(v) * (self.slots if v in brought else 1) for v in taken)


def _size(v: Value) -> int:
    assert isinstance(v.type, Memory)
    return elements(v.type) * v.type.dtype.bytes


@dataclass(frozen=True)
class Move:
    """A tile that is read from global memory, and written to shared memory and nowhere else."""

    read: Read
    write: Write

    def bring(self) -> CopyAsync:
        return CopyAsync(self.read.memory, self.read.at, self.write.memory, (), self.read.axes, loc=self.read.loc)


class _Finder:
    def __init__(self, kernel: Kernel, machine: Chip) -> None:
        self.chunk_bytes = machine.widest_load_bytes
        self.round_bytes = kernel.lanes * self.chunk_bytes
        self.waves = prod(kernel.waves)
        self.positions = Positions(kernel.body)
        self.written, _ = touched(kernel)
        self.users: dict[Value, list[Op]] = {}
        for op in walk(kernel.body):
            for v in op.operands:
                self.users.setdefault(v, []).append(op)

    def blocks(self, block: Block) -> Iterator[list[Move]]:
        """The moves of each block all of whose staging can be done so."""
        staging = [op for op in block.ops if isinstance(op, Write) and lies_in(op.memory, "shared")]
        reads = {op.result: op for op in block.ops if isinstance(op, Read)}
        moves = [Move(reads[op.tile], op) for op in staging if op.tile in reads]
        if len(moves) == len(staging) and all(self.is_alone(m) and self.suits(m) for m in moves):
            yield moves
        for op in block.ops:
            for inner in op.blocks:
                yield from self.blocks(inner)

    def is_alone(self, move: Move) -> bool:
        """Whether nobody else wants the tile, or writes to either memory."""
        read, write = move.read, move.write
        others = [op for op in self.users[write.memory] if op != write]
        inputs = lies_in(read.memory, "global") and read.memory not in self.written
        return inputs and self.users[read.result] == [write] and all(isinstance(op, Read) for op in others)

    def suits(self, move: Move) -> bool:
        memory, to = move.read.memory.type, move.write.memory.type
        assert isinstance(memory, Memory) and isinstance(to, Memory)
        *batch, rows, columns = (1, *to.shape) if len(to.shape) == 1 else to.shape
        width, size = self.chunk_bytes // memory.dtype.bytes, memory.dtype.bytes
        whole = to.shape == move.write.tile.type.shape and move.write.axes == tuple(range(len(to.shape)))
        in_rows = move.read.axes == tuple(sorted(move.read.axes)) and move.read.axes[-1:] == (len(memory.shape) - 1,)
        grains = columns % width == 0 and memory.shape[-1] % width == 0
        grains = grains and self.positions.divisor(move.read.at[-1]) % width == 0
        stretches = (
            self.round_bytes % (columns * size) == 0 and rows * columns * size % (self.waves * self.round_bytes) == 0
        )
        return whole and in_rows and grains and stretches and prod(batch) == 1 and _keeps_chunks(to, width)


def _keeps_chunks(to: Memory, width: int) -> bool:
    """Whether the elements of a chunk stand behind each other, and nothing between rows."""
    match to.placement:
        case Swizzled(chunk):
            return chunk % width == 0 and len(to.shape) > 1
        case Padded():
            return False
        case _:
            return len(to.shape) > 1


class _Writer:
    def __init__(self, moves: Sequence[Move]) -> None:
        self.moves = {id(move.write): move for move in moves}
        self.gone = {move.read.result for move in moves}
        self.memories = {move.write.memory for move in moves}

    def block(self, block: Block) -> Block:
        """Tiles are awaited before anything reads one of them, those of one block together."""
        ops: list[Op] = []
        on_the_way = False
        for op in block.ops:
            if isinstance(op, Read) and op.result in self.gone:
                continue
            if id(op) in self.moves:
                ops.append(self.moves[id(op)].bring())
                on_the_way = True
                continue
            if on_the_way and (self.reads(op) or isinstance(op, Yield)):
                ops.append(AwaitAsync(0, loc=op.loc))
                on_the_way = False
            ops.append(map_blocks(op, self.block))
        return replace(block, ops=tuple(ops))

    def reads(self, op: Op) -> bool:
        inside = (inner for block in op.blocks for inner in walk(block))
        return any(isinstance(o, Read) and o.memory in self.memories for o in (op, *inside))
