"""Stage the operands of products in shared memory, where several waves need them or the author asks for it.

    %x = read(%a, [%m, %k])        →  %x = read(%a, [%m, %k]) {per_lane = 4, spread = rows}
    %z = mma(%x, %y, %acc)            write(%x, %x_shared, [%c0, %c0])
                                      %x_part = read(%x_shared, [%c0, %c0]) {per_lane = 8}
                                      %z = mma(%x_part, %y_part, %acc)

The placement of rows in shared memory avoids bank conflicts between lanes that are served together, both when they
write and when they read: `bank_table` shows the cost of each placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewave.analysis.instructions import fragment_of, instruction_of
from tilewave.analysis.loads import lane_block, memory_order, power_of_two, widest_chunk
from tilewave.analysis.shared_rows import (
    REPEATING_ROWS,
    WIDE_PADS,
    Cost,
    StagedAccess,
    cheapest,
    cost,
    paddings,
    swizzles,
)
from tilewave.errors import NOWHERE, Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.launch import in_front
from tilewave.ir.ops import Allocate, Broadcast, Const, Elementwise, Gather, Iota, Mma, Permute, Read, Write
from tilewave.ir.placements import is_in, stored_axes
from tilewave.ir.rewrite import map_blocks, names, walk
from tilewave.ir.types import INDEX_SCALAR, DType, Memory, Panels, Placement, Swizzled, Tile
from tilewave.layouts.formulas import Layout, blocks, linear, read_transposed
from tilewave.layouts.fragments import Fragment
from tilewave.machine.banks import ports
from tilewave.machine.chips import Chip, TransposingRead
from tilewave.machine.matrix import NAMED, GroupInstruction
from tilewave.records import dataclass

SPREADS = ("rows", "columns")


@dataclass(frozen=True)
class StageShared:
    machine: Chip

    def __repr__(self) -> str:
        return f"StageShared({self.machine.name})"

    def __call__(self, kernel: Kernel) -> Kernel:
        return _Staging(kernel, self.machine).kernel()


class _Staging:
    def __init__(self, kernel: Kernel, machine: Chip) -> None:
        self.old, self.machine = kernel, machine
        self.builder = Builder(names(kernel))
        self.defs = kernel.defs
        self.memories: dict[Value, Value] = {}
        self.mn_major: set[Value] = set()
        """Operands that are transposed in shared memory: contiguous along their rows, as they are in global memory."""
        self.transposed: dict[Value, TransposingRead] = {}
        """The transposing load of each operand that lanes read transposed."""
        self.allocations: list[Op] = []
        self.reads: dict[Value, Read] = {}
        """Replacements of reads, by their results."""
        self.views: set[Value] = set()
        """Transposed operands that are read from the memory of the tile that they are the transpose of."""
        for op in walk(kernel.body):
            if isinstance(op, Mma):
                look = self.look_at if _fragment(op) else self.look_at_rows
                look(op, 0)
                look(op, 1)
        self.zero = self.builder.fresh("c0", INDEX_SCALAR)

    def kernel(self) -> Kernel:
        if not self.memories and not self.reads:
            return self.old
        body = self.block(self.old.body)
        if not self.memories:
            return replace(self.old, body=body)
        zero = Const(0, results=(self.zero,), loc=self.allocations[0].loc)
        return replace(self.old, body=in_front((*self.allocations, zero), body))

    # -- which operands

    def look_at(self, op: Mma, side: int) -> None:
        x = (op.a, op.b)[side]
        sources = list(self.sources(x))
        if not sources:
            return  # computed without reads: every lane computes its part
        if None in sources:
            return  # lanes hold it already; convert_layouts converts it where the layout differs
        staged = not all(map(_is_in_shared, sources)) and (
            self.old.waves[1 - side] > 1
            or any(isinstance(s, (Read, Gather)) and s.through == "shared" for s in sources)
        )
        block = _fragment(op)
        assert block is not None
        one = NAMED[op.instruction].fragment()
        reads = list(self.reads_of(x))
        for read in reads:
            if read.result not in self.reads:
                width = block.per_lane
                if staged:
                    width = read.per_lane if _divides(read.per_lane, block) else one.per_lane
                self.reads[read.result] = replace(read, through="", per_lane=width, spread=SPREADS[side])
        if staged and x not in self.memories:
            if found := self.transposing(x, reads, block, side):
                self.mn_major.add(x)
                self.transposed[x] = found
            access = self.access(x, reads, block, side)
            self.allocate(x, op, cheapest(ports(self.machine.shared), access).placement)

    def transposing(self, x: Value, reads: list[Read], block: Fragment, side: int) -> TransposingRead | None:
        """Return the transposing load for an operand that is not contiguous along K, if it suits all its products."""
        if not reads or prod(x.type.shape[:-2]) != 1 or not all(map(_is_along_rows, reads)):
            return None
        uses = [(op, s) for op in walk(self.old.body) if isinstance(op, Mma) for s in (0, 1) if (op.a, op.b)[s] == x]
        if any((_fragment(op), s) != (block, side) for op, s in uses):
            return None
        held = block.operand(x.type.shape, (1, 1), side)
        fits = (t for t in self.machine.transposing_reads if t.element_bytes == x.type.dtype.bytes)
        return next((t for t in fits if read_transposed(held, t.lanes, t.rows)), None)

    def look_at_rows(self, op: Mma, side: int) -> None:
        """Stage an operand that wgmma reads from shared memory itself: rows are swizzled as it requires."""
        x, instruction = (op.a, op.b)[side], instruction_of(op)
        assert isinstance(instruction, GroupInstruction)
        if side == 0 and instruction.takes_sums and None in self.sources(x):
            return  # lanes hold it, and wgmma takes its left operand from registers
        reads = list(self.reads_of(x))
        for read in reads:
            self.reads[read.result] = replace(read, through="", per_lane=0)
        if x in self.memories:
            return
        if instruction.turns and (whole := self.transposed_of(x)) is not None:
            self.look_at_rows_of(whole, op, instruction)
            self.memories[x] = self.memories[whole]
            self.mn_major.add(x)
            self.views.add(x)
            return
        self.look_at_rows_of(x, op, instruction)

    def transposed_of(self, x: Value) -> Value | None:
        """Return the tile that x is the transpose of, where wgmma reads that tile too: one memory serves both."""
        permute = self.defs.get(x)
        if not isinstance(permute, Permute) or permute.axes != (
            *range(len(permute.axes) - 2),
            *_last_exchanged(permute),
        ):
            return None
        read, users = self.defs.get(permute.x), self.old.users
        both = isinstance(read, Read) and not _is_along_rows(read) and all(isinstance(op, Mma) for op in users[x])
        own = any(isinstance(op, Mma) and permute.x in (op.a, op.b) and not _fragment(op) for op in users[permute.x])
        return permute.x if both and own else None

    def look_at_rows_of(self, x: Value, op: Mma, instruction: GroupInstruction) -> None:
        """Stage an operand, in panels where its transpose is read from the same memory."""
        if x in self.memories:
            return
        reads, size, (rows, depth) = list(self.reads_of(x)), x.type.dtype.bytes, x.type.shape[-2:]
        along_rows = reads != [] and all(_is_along_rows(read) for read in reads)
        if instruction.turns and along_rows and instruction.panel_bytes(rows * size):
            self.mn_major.add(x)
        side = (rows if x in self.mn_major else depth) * size
        panel = instruction.panel_bytes(side)
        chunk_bytes, *swizzle = instruction.swizzle(panel)
        chunk = chunk_bytes // size
        if panel == side and x not in self.mn_major and not any(self.transposed_of(v) == x for v in self.made_of(x)):
            self.allocate(x, op, Swizzled(chunk, *swizzle))
        else:
            self.allocate(x, op, Panels(panel // size, chunk, *swizzle))

    def made_of(self, v: Value) -> list[Value]:
        """Return the values that ops make of `v`."""
        return [result for op in self.old.users[v] for result in op.results]

    def reads_of(self, v: Value) -> Iterator[Read]:
        """Yield the reads that `v` is computed from elementwise, so that lanes hold them in the layout of `v`."""
        op = self.defs.get(v)
        if isinstance(op, Read):
            yield op
        elif isinstance(op, Elementwise):
            for x in op.operands:
                yield from self.reads_of(x)

    def access(self, x: Value, reads: list[Read], block: Fragment, side: int) -> StagedAccess:
        """Return the accesses to a staged operand: lanes write the widest chunks, in the order of global memory."""
        shape, size, lanes, readers = x.type.shape, x.type.dtype.bytes, self.machine.lanes, self.old.waves[1 - side]
        if not reads:
            width = power_of_two(shape[-1], self.machine.shared.widest_bytes // size)
            return _access(lanes, shape, size, _axes(x), width, block, side, readers)
        order, all_lanes = memory_order(reads[0]), lanes * prod(self.old.waves)
        width = min(widest_chunk(read, self.machine.widest_load_bytes) for read in reads)
        if x in self.transposed:
            return self.access_as_laid_out(x, width, block.operand(shape, (1, 1), side), readers)
        held = lane_block(reads[0], self.machine.widest_load_bytes, all_lanes)
        if order[-1] != len(shape) - 1 and held:
            back = tuple(order.index(axis) for axis in range(len(shape)))
            written = blocks(tuple(shape[axis] for axis in order), held.rows, held.width, all_lanes)
            crossed = tuple(layout.permuted(back).with_last(len(shape) - 1) for layout in written)
            return StagedAccess(shape, size, crossed, (block.operand(shape, (1, 1), side),), 1, lanes, readers)
        return _access(lanes, shape, size, order, width, block, side, readers)

    def access_as_laid_out(self, x: Value, width: int, held: Layout, readers: int) -> StagedAccess:
        """Return the accesses where rows are written as in global memory, and read with transposing loads."""
        found, lanes, order = self.transposed[x], self.machine.lanes, self.axes(x)
        shape = tuple(x.type.shape[axis] for axis in order)
        reading = read_transposed(held, found.lanes, found.rows)
        assert reading is not None
        written = linear(shape, width, lanes)
        return StagedAccess(shape, x.type.dtype.bytes, written, (reading.permuted(order),), 1, lanes, readers)

    def sources(self, v: Value) -> Iterator[Read | Gather | None]:
        """Yield the reads that a tile is computed from; None for values that lanes already hold in some layout."""
        op = self.defs.get(v)
        match op:
            case Read() | Gather():
                yield op
            case Const() | Iota():
                pass
            case Broadcast(x) | Permute(x):
                yield from self.sources(x) if isinstance(x.type, Tile) else ()
            case Elementwise():
                for x in op.operands:
                    yield from self.sources(x) if isinstance(x.type, Tile) else ()
            case _:
                yield None

    def allocate(self, x: Value, op: Mma, rows: Placement | None) -> None:
        kind = Memory(tuple(x.type.shape[axis] for axis in self.axes(x)), x.type.dtype, "shared", rows)
        memory = self.builder.fresh(f"{x.name}_shared", kind)
        maker = self.defs.get(x)
        self.memories[x] = memory
        self.allocations.append(Allocate(results=(memory,), loc=maker.loc if maker else op.loc))

    # -- the rewritten kernel

    def block(self, block: Block) -> Block:
        """Return the block with operands written right after their definition, and read before their first product."""
        found: dict[ProductSide, Value] = {}
        first = block.ops[0].loc if block.ops else NOWHERE
        ops: list[Op] = [self.write(v, first) for v in block.args if v in self.memories]
        for old in block.ops:
            if not self.views.isdisjoint(old.results):
                continue
            op = map_blocks(old, self.block)
            if isinstance(op, Mma):
                ops += self.product(op, found)
            else:
                ops.append(self.reads[op.result] if isinstance(op, Read) and op.result in self.reads else op)
            ops += [self.write(v, op.loc) for v in op.results if v in self.memories]
        return replace(block, ops=tuple(ops))

    def product(self, op: Mma, found: dict[ProductSide, Value]) -> list[Op]:
        """Return the product, after the reads of those operands that no product before it in this block has read."""
        ops: list[Op] = []
        parts = [op.a, op.b]
        for side, x in enumerate((op.a, op.b)):
            if x not in self.memories:
                continue
            part = ProductSide(x, side, _fragment(op))
            if part not in found or part.fragment is None:  # wgmma reads shared memory in every product
                found[part] = self.builder.fresh(f"{x.name}_part", x.type)
                ops.append(self.read(part, found[part], op.loc))
            parts[side] = found[part]
        return [*ops, replace(op, a=parts[0], b=parts[1])]

    def read(self, part: ProductSide, result: Value, loc: Loc) -> Read:
        memory, per_lane = self.memories[part.of], part.fragment.per_lane if part.fragment else 0
        found = self.transposed.get(part.of)
        return Read(
            memory,
            self.start(part.of),
            self.axes(part.of),
            per_lane=per_lane,
            transposed=(found.lanes, found.rows) if found else (),
            results=(result,),
            loc=loc,
        )

    def write(self, v: Value, loc: Loc) -> Write:
        return Write(v, self.memories[v], self.start(v), self.axes(v), loc=loc)

    def axes(self, v: Value) -> tuple[int, ...]:
        """Return the axis of its memory for each axis of a tile."""
        *batch, rows, depth = _axes(v)
        return (*batch, depth, rows) if v in self.mn_major else _axes(v)

    def start(self, v: Value) -> tuple[Value, ...]:
        return (self.zero,) * len(v.type.shape)


@dataclass(frozen=True)
class ProductSide:
    """An operand as lanes hold it for one side of a product."""

    of: Value
    side: int
    fragment: Fragment | None


def _axes(v: Value) -> tuple[int, ...]:
    return tuple(range(len(v.type.shape)))


def _fragment(op: Mma) -> Fragment | None:
    """Return the fragment of a product; None where lanes do not hold its operands."""
    return None if isinstance(instruction_of(op), GroupInstruction) else fragment_of(op)


def _is_along_rows(read: Read) -> bool:
    """Whether neighbouring rows, the last axis but one, are contiguous in memory."""
    memory = read.memory.type
    assert isinstance(memory, Memory)
    return len(read.axes) > 1 and read.axes[-2] == stored_axes(memory)[-1]


def _last_exchanged(permute: Permute) -> tuple[int, int]:
    """Return the last two axes in the other order."""
    return len(permute.axes) - 1, len(permute.axes) - 2


def _is_in_shared(source: Read | Gather | None) -> bool:
    """Whether all waves can read `source` from shared memory already."""
    return isinstance(source, (Read, Gather)) and is_in(source.memory, "shared")


def _divides(per_lane: int, block: Fragment) -> bool:
    """Whether lanes can load a block in vectors of `per_lane` neighbours."""
    return per_lane > 0 and block.per_lane % per_lane == 0


# -- the placement of rows ---------------------------------------------------------------------------------------------


def bank_table(machine: Chip, shape: tuple[int, int], dtype: DType, instruction: str) -> tuple[Cost, ...]:
    """Return the cost of plain rows, both paddings and the best XOR for an operand written in the widest chunks."""
    one = NAMED[instruction].fragment()
    count = max(1, power_of_two(shape[1] // one.depth, machine.shared.widest_bytes // (one.per_lane * dtype.bytes)))
    width = power_of_two(shape[1], machine.shared.widest_bytes // dtype.bytes)
    access = _access(machine.lanes, shape, dtype.bytes, (0, 1), width, one.deepened(count), 0, 1)
    found = ports(machine.shared)
    swizzled = min(
        (cost(found, access, s) for s in swizzles(access, machine.shared.widest_bytes)),
        key=lambda c: c.conflicts,
        default=None,
    )
    plain = [cost(found, access, p) for p in (None, *paddings(WIDE_PADS, access))]
    return (*plain, swizzled) if swizzled else tuple(plain)


def _access(
    lanes: int,
    shape: tuple[int, ...],
    element_bytes: int,
    order: tuple[int, ...],
    width: int,
    block: Fragment,
    side: int,
    readers: int,
) -> StagedAccess:
    """Return the accesses of lanes that write axes in `order`, the last one in chunks, and of waves that read."""
    *batch, rows, _ = shape
    repeats = block.in_order != SPREADS[side]  # reads of rows in order differ with the number of rows
    if repeats and order[-1] == len(shape) - 1 and not batch and rows % REPEATING_ROWS == 0:
        shape = (REPEATING_ROWS, shape[-1])
    back = tuple(order.index(axis) for axis in range(len(order)))
    walked = linear(tuple(shape[axis] for axis in order), width, lanes)
    written = tuple(layout.permuted(back) for layout in walked)
    return StagedAccess(shape, element_bytes, written, (block.operand(shape, (1, 1), side),), 1, lanes, readers)
