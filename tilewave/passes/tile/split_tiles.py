"""Split a workgroup's tile into blocks that fit into registers: loops around the program, whose tiles become small.

tile 128x256, blocks 8x16:

    %sum = loop(%trips, [%zero]) …      →  loop(%c16, []) do (%column_block: index) {
    write(%sum, %c, [%m, %n])                %n_1 = add(%n, mul(%column_block, 16))
                                             loop(%c16, []) do (%row_block: index) {
                                               %m_1 = add(%m, mul(%row_block, 8))
                                               %sum = loop(%trips, [%zero]) … : tile<8x16xf32> …
                                               write(%sum, %c, [%m_1, %n_1])

Columns are outermost around products, so that a panel of the second operand stays in the nearest cache while those of
the first stream by; elsewhere rows are, as in memory. Blocks wholly outside the memory are not computed. The last
columns of a boundary tile of products are a narrower block: one more loop, of at most one block, for each number of
vectors of a row:

    loop(%trips, []) do (%column_block: index) { … tile<8x16xf32> … }
    loop(%rest, []) do (%column_block_1: index) { … tile<8x8xf32> … }       (vectors of 8 sums)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewave.analysis.axes import Axes, Label, own_leaves
from tilewave.analysis.positions import BlockScalars, scalars_of
from tilewave.errors import Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Broadcast,
    FloorDiv,
    Gather,
    Iota,
    Loop,
    Min,
    Mma,
    Mul,
    Read,
    Reduce,
    Scatter,
    Sub,
    While,
    Write,
    Yield,
)
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import map_blocks, names, rename, renamed, substitute, walk
from tilewave.ir.types import INDEX_SCALAR, Extent, Tile, known_at_most
from tilewave.machine.matrix import largest_divisor
from tilewave.records import dataclass

MOVES: tuple[type[Op], ...] = (Read, Write, Gather, Scatter)
CUT_HERE: tuple[type[Op], ...] = (*MOVES, Iota, Loop, While, Yield)
"""Ops that this pass splits itself; the others say which of their axes correspond, or cannot be split."""


CANNOT_BE_CUT = RemarkKind("{op} cannot be computed in blocks, so tiles are not split")
LOOP_DECIDES = RemarkKind("a result of a tile's loop decides which tile is next, so tiles are not split")
ALONG_ITSELF = RemarkKind("two axes of the tile written here are the same dimension, so the tile is not split")
ADDED_UP = RemarkKind("an axis of the tile written here is reduced elsewhere, so the tile is not split")
OTHER_AXES = RemarkKind(
    "this tile has other axes than the one written at {first}, so neither is split",
    "write them in separate kernels",
)
PRODUCT_OF_PRODUCTS = RemarkKind(
    "this product is an operand of another, and would be recomputed for each of its blocks, so tiles are not split",
    "write it to a memory, and read that in a separate kernel",
)
SCATTERED_AGAIN = RemarkKind("{memory} is written by element and accessed again, so tiles are not split")
TWO_PLACES = RemarkKind("{memory} is accessed at two positions, and one of them is written, so tiles are not split")
MOVING = RemarkKind("{memory} is written at a position that depends on a loop over the tile, so tiles are not split")
RAGGED_SCATTER = RemarkKind(
    "a tile that may be a boundary tile is written by element, so it is not split",
    "let the tile divide the size, and give the size in subs",
)
OUTSIDE = RemarkKind(
    "a block of {memory} might be out of bounds where the tile is not, so tiles are not split",
    "let the tile divide the size, and give the size in subs",
)
TWO_LENGTHS = RemarkKind("memories of two lengths are written along one axis, so tiles are not split")


@dataclass(frozen=True)
class SplitTiles:
    """Splits written tiles into blocks of at most `rows` x `cols`, and batches into single ones.

    Where the blocks of a tile are not independent (a product of products, tiles of different extents, a memory that is
    read at one position and written at another), or a block might be outside what it reads, the tiles stay whole, and a
    lowering needs another path for those.
    """

    rows: int
    cols: int
    lanes: int = 0
    """The columns of the narrowest block of a boundary tile; 0: all blocks are equal."""

    def __call__(self, kernel: Kernel) -> Kernel:
        loose = own_leaves(kernel)
        positions, taken = scalars_of(loose.body), names(loose)
        done: list[Block] = []
        remarks: list[Remark] = []

        def split(block: Block) -> Block:
            """Return the block that holds the tiles, split; the loops around it, which carry none, are unchanged."""
            if not any(_touches_tiles(op) for op in block.ops):
                return replace(block, ops=tuple(map_blocks(op, split) for op in block.ops))
            try:
                plan = _Plan(block, positions, (self.rows, self.cols))
            except Left as left:
                remarks.append(left.remarks)
                return block
            if not plan.cuts:  # every tile is small
                return block
            done.append(block)
            return _Splitter(plan, Builder(taken), self.lanes).block()

        body = split(loose.body)
        return (replace(kernel, body=body) if done else kernel).with_remarks(*remarks)


def _touches_tiles(op: Op) -> bool:
    return any(isinstance(v.type, Tile) for v in (*op.operands, *op.results))


def _can_be_cut(op: Op) -> bool:
    return isinstance(op, CUT_HERE) or op.corresponding() is not None


def _holds_tiles(op: Op) -> bool:
    return _touches_tiles(op) or any(_touches_tiles(inner) for block in op.blocks for inner in walk(block))


@dataclass(frozen=True)
class AxisWindow:
    """The begin of a read or write along one axis of its memory, and the length of that axis."""

    op: Read | Write
    at: Value
    length: Extent


@dataclass(frozen=True)
class BlockAxis:
    """An axis of written tiles: its label, the extent of a block, the number of blocks, and their begin."""

    label: Label
    name: str
    extent: int
    count: int
    begin: AxisWindow | None
    """The begin of the tile, if it may be a boundary tile."""


class _Plan:
    """The split of a block's tiles, if there is any; raises `Left` where they cannot be split."""

    def __init__(self, block: Block, positions: BlockScalars, wishes: tuple[int, int]) -> None:
        self.block, self.positions = block, positions
        self.front, self.inside, self.end = _parted(block)
        self.made_inside = set(_made(self.inside))
        self.axes = Axes(self.inside)
        self.all = [inner for op in self.inside for inner in (op, *(o for b in op.blocks for o in walk(b)))]
        self.moves = [op for op in self.all if isinstance(op, MOVES)]
        self.writes = [op for op in self.moves if isinstance(op, (Write, Scatter))]
        self.cuts: list[BlockAxis] = []
        if not self.writes or _is_small(self.writes[0].tile, wishes) or self.is_walked():
            return
        for op in self.all:
            want(_can_be_cut(op), CANNOT_BE_CUT, op.loc, op=op.name)
        decided = self.end is not None and self.made_inside & set(self.end.operands)
        want(not decided, LOOP_DECIDES, self.writes[0].loc)
        self.cuts = self.find_cuts(wishes)
        self.check_products()
        self.check_order()

    def is_walked(self) -> bool:
        """Whether there are reductions, and no products: `tile_reductions` has split those tiles where possible."""
        kinds = {type(op) for op in self.all}
        return Reduce in kinds and Mma not in kinds

    def find_cuts(self, wishes: tuple[int, int]) -> list[BlockAxis]:
        """Return the split axes in the order of their loops."""
        tile, loc = self.writes[0].tile, self.writes[0].loc
        labels, shape = self.axes.of(tile), tile.type.shape
        want(len(set(labels)) == len(labels), ALONG_ITSELF, loc)
        want(not self.axes.contracted() & set(labels), ADDED_UP, loc)
        for op in self.writes:
            want(set(self.axes.of(op.tile)) == set(labels), OTHER_AXES, op.loc, first=loc)
        most = _most(shape, wishes)
        kinds = [*["batch_block"] * (len(shape) - 2), "row_block", "column_block"][-len(shape) :]
        cuts = []
        for label, name, whole, wish in zip(labels, kinds, shape, most, strict=True):
            extent = largest_divisor(whole, wish)
            if extent < whole:
                cuts.append(BlockAxis(label, name, extent, whole // extent, self.begin(label, whole)))
        multiplies = any(isinstance(op, Mma) for op in self.all)
        inner = ("column_block", "row_block") if multiplies else ("row_block", "column_block")
        return sorted(cuts, key=lambda cut: ("batch_block", *inner).index(cut.name))

    def check_products(self) -> None:
        """Raise `Left` for a product that lacks a split axis: it would be computed again for each block."""
        cut = {c.label for c in self.cuts}
        for op in self.all:
            if isinstance(op, Mma):
                want(cut <= set(self.axes.of(op.acc)), PRODUCT_OF_PRODUCTS, op.loc)

    def check_order(self) -> None:
        """Raise `Left` unless each block accesses its part of a written memory only, because blocks run in sequence."""
        for memory in dict.fromkeys(op.memory for op in self.writes):
            touching = [op for op in self.moves if memory in op.operands]
            if any(isinstance(op, (Gather, Scatter)) for op in touching):
                alone = len(touching) == 1 and any(touching[0] is op for op in self.inside)
                want(alone, SCATTERED_AGAIN, touching[0].loc, memory=memory.name)
            else:
                want(len({self.place(op) for op in touching}) == 1, TWO_PLACES, touching[-1].loc, memory=memory.name)
                written = [v for op in touching if isinstance(op, Write) for v in op.at]
                want(not self.made_inside & set(written), MOVING, touching[-1].loc, memory=memory.name)

    def place(self, op: Op) -> tuple[object, ...]:
        """Return, for each axis of the memory, where a window begins and which label runs along it."""
        assert isinstance(op, (Read, Write))
        along = dict(zip(op.axes, self.axes.of(_tile(op)), strict=True))
        return tuple((self.positions.formula(v), along.get(axis)) for axis, v in enumerate(op.at))

    def windows(self, label: Label) -> Iterator[AxisWindow]:
        """Yield a window for every read and write whose tile runs along `label`."""
        for op in self.moves:
            if isinstance(op, (Read, Write)):
                for axis, mine in zip(op.axes, self.axes.of(_tile(op)), strict=True):
                    if mine == label:
                        yield AxisWindow(op, op.at[axis], op.memory.type.extents[axis])

    def begin(self, label: Label, extent: int) -> AxisWindow | None:
        """Return the window that decides which blocks are inside the memory; None where all of them are."""
        windows = list(self.windows(label))
        ragged = [w for w in windows if not self.is_whole(w, extent)]
        if not ragged:
            return None
        writes = [w for w in windows if isinstance(w.op, Write)]
        want(len(writes) == len(self.writes), RAGGED_SCATTER, self.writes[0].loc)
        first = writes[0]
        same = [w for w in windows if self.positions.formula(w.at) == self.positions.formula(first.at)]
        for w in ragged:
            inside = w in same and (known_at_most(first.length, w.length) or isinstance(w.op, Write))
            want(inside, OUTSIDE, w.op.loc, memory=w.op.memory.name)
        want(all(w.length == first.length for w in writes), TWO_LENGTHS, writes[-1].op.loc)
        want(first.at not in self.made_inside, MOVING, first.op.loc, memory=first.op.memory.name)
        return first

    def is_whole(self, window: AxisWindow, extent: int) -> bool:
        """Whether all elements of a window are inside its memory, wherever it begins inside."""
        length = window.length
        return isinstance(length, int) and not length % extent and not self.positions.divisor(window.at) % extent


def _parted(block: Block) -> tuple[list[Op], list[Op], Yield | None]:
    """Return the ops that need no tile, those that do, and the block's end."""
    front: list[Op] = []
    inside: list[Op] = []
    needing: set[Value] = set()
    last = block.ops[-1]
    end = last if isinstance(last, Yield) else None
    for op in block.ops[:-1] if end else block.ops:
        if _holds_tiles(op) or needing & set(_used(op)):
            inside.append(op)
            needing.update(op.results)
        else:
            front.append(op)
    return front, inside, end


def _used(op: Op) -> Iterator[Value]:
    yield from op.operands
    for block in op.blocks:
        for inner in walk(block):
            yield from inner.operands


def _made(ops: Sequence[Op]) -> Iterator[Value]:
    """Yield every value that ops and their regions define."""
    for op in ops:
        yield from op.results
        for block in op.blocks:
            yield from block.args
            yield from _made(block.ops)


def _tile(op: Read | Write) -> Value:
    return op.tile if isinstance(op, Write) else op.result


def _most(shape: tuple[int, ...], wishes: tuple[int, int]) -> list[int]:
    """Return the largest extents of a block, which are one for batches."""
    return [*[1] * (len(shape) - 2), *wishes][-len(shape) :]


def _is_small(tile: Value, wishes: tuple[int, int]) -> bool:
    shape = tile.type.shape
    return all(whole <= max(most, 1) for whole, most in zip(shape, _most(shape, wishes), strict=True))


@dataclass(frozen=True)
class BlockRun:
    """Blocks of one extent along an axis: how many, and the offset of the first, None for the begin of the tile."""

    extent: int
    trips: Value
    first: Value | None = None


class _Splitter:
    """Writes the program of one register block, and the loops around it."""

    def __init__(self, plan: _Plan, builder: Builder, lanes: int) -> None:
        self.plan, self.builder, self.lanes = plan, builder, lanes
        self.loc: Loc = plan.writes[0].loc
        self.builder.locate = lambda: self.loc
        self.offsets: dict[Label, Value] = {}
        self.shifted: dict[tuple[Label, int], Value] = {}
        self.extents: dict[Label, int] = {}
        self.smaller: dict[Value, Value] = {}

    def block(self) -> Block:
        plan = self.plan
        self.builder.ops += plan.front
        self.nest([(cut, self.runs(cut)) for cut in plan.cuts])
        end = () if plan.end is None else (plan.end,)
        return Block(plan.block.args, (*self.builder.ops, *end))

    def with_extents(self) -> dict[Value, Value]:
        """Return the tiles of a block for those of the program."""
        found = {}
        for v in self.plan.made_inside:
            if isinstance(v.type, Tile):
                shape = zip(self.plan.axes.of(v), v.type.shape, strict=True)
                found[v] = Value(v.name, Tile(tuple(self.extents.get(a, n) for a, n in shape), v.type.dtype))
        return found

    def runs(self, cut: BlockAxis) -> list[BlockRun]:
        """Return the blocks that begin inside the memory: equal ones, and in the last columns a narrower one."""
        builder, count = self.builder, self.builder.const(cut.count)
        if cut.begin is None:
            return [BlockRun(cut.extent, count)]
        multiplies = any(isinstance(op, Mma) for op in self.plan.all)
        is_narrowed = multiplies and cut.name == "column_block" and self.lanes and cut.extent % self.lanes == 0
        lanes = self.lanes if is_narrowed and cut.extent > self.lanes else cut.extent
        each = cut.extent // lanes
        left = builder.binary(Sub, self.up(cut.begin.length, lanes), cut.begin.at)
        vectors = builder.binary(FloorDiv, left, builder.const(lanes))
        if each == 1:
            return [BlockRun(cut.extent, builder.binary(Min, vectors, count))]
        vectors = builder.binary(Min, vectors, builder.const(cut.count * each))
        trips = builder.binary(FloorDiv, vectors, builder.const(each))
        rest = builder.binary(Sub, vectors, builder.binary(Mul, trips, builder.const(each)))
        first = builder.binary(Mul, trips, builder.const(cut.extent))
        return [BlockRun(cut.extent, trips), *self.narrow_runs(rest, each, lanes, first)]

    def narrow_runs(self, rest: Value, each: int, lanes: int, first: Value) -> Iterator[BlockRun]:
        """Yield runs of one block or none, of which one has the `rest` of the vectors, fewer than `each`."""
        for vectors in range(each - 1, 0, -1):
            trips = self.builder.binary(FloorDiv, rest, self.builder.const(vectors)) if vectors > 1 else rest
            yield BlockRun(vectors * lanes, trips, first)
            if vectors > 1:
                taken = self.builder.binary(Mul, trips, self.builder.const(vectors))
                rest = self.builder.binary(Sub, rest, taken)

    def up(self, length: Extent, extent: int) -> Value:
        if isinstance(length, int):
            return self.builder.const(length + extent - 1)
        return self.builder.binary(Add, Value(length, INDEX_SCALAR), self.builder.const(extent - 1))

    def nest(self, loops: Sequence[tuple[BlockAxis, list[BlockRun]]]) -> None:
        if not loops:
            self.smaller = self.with_extents()
            for op in self.plan.inside:
                self.op(op)
            return
        (cut, runs), *rest = loops
        for run in runs:
            self.extents[cut.label] = run.extent
            number = self.builder.fresh(cut.name, INDEX_SCALAR)
            body = self.body(cut, run, number, rest)
            if run is not runs[0]:  # the blocks before have these names
                body = renamed(body, lambda v: self.builder.fresh(v.name, v.type))
            self.builder.effect(Loop, run.trips, (), body)

    def body(
        self, cut: BlockAxis, run: BlockRun, number: Value, rest: Sequence[tuple[BlockAxis, list[BlockRun]]]
    ) -> Block:
        """Return the loops over the rest of the axes, for a block of a run along one."""
        with self.builder.region():
            far = run.first or self.builder.binary(Mul, number, self.builder.const(cut.extent))
            self.offsets[cut.label] = far
            self.shifted = {key: v for key, v in self.shifted.items() if key[0] != cut.label}
            for window in self.plan.windows(cut.label):
                if isinstance(window.op, Write):
                    self.shifted[cut.label, self.plan.positions.formula(window.at)] = self.shift(window.at, cut.label)
            self.nest(rest)
            self.loc = self.plan.writes[0].loc
            return self.builder.block([number], [])

    def shift(self, at: Value, label: Label) -> Value:
        """Return where a block begins, for a tile that begins at `at`."""
        if label not in self.offsets:
            return at
        known = self.shifted.get((label, self.plan.positions.formula(at)))
        return known or self.builder.binary(Add, at, self.offsets[label])

    def op(self, op: Op) -> None:
        self.loc = op.loc
        match op:
            case Read(at=at, axes=axes):
                self.append(replace(op, at=self.moved(at, axes, self.plan.axes.of(op.result))))
            case Write(tile=tile, at=at, axes=axes):
                self.append(replace(op, at=self.moved(at, axes, self.plan.axes.of(tile))))
            case Gather(where=where):
                self.append(replace(op, where=self.where(where, self.plan.axes.of(op.result)), part=True))
            case Scatter(tile=tile, where=where):
                self.append(replace(op, where=self.where(where, self.plan.axes.of(tile)), part=True))
            case Iota():
                self.count(op)
            case Loop() | While():
                self.append(map_blocks(op, self.region))
            case _:
                self.append(op)

    def append(self, op: Op) -> None:
        self.builder.ops.append(rename(op, self.smaller))

    def moved(self, at: tuple[Value, ...], axes: tuple[int, ...], labels: tuple[Label, ...]) -> tuple[Value, ...]:
        along = dict(zip(axes, labels, strict=True))
        return tuple(self.shift(v, along[axis]) if axis in along else v for axis, v in enumerate(at))

    def where(self, where: Block, labels: tuple[Label, ...]) -> Block:
        """Return the formula for a block: its element numbers are offset to those of the tile."""
        with self.builder.region():
            shifted = {
                arg: self.builder.binary(Add, arg, self.offsets[label])
                for arg, label in zip(where.args, labels, strict=True)
                if label in self.offsets
            }
            return Block(where.args, (*self.builder.ops, *(substitute(op, shifted) for op in where.ops)))

    def count(self, op: Iota) -> None:
        """Emit the numbers of a block's elements in the tile."""
        (label,) = self.plan.axes.of(op.result)
        if label not in self.offsets:
            self.append(op)
            return
        small = self.smaller[op.result]
        here = self.builder.emit(Iota, type=small.type)
        first = self.builder.cast(self.offsets[label], small.type.dtype)
        ahead = self.builder.emit(Broadcast, first, type=small.type)
        self.builder.ops.append(Add(here, ahead, results=(small,), loc=op.loc))

    def region(self, block: Block) -> Block:
        with self.builder.region():
            for op in block.ops:
                self.op(op)
            return Block(tuple(self.smaller.get(v, v) for v in block.args), tuple(self.builder.ops))
