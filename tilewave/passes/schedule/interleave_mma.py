"""Interleave matrix and memory instructions in a loop that loads one step ahead, so that they overlap.

before                 two waves share a matrix unit            a wave has one to itself
loop {                 barrier; waves 4 to 7: barrier           loop {
  load the next tiles  loop {                                     barrier
  barrier                read half, load, read half; barrier      read
  read                   multiply half; barrier                   multiply half, load the next tiles between
  multiply               store what was loaded; barrier           barrier
  barrier                multiply half; barrier                   store between the products of the other half
  store              }                                          }
}                      waves 0 to 3: barrier

Tiles that are copied past the registers need no stores, and one barrier per step, after a wait for the copies:

  wait; barrier          read half, copy the next tiles; barrier    wait; barrier
  copy the next tiles    multiply half; barrier                     read
  read                   read half; wait; barrier                   multiply half, copy the next tiles between
  multiply               multiply half; barrier                     multiply half

Where two waves share a matrix unit, half of the waves is always one barrier later than the other half (ping-pong):
while one half multiplies, the other reads or stores, and the multiplying waves have the higher `priority`. The later
waves wait for their copies two turns before the others read them. Where the registers cannot hold both halves of the
operands, the second half is read after the first is multiplied; with two waves per unit it is multiplied in two parts,
around the stores. Where the depth cannot be halved, the rows are. A loop of another form is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewave.errors import Loc
from tilewave.ir.build import Builder
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Barrier,
    CopyAsyncChunks,
    InstructionGroup,
    KeepOrder,
    Load,
    LoadTransposed,
    Loop,
    Matrix,
    Meet,
    Priority,
    Role,
    Store,
    WaitAsync,
    WaitLoads,
    Yield,
)
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import names, rewrite, substitute, uses
from tilewave.ir.types import INDEX_SCALAR, Vector
from tilewave.machine.chips import MatrixUnits

OTHER_WAVES = RemarkKind(
    "loads are interleaved with products in workgroups of {alone} or {together} waves, and this one has {waves}",
    "split the tile among {alone} or {together} waves",
)
SEVERAL = RemarkKind("this loop has {count} products, and loads are interleaved only in loops with one")
SEVERAL_STAGES = RemarkKind(
    "this loop has several pipeline stages, and loads are interleaved with products only in loops with one",
    "leave num_stages out",
)
NOT_AHEAD = RemarkKind(
    "this loop is not software-pipelined, so its loads are not interleaved with products",
    "use SchedulingType.PREFETCH, unless software_pipeline has a remark",
)
DOES_MORE = RemarkKind(
    "this loop does more than load, multiply and store, so its loads are not interleaved with products"
)
NO_HALVES = RemarkKind(
    "neither K of this product nor a wave's rows can be halved, so loads are not interleaved with products",
    "make the step, or each wave's part of the rows, twice as large",
)


@dataclass(frozen=True)
class InterleaveMma:
    """`depths`: the K depth of each matrix instruction; `units`: the matrix units of a CU, with their registers.

    `spare`: registers for addresses and the like. `margin`: with fewer free ones, sums are copied between ordinary and
    accumulation registers (VGPRs and AGPRs).
    """

    depths: dict[str, int]
    units: MatrixUnits
    spare: int = 40
    margin: int = 64

    def __repr__(self) -> str:
        return "InterleaveMma()"

    def __call__(self, kernel: Kernel) -> Kernel:
        waves, taken, used = prod(kernel.waves), names(kernel), uses(kernel)
        alone, in_pairs = self.units.count, 2 * self.units.count
        follows_turns = False
        remarks: list[Remark] = []

        def lay_out(op: Op) -> Sequence[Op] | None:
            nonlocal follows_turns
            if follows_turns and (_hands_shared_over(op) or isinstance(op, WaitAsync)):
                return []  # since its last turn a wave has passed a barrier and waited for its copies
            step: _Step | None = None
            try:
                step = _step(op, used, waves, alone)
            except Left as left:
                remarks.append(left.remarks)
            follows_turns = step is not None and waves == in_pairs and not step.pending
            if step is None:
                return None
            if waves == alone:
                spare, depth = self.spare + self.margin, self.depths[step.product.instruction]
                return _Alone(step, taken, self.units, spare, depth).ops()
            return _PingPong(step, taken, self.units, self.spare).ops()

        return rewrite(kernel, lay_out).with_remarks(*remarks)


def _step(op: Op, used: Mapping[Value, int], waves: int, alone: int) -> _Step | None:
    """Return the parts of a loop that loads and multiplies; None for other ops."""
    inside = op.body.ops if isinstance(op, Loop) else ()
    loads = any(
        isinstance(o, CopyAsyncChunks) or (isinstance(o, Load) and not is_in(o.memory, "shared")) for o in inside
    )
    if not isinstance(op, Loop) or not loads or not any(isinstance(o, Matrix) for o in inside):
        return None
    in_pairs = 2 * alone
    want(waves in (alone, in_pairs), OTHER_WAVES, op.loc, waves=waves, alone=alone, together=in_pairs)
    return _Step.of(op, used)


@dataclass(frozen=True)
class _Step:
    """The parts of a loop's body."""

    loop: Loop
    numbers: tuple[Op, ...]
    """Ops computed from neither loads nor the product."""
    rest: tuple[Op, ...]
    """Ops computed from loads or the product."""
    loads: tuple[Load | CopyAsyncChunks, ...]
    """Loads to registers, or copies to shared memory; with copies there are no stores."""
    reads: tuple[Load | LoadTransposed, ...]
    product: Matrix
    stores: tuple[Store, ...]
    waits: tuple[WaitAsync, ...]
    ends: Yield

    @staticmethod
    def of(loop: Loop, used: Mapping[Value, int]) -> _Step:
        """Return the parts of a loop; raise `Left` where it does anything else, or in another order."""
        ops = loop.body.ops
        barriers = [op for op in ops if _hands_shared_over(op)]
        products = [op for op in ops if isinstance(op, Matrix)]
        brings = tuple(op for op in ops if isinstance(op, CopyAsyncChunks))
        waits = tuple(op for op in ops if isinstance(op, WaitAsync))
        want(len(products) == 1, SEVERAL, loop.loc, count=len(products))
        want(brings or len(barriers) != 1, SEVERAL_STAGES, loop.loc)
        handed = len(barriers) == (1 if brings else 2) and len(waits) == bool(brings)
        want(handed, NOT_AHEAD, loop.loc)
        loads: tuple[Load | CopyAsyncChunks, ...] = brings
        if not brings:
            loads = tuple(op for op in ops if isinstance(op, Load) and not is_in(op.memory, "shared"))
        reads = tuple(op for op in ops if isinstance(op, (Load, LoadTransposed)) and is_in(op.memory, "shared"))
        stores = tuple(op for op in ops if isinstance(op, Store))
        ends = ops[-1]
        assert isinstance(ends, Yield)
        order: list[Op] = [*loads, barriers[0], *reads, products[0], *barriers[1:], *stores]
        if brings:
            order = [*waits, barriers[0], *brings, *reads, products[0], *stores]
        known = {id(op) for op in (*order, ends)}
        others = tuple(op for op in ops if id(op) not in known)
        made = {v for op in order for v in op.results}
        for op in others:
            made.update(op.results if made.intersection(op.operands) else ())
        rest = tuple(op for op in others if made.intersection(op.results))
        numbers = tuple(op for op in others if not made.intersection(op.results))
        places = [next(i for i, other in enumerate(ops) if other is op) for op in order]
        want(places == sorted(places), NOT_AHEAD, loop.loc)
        step = _Step(loop, numbers, rest, loads, reads, products[0], stores, waits, ends)
        step.check(used)
        return step

    def check(self, used: Mapping[Value, int]) -> None:
        a, b, loc = self.product.a, self.product.b, self.loop.loc
        want(self.loads and bool(self.stores) != bool(self.waits), NOT_AHEAD, loc)
        simple = (
            all(op.is_pure for op in (*self.numbers, *self.rest))
            and not self.late().intersection((self.product.acc, *(v for op in self.stores for v in op.operands)))
            and all(is_in(op.memory, "shared") for op in self.stores)
            and {op.result for op in self.reads} == {a, b}
            and used[a] == used[b] == 1
        )
        want(simple, DOES_MORE, loc)
        want(self.depths % 2 == 0 or self.rows % 2 == 0, NO_HALVES, loc)

    def late(self) -> set[Value]:
        """Return values computed from loads or the product, which no earlier op may need."""
        made = {v for op in self.rest for v in op.results}
        stored = {v for op in self.stores for v in op.operands}
        return made | {v for op in self.loads for v in op.results if v not in stored}

    @property
    def pending(self) -> int:
        """Bytes still in flight when a step begins."""
        return sum(op.pending for op in self.waits)

    @property
    def depths(self) -> int:
        return int(self.product.a.type.shape[-2])

    @property
    def rows(self) -> int:
        """Row blocks per wave."""
        return int(self.product.a.type.shape[-3])

    def registers(self) -> int:
        """Return the registers of a lane if both halves are read before the first is multiplied."""
        held = [self.product.acc, self.product.a, self.product.b, *(v for op in self.loads for v in op.results)]
        return sum(_words(v) for v in held)

    @property
    def stores_across_rows(self) -> bool:
        """Whether registers are permuted before they are stored."""
        return any(op.is_across_rows for op in self.stores)

    def load_instructions(self) -> int:
        return sum(op.shape[0] if isinstance(op, CopyAsyncChunks) else _accesses(op.results) for op in self.loads)


