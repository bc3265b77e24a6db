"""Copy tiles from global to shared memory directly, past the registers, where the machine has such loads.

    %x = read(%a, [%m, %k]) {per_lane = 8, spread = linear}      →   copy_async(%a, [%m, %k], %x_shared, [])
    write(%x, %x_shared, [%c0, %c0])                                 copy_async(%b, [%n, %k], %y_shared, [])
    %y = read(%b, [%n, %k]) {per_lane = 8, spread = linear}          wait_async()
    write(%y, %y_shared, [%c0, %c0])                                 %x_part = read(%x_shared, [%c0, %c0])
    %x_part = read(%x_shared, [%c0, %c0])

A wave fills one contiguous range of shared memory at a time, in lane order, so that every wave must have whole ranges
of a tile. A block copies all its staged tiles directly, or none: a tile that is copied ahead needs a second buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.positions import scalars_of
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.ops import Allocate, CopyAsync, Read, WaitAsync, Write, Yield
from tilewave.ir.placements import elements, is_in
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import rewrite_blocks, walk
from tilewave.ir.types import Memory, Padded, Swizzled, SwizzledByBits, dims
from tilewave.machine.chips import Chip
from tilewave.records import dataclass

COMPUTED = RemarkKind(
    "this operand is computed after it is loaded, so tiles go through registers to shared memory",
    "cast or scale after the product, or in a separate kernel",
)
USED_TWICE = RemarkKind(
    "this tile of {memory}, or its copy in shared memory, has other uses, so it goes through registers"
)
WRITTEN = RemarkKind("the kernel writes {memory}, so its tiles go through registers to shared memory")
ACROSS_ROWS = RemarkKind(
    "{memory} is read transposed, and direct-to-shared loads copy along its rows, so its tiles go through registers",
    "declare it with the product's K dimension last",
)
GRAINS = RemarkKind(
    "rows or steps of {memory} are unaligned: direct-to-shared loads need multiples of {bytes} bytes",
    "let both be multiples of {elements} elements",
)
STRETCHES = RemarkKind(
    "a tile of {memory} has {tile_bytes:,} bytes in rows of {row_bytes}, and direct-to-shared loads of {waves} waves "
    "take {round_bytes:,} bytes each",
    "use larger tiles, or fewer waves",
)
PADDED = RemarkKind(
    "a tile of {memory} is {tile} and is padded to {padded} for its product, so it goes through registers",
    "cut tiles of {padded}",
)
APART = RemarkKind("rows of this tile are padded or in narrow chunks in shared memory, so it goes through registers")
NO_ROOM = RemarkKind(
    "{slots} stages of these tiles need {bytes:,} bytes of shared memory, and {machine} has {room:,}: they go through "
    "registers, which needs one stage",
    "use smaller tiles or shorter steps",
)


@dataclass(frozen=True)
class DirectToShared:
    """`slots`: the number of pipeline stages that shared memory will hold at once."""

    machine: Chip
    slots: int = 1

    def __repr__(self) -> str:
        return f"DirectToShared({self.machine.name}, slots={self.slots})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if self.machine.widest_load_bytes not in self.machine.direct_load_bytes:
            return kernel
        finder = _Finder(kernel, self.machine)
        moves = [move for found in finder.blocks(kernel.body) for move in found]
        if not moves:
            return kernel.with_remarks(*finder.remarks)
        needed, room = self._bytes(kernel, {move.write.memory for move in moves}), self.machine.shared.bytes
        if needed > room:
            facts = {"slots": self.slots, "bytes": needed, "machine": self.machine.name, "room": room}
            return kernel.with_remarks(*finder.remarks, NO_ROOM.at(moves[0].read.loc, **facts))
        return replace(kernel, body=rewrite_blocks(kernel.body, _Writer(moves).block)).with_remarks(*finder.remarks)

    def _bytes(self, kernel: Kernel, loaded: set[Value]) -> int:
        """Return the bytes of shared memory that are needed; directly copied tiles count once per stage."""
        taken = (op.result for op in walk(kernel.body) if isinstance(op, Allocate) and is_in(op.result, "shared"))
        return sum(_size(v) * (self.slots if v in loaded else 1) for v in taken)


def _size(v: Value) -> int:
    assert isinstance(v.type, Memory)
    return elements(v.type) * v.type.dtype.bytes


@dataclass(frozen=True)
class LoadedTile:
    """A tile that is read from global memory, and written to shared memory only."""

    read: Read
    write: Write

    def bring(self) -> CopyAsync:
        return CopyAsync(self.read.memory, self.read.at, self.write.memory, (), self.axes, loc=self.read.loc)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axis of global memory for each axis of shared memory."""
        along = dict(zip(self.write.axes, self.read.axes, strict=True))
        return tuple(along[axis] for axis in sorted(along))


