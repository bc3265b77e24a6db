"""Load tiles from global to shared memory by TMA, where the machine has it.

    %x = read(%a, [%m, %k]) : tile<128x64xf16>     →   copy(%a, [%m, %k], %x_shared, []) {axes = [0, 1]}
    write(%x, %x_shared, [%c0, %c0])

TMA loads all tiles of a kernel or none: waits for loads of lanes and for TMA loads are different. Sums of one product
that are staged as an operand of another are stored by lanes. Rows of an operand that its products leave out
(`narrow_mma`) are not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from tilewave.analysis.chains import sums_in
from tilewave.analysis.positions import BlockScalars, scalars_of
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Const, Copy, Mma, Read, Write
from tilewave.ir.placements import is_in, is_one_row, row_elements, row_pitch, stored_axes
from tilewave.ir.remarks import Left, RemarkKind, want
from tilewave.ir.rewrite import blocks_in, names, rewrite, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, dims
from tilewave.machine.chips import Chip, Tma
from tilewave.records import dataclass
from tilewave.transform.used_rows import load_used_rows

ACROSS_ROWS = RemarkKind(
    "{memory} is read transposed, and TMA loads along its rows, so lanes load all tiles",
    "declare it with the product's K dimension last",
)
ROWS_APART = RemarkKind(
    "the row stride of {memory} is {bytes} bytes, and TMA needs a multiple of {grain}, so lanes load all tiles",
    "give it rows of a multiple of {elements} elements",
)
UNALIGNED_STRIDE = RemarkKind(
    "a step of {memory} has {bytes} bytes of a row, and TMA needs a multiple of {grain} up to {widest}, so lanes load "
    "all tiles",
    "make the step a multiple of {elements}",
)
UNALIGNED_BASE = RemarkKind(
    "tiles of {memory} are not known to begin at a multiple of {grain} bytes in its rows, so lanes load all tiles",
    "let them begin at multiples of {elements} elements",
)
LONG_SIDE = RemarkKind(
    "a tile of {memory} has {rows} rows, and a TMA box has at most {most}, so lanes load all tiles",
    "cut smaller tiles",
)
MANY_AXES = RemarkKind("{memory} has {axes} axes, and TMA takes at most {most}, so lanes load all tiles")
PADDED = RemarkKind(
    "a tile of {memory} is {tile} and is padded to {padded} for its product, and TMA loads whole boxes, so lanes load "
    "all tiles",
    "cut tiles of {padded}",
)
COMPUTED = RemarkKind(
    "this operand is gathered, or computed after it is loaded, so lanes load all tiles",
    "compute it in a separate kernel, and read its result",
)
WRITTEN = RemarkKind(
    "the kernel writes {memory}, and TMA might load older values, so lanes load all tiles",
    "write to another memory",
)
USED_TWICE = RemarkKind(
    "this tile of {memory} is used by more than the products of its loop, so lanes load all tiles",
    "read it a second time for that",
)
SEVERAL_LOOPS = RemarkKind(
    "tiles are staged here and at {first}, and TMA is used for one loop only, so lanes load all tiles",
    "give each loop a separate kernel",
)


@dataclass(frozen=True)
class UseTma:
    machine: Chip

    def __repr__(self) -> str:
        return f"UseTma({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        staged = {op.result for op in walk(kernel.body) if isinstance(op, Allocate) and is_in(op.result, "shared")}
        engine = self.machine.tma
        if engine is None or not staged:
            return kernel
        try:
            moves = {move.write: move for move in self.moves(kernel, staged, engine)}
        except Left as left:
            return kernel.with_remarks(left.remarks)
        gone = {move.read.result for move in moves.values()}
        rows = _StagedRows(kernel, engine, {id(read) for read in self.rows(kernel, moves)})

        def copy(op: Op) -> Sequence[Op] | None:
            if isinstance(op, Write) and op in moves:
                return [moves[op].copy()]
            if isinstance(op, Read) and id(op) in rows.wanted:
                return rows.copied(op)
            return [] if isinstance(op, Read) and op.result in gone else None

        made = load_used_rows(rewrite(kernel, copy))
        return replace(made, body=in_front(rows.before, made.body)) if rows.before else made

    def rows(self, kernel: Kernel, moves: Mapping[Write, CopiedTile]) -> list[Read]:
        """Return the reads of rows that the author wants in shared memory, in the innermost block with staged tiles."""
        homes = [block for block in blocks_in(kernel.body) if any(op in moves for op in block.ops)]
        staged = {move.read.result for move in moves.values()}
        return [
            op
            for home in homes[-1:]
            for op in home.ops
            if isinstance(op, Read) and op.through == "shared" and op.result not in staged and _is_row(op)
        ]

    def moves(self, kernel: Kernel, staged: set[Value], engine: Tma) -> list[CopiedTile]:
        """Return all staged tiles, of one block or of nested blocks; raise `Left` where TMA cannot load one of
        them."""
        finder, positions = _Finder(kernel, staged), scalars_of(kernel.body)
        homes = [block for block in blocks_in(kernel.body) if any(finder.stages(op) for op in block.ops)]
        found = [finder.move(op, home) for home in homes for op in home.ops if finder.stages(op)]
        for move in found:
            move.check(engine, positions)
        for outer, inner in pairwise(homes):
            if not any(block is inner for block in blocks_in(outer)):
                other = next(op for op in inner.ops if finder.stages(op))
                raise Left(SEVERAL_LOOPS.at(other.loc, first=found[0].read.loc))
        return found


@dataclass(frozen=True)
class CopiedTile:
    """A tile that is read from global memory, and written to shared memory only."""

    read: Read
    write: Write

    def check(self, engine: Tma, positions: BlockScalars) -> None:
        memory, to, grain = self.read.memory.type, self.write.memory.type, engine.grain_bytes
        assert isinstance(memory, Memory) and isinstance(to, Memory)
        box = (*to.shape[:-1], row_elements(to))
        size, loc = memory.dtype.bytes, self.read.loc
        facts = {"memory": self.read.memory.name, "grain": grain, "elements": grain // size}
        shapes = {"tile": dims(self.read.within), "padded": dims(to.shape)}
        want(not self.read.within, PADDED, loc, **facts, **shapes)
        stored = stored_axes(memory)
        order = [stored.index(axis) for axis in self.axes]
        want(order == sorted(order) and self.axes[-1] == stored[-1], ACROSS_ROWS, loc, **facts)
        row_bytes, row = row_elements(to) * size, row_pitch(self.read.memory)
        widest = engine.widest_row_bytes if to.placement else engine.longest_side * size  # a swizzle is within a row
        step = row_bytes <= widest and row_bytes % grain == 0
        want(step, UNALIGNED_STRIDE, loc, **facts, bytes=row_bytes, widest=widest)
        if isinstance(row, int):  # dynamic rows are checked at the launch
            want(row * size % grain == 0 or is_one_row(memory), ROWS_APART, loc, **facts, bytes=row * size)
        want(positions.divisor(self.read.at[stored[-1]]) * size % grain == 0, UNALIGNED_BASE, loc, **facts)
        want(max(box) <= engine.longest_side, LONG_SIDE, loc, **facts, rows=max(box), most=engine.longest_side)
        axes = memory.rank
        want(axes <= engine.most_axes, MANY_AXES, loc, **facts, axes=axes, most=engine.most_axes)

    def copy(self) -> Copy:
        return Copy(self.read.memory, self.read.at, self.write.memory, (), self.axes, loc=self.read.loc)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axis of global memory for each axis of shared memory."""
        return tuple(self.read.axes[axis] for axis in self.write.axes)


