"""Tile reductions: tiles that are reduced are computed part by part, so that each part fits into registers.

A row of 4096, parts of 128. Ops that need a reduction's result are in a later phase; each phase is a loop:

    %x = read(%a, [%m, %n])             →  %max_0 = loop(32, [-inf]) …: read a part, the larger of it and what was
    %max = reduce(%x) {how = max}          %max = reduce(%max_0)
    %e = exp(sub(%x, broadcast(%max)))     loop(32): read the part again, exp; %e is kept, and the sums of runs of 8
    %sum = reduce(%e) {how = sum}          %sum = reduce(read(%sums))
    write(div(%e, broadcast(%sum)), …)     loop(32): what was kept of %e, div, write

Parts and runs are powers of two, so sums of runs are nodes of the tree in which all elements are added, and the tree of
those sums is the rest of it: results are bit-identical. Where elements may be combined in any order, each part is
combined with the result of the parts before.

Values that a later phase needs are read and computed again, unless that takes a function, a quotient or a reduction, or
the memory is written in between: then they are stored in memory of the workgroup. What is read again comes from a
cache; meanwhile the next rows can be prefetched (`ahead`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import pairwise
from math import prod

from tilewave.analysis.axes import DEAR, Axes, Label, own_leaves
from tilewave.analysis.positions import scalars_of
from tilewave.analysis.sinking import sunk
from tilewave.errors import Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Allocate,
    Broadcast,
    Const,
    Elementwise,
    FloorDiv,
    Iota,
    Loop,
    Min,
    Mma,
    Mul,
    Permute,
    Read,
    Reduce,
    Shift,
    Sub,
    While,
    Write,
    Yield,
)
from tilewave.ir.ops.reduction import COMBINED_BY, identity, reduced
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import map_blocks, names, rename, walk
from tilewave.ir.types import INDEX_SCALAR, Extent, Memory, Tile, Type
from tilewave.records import dataclass

WALKED: tuple[type[Op], ...] = (Elementwise, Const, Iota, Broadcast, Permute, Read, Write, Reduce, Shift)
"""Ops that this pass computes part by part."""

NO_PARTS = RemarkKind("{op} cannot be computed in parts, so reductions are not tiled")
FROM_OUTSIDE = RemarkKind("a loop uses or returns a whole tile here, so the reduction is not tiled")
ALONG_ITSELF = RemarkKind("two axes of {tile} are the same dimension, so reductions are not tiled")
TOUCHED_AGAIN = RemarkKind("{memory} is written and accessed again, so reductions are not tiled")


@dataclass(frozen=True)
class TileReductions:
    """Computes parts of at most `elements`; floats are summed in runs of `run` neighbours first, both powers of two."""

    elements: int
    run: int

    def __call__(self, kernel: Kernel) -> Kernel:
        kinds = {type(op) for op in walk(kernel.body)}
        if Reduce not in kinds or Mma in kinds:
            return kernel
        loose = own_leaves(kernel)
        written = {v for op in walk(loose.body) for v in op.written}
        walker = _Walker(self, Builder(names(loose)), written, [])
        body = walker.block(loose.body)
        return (replace(kernel, body=body) if walker.done else kernel).with_remarks(*walker.remarks)

    def is_large(self, tile: Value) -> bool:
        return isinstance(tile.type, Tile) and prod(tile.type.shape) > 2 * self.elements


@dataclass
class _Walker:
    wishes: TileReductions
    builder: Builder
    written: set[Value]
    """The memories that the kernel writes."""
    remarks: list[Remark]
    done: bool = False

    def block(self, block: Block) -> Block:
        """Return a block with its large tiles tiled one axis after the other, and its inner blocks likewise."""
        block = self.sunk(block)
        while (plan := self.plan(replace(block, ops=tuple(self.one_axis_each(block.ops))))) is not None:
            self.done = True
            block = self.sunk(_Emitter(plan, self.wishes, self.builder).block())
        return replace(block, ops=tuple(map_blocks(op, self.block) for op in block.ops))

    def sunk(self, block: Block) -> Block:
        """Return a block whose loops compute the large tiles that they use, so that each loop can be tiled alone."""
        return sunk(block, self.wishes.is_large, self.written, self.builder)

    def one_axis_each(self, ops: Sequence[Op]) -> Iterator[Op]:
        """Yield ops with reductions along several axes as one along each, the last first."""
        for op in ops:
            if not isinstance(op, Reduce) or len(op.axes) == 1:
                yield op
                continue
            x = op.x
            for axis in sorted(op.axes, reverse=True)[:-1]:
                less = self.builder.fresh(op.result.name, reduced(x.type, (axis,)))
                yield Reduce(x, (axis,), op.how, results=(less,), loc=op.loc)
                x = less
            yield Reduce(x, (min(op.axes),), op.how, results=op.results, loc=op.loc)

    def plan(self, block: Block) -> _Plan | None:
        """Return the plan for the next axis: axes that are not reduced come first, so that each part has all phases."""
        large = [v for op in walk(block) for v in op.results if self.wishes.is_large(v)]
        if not large:
            return None
        largest = max(large, key=lambda v: prod(v.type.shape))
        axes = Axes(block.ops)
        *outer, inner = zip(axes.of(largest), largest.type.shape, strict=True)
        room, added = self.wishes.elements, axes.contracted()
        left: list[Remark] = []
        for label, extent in sorted([*outer, inner], key=lambda axis: axis[0] in added):
            part = room if label == inner[0] else _power_below(max(room // inner[1], 1))
            part = max(part, self.wishes.run) if label in added else part
            if part >= extent or not any(_runs_along(op, axes, label) for op in block.ops):
                continue
            try:
                return _Plan(block, axes, label, extent, part, label == inner[0])
            except Left as found:
                left.append(found.remarks)
                room = _power_below(max(room // extent, 1))
        self.remarks += left
        return None


def _runs_along(op: Op, axes: Axes, label: Label) -> bool:
    """Whether `op` uses or defines tiles with this axis; tiles that are only inside its regions do not count."""
    return any(isinstance(v.type, Tile) and label in axes.of(v) for v in (*_taken(op), *op.results))


def _taken(op: Op) -> set[Value]:
    """Return the operands of an op, and the outside values that its regions use."""
    inside = [inner for block in op.blocks for inner in walk(block)]
    made = {v for inner in inside for v in inner.results}
    made |= {v for o in (op, *inside) for block in o.blocks for v in block.args}
    return {v for o in (op, *inside) for v in o.operands} - made


def _power_below(n: int) -> int:
    return 1 << n.bit_length() - 1


@dataclass
class _Plan:
    """The phase of each op of a block when one axis is tiled; raises `Left` where it cannot be."""

    of: Block
    axes: Axes
    label: Label
    extent: int
    part: int
    is_inner: bool
    phase: dict[Value, int] = field(default_factory=dict)
    """For tiles along the axis the phase that computes them; for other values the first phase that may use them."""
    walked: list[tuple[int, Op]] = field(default_factory=list)
    apart: list[tuple[int, Op]] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = {v for op in self.of.ops for v in op.results}
        for op in self.of.ops:
            used = _taken(op)
            if isinstance(op, Yield):
                want(not any(map(self.is_along, used)), FROM_OUTSIDE, op.loc)
                continue
            along = _runs_along(op, self.axes, self.label)
            phase = max((self.phase.get(v, 0) for v in used), default=0)
            phase = phase if along else max(phase, self.after_parts(op))
            if along:
                want(all(v in made for v in used if self.is_along(v)), FROM_OUTSIDE, op.loc)
                for inner in _with_inner(op):
                    want(self.can_be_walked(inner), NO_PARTS, inner.loc, op=inner.name)
                    for v in (*inner.operands, *inner.results):
                        want(self.is_once_along(v), ALONG_ITSELF, inner.loc, tile=v.name)
            (self.walked if along else self.apart).append((phase, op))
            self.phase.update(dict.fromkeys(op.results, phase + self.is_reduced(op)))
        self.check_loops()
        self.check_order()

    def after_parts(self, op: Op) -> int:
        """Return the first phase in which all parts have written the memories that an op accesses."""
        memories = {memory for inner in _with_inner(op) for memory in (*inner.read, *inner.written)}
        writing = [phase for phase, other in self.walked if any(memories & {*o.written} for o in _with_inner(other))]
        return max(writing, default=-1) + 1

    def check_loops(self) -> None:
        """Raise `Left` where a loop that is repeated for each part has other results that are used outside."""
        loops = [op for _, op in self.walked if isinstance(op, (Loop, While))]
        given = {v for op in loops for v in op.results if not self.is_along(v)}
        for op in (*(op for _, op in self.apart), *(op for op in self.of.ops if isinstance(op, Yield))):
            want(given.isdisjoint(_taken(op)), FROM_OUTSIDE, op.loc)

    def can_be_walked(self, op: Op) -> bool:
        """Whether an op can be tiled; loops carry parts of tiles as long as nothing is combined along the axis."""
        if isinstance(op, (Loop, While)):
            return self.label not in self.axes.contracted()
        touches = any(map(self.is_along, (*op.operands, *op.results)))
        return not touches or (isinstance(op, (*WALKED, Yield)) and not self.moves_along(op))

    @property
    def phases(self) -> int:
        return max(phase for phase, _ in (*self.walked, *self.apart)) + 1

    def axis(self, v: Value) -> int | None:
        """Return the axis of `v` that is tiled; None where it has none."""
        labels = self.axes.of(v) if isinstance(v.type, Tile) else ()
        return labels.index(self.label) if self.label in labels else None

    def is_once_along(self, v: Value) -> bool:
        return not isinstance(v.type, Tile) or self.axes.of(v).count(self.label) <= 1

    def is_along(self, v: Value) -> bool:
        return self.axis(v) is not None

    def is_reduced(self, op: Op) -> bool:
        return isinstance(op, Reduce) and self.axis(op.x) in op.axes

    def moves_along(self, op: Op) -> bool:
        return isinstance(op, Shift) and self.axis(op.x) == op.axis

    def check_order(self) -> None:
        """Raise `Left` where accesses to a written memory would change their order, unless all are at one position."""
        when = {id(op): (phase, 1) for phase, op in self.walked} | {id(op): (phase, 0) for phase, op in self.apart}
        ops = [op for op in self.of.ops if not isinstance(op, Yield)]
        for memory in dict.fromkeys(v for op in walk(self.of) for v in op.written):
            touching = [op for op in ops if any(memory in (*o.read, *o.written) for o in _with_inner(op))]
            for one, other in pairwise(touching):
                want(when[id(one)] <= when[id(other)], TOUCHED_AGAIN, other.loc, memory=memory.name)
            for phase in range(self.phases):
                together = [op for op in touching if when[id(op)] == (phase, 1)]
                inner = [o for op in together for o in _with_inner(op) if memory in (*o.read, *o.written)]
                same = len(inner) < 2 or len(set(map(self.place, inner))) == 1
                want(same, TOUCHED_AGAIN, touching[-1].loc, memory=memory.name)

    def place(self, op: Op) -> tuple[object, ...]:
        """Return the memory axis and the position of the parts of an op's tile; the op's id where it has no parts."""
        tile = op.tile if isinstance(op, Write) else op.results[0] if op.results else None
        axis = self.axis(tile) if tile is not None else None
        if axis is None or not isinstance(op, (Read, Write)):
            return (id(op),)
        return op.axes[axis], scalars_of(self.of).formula(op.at[op.axes[axis]])

    def is_kept(self, op: Op) -> bool:
        """Whether later phases load the result of `op` from memory, and do not compute it again."""
        written = isinstance(op, Read) and any(op.memory in other.written for other in walk(self.of))
        return isinstance(op, DEAR) or written

    def last_row(self) -> tuple[Value, Extent] | None:
        """Return the begin of tiles along an axis whose parts are independent, and the end of what they write."""
        if self.label in self.axes.contracted():
            return None
        writes = [o for _, op in self.walked for o in _with_inner(op) if isinstance(o, Write)]
        found = set()
        for op in writes:
            axis = self.axis(op.tile)
            if axis is not None:
                found.add((op.at[op.axes[axis]], op.memory.type.extents[op.axes[axis]]))
        if len(found) != 1 or any(self.axis(op.tile) is None for op in writes):
            return None
        ((at, length),) = found
        inside = {v for _, op in self.walked for o in _with_inner(op) for v in _defined(o)} - set(self.phase)
        return None if at in inside or self.phase.get(at, 0) else (at, length)

    def needed(self, phase: int) -> tuple[list[Op], list[Value]]:
        """Return the ops of a phase, with those of earlier phases that are repeated, and the values loaded for it."""
        makers = {v: (made, op) for made, op in self.walked for v in op.results}
        repeated: set[Value] = set()
        kept: dict[Value, None] = {}
        left = [v for made, op in self.walked if made == phase for v in op.operands]
        while left:
            v = left.pop()
            if v in repeated or v in kept or not self.is_along(v) or makers[v][0] == phase:
                continue
            if self.is_kept(makers[v][1]):
                kept[v] = None
            else:
                repeated.add(v)
                left += makers[v][1].operands
        ops = [op for made, op in self.walked if made == phase or repeated & set(op.results)]
        return ops, list(kept)


def _with_inner(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)


def _defined(op: Op) -> Iterator[Value]:
    yield from op.results
    for block in op.blocks:
        yield from block.args


@dataclass(frozen=True)
class _Piece:
    """Parts of one length: the begin of the first, the length, and how many there are."""

    first: int
    size: int
    count: int


def _pieces(extent: int, part: int, run: int) -> list[_Piece]:
    """Return whole parts, then falling powers of two, then the rest that is shorter than a run."""
    found, at = [_Piece(0, part, extent // part)], extent // part * part
    while part > run and at < extent:
        part //= 2
        if extent - at >= part:
            found.append(_Piece(at, part, 1))
            at += part
    return found if at == extent else [*found, _Piece(at, extent - at, 1)]


class _Emitter:
    """Emits the phases of a block, one loop or more for each."""

    def __init__(self, plan: _Plan, wishes: TileReductions, builder: Builder) -> None:
        self.plan, self.builder = plan, builder
        self.run = min(wishes.run, plan.part) if plan.is_inner else plan.part
        self.loc: Loc = plan.of.ops[0].loc
        self.builder.locate = lambda: self.loc
        self.memories: dict[Value, Value] = {}
        """Memories of values for later phases, and of the sums of runs."""
        self.found: dict[Value, list[Value]] = {}
        """Partial results of reductions that have no order, by result."""

    def block(self) -> Block:
        plan = self.plan
        with self.builder.region():
            for phase in range(plan.phases):
                self.builder.ops += [op for when, op in plan.apart if when == phase]
                if any(when == phase for when, _ in plan.walked):
                    self.phase(phase)
            end = [op for op in plan.of.ops if isinstance(op, Yield)]
            return Block(plan.of.args, (*self.builder.ops, *end))

    def phase(self, phase: int) -> None:
        plan = self.plan
        ops, kept = plan.needed(phase)
        later = {v for p in range(phase + 1, plan.phases) for v in plan.needed(p)[1]}
        self.loc = ops[0].loc
        for v in (v for op in ops for v in op.results if v in later and plan.phase[v] == phase):
            self.memories[v] = self.memory(v, v.type.shape)
        sums = [op for op in ops if isinstance(op, Reduce) and plan.is_reduced(op)]
        for op in sums:
            if op.has_order:
                runs = _with(op.x.type.shape, op.axes[0], -(-plan.extent // self.run))
                self.memories[op.result] = self.memory(op.result, runs)
        for piece in _pieces(plan.extent, plan.part, self.run):
            _Part(self, phase, ops, kept, piece).write()
        for op in sums:
            self.loc = op.loc
            self.finish(op)

    def memory(self, v: Value, shape: tuple[int, ...]) -> Value:
        return self.builder.emit(Allocate, type=Memory(shape, v.type.dtype, "shared"), name=v.name)

    def read(self, memory: Value, at: tuple[Value, ...], shape: tuple[int, ...]) -> Value:
        axes = tuple(range(len(shape)))
        return self.builder.emit(Read, memory, at, axes, type=Tile(shape, memory.type.dtype))

    def finish(self, op: Reduce) -> None:
        """Emit a reduction's result from those of the parts."""
        builder, (axis,) = self.builder, op.axes
        if op.has_order:
            shape = _with(op.x.type.shape, axis, -(-self.plan.extent // self.run))
            parts = [self.read(self.memories[op.result], (builder.const(0),) * len(shape), shape)]
        else:
            parts = self.found[op.result]
        results = [builder.emit(Reduce, x, op.axes, op.how, type=op.result.type, name=op.result.name) for x in parts]
        for x in results[1:]:
            results[0] = builder.binary(COMBINED_BY[op.how], results[0], x)
        builder.ops[-1] = replace(builder.ops[-1], results=op.results)


def _with(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


class _Part:
    """Emits the ops of a phase for parts of one length."""

    def __init__(self, emitter: _Emitter, phase: int, ops: Sequence[Op], kept: Sequence[Value], piece: _Piece) -> None:
        self.emitter, self.phase, self.ops, self.kept, self.piece = emitter, phase, ops, kept, piece
        self.plan, self.builder = emitter.plan, emitter.builder
        self.new: dict[Value, Value] = {}
        self.carried: dict[Value, Value] = {}

    def write(self) -> None:
        builder, piece = self.builder, self.piece
        bound = self.plan.last_row()
        if piece.count == 1 and bound is None:
            self.all_ops(builder.const(0))
            for v, x in self.carried.items():
                self.emitter.found.setdefault(v, []).append(x)
            return
        trips = self.trips(bound)
        free = [op for op in self.ops if isinstance(op, Reduce) and self.plan.is_reduced(op) and not op.has_order]
        init = [builder.const(identity(op.how, op.x.type.dtype), self.smaller(op.x)) for op in free]
        args = [builder.fresh(op.result.name, x.type) for op, x in zip(free, init, strict=True)]
        number = builder.fresh("part", INDEX_SCALAR)
        with builder.region():
            self.carried = {op.result: x for op, x in zip(free, args, strict=True)}
            self.all_ops(number)
            body = builder.block([number, *args], [self.carried[op.result] for op in free])
        results = tuple(builder.fresh(op.result.name, x.type) for op, x in zip(free, init, strict=True))
        builder.effect(Loop, trips, tuple(init), body, results=results)
        for op, x in zip(free, results, strict=True):
            self.emitter.found.setdefault(op.result, []).append(x)

    def trips(self, bound: tuple[Value, Extent] | None) -> Value:
        """Return the number of parts that begin inside what is written."""
        builder, piece = self.builder, self.piece
        count = builder.const(piece.count)
        if bound is None:
            return count
        at, length = bound
        end = builder.const(length) if isinstance(length, int) else Value(length, INDEX_SCALAR)
        end = builder.binary(Add, end, builder.const(piece.size - 1 - piece.first))
        left = builder.binary(FloorDiv, builder.binary(Sub, end, at), builder.const(piece.size))
        return builder.binary(Min, left, count)

    def all_ops(self, number: Value) -> None:
        self.number = number
        self.offset = self.counted(1)
        for v in self.kept:
            at = self.at(v.type.shape, self.plan.axis(v), self.offset)
            self.new[v] = self.emitter.read(self.emitter.memories[v], at, self.smaller(v).shape)
        for op in self.ops:
            self.emitter.loc = op.loc
            self.op(op)

    def counted(self, unit: int) -> Value:
        """Return the begin of the part, in units of `unit` elements."""
        step = self.builder.binary(Mul, self.number, self.builder.const(self.piece.size // unit))
        return self.builder.binary(Add, step, self.builder.const(self.piece.first // unit))

    def smaller(self, v: Value) -> Type:
        axis = self.plan.axis(v)
        return v.type if axis is None else Tile(_with(v.type.shape, axis, self.piece.size), v.type.dtype)

    def at(self, shape: tuple[int, ...], axis: int | None, offset: Value) -> tuple[Value, ...]:
        zero = self.builder.const(0)
        return tuple(offset if a == axis else zero for a in range(len(shape)))

    def op(self, op: Op) -> None:
        match op:
            case Reduce() if self.plan.is_reduced(op):
                self.reduce(op)
                return
            case Read():
                at, guard = self.moved(op, op.result), self.guard(op, op.result)
                op = replace(op, at=at, ahead=self.next_rows(op), guard=guard)
            case Write():
                op = replace(op, at=self.moved(op, op.tile), guard=self.guard(op, op.tile))
            case Iota() if self.plan.is_along(op.result):
                self.new[op.result] = self.count(op)
                return
            case Loop() | While():
                op = map_blocks(op, self.region)
            case _:
                pass  # only its tiles depend on the part
        self.new.update({v: self.builder.fresh(v.name, self.smaller(v)) for v in op.results})
        self.builder.ops.append(rename(op, self.new))
        for v in op.results:
            self.keep(v)

    def guard(self, op: Read | Write, tile: Value) -> tuple[int, ...]:
        """Return the predicated axes of an access: parts of a boundary tile may be outside the memory as a whole."""
        axis = self.plan.axis(tile)
        return op.guard if axis is None else tuple(sorted({*op.guard, op.axes[axis]}))

    def region(self, block: Block) -> Block:
        self.new.update({v: self.builder.fresh(v.name, self.smaller(v)) for v in block.args})
        with self.builder.region():
            for op in block.ops:
                self.op(op)
            return Block(tuple(self.new[v] for v in block.args), tuple(self.builder.ops))

    def keep(self, v: Value) -> None:
        """Store `v` for a later phase; values that are computed again were stored before, if at all."""
        memory = self.emitter.memories.get(v)
        if memory is not None and v not in self.kept:
            x = self.new[v]
            at = self.at(x.type.shape, self.plan.axis(v), self.offset)
            self.builder.effect(Write, x, memory, at, tuple(range(len(x.type.shape))))

    def moved(self, op: Read | Write, tile: Value) -> tuple[Value, ...]:
        mine = self.plan.axis(tile)
        along = None if mine is None else op.axes[mine]
        at = [self.new.get(v, v) for v in op.at]
        return tuple(self.builder.binary(Add, v, self.offset) if a == along else v for a, v in enumerate(at))

    def next_rows(self, op: Read) -> tuple[int, ...]:
        """Return the distance to the next rows, to prefetch them where this part was read before; else ()."""
        mine, shape = self.plan.axis(op.result), op.result.type.shape
        others = [axis for axis in range(len(shape)) if axis != mine]
        repeated = self.phase > self.plan.phase.get(op.result, self.phase)
        if not (repeated and self.plan.is_inner and others):
            return ()
        rows = others[-1]
        return tuple(shape[rows] if axis == op.axes[rows] else 0 for axis in range(op.memory.type.rank))

    def count(self, op: Iota) -> Value:
        """Return the numbers of a part's elements in the tile."""
        here = self.builder.emit(Iota, type=self.smaller(op.result))
        first = self.builder.cast(self.offset, op.result.type.dtype)
        return self.builder.binary(Add, here, self.builder.emit(Broadcast, first, type=here.type))

    def reduce(self, op: Reduce) -> None:
        """Store the sums of a part's runs; without an order, combine the part with those before."""
        x = self.new[op.x]
        if not op.has_order:
            before = self.carried.get(op.result)
            self.carried[op.result] = x if before is None else self.builder.binary(COMBINED_BY[op.how], before, x)
            return
        run = min(self.emitter.run, self.piece.size)
        kind = reduced(x.type, op.axes, run)
        sums = self.builder.emit(Reduce, x, op.axes, op.how, run, type=kind, name=op.result.name)
        at = self.at(kind.shape, op.axes[0], self.counted(self.emitter.run))
        self.builder.effect(Write, sums, self.emitter.memories[op.result], at, tuple(range(len(kind.shape))))