class _Finder:
    def __init__(self, kernel: Kernel, machine: Chip) -> None:
        self.chunk_bytes = machine.widest_load_bytes
        self.round_bytes = kernel.lanes * self.chunk_bytes
        self.waves = prod(kernel.waves)
        self.positions = scalars_of(kernel.body)
        self.written, _ = touched(kernel)
        self.remarks: list[Remark] = []
        self.users = kernel.users

    def blocks(self, block: Block) -> Iterator[list[LoadedTile]]:
        """Yield the copies of each block whose staged tiles can all be copied directly."""
        staging = [op for op in block.ops if isinstance(op, Write) and is_in(op.memory, "shared")]
        reads = {op.result: op for op in block.ops if isinstance(op, Read)}
        try:
            yield [self.move(reads.get(op.tile), op) for op in staging]
        except Left as left:
            self.remarks.append(left.remarks)
        for op in block.ops:
            for inner in op.blocks:
                yield from self.blocks(inner)

    def move(self, read: Read | None, write: Write) -> LoadedTile:
        """Return the tile to copy; raise `Left` where it cannot be copied directly."""
        if read is None:
            raise Left(COMPUTED.at(write.loc))
        self.check_alone(read, write)
        self.check_suits(read, write)
        return LoadedTile(read, write)

    def check_alone(self, read: Read, write: Write) -> None:
        """Raise `Left` where another op uses the tile or writes to either memory."""
        others = [op for op in self.users[write.memory] if op != write]
        inputs = is_in(read.memory, "global") and read.memory not in self.written
        want(inputs, WRITTEN, read.loc, memory=read.memory.name)
        alone = self.users[read.result] == (write,) and all(isinstance(op, Read) for op in others)
        want(alone, USED_TWICE, read.loc, memory=read.memory.name)

    def check_suits(self, read: Read, write: Write) -> None:
        memory, to, name = read.memory.type, write.memory.type, read.memory.name
        assert isinstance(memory, Memory) and isinstance(to, Memory)
        *batch, rows, columns = (1, *to.shape) if len(to.shape) == 1 else to.shape
        width, size = self.chunk_bytes // memory.dtype.bytes, memory.dtype.bytes
        shapes = {"tile": dims(read.within), "padded": dims(write.tile.type.shape)}
        want(not read.within, PADDED, read.loc, memory=name, **shapes)
        axes = LoadedTile(read, write).axes
        in_rows = axes == tuple(sorted(axes)) and axes[-1:] == (memory.rank - 1,)
        want(in_rows, ACROSS_ROWS, read.loc, memory=name)
        length = memory.extents[-1]  # a dynamic one is checked when arrays are passed
        grains = columns % width == 0 and (isinstance(length, str) or length % width == 0)
        grains = grains and self.positions.divisor(read.at[-1]) % width == 0
        want(grains, GRAINS, read.loc, memory=name, bytes=self.chunk_bytes, elements=width)
        whole = tuple(to.shape[axis] for axis in write.axes) == write.tile.type.shape and len(write.axes) == to.rank
        want(whole and prod(batch) == 1 and _keeps_chunks(to, width), APART, read.loc)
        row_bytes, tile_bytes = columns * size, rows * columns * size
        stretches = self.round_bytes % row_bytes == 0 and tile_bytes % (self.waves * self.round_bytes) == 0
        facts = {"tile_bytes": tile_bytes, "row_bytes": row_bytes, "round_bytes": self.round_bytes}
        want(stretches, STRETCHES, read.loc, memory=name, waves=self.waves, **facts)


def _keeps_chunks(to: Memory, width: int) -> bool:
    """Whether the elements of a chunk are contiguous, and rows have no padding between them."""
    match to.placement:
        case Swizzled(chunk) | SwizzledByBits(chunk):
            return chunk % width == 0 and len(to.shape) > 1
        case Padded():
            return False
        case _:
            return len(to.shape) > 1


class _Writer:
    def __init__(self, moves: Sequence[LoadedTile]) -> None:
        self.moves = {id(move.write): move for move in moves}
        self.gone = {move.read.result for move in moves}
        self.memories = {move.write.memory for move in moves}

    def block(self, block: Block) -> Block:
        """Return the block with its copies, and one wait for all of them before the first read of a copied tile."""
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
                ops.append(WaitAsync(0, loc=op.loc))
                on_the_way = False
            ops.append(op)
        return replace(block, ops=tuple(ops))

    def reads(self, op: Op) -> bool:
        inside = (inner for block in op.blocks for inner in walk(block))
        return any(isinstance(o, Read) and o.memory in self.memories for o in (op, *inside))
