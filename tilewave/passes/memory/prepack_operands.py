"""Prepack the operands of matrix products into panels, once per launch, and read the panels in the K loop.

%x = read(%a, [%m, %k]) : tile<8x64xf16>     →  %a_panels = prepack(%a) : memory<256x2048x8x1xf32, packed>   (on top)
                                                %x = read_panel(%a_panels, [%m // 8, %k]) : tile<8x8xf32>

Each row of a tile is converted and packed with its neighbours once, not by every workgroup that reads it. A loop that
only accumulates such products iterates over K in steps of `unit`, so that a K which the author's step does not divide
wastes less than a unit.

With dynamic shapes, the number of panels, their depth and the trip count of the loop are computed at the launch:
`memory<{M_by_8}x{K_groups}x8x1xf32, packed>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm

import numpy as np

from tilewave.analysis.positions import scalars_of
from tilewave.errors import NOWHERE, Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import at_launch, launch_of, open_sizes
from tilewave.ir.launch_splits import LaunchSplits
from tilewave.ir.ops import Cast, FloorDiv, Loop, Mma, Mul, Prepack, Read, ReadPanel, Write
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, rewrite, rewrite_block, substitute, uses, walk
from tilewave.ir.types import BOOL, DTYPES, FLOAT8, DType, Extent, Memory, Scalar, Tile, known_at_most
from tilewave.records import dataclass

NO_LOOP = RemarkKind(
    "this product is not in a K loop, so its operands are not packed",
    "iterate over the product's K dimension",
)
UNKNOWN_STEPS = RemarkKind(
    "the trip count of this loop is dynamic, so operands of its products are not packed",
    "give the loop's dimension a value in subs",
)
NO_FORMAT = RemarkKind("products of {a} and {b} have no packed form here, so their operands are not packed")
COMPUTED = RemarkKind(
    "an operand of this product is not read directly, so neither operand is packed",
    "compute it in a separate kernel, and read its result",
)
USED_TWICE = RemarkKind("this tile of {memory} is used by more than this product, so it is not packed")
WRITTEN = RemarkKind("the kernel writes {memory}, so it cannot be packed before the launch", "write to another memory")
ROUNDED = RemarkKind("{memory} is rounded from {stored} to {taken} before the product, so it is not packed")
PANELS_BEGIN = RemarkKind(
    "tiles of {memory} are not known to begin at a multiple of {rows} rows, as packed ones do, so it is not packed"
)
OUTSIDE = RemarkKind("a tile of {memory} may begin out of bounds, so it is not packed")
OTHER_DEPTH = RemarkKind(
    "the trip count of the loop does not follow from the extent of {memory} along K, and one of them is dynamic, so "
    "it is not packed",
    "give the loop's dimension a value in subs",
)
NOT_BY_STEPS = RemarkKind(
    "the loop does not iterate over {memory} in whole steps from its beginning, so it is not packed"
)


@dataclass(frozen=True)
class PanelFormat:
    """The dtype of a panel, and how many elements of one row are contiguous along K."""

    dtype: str
    group: int
    left_group: int = 0
    """The number for the left operand, where it differs."""

    @property
    def left(self) -> PanelFormat:
        return PanelFormat(self.dtype, self.left_group or self.group)


@dataclass(frozen=True)
class PrepackOperands:
    """Packs both operands of every product of register blocks (at most `rows` x `cols`) that reads them unchanged.

    `formats` gives the panel format for each operand dtype. Operands that are computed, gathered or shared, memories
    that the kernel writes, and rows that are not known to begin where a panel does are not packed.
    """

    rows: int
    cols: int
    unit: int
    formats: Mapping[str, PanelFormat]

    def __post_init__(self) -> None:
        for name, panel in self.formats.items():
            assert _holds(DTYPES[panel.dtype], DTYPES[name]), f"panels of {panel.dtype} do not hold every {name}"

    def __call__(self, kernel: Kernel) -> Kernel:
        packer = _Packer(self, kernel)
        packed = rewrite(kernel, packer.loop)
        remarks = [*_without_loop(kernel.body), *packer.remarks]
        if not packer.packs:
            return kernel.with_remarks(*remarks)
        launch = launch_of(packed)
        first, rest = ((launch,), packed.body.ops[1:]) if launch else ((), packed.body.ops)
        ops = (*first, *packer.builder.ops, *packer.packs.values(), *rest)
        return at_launch(replace(packed, body=Block(packed.body.args, ops))).with_remarks(*remarks)


def _without_loop(block: Block) -> Iterator[Remark]:
    """Yield remarks for products outside all loops that count steps."""
    for op in block.ops:
        if isinstance(op, Mma):
            yield NO_LOOP.at(op.loc)
        for inner in op.blocks if not isinstance(op, Loop) else _around_loops(op):
            yield from _without_loop(inner)


def _around_loops(loop: Loop) -> tuple[Block, ...]:
    """Return the body of a loop over blocks of a tile, which is no K loop."""
    return () if loop.init else (loop.body,)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every number of dtype `narrow` is known to be exact in `wide`.

    A float8 holds itself and bools only: numpy lists casts between float8s and from i8 as safe, though they round.
    """
    if wide in FLOAT8:
        return narrow in (wide, BOOL)
    return bool(np.can_cast(narrow.numpy, wide.numpy, "safe"))