def _hands_shared_over(op: Op) -> bool:
    """Whether `op` is a plain barrier for shared memory, which an interleaved loop may place elsewhere."""
    return type(op) is Barrier and op == Barrier()


def _words(v: Value) -> int:
    return -(-prod(v.type.shape) * v.type.dtype.bits // 32)


class _Layout:
    """Writes the body of the loop in a new order."""

    def __init__(self, step: _Step, taken: set[str], units: MatrixUnits, spare: int) -> None:
        self.step, self.units, self.spare = step, units, spare
        self.out = Builder(taken)
        self.sums = step.product.acc
        self.out.ops += step.numbers

    @property
    def loc(self) -> Loc:
        return self.step.product.loc

    def add(self, *ops: Op) -> None:
        self.out.ops += ops

    def meet(self) -> None:
        self.add(Meet(loc=self.loc), KeepOrder(loc=self.loc))

    def read(self, first: int, last: int) -> tuple[Value, Value]:
        """Return the operands of depth blocks `first` to `last` - 1."""
        found = {read.result: self._read(read, first, last) for read in self.step.reads}
        return found[self.step.product.a], found[self.step.product.b]

    def _read(self, read: Load | LoadTransposed, first: int, last: int) -> Value:
        self.out.locate = lambda: read.loc
        at = list(read.at)
        for axis, far in enumerate(read.steps[-2]):
            if far * first:
                at[axis] = self.out.emit(Add, at[axis], self.out.const(far * first), type=INDEX_SCALAR)
        *front, _, chunk = read.result.type.shape
        kind = Vector((*front, last - first, chunk), read.result.type.dtype)
        result = self.out.fresh(read.result.name, kind)
        self.add(replace(read, at=tuple(at), results=(result,)))
        return result

    def multiply(self, operands: tuple[Value, Value], rows: tuple[int, ...] = ()) -> None:
        product = self.step.product
        result = self.out.fresh(product.result.name, product.result.type)
        a, b = operands
        self.add(replace(product, a=a, b=b, acc=self.sums, rows=rows, results=(result,)))
        self.sums = result

    def wait_loads(self) -> None:
        self.add(WaitLoads(loc=self.loc))
        if self.step.stores_across_rows:
            # The permutation of registers stays after the wait; before it, it would need further waits.
            self.add(KeepOrder(loc=self.loc))

    def loop(self) -> Loop:
        old = self.step.loop
        renamed = {self.step.product.result: self.sums}
        rest = [substitute(op, renamed) for op in (*self.step.rest, self.step.ends)]
        return replace(old, body=Block(old.body.args, (*self.out.ops, *rest)))


class _PingPong(_Layout):
    """Two waves share a matrix unit: one multiplies while the other reads, loads or stores."""

    def ops(self) -> Sequence[Op]:
        step = self.step
        if step.waits:
            self.bring()
        elif step.depths % 2:
            self.read_and_load(0, step.depths, step.loads)
            self.in_two()
        elif step.registers() + self.spare <= self.units.registers // 2:
            self.both_halves()
        else:
            half, middle = step.depths // 2, len(step.loads) // 2
            self.read_and_load(0, half, step.loads[:middle])
            self.turn(self.operands)
            self.read_and_load(half, step.depths, step.loads[middle:])
            self.in_two()
        return self.ping_pong()

    def bring(self) -> None:
        """Copy all tiles first, so that they have two turns to arrive; wait for them one turn before others read."""
        step, half = self.step, self.step.depths // 2
        if step.depths % 2:
            self.read_and_bring(step.depths)
            self.turn(self.operands, (0, step.rows // 2))
            self.add(*step.waits)
            self.meet()
            self.turn(self.operands, (step.rows // 2, step.rows))
            return
        self.read_and_bring(half)
        self.turn(self.operands)
        self.read_and_load(half, step.depths, step.waits)
        self.turn(self.operands)

    def read_and_bring(self, last: int) -> None:
        """Emit some reads before the copies to each memory, whose destination must be set a little earlier."""
        step, found = self.step, {}
        share = -(-len(step.loads) // len(step.reads))
        for i, read in enumerate(step.reads):
            found[read.result] = self._read(read, 0, last)
            self.add(*step.loads[i * share : (i + 1) * share], KeepOrder(loc=self.loc))
        self.operands = found[step.product.a], found[step.product.b]
        self.meet()

    def read_and_load(self, first: int, last: int, loads: Sequence[Op]) -> None:
        self.operands = self.read(first, last)
        self.add(KeepOrder(loc=self.loc), *loads)
        self.meet()

    def both_halves(self) -> None:
        step, half, middle = self.step, self.step.depths // 2, len(self.step.loads) // 2
        first = self.read(0, half)
        self.add(KeepOrder(loc=self.loc), *step.loads[:middle], KeepOrder(loc=self.loc))
        self.read_and_load(half, step.depths, step.loads[middle:])
        self.turn(first)
        self.store()
        self.turn(self.operands)

    def turn(self, operands: tuple[Value, Value], rows: tuple[int, ...] = ()) -> None:
        """Multiply, with priority over the wave that reads or stores meanwhile."""
        self.add(Priority(1, loc=self.loc))
        self.multiply(operands, rows)
        self.add(Priority(0, loc=self.loc), KeepOrder(loc=self.loc))
        self.meet()

    def store(self) -> None:
        self.wait_loads()
        self.add(*self.step.stores)
        self.meet()

    def in_two(self) -> None:
        rows = self.step.rows
        self.turn(self.operands, (0, rows // 2))
        self.store()
        self.turn(self.operands, (rows // 2, rows))

    def ping_pong(self) -> Sequence[Op]:
        """Return the loop, which half of the waves begin one barrier later, and end one later."""
        units = self.units.count
        late, early = self.waiting(units, 2 * units), self.waiting(0, units)
        before = (*self.step.waits, Barrier(loc=self.loc), late, KeepOrder(loc=self.loc))
        return (*before, self.loop(), early)

    def waiting(self, first: int, last: int) -> Op:
        return Role(first, last, Block((), (Meet(loc=self.loc),)), loc=self.loc)


class _Alone(_Layout):
    """A wave has a matrix unit to itself: its memory instructions are interleaved with its own products."""

    def __init__(self, step: _Step, taken: set[str], units: MatrixUnits, spare: int, instruction_depth: int) -> None:
        super().__init__(step, taken, units, spare)
        blocks = prod(step.product.acc.type.shape[:-2]) * step.depths
        self.products = blocks * (step.product.shape[2] // instruction_depth) // 2
        """Matrix instructions per half."""

    @property
    def is_tight(self) -> bool:
        """Whether the registers cannot hold both halves."""
        return self.step.registers() + self.spare > self.units.registers

    def ops(self) -> Sequence[Op]:
        step, half = self.step, self.step.depths // 2
        self.add(*step.waits, Barrier(loc=self.loc))
        if step.depths % 2:
            whole = self.read(0, step.depths)
            self.first(whole, (0, step.rows // 2), _accesses(whole), 0)
            self.second(whole, (step.rows // 2, step.rows))
        elif self.is_tight:
            first = self.read(0, half)
            self.first(first, (), _accesses(first), 0)
            self.second(self.read(half, step.depths), ())
        elif step.waits:
            self.bring_between(half)
        else:
            first, second = self.read(0, half), self.read(half, step.depths)
            self.first(first, (), _accesses(first), _accesses(second))
            self.second(second, ())
        return (self.loop(),)

    def first(self, operands: tuple[Value, Value], rows: tuple[int, ...], at_once: int, between: int) -> None:
        """Multiply the first half, interleaved with loads and with the reads of the second half."""
        self.add(*self.step.loads)
        self.multiply(operands, rows)
        self.add(InstructionGroup("shared_load", at_once, loc=self.loc))
        self.spread(_in_turn(("shared_load", between), ("load", self.step.load_instructions())))
        self.add(KeepOrder(loc=self.loc))

    def bring_between(self, half: int) -> None:
        """Interleave the products of the first half with copies of the next tiles and reads of the second half.

        Copies come first, because LLVM does not move a read before a copy.
        """
        step = self.step
        first = self.read(0, half)
        self.add(*step.loads)
        second = self.read(half, step.depths)
        self.multiply(first)
        self.add(InstructionGroup("shared_load", self.reads(first), loc=self.loc))
        self.spread(["load"] * step.load_instructions() + ["shared_load"] * self.reads(second))
        self.add(KeepOrder(loc=self.loc))
        self.second(second, ())

    def reads(self, operands: tuple[Value, Value]) -> int:
        """Return how many loads from shared memory are grouped, or interleaved with products.

        All of them, or half where some are transposed: those move half as much each, and the operands of the first
        product have arrived by then; LLVM places the others where they are needed.
        """
        makers = {v: op for op in self.out.ops for v in op.results}
        transposed = [v for v in operands if isinstance(makers[v], LoadTransposed)]
        return (_accesses(operands) + _accesses(transposed)) // (2 if transposed else 1)

    def second(self, operands: tuple[Value, Value], rows: tuple[int, ...]) -> None:
        """Multiply the second half after all waves have read it, interleaved with the stores."""
        if not self.step.stores:
            self.multiply(operands, rows)
            self.add(KeepOrder(loc=self.loc))
            return
        if self.step.stores_across_rows:
            self.store_and_multiply(operands, rows or (0, self.step.rows))
            return
        self.add(Barrier(loc=self.loc), *self.step.stores)
        self.multiply(operands, rows)
        self.spread(_in_turn(("shared_store", _accesses([op.x for op in self.step.stores]))))

    def store_and_multiply(self, operands: tuple[Value, Value], rows: tuple[int, ...]) -> None:
        """Emit one operand's stores, with the permutation of their registers, then some of the products, and so on.

        Between single products LLVM would keep registers of both orders. Where registers or rows are few, all stores
        come first.
        """
        self.add(Barrier(loc=self.loc))
        self.wait_loads()
        stores, (first, last) = self.step.stores, rows
        parts = [stores] if self.is_tight or last - first < len(stores) else [(op,) for op in stores]
        for i, some in enumerate(parts):
            self.add(*some, KeepOrder(loc=self.loc))
            ends = (first + (last - first) * n // len(parts) for n in (i, i + 1))
            self.multiply(operands, tuple(ends))
            self.add(KeepOrder(loc=self.loc))

    def spread(self, queue: Sequence[str]) -> None:
        """Interleave memory instructions one by one with the products of a half."""
        for i, kind in enumerate(queue):
            between = self.products * (i + 1) // len(queue) - self.products * i // len(queue)
            if between:
                self.add(InstructionGroup("matrix", between, loc=self.loc))
            self.add(InstructionGroup(kind, 1, loc=self.loc))


def _in_turn(*kinds: tuple[str, int]) -> list[str]:
    """Return the kinds in round-robin order, each as often as its count."""
    most = max(count for _, count in kinds)
    return [kind for i in range(most) for kind, count in kinds if i < count]


def _accesses(values: Sequence[Value]) -> int:
    """Return the number of 16-byte loads or stores that move these vectors."""
    return sum(-(-_words(v) // 4) for v in values)
