"""Products and memory instructions of two waves that share a matrix unit, in turns (ping-pong).

before                 two waves share a matrix unit
loop {                 load; barrier; waves 4 to 7: barrier
  load the next tiles  loop {
  barrier                read half; barrier
  read                   multiply some; barrier
  multiply               read half; barrier
  barrier                multiply some; barrier
  store                  store what the step before loaded, load; barrier
}                        multiply the rest; barrier
                       }
                       … the last step does not load; waves 0 to 3: barrier

Tiles that are copied past the registers need no stores, and one barrier per step, after a wait for the copies:

  wait; barrier          read half, copy the next tiles; barrier
  copy the next tiles    multiply half; barrier
  read                   read half; wait; barrier
  multiply               multiply half; barrier

Half of the waves is always one barrier later than the other half: while one half multiplies, the other reads or stores,
and the multiplying waves have the higher `priority`. The later waves wait for their copies two turns before the others
read them. The loads of a step are issued when the registers of the step before are stored, so that they have a whole
step to arrive. Where the depth cannot be halved, the rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product

from tilewave.analysis.mma_step import accesses
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Barrier, KeepOrder, Meet, Priority, Role
from tilewave.transform.mma_body import Loops, MmaBody, MmaPipeline, Operands

ACCESS_PRODUCTS = 2
"""The products of a wave in the time of a 16-byte access of four waves to shared memory."""
LATENCY_PRODUCTS = 4
"""The products in the time from the last access until its data arrive."""


class _Turns(MmaBody):
    """The turns of both kinds of loops."""

    def turn(self, operands: Operands, rows: tuple[int, ...] = ()) -> None:
        with self.matrix_turn():
            self.multiply(operands, rows)

    @contextmanager
    def matrix_turn(self) -> Iterator[None]:
        """Multiply, with priority over the wave that reads or stores meanwhile."""
        self.add(Priority(1, loc=self.loc))
        yield
        self.add(Priority(0, loc=self.loc), KeepOrder(loc=self.loc))
        self.meet()

    def read_turn(self, first: int, last: int, others: Sequence[Op] = ()) -> Operands:
        operands = self.read(first, last)
        self.add(KeepOrder(loc=self.loc), *others)
        self.meet()
        return operands

    def ping_pong(self, loops: Sequence[Op]) -> Sequence[Op]:
        """Return the loops, which half of the waves begin one barrier later, and end one later."""
        units = self.units.count
        late, early = self.waiting(units, 2 * units), self.waiting(0, units)
        before = (*self.step.waits, Barrier(loc=self.loc), late, KeepOrder(loc=self.loc))
        return (*before, *loops, early)

    def waiting(self, first: int, last: int) -> Op:
        return Role(first, last, Block((), (Meet(loc=self.loc),)), loc=self.loc)


class CopiesInTurns(_Turns):
    """The order of a loop that copies past the registers.

    All tiles are copied first, so that they have two turns to arrive; they are waited for one turn before others read
    them. Where the depth cannot be halved, and tiles of later steps stay in flight, a step has one turn of products.
    """

    def loops(self, least_trips: int) -> Loops:
        step, half = self.step, self.step.depths // 2
        if step.depths % 2 and step.pending:
            self.turn(self.read_and_copy(step.depths, step.waits))
        elif step.depths % 2:
            operands = self.read_and_copy(step.depths)
            self.turn(operands, (0, step.rows // 2))
            self.add(*step.waits)
            self.meet()
            self.turn(operands, (step.rows // 2, step.rows))
        else:
            self.turn(self.read_and_copy(half))
            self.turn(self.read_turn(half, step.depths, step.waits))
        return self.ping_pong([self.loop()]), {}

    def read_and_copy(self, last: int, waits: Sequence[Op] = ()) -> Operands:
        """Emit some reads before the copies to each memory, whose destination must be set a little earlier."""
        step, found = self.step, {}
        share = -(-len(step.loads) // len(step.reads))
        for i, read in enumerate(step.reads):
            found[read.result] = self.read_operand(read, 0, last)
            self.add(*step.loads[i * share : (i + 1) * share], KeepOrder(loc=self.loc))
        self.add(*waits)
        self.meet()
        return found[step.product.a], found[step.product.b]


class StepsInTurns(_Turns):
    """The order of a loop that loads to registers, each step for itself.

    The first half of the operands is multiplied before the second is read, so that registers hold one half only. Where
    the depth cannot be halved, the rows are.
    """

    def loops(self, least_trips: int) -> Loops:
        step, half, middle, rows = self.step, self.step.depths // 2, len(self.step.loads) // 2, self.step.rows
        if step.depths % 2:
            last = self.read_turn(0, step.depths, step.loads)
        else:
            self.turn(self.read_turn(0, half, step.loads[:middle]))
            last = self.read_turn(half, step.depths, step.loads[middle:])
        self.turn(last, (0, rows // 2))
        self.wait_loads()
        self.add(*step.stores)
        self.meet()
        self.turn(last, (rows // 2, rows))
        return self.ping_pong([self.loop()]), {}


class LoadsInTurns(_Turns, MmaPipeline):
    """The order of a loop that loads to registers, which hold both halves of the operands, and stores them."""

    def loops(self, least_trips: int) -> Loops:
        ops, results = super().loops(least_trips)
        return self.ping_pong(ops), results

    def begin(self) -> Block:
        with self.out.region():
            self.add(*self.step.numbers, *self.step.loads)
            return self.out.block(self.args, (*self.carried, *(v for op in self.step.loads for v in op.results)))

    def steady(self) -> Block:
        with self.out.region():
            self.opened()
            loaded = self.in_turns(self.next_loads)
            return self.closed(loaded)

    def end(self) -> Block:
        with self.out.region():
            self.opened()
            return self.closed(self.in_turns(lambda: self.held))

    def next_loads(self) -> tuple[Value, ...]:
        self.add(KeepOrder(loc=self.loc))
        return self.load_next(self.next_positions())

    def in_turns(self, load: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        """Emit a step; `load` emits the loads, and returns what they load."""
        step, half, rows = self.step, self.step.depths // 2, self.step.rows
        first = self.read_turn(0, half)
        middle, late = self.cuts(first)
        with self.matrix_turn():
            self.multiply_rows((first, first), 0, middle)
        halves = first, self.read_turn(half, step.depths)
        with self.matrix_turn():
            self.multiply_rows(halves, middle, late)
        loaded = self.store(load)
        with self.matrix_turn():
            self.multiply_rows(halves, late, 2 * rows)
        return loaded

    def store(self, load: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        self.wait_loads()
        self.add(*self.own_stores())
        loaded = load()
        self.meet()
        return loaded

    def cuts(self, first: Operands) -> tuple[int, int]:
        """Return after how many row blocks of both halves the second half is read, and registers are stored.

        A turn takes as long as the products of one wave, or as the accesses of the other.
        """
        rows, step = self.step.rows, self.step
        read = ACCESS_PRODUCTS * accesses(first) + LATENCY_PRODUCTS
        store = ACCESS_PRODUCTS * accesses([op.x for op in step.stores])

        def cost(cuts: tuple[int, int]) -> int:
            ends = (0, *cuts, 2 * rows)
            a, b, c = ((high - low) * self.of_a_row for low, high in pairwise(ends))
            return max(c, read) + max(read, a) + max(a, read) + max(read, b) + max(b, store) + max(store, c)

        return min(product(range(1, rows + 1), range(rows, 2 * rows)), key=lambda cuts: (cost(cuts), -cuts[0], cuts[1]))
