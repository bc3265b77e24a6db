"""The body of a loop that multiplies, written op by op in a new order.

body = MmaBody(step, taken, units)
x = body.read(0, 2)                 # the operands of the depth blocks 0 and 1
body.multiply(x, rows=(0, 4))       # the products of the row blocks 0 to 3
body.loop()                         # the loop, with what was written as its body
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from tilewave.analysis.mma_step import MmaStep
from tilewave.errors import Loc
from tilewave.ir.build import Builder, Number
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import Add, Const, KeepOrder, Load, LoadTransposed, Loop, Meet, WaitLoads, Yield
from tilewave.ir.rewrite import substitute
from tilewave.ir.types import INDEX_SCALAR, Vector
from tilewave.machine.chips import MatrixUnits
from tilewave.transform.loop_schedule import LoopSchedule, Steps

Operands = tuple[Value, Value]
Loops = tuple[Sequence[Op], Mapping[Value, Value]]
"""The ops that replace a loop, and the values that replace its results."""
UNCHANGED: Mapping[Value, Value] = MappingProxyType({})


class MmaBody:
    """Writes the body of the loop in a new order.

    `spare`: registers for addresses and the like. `depth`: the depth of the matrix instruction.
    """

    def __init__(self, step: MmaStep, taken: set[str], units: MatrixUnits, spare: int, depth: int) -> None:
        self.step, self.units, self.spare = step, units, spare
        of_a_depth_block = prod(step.product.acc.type.shape[:-2]) * (step.product.shape[2] // depth)
        self.of_a_row = of_a_depth_block // step.rows * (step.depths // 2 or 1)
        """The matrix instructions of a row block, over half of the depth."""
        self.out = Builder(taken)
        self.sums = step.product.acc

    @property
    def loc(self) -> Loc:
        return self.step.product.loc

    def add(self, *ops: Op) -> None:
        self.out.ops += ops

    def meet(self) -> None:
        self.add(Meet(loc=self.loc), KeepOrder(loc=self.loc))

    def read(self, first: int, last: int, new: Mapping[Value, Value] = UNCHANGED) -> Operands:
        """Return the operands of depth blocks `first` to `last` - 1, read at positions that `new` replaces."""
        found = {read.result: self.read_operand(read, first, last, new) for read in self.step.reads}
        return found[self.step.product.a], found[self.step.product.b]

    def read_operand(
        self, read: Load | LoadTransposed, first: int, last: int, new: Mapping[Value, Value] = UNCHANGED
    ) -> Value:
        self.out.locate = lambda: read.loc
        at = [new.get(v, v) for v in read.at]
        for axis, far in enumerate(read.steps[-2]):
            if far * first:
                at[axis] = self.out.emit(Add, at[axis], self.out.const(far * first), type=INDEX_SCALAR)
        *front, _, chunk = read.result.type.shape
        kind = Vector((*front, last - first, chunk), read.result.type.dtype)
        result = self.out.fresh(read.result.name, kind)
        self.add(replace(read, at=tuple(at), results=(result,)))
        return result

    def multiply(self, operands: Operands, rows: tuple[int, ...] = ()) -> None:
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

    def ends(self) -> tuple[Op, ...]:
        """Return the ops after the product, with the last sums; the last of them yields what the loop carries."""
        renamed = {self.step.product.result: self.sums}
        return tuple(substitute(op, renamed) for op in (*self.step.rest, self.step.ends))

    def loop(self) -> Loop:
        old = self.step.loop
        return replace(old, body=Block(old.body.args, (*self.step.numbers, *self.out.ops, *self.ends())))


class MmaPipeline(MmaBody):
    """Loops whose steps begin with values that the step before loaded or read.

    `begin` is done once, `steady` in all steps but the last, which is `end`: it prepares no further step. Subclasses
    write these blocks. `held`: the values that a step gets, besides those that the loop carried before.
    """

    def __init__(self, step: MmaStep, taken: set[str], units: MatrixUnits, spare: int, depth: int) -> None:
        super().__init__(step, taken, units, spare, depth)
        self.loaded = {v: self.out.fresh(v.name, v.type) for op in step.loads for v in op.results}
        """What the step before loaded, by what it is called where it is loaded."""

    @property
    def held(self) -> tuple[Value, ...]:
        return tuple(self.loaded.values())

    def begin(self) -> Block:
        raise NotImplementedError

    def steady(self) -> Block:
        raise NotImplementedError

    def end(self) -> Block:
        raise NotImplementedError

    def loops(self, least_trips: int) -> Loops:
        """Return the loops, and the values that replace the results; the loop has `least_trips` steps at least."""
        old, out = self.step.loop, self.out
        trips = Number(out, old.trips)
        once = None if least_trips else trips.smaller(1).value
        last = trips - 1
        parts = (
            Steps(self.begin(), once, suffix="begin"),
            Steps(self.steady(), (last if least_trips else last.larger(0)).value),
            Steps(self.end(), once, first=last, suffix="end"),
        )
        none = tuple(out.emit(Const, 0.0 if v.type.dtype.is_float else 0, type=v.type, name="none") for v in self.held)
        results = tuple(out.fresh(v.name, v.type) for v in self.held)
        whole = replace(old, init=(*old.init, *none), results=(*old.results, *results))
        values = LoopSchedule(whole, parts).expand(out)
        return out.ops, dict(zip(old.results, values, strict=False))

    @property
    def args(self) -> tuple[Value, ...]:
        return (*self.step.loop.body.args, *self.held)

    @property
    def carried(self) -> tuple[Value, ...]:
        """The values that the loop carried before, as a step gets them."""
        return self.step.loop.body.args[1:]

    def opened(self) -> None:
        """Begin a step."""
        self.sums = self.step.product.acc
        self.add(*self.step.numbers)

    def closed(self, held: Sequence[Value]) -> Block:
        """Return the step, which hands `held` to the next one."""
        *rest, end = (substitute(op, self.loaded) for op in self.ends())
        self.add(*rest, Yield((*end.operands, *held), loc=end.loc))
        return Block(self.args, tuple(self.out.ops))

    def next_positions(self) -> Copier:
        """Emit the positions of the next step's accesses, and return what copies them."""
        copier = Copier(self.out, "next")
        copier.new[self.args[0]] = (Number(self.out, self.args[0]) + 1).value
        for op in self.step.numbers:
            if any(v in copier.new for v in op.operands):
                self.add(copier.renamed(op))
        return copier

    def load_next(self, copier: Copier) -> tuple[Value, ...]:
        """Emit the next step's loads, and return what they load."""
        self.add(*map(copier.renamed, self.step.loads))
        return tuple(copier.new[v] for v in self.loaded)

    def own_stores(self) -> list[Op]:
        """Return the stores of what the step before loaded."""
        return [substitute(op, self.loaded) for op in self.step.stores]

    def multiply_rows(self, halves: tuple[Operands, Operands], begin: int, end: int) -> None:
        """Multiply the row blocks `begin` to `end` - 1 of both halves of the depth, one after the other."""
        rows = self.step.rows
        for half, first in zip(halves, (0, rows), strict=True):
            low, high = (min(max(n - first, 0), rows) for n in (begin, end))
            if low < high:
                self.multiply(half, () if (low, high) == (0, rows) else (low, high))