class _StagedRows:
    """Copies rows, such as statistics of the queries of a step, which lanes then load from shared memory."""

    def __init__(self, kernel: Kernel, engine: Tma, wanted: set[int]) -> None:
        self.builder, self.positions, self.engine = Builder(names(kernel)), scalars_of(kernel.body), engine
        self.wanted = wanted
        self.before: list[Op] = []

    def copied(self, read: Read) -> list[Op] | None:
        """Return the copy of a row and its read from shared memory; None where TMA cannot load it."""
        kind = Memory(read.result.type.shape, read.memory.type.dtype, "shared")
        memory = self.builder.fresh(f"{read.result.name}_shared", kind)
        allocation = Allocate(results=(memory,), loc=read.loc)
        zero = Const(0, results=(self.builder.fresh("c0", INDEX_SCALAR),), loc=read.loc)
        axes = tuple(range(kind.rank))
        copied = CopiedTile(read, Write(read.result, memory, (zero.result,) * kind.rank, axes, loc=read.loc))
        try:
            copied.check(self.engine, self.positions)
        except Left:
            return None
        self.before += [allocation, zero]
        own = replace(read, memory=memory, at=(zero.result,) * kind.rank, axes=axes, through="")
        return [copied.copy(), own]


def _is_row(read: Read) -> bool:
    """Whether a tile has elements along the last axis of its memory only."""
    return prod(read.result.type.shape[:-1]) == 1 and read.axes[-1] == read.memory.type.rank - 1


class _Finder:
    def __init__(self, kernel: Kernel, staged: set[Value]) -> None:
        self.staged = staged
        self.users, self.defs = kernel.users, kernel.defs
        self.written, _ = touched(kernel)

    def stages(self, op: Op) -> bool:
        """Return whether an op stages a tile of an array; sums of products come from registers."""
        return isinstance(op, Write) and op.memory in self.staged and not self.has_sums(op.tile)

    def has_sums(self, v: Value) -> bool:
        return sums_in(v, len(v.type.shape) - 1, self.defs) is not None

    def move(self, op: Op, block: Block) -> CopiedTile:
        """Return a tile that this block loads for its own products, or for those of blocks inside it."""
        assert isinstance(op, Write)
        read = next((r for r in block.ops if isinstance(r, Read) and r.result == op.tile), None)
        if read is None:
            raise Left(COMPUTED.at(op.loc))
        name = read.memory.name
        want(read.memory not in self.written and is_in(read.memory, "global"), WRITTEN, read.loc, memory=name)
        whole = op.memory.type.shape == tuple(op.tile.type.shape[axis] for axis in op.axes)
        inside = list(walk(block))
        factors = {v for o in inside if isinstance(o, Mma) for v in (o.a, o.b)}
        others = [user for user in self.users[op.memory] if user != op]
        own = all(isinstance(o, Read) and o in inside and o.result in factors for o in others)
        want(whole and self.users[op.tile] == (op,) and own, USED_TWICE, read.loc, memory=name)
        return CopiedTile(read, op)