@dataclass(frozen=True)
class ReadOperand:
    """A tile that is read for one product; `value` is the operand: the read's result, or its cast."""

    read: Read
    value: Value
    panel: PanelFormat
    rows: int
    """The rows of a panel, of which a narrow block at the boundary reads the first."""

    @property
    def row(self) -> Value:
        return self.read.at[self.read.axes[-2]]

    @property
    def depth(self) -> Value:
        return self.read.at[self.read.axes[-1]]

    @property
    def step(self) -> int:
        return self.value.type.shape[-1]

    @property
    def length(self) -> Extent:
        """The extent of the memory along K."""
        return self.read.memory.type.extents[self.read.axes[-1]]

    @property
    def batch(self) -> list[int]:
        """The other axes of the memory."""
        return [axis for axis in range(len(self.read.at)) if axis not in self.read.axes[-2:]]


@dataclass(frozen=True)
class Pace:
    """The steps of a K loop: steps of `unit`, as many as reach the end."""

    unit: int
    trips: int | Value
    """A `Value` where K is dynamic."""


class _Packer:
    def __init__(self, wish: PrepackOperands, kernel: Kernel) -> None:
        self.wish = wish
        self.positions, self.used = scalars_of(kernel.body), uses(kernel)
        written, _ = touched(kernel)
        self.packable = set(kernel.body.args) - written
        self.ends = self.known_ends(kernel)
        self.widest = _widest_blocks(kernel)
        self.packs: dict[object, Prepack] = {}
        self.remarks: list[Remark] = []
        self.loc = NOWHERE
        self.builder = Builder(names(kernel), locate=lambda: self.loc)
        self.launch = LaunchSplits(self.builder)
        self.sizes = open_sizes(kernel)

    def known_ends(self, kernel: Kernel) -> dict[int, set[Extent]]:
        """Return upper bounds of positions: written tiles begin inside a memory, and loop indices are below trips."""
        ends: dict[int, set[Extent]] = {}

        def learn(v: Value, end: Extent) -> None:
            ends.setdefault(self.positions.formula(v), set()).add(end)

        for op in walk(kernel.body):
            match op:
                case Write(memory=memory, at=at):
                    for v, length in zip(at, memory.type.extents, strict=True):
                        learn(v, length)
                case Loop(trips, body=body):
                    count = self.positions.constant(trips)
                    learn(body.args[0], trips.name if count is None else count)
                case _:
                    pass  # bounds no position
        return ends

    # -- what can be packed

    def loop(self, op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop):
            return None
        panels = {inner.result for inner in op.body.ops if isinstance(inner, ReadPanel)}
        products = [p for p in op.body.ops if isinstance(p, Mma) and self.is_block(p) and not panels & {p.a, p.b}]
        if not products:
            return None
        if not self.positions.constant(op.trips) and not self.walked(op.trips):
            self.remarks.append(UNKNOWN_STEPS.at(op.loc))
            return None
        self.loc = op.loc
        packed = {p: operands for p in products if (operands := self.operands(p, op))}
        if not packed:
            return None
        return _LoopPacker(self, op, list(packed), [x for pair in packed.values() for x in pair]).ops()

    def walked(self, trips: Value) -> tuple[str, int] | None:
        """Return the dynamic size that a loop iterates over, and its step; None where there is none."""
        size, step = self.positions.rounded_up(trips)
        return (size.name, step) if size.name in self.sizes else None

    def is_block(self, product: Mma) -> bool:
        *_, rows, cols = product.acc.type.shape
        return rows <= self.wish.rows and cols <= self.wish.cols

    def operands(self, product: Mma, loop: Loop) -> tuple[ReadOperand, ReadOperand] | None:
        """Return both operands of a product; None, and a remark, where they cannot both be packed."""
        names = [x.type.dtype.name for x in (product.a, product.b)]
        left, right = (self.wish.formats.get(name) for name in names)
        try:
            if not left or not right or left.group != right.group:
                raise Left(NO_FORMAT.at(product.loc, a=names[0], b=names[1]))
            return self.operand(product, 0, loop, left.left), self.operand(product, 1, loop, right)
        except Left as why:
            self.remarks.append(why.remarks)
            return None

    def operand(self, product: Mma, side: int, loop: Loop, panel: PanelFormat) -> ReadOperand:
        defs = loop.body.defs
        v = (product.a, product.b)[side]
        read = defs.get(v)
        if isinstance(read, Cast) and self.used[read.x] == 1:
            read = defs.get(read.x)
        if not isinstance(read, Read):
            raise Left(COMPUTED.at(product.loc))
        facts = {"memory": read.memory.name, "stored": read.memory.type.dtype, "taken": v.type.dtype}
        want(self.used[v] == 1, USED_TWICE, read.loc, **facts)
        want(read.memory in self.packable, WRITTEN, read.loc, **facts)
        found = ReadOperand(read, v, panel, self.widest[_row_axis(read)])
        want(self.is_exact(found), ROUNDED, read.loc, **facts)
        self.check_panels(found, loop)
        return found

    def is_exact(self, x: ReadOperand) -> bool:
        """Whether converting to the dtype of the panel gives the same as the cast that it replaces."""
        stored, taken = x.read.memory.type.dtype, x.value.type.dtype
        return x.panel.dtype == taken.name or _holds(taken, stored)

    def check_panels(self, x: ReadOperand, loop: Loop) -> None:
        """Raise `Left` where a tile is not one panel, at a depth that the loop's index counts."""
        *batch, _, _ = x.value.type.shape
        name, loc, rows = x.read.memory.name, x.read.loc, x.rows
        begins = all(extent == 1 for extent in batch) and self.positions.divisor(x.row) % rows == 0
        want(begins, PANELS_BEGIN, loc, memory=name, rows=rows)
        inside = all(self.is_inside(x.read, axis) for axis in (*x.batch, x.read.axes[-2]))
        want(inside, OUTSIDE, loc, memory=name)
        fixed = isinstance(x.length, int) and self.positions.constant(loop.trips)
        want(fixed or self.walked(loop.trips) == (x.length, x.step), OTHER_DEPTH, loc, memory=name)
        steps = x.step % x.panel.group == 0 and self.steps_by(x.depth, x.step, loop)
        want(steps, NOT_BY_STEPS, loc, memory=name)

    def is_inside(self, read: Read, axis: int) -> bool:
        """Whether a read begins inside its memory; elsewhere it returns zeros, and there are no panels."""
        at, length = read.at[axis], read.memory.type.extents[axis]
        fixed = self.positions.constant(at)
        if fixed is not None:
            return fixed >= 0 and known_at_most(fixed + 1, length)
        return any(known_at_most(end, length) for end in self.ends.get(self.positions.formula(at), ()))

    def steps_by(self, depth: Value, step: int, loop: Loop) -> bool:
        """Whether `depth` is the loop's index times `step`, also where `simplify` has shortened that."""
        index = loop.body.args[0]
        if step == 1 and depth == index:
            return True
        if self.positions.constant(depth) == 0 and self.positions.constant(loop.trips) == 1:
            return True
        factors = [op.operands for op in loop.body.ops if isinstance(op, Mul) and op.result == depth]
        times = [other for a, b in factors for i, other in ((a, b), (b, a)) if i == index]
        return any(self.positions.constant(other) == step for other in times)

    # -- the panels

    def pack(self, x: ReadOperand, unit: int, end: int) -> Value:
        """Return an operand's panels, as deep as the memory in whole units, and for a loop that reads up to `end`."""
        memory, rows = x.read.memory.type, x.rows
        row_axis, depth_axis = x.read.axes[-2:]
        panels = self.launch.parts(memory.extents[row_axis], rows)
        groups = self.launch.parts(x.length, unit, unit // x.panel.group)
        if isinstance(groups, int):
            groups = max(groups, end // x.panel.group)
        shape = (panels, groups, rows, x.panel.group)
        kind = Memory((*(memory.extents[a] for a in x.batch), *shape), DTYPES[x.panel.dtype], "packed")
        key = x.read.memory, row_axis, depth_axis, kind
        if key not in self.packs:
            result = self.builder.fresh(f"{x.read.memory.name}_panels", kind)
            self.packs[key] = Prepack(x.read.memory, row_axis, depth_axis, results=(result,), loc=x.read.loc)
        return self.packs[key].result


def _row_axis(read: Read) -> tuple[Value, int]:
    """Return the memory of an operand, and its axis along which panels have rows."""
    return read.memory, read.axes[-2]


def _widest_blocks(kernel: Kernel) -> dict[tuple[Value, int], int]:
    """Return the most rows of a tile that is read along an axis of a memory."""
    found: dict[tuple[Value, int], int] = {}
    for op in walk(kernel.body):
        if isinstance(op, Read) and len(op.axes) > 1:
            found[_row_axis(op)] = max(found.get(_row_axis(op), 0), op.result.type.shape[-2])
    return found


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


class _LoopPacker:
    """Rewrites a K loop with some of its products packed."""

    def __init__(self, packer: _Packer, loop: Loop, products: list[Mma], operands: list[ReadOperand]) -> None:
        self.packer, self.loop, self.products, self.operands = packer, loop, products, operands
        self.front = self.builder(loop.loc)
        self.trips = packer.positions.constant(loop.trips) or 0
        self.inside = {v for op in walk(loop.body) for v in op.results} | set(loop.body.args)

    def builder(self, loc: Loc) -> Builder:
        return Builder(self.packer.builder.taken, locate=lambda: loc)

    def ops(self) -> list[Op]:
        """Return the ops that replace the loop: a few scalars, and the loop."""
        loop, pace = self.loop, self.pace() if self.only_adds_up() else None
        depth: Mul | None = None
        if pace:
            unit, loop = self.front.const(pace.unit), replace(loop, trips=self.counted(pace.trips))
            depth = Mul(loop.body.args[0], unit, results=(self.front.fresh("depth", unit.type),), loc=loop.loc)
        reads = {x.read.result: self.read_panel(x, pace, depth) for x in self.operands}
        body = rewrite_block(loop.body, lambda op: self.replaced(op, reads, pace))
        if depth:
            body = Block(body.args, (depth, *body.ops))
        return [*self.front.ops, replace(loop, body=body)]

    def counted(self, trips: int | Value) -> Value:
        return self.front.const(trips) if isinstance(trips, int) else trips

    def read_panel(self, x: ReadOperand, pace: Pace | None, depth: Mul | None) -> list[Op]:
        """Return the ops that replace a read; the panel's number is computed before the loop where the row is known."""
        *outer, rows, step = x.value.type.shape
        unit, trips = (pace.unit, pace.trips) if pace else (step, self.trips)
        panels = self.packer.pack(x, unit, unit * trips if isinstance(trips, int) else 0)
        here = self.builder(x.read.loc)
        number = here.binary(FloorDiv, x.row, here.const(x.rows))
        at = (*(x.read.at[axis] for axis in x.batch), number, depth.result if depth else x.depth)
        here.effect(
            ReadPanel, panels, at, results=(Value(x.value.name, Tile((*outer, rows, unit), panels.type.dtype)),)
        )
        if x.row in self.inside:
            return here.ops
        *numbers, read = here.ops
        self.front.ops += numbers
        return [read]

    def replaced(self, op: Op, reads: Mapping[Value, list[Op]], pace: Pace | None) -> Sequence[Op] | None:
        match op:
            case Read() if op.result in reads:
                return reads[op.result]
            case Cast(x) if x in reads:
                return []
            case Mul() if pace and any(x.depth == op.result for x in self.operands):
                return []
            case Mma() if op in self.products:
                panels = {x.value: reads[x.read.result][-1].result for x in self.operands}
                return [substitute(op, panels)]
            case _:
                return None

    # -- K in other steps

    def pace(self) -> Pace | None:
        """Return steps of a unit; None where they would not end where the author's do."""
        if len({x.step for x in self.operands}) > 1:
            return None
        lengths, packer = [x.length for x in self.operands], self.packer
        groups = lcm(*(x.panel.group for x in self.operands))
        unit = lcm(packer.wish.unit, groups)
        if isinstance(lengths[0], str):  # a dynamic K, which check_panels found to be that of all operands
            return Pace(unit, packer.launch.counted(lengths[0], unit))
        reached, length = self.trips * self.operands[0].step, max(n for n in lengths if isinstance(n, int))
        end = min(reached, length)
        unit = min(unit, _up(end, groups))
        if reached < length and reached % unit:
            return None
        return Pace(unit, -(-end // unit))

    def only_adds_up(self) -> bool:
        """Whether the loop only accumulates its products, and its index only gives their depth."""
        (index, *carried), used = self.loop.body.args, self.packer.used
        depths = Counter(x.depth for x in self.operands)
        packed = {v for x in self.operands for v in (x.read.result, x.value)} | {p.result for p in self.products}
        counted = depths[index]
        *ops, end = self.loop.body.ops
        for op in ops:
            if isinstance(op, Mul) and op.result in depths and used[op.result] == depths[op.result]:
                counted += 1
            elif not packed.issuperset(op.results) and not self.is_fixed(op, index):
                return False
        before = {p.result: p.acc for p in self.products}
        return used[index] == counted and all(map(_ends_in(before), end.operands, carried))

    def is_fixed(self, op: Op, index: Value) -> bool:
        return op.is_pure and isinstance(op.results[0].type, Scalar) and index not in op.operands


def _ends_in(before: Mapping[Value, Value]) -> Callable[[Value, Value], bool]:
    """Return a test whether a sum starts from a value: it follows the products that were added to the sum."""

    def ends(total: Value, start: Value) -> bool:
        while total in before:
            total = before[total]
        return total == start

    return ends
