"""Tiles go from global to shared memory without passing through lanes, where the machine can copy boxes by itself.

    %x = read(%a, [%m, %k]) : tile<128x64xf16>     →   copy(%a, [%m, %k], %x_shared, []) {axes = [0, 1]}
    write(%x, %x_shared, [%c0, %c0])

All tiles of a kernel or none: what lanes bring and what the engine brings are awaited in different ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewave.analysis.positions import Positions
from tilewave.interp.tiles import touched
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Allocate, Copy, Mma, Read, Write
from tilewave.ir.placements import lies_in
from tilewave.ir.rewrite import rewrite, walk
from tilewave.machine.chips import Chip, CopyEngine


@dataclass(frozen=True)
class UseCopyEngine:
    machine: Chip

    def __repr__(self) -> str:
        return f"UseCopyEngine({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        staged = {op.result for op in walk(kernel.body) if isinstance(op, Allocate) and lies_in(op.result, "shared")}
        homes = [found for block in _blocks(kernel.body) if (found := tuple(_moves(block, kernel, staged)))]
        engine, positions = self.machine.copy_engine, Positions(kernel.body)
        if engine is None or not homes or not all(move.suits(engine, positions) for move in homes[0]):
            return kernel
        moves = {move.write: move for move in homes[0]}
        if [op.memory for op in moves] != [*_order(kernel, staged)]:
            return kernel
        gone = {move.read.result for move in moves.values()}

        def copy(op: Op) -> Sequence[Op] | None:
            if isinstance(op, Write) and op in moves:
                return [moves[op].copy()]
            return [] if isinstance(op, Read) and op.result in gone else None

        return rewrite(kernel, copy)


@dataclass(frozen=True)
class Move:
    """A tile that is read from global memory, and written to shared memory and nowhere else."""

    read: Read
    write: Write

    def suits(self, engine: CopyEngine, positions: Positions) -> bool:
        memory, box = self.read.memory.type, self.read.result.type.shape
        size = memory.dtype.bytes
        rows = self.read.axes == tuple(sorted(self.read.axes)) and self.read.axes[-1] == len(memory.shape) - 1
        row_bytes, apart = box[-1] * size, memory.shape[-1] * size
        sides = row_bytes <= engine.widest_row_bytes and max(box) <= engine.longest_side
        grains = row_bytes % engine.grain_bytes == 0 and (apart % engine.grain_bytes == 0 or len(memory.shape) == 1)
        grains = grains and positions.divisor(self.read.at[-1]) * size % engine.grain_bytes == 0
        return rows and sides and grains and len(memory.shape) <= engine.most_axes

    def copy(self) -> Copy:
        return Copy(self.read.memory, self.read.at, self.write.memory, (), self.read.axes, loc=self.read.loc)


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from _blocks(inner)


def _moves(block: Block, kernel: Kernel, staged: set[Value]) -> Iterator[Move]:
    """The tiles that this block moves for its own products."""
    reads = {op.result: op for op in block.ops if isinstance(op, Read)}
    users: dict[Value, list[Op]] = {}
    for op in walk(kernel.body):
        for v in op.operands:
            users.setdefault(v, []).append(op)
    written, _ = touched(kernel)
    factors = {v for op in block.ops if isinstance(op, Mma) for v in (op.a, op.b)}
    for op in block.ops:
        if not isinstance(op, Write) or op.memory not in staged or op.tile not in reads:
            continue
        read = reads[op.tile]
        whole = op.memory.type.shape == op.tile.type.shape and op.axes == tuple(range(len(op.axes)))
        alone = users[op.tile] == [op] and read.memory not in written and lies_in(read.memory, "global")
        others = [user for user in users[op.memory] if user != op]
        if whole and alone and all(isinstance(o, Read) and o in block.ops and o.result in factors for o in others):
            yield Move(read, op)


def _order(kernel: Kernel, staged: set[Value]) -> Iterator[Value]:
    """The staged memories, as often as something is written to them."""
    return (op.memory for op in walk(kernel.body) if isinstance(op, Write) and op.memory in staged)
