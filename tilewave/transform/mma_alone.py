"""Products and memory instructions of a wave, interleaved one by one.

before                 a step begins with its first operands in registers
loop {                 load; barrier; read half
  load the next tiles  loop {
  barrier                multiply half, read the other half between
  read                   barrier
  multiply               multiply some of the other half, store what was loaded between; barrier
  barrier                multiply the rest, load, and read half of the next step, between
  store                }
}                      … the last step neither loads nor reads for the next one

The loads of a step are issued when the registers of the step before are stored, so that they have a whole step to
arrive, and no product waits for reads that begin with the step. Tiles that are copied past the registers need no stores
and one barrier, where the operands of this step are in registers and the tiles of the next one in shared memory:

  wait; barrier          multiply half, read the other half between
  copy the next tiles    wait; barrier
  read                   multiply the rest, copy tiles, and read half of the next step, between
  multiply

Where the depth has no halves, or the registers hold one half only, a step begins with its reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeVar

from tilewave.analysis.mma_step import MmaStep, accesses
from tilewave.forks import cached_property
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import (
    Add,
    Barrier,
    Concatenate,
    CopyAsyncChunks,
    InstructionGroup,
    KeepOrder,
    Load,
    LoadTransposed,
)
from tilewave.ir.types import INDEX_SCALAR, Vector
from tilewave.machine.chips import MatrixUnits
from tilewave.transform.mma_body import UNCHANGED, Loops, MmaBody, MmaPipeline, Operands

IN_FLIGHT = 8
"""Products after the last memory instruction of a part, so that its data arrive before the barrier that follows."""
READS_TOGETHER = 2
"""Row blocks of an operand that are read together, between two groups of copies."""
COPY_GROUPS = 8
"""The most groups of copies of a step with two stages, with reads between them. Each group takes four scalar registers
for a window on its array, in each step that a loop of more stages is unrolled to."""
PRODUCTS_OF_A_COPY = 4
"""Products in the time that the CU needs for a copy of each wave: four of 1024 bytes take 64 cycles, as do four
products of 16x16x16 16-bit numbers."""

T = TypeVar("T")
Part = tuple[CopyAsyncChunks, int, int]
"""Rounds of a copy: the first, and their number."""


class _Between(MmaBody):
    """Memory instructions between products."""

    def spread(self, queue: Sequence[str], products: int) -> None:
        """Interleave memory instructions one by one with so many products."""
        for i, kind in enumerate(queue):
            self.add(InstructionGroup(kind, 1, loc=self.loc))
            between = products * (i + 1) // len(queue) - products * i // len(queue)
            if between:
                self.add(InstructionGroup("matrix", between, loc=self.loc))

    @property
    def stored(self) -> list[str]:
        return ["shared_store"] * accesses([op.x for op in self.step.stores])

    @property
    def loads(self) -> list[str]:
        return ["load"] * self.step.load_instructions()


class ReadAtOnce(_Between):
    """The order of a loop whose steps begin with their reads: those of all depth blocks, or of half of them."""

    def loops(self, least_trips: int) -> Loops:
        step, half, rows = self.step, self.step.depths // 2, self.step.rows
        is_whole = bool(step.depths % 2)
        self.add(*step.waits, Barrier(loc=self.loc))
        first = self.read(0, step.depths if is_whole else half)
        self.add(*step.loads)
        self.multiply(first, (0, rows // 2) if is_whole else ())
        self.add(InstructionGroup("shared_load", accesses(first), loc=self.loc))
        products = self.of_a_row * (rows // 2 if is_whole else rows)
        self.spread(self.loads, products)
        self.add(KeepOrder(loc=self.loc))
        second = first if is_whole else self.read(half, step.depths)
        if step.stores:
            self.store()
        self.multiply(second, (rows // 2, rows) if is_whole else ())
        if not step.stores_across_rows:
            self.spread(self.stored, products)
        self.add(KeepOrder(loc=self.loc))
        return [self.loop()], {}

    def store(self) -> None:
        """Store after all waves have read; registers that are permuted for it all before the products."""
        self.add(Barrier(loc=self.loc))
        if not self.step.stores_across_rows:
            self.add(*self.step.stores)
            return
        self.wait_loads()
        self.add(*self.step.stores, KeepOrder(loc=self.loc))


class ReadAhead(_Between, MmaPipeline):
    """The order of a loop whose steps hold the first half of their operands when they begin. `lanes`: of a wave."""

    def __init__(self, step: MmaStep, taken: set[str], units: MatrixUnits, spare: int, depth: int, lanes: int) -> None:
        super().__init__(step, taken, units, spare, depth)
        self.lanes = lanes

    @cached_property
    def first(self) -> Operands:
        """The operands of the first half, as a step gets them."""
        with self.out.region():
            return self.read(0, self.step.depths // 2)

    @property
    def held(self) -> tuple[Value, ...]:
        return (*self.first, *self.loaded.values())

    def begin(self) -> Block:
        step = self.step
        with self.out.region():
            self.add(*step.numbers, *(step.loads if step.stores else step.waits), Barrier(loc=self.loc))
            for copy in self.copies[0]:
                self.add(self.copy(copy, UNCHANGED))
            first = self.read(0, step.depths // 2)
            return self.out.block(self.args, (*self.carried, *first, *(v for op in step.loads for v in op.results)))

    def steady(self) -> Block:
        step, (middle, late) = self.step, self.cuts
        with self.out.region():
            second = self.open(middle)
            self.add(*step.waits, Barrier(loc=self.loc))
            if step.stores:
                self.store(second, middle, late)
                self.add(Barrier(loc=self.loc))
            held, queue = self.next()
            self.part(second, late, 2 * step.rows, queue)
            return self.closed(held)

    def end(self) -> Block:
        step, (middle, _) = self.step, self.cuts
        with self.out.region():
            second = self.open(middle)
            if step.stores:
                self.add(Barrier(loc=self.loc))
                self.store(second, middle, 2 * step.rows)
            else:
                self.part(second, middle, 2 * step.rows, ())
            return self.closed(self.held)

    def open(self, middle: int) -> Operands:
        """Multiply the first row blocks, and return the operands of the second half, which are read meanwhile."""
        self.opened()
        second, queue = self.read_between(self.copies[1], self.step.depths // 2, self.step.depths, UNCHANGED)
        self.part(second, 0, middle, queue)
        return second

    def next(self) -> tuple[tuple[Value, ...], list[str]]:
        """Emit the loads, and the reads of the first operands, of the next step; return them, and their order."""
        copier, half = self.next_positions(), self.step.depths // 2
        if not self.step.stores:
            first, queue = self.read_between(self.copies[0], 0, half, copier.new)
            return first, queue
        loaded = self.load_next(copier)
        first = self.read(0, half, copier.new)
        return (*first, *loaded), _merged(self.loads, self.half_reads)

    @property
    def cuts(self) -> tuple[int, int]:
        """Return after how many row blocks of both halves all has been read, and stored: in proportion to accesses."""
        read, rows = len(self.half_reads), self.step.rows
        if not self.step.stores:
            return rows, rows
        whole = 2 * read + len(self.stored)
        middle, late = (round(2 * rows * most / whole) for most in (read, whole - read))
        return min(max(middle, 1), rows), min(max(late, rows), 2 * rows - 1)

    def part(self, second: Operands, begin: int, end: int, queue: Sequence[str]) -> None:
        """Multiply the row blocks `begin` to `end` - 1 of both halves, and interleave memory instructions."""
        self.multiply_rows((self.first, second), begin, end)
        products = (end - begin) * self.of_a_row
        self.spread(queue, max(products - IN_FLIGHT, min(products, len(queue))))
        self.add(KeepOrder(loc=self.loc))

    def store(self, second: Operands, begin: int, end: int) -> None:
        """Multiply, and store what the step before loaded.

        Registers that are permuted before they are stored are so one operand at a time, each before some of the
        products: between single products LLVM would keep registers of both orders.
        """
        if not self.step.stores_across_rows:
            self.add(*self.own_stores())
            self.part(second, begin, end, self.stored)
            return
        self.wait_loads()
        stores = self.own_stores()
        for i, op in enumerate(stores):
            self.add(op, KeepOrder(loc=self.loc))
            first, last = (begin + (end - begin) * n // len(stores) for n in (i, i + 1))
            self.part(second, first, last, ())

    @property
    def half_reads(self) -> list[str]:
        """The reads of half of the depth."""
        return [kind for read in self.step.reads for kind in _reads(read)][::2]

    # -- copies past the registers, and reads between them

    @cached_property
    def copies(self) -> tuple[list[Part], list[Part]]:
        """The copies of a step that are issued in the step before, with its second half, and those in the step itself.

        With two stages all are early: the step itself waits for its late copies, before its second half.
        """
        if self.step.stores:
            return [], []
        rounds = self.rounds_together
        firsts = [(op, r) for op in self.step.copies for r in range(0, op.shape[0], rounds)]
        parts = [(op, r, min(rounds, op.shape[0] - r)) for op, r in firsts]
        if not self.step.pending:
            return parts, []
        room, early = self.step.rows * self.of_a_row // PRODUCTS_OF_A_COPY, 1
        while early < len(parts) and sum(n for *_, n in parts[: early + 1]) <= room:
            early += 1
        return parts[:early], parts[early:]

    @property
    def rounds_together(self) -> int:
        """The rounds of a group of copies: few, but so many that the groups of all stages have windows."""
        copied = sum(op.to.type.dtype.bytes * prod(op.shape) for op in self.step.copies) * self.lanes
        stages = 2 + self.step.pending // copied
        rounds, counts = 1, [op.shape[0] for op in self.step.copies]
        while (stages - 1) * sum(-(-count // rounds) for count in counts) > COPY_GROUPS and rounds < max(counts):
            rounds *= 2
        return rounds

    def copy(self, part: Part, new: Mapping[Value, Value]) -> Op:
        """Return some rounds of a copy, whose positions are emitted."""
        op, first, count = part
        at = [self.moved(new.get(v, v), far * first) for v, far in zip(op.at, op.steps[0], strict=True)]
        *slot, row = (new.get(v, v) for v in op.to_at)
        row = self.moved(row, first * self.lanes * op.shape[1] // op.to.type.shape[-1])
        columns = tuple(new.get(v, v) for v in op.columns[first : first + count])
        return replace(op, at=tuple(at), to_at=(*slot, row), shape=(count, op.shape[1]), columns=columns)

    def moved(self, v: Value, far: int) -> Value:
        return self.out.emit(Add, v, self.out.const(far), type=INDEX_SCALAR) if far else v

    def read_between(
        self, copies: Sequence[Part], first: int, last: int, new: Mapping[Value, Value]
    ) -> tuple[Operands, list[str]]:
        """Read the operands of some depth blocks, with copies between, and return the order of instructions as well.

        LLVM moves no read across a copy, so the reads are in parts where there are copies.
        """
        if not copies:
            return self.read(first, last, new), self.half_reads
        parts = {read.result: self.read_parts(read, first, last, new) for read in self.step.reads}
        reads = [(op, _reads(op)) for ops in parts.values() for op in ops]
        queue: list[str] = []
        for op, kinds in _merged(reads, [(self.copy(part, new), ["load"] * part[2]) for part in copies]):
            self.add(op)
            queue += kinds
        found = {v: self.joined(ops) for v, ops in parts.items()}
        return (found[self.step.product.a], found[self.step.product.b]), queue

    def read_parts(self, read: Load | LoadTransposed, first: int, last: int, new: Mapping[Value, Value]) -> list[Op]:
        """Return the reads of an operand by its row blocks; their positions are emitted."""
        with self.out.region():
            self.read_operand(read, first, last, new)
            *positions, whole = self.out.ops
        self.add(*positions)
        *batch, rows, depths, chunk = whole.results[0].type.shape
        if batch or not isinstance(whole, Load):
            return [whole]
        parts: list[Op] = []
        for row in range(0, rows, READS_TOGETHER):
            kind = Vector((min(READS_TOGETHER, rows - row), depths, chunk), whole.result.type.dtype)
            at = tuple(self.moved(v, far * row) for v, far in zip(whole.at, whole.steps[-3], strict=True))
            parts.append(replace(whole, at=at, results=(self.out.fresh(whole.result.name, kind),)))
        return parts

    def joined(self, parts: Sequence[Op]) -> Value:
        """Return an operand that was read in parts."""
        vectors = tuple(op.results[0] for op in parts)
        if len(vectors) == 1:
            return vectors[0]
        *_, depths, chunk = vectors[0].type.shape
        kind = Vector((sum(v.type.shape[0] for v in vectors), depths, chunk), vectors[0].type.dtype)
        return self.out.emit(Concatenate, vectors, 0, type=kind, name=vectors[0].name)


class StepAhead(ReadAhead):
    """The order of a loop whose steps hold all operands when they begin; tiles of later steps stay in flight.

    A step copies tiles between its first products, waits for the tiles of the next step, and reads all operands of that
    one between the products that are left.
    """

    def __init__(self, step: MmaStep, taken: set[str], units: MatrixUnits, spare: int, depth: int, lanes: int) -> None:
        super().__init__(step, taken, units, spare, depth, lanes)
        self.of_a_row = prod(step.product.acc.type.shape[:-2]) * (step.product.shape[2] // depth) // step.rows

    @cached_property
    def first(self) -> Operands:
        """The operands of a step, as it gets them."""
        with self.out.region():
            return self.read(0, self.step.depths)

    def begin(self) -> Block:
        step = self.step
        with self.out.region():
            self.add(*step.numbers, *step.waits, Barrier(loc=self.loc))
            return self.out.block(self.args, (*self.carried, *self.read(0, step.depths)))

    def steady(self) -> Block:
        step = self.step
        with self.out.region():
            self.copied()
            self.add(*step.waits, Barrier(loc=self.loc))
            held = self.read(0, step.depths, self.next_positions().new)
            self.rows_of(step.rows // 2, step.rows, [kind for read in step.reads for kind in _reads(read)])
            return self.closed(held)

    def end(self) -> Block:
        with self.out.region():
            self.copied()
            self.rows_of(self.step.rows // 2, self.step.rows, ())
            return self.closed(self.held)

    def copied(self) -> None:
        """Emit the copies of a step between the products of its first row blocks."""
        self.opened()
        for op in self.step.copies:
            self.add(self.copy((op, 0, op.shape[0]), UNCHANGED))
        self.rows_of(0, self.step.rows // 2, self.loads)

    def rows_of(self, begin: int, end: int, queue: Sequence[str]) -> None:
        """Multiply some row blocks, with memory instructions between."""
        self.multiply(self.first, (begin, end))
        products = (end - begin) * self.of_a_row * self.step.depths
        self.spread(queue, max(products - IN_FLIGHT, min(products, len(queue))))
        self.add(KeepOrder(loc=self.loc))


def _reads(op: Op) -> list[str]:
    """Return the loads from shared memory of an op; those that transpose move half as much each."""
    return ["shared_load"] * (accesses(op.results) * (2 if isinstance(op, LoadTransposed) else 1))


def _merged(*queues: Sequence[T]) -> list[T]:
    """Return the elements of the queues in one, those of each spread evenly."""
    places = [((i + 0.5) / len(queue), n, i) for n, queue in enumerate(queues) for i in range(len(queue))]
    return [queues[n][i] for _, n, i in sorted(places)]
