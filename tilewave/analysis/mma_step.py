"""The parts of a loop that loads one step ahead and multiplies: what it loads, reads, multiplies and stores.

loop(%trips) {                                  loads, or copies past the registers
  %next = load(%a, …)                           reads
  barrier()                                     the product
  %x = load(%sa, …); %y = load(%sb, …)          stores
  %sums = matrix(%x, %y, …)
  barrier()
  store(%next, %sa)
}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewave.ir.core import Op, Value
from tilewave.ir.ops import (
    Barrier,
    CopyAsyncChunks,
    Load,
    LoadTransposed,
    Loop,
    Matrix,
    Store,
    WaitAsync,
    Yield,
)
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import RemarkKind, want
from tilewave.records import dataclass

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
class MmaStep:
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
    def of(loop: Loop, used: Mapping[Value, int]) -> MmaStep:
        """Return the parts of a loop; raise `Left` where it does anything else, or in another order."""
        ops = loop.body.ops
        barriers = [op for op in ops if hands_shared_over(op)]
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
        step = MmaStep(loop, numbers, rest, loads, reads, products[0], stores, waits, ends)
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
    def copies(self) -> tuple[CopyAsyncChunks, ...]:
        return tuple(op for op in self.loads if isinstance(op, CopyAsyncChunks))

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
        return sum(words(v) for v in held)

    def operand_registers(self) -> int:
        """Return the registers of a lane that hold the operands of a step."""
        return words(self.product.a) + words(self.product.b)

    @property
    def stores_across_rows(self) -> bool:
        """Whether registers are permuted before they are stored."""
        return any(op.is_across_rows for op in self.stores)

    def load_instructions(self) -> int:
        return sum(op.shape[0] if isinstance(op, CopyAsyncChunks) else accesses(op.results) for op in self.loads)


def hands_shared_over(op: Op) -> bool:
    """Whether `op` is a plain barrier for shared memory, which an interleaved loop may place elsewhere."""
    return type(op) is Barrier and op == Barrier()


def words(v: Value) -> int:
    return -(-prod(v.type.shape) * v.type.dtype.bits // 32)


def accesses(values: Sequence[Value]) -> int:
    """Return the number of 16-byte loads or stores that move these vectors."""
    return sum(-(-words(v) // 4) for v in values)
