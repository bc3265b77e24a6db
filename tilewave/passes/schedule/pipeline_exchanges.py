"""Let consumer warpgroups exchange operands through a ring of two stages, one step before they are multiplied.

    loop(%n, [%sums]) {                  ‹store zeros in a stage; arrive(%full)›
      %p = ‹of this step›                loop(%n, [%sums, ‹stage›, ‹what the step before had›]) {
      barrier(consumers)                   wait_mbarrier(%full, ‹stage before›)
      store(%p, %tile)                     %z = wgmma_shared(%k, %ring[‹stage before›])
      barrier(consumers)            →      arrive(%empty, ‹stage before›)
      %z = wgmma_shared(%k, %tile)         loop(‹0 in the first step›) { ‹use of %z, as the step before› }
      ‹use of %z›                          %p = ‹of this step›
      yield(…)                             wait_mbarrier(%empty, ‹stage›)
    }                                      store(%p, %ring[‹stage›])
                                           arrive(%full, ‹stage›)
                                           yield(…)
                                         }
                                         ‹the product of the last step›

Each warpgroup stores a part of a tile that all of them multiply. With barriers they wait for each other twice in every
step, and compute and multiply all at the same time. In this form a warpgroup waits for a part that the others stored a
step ago: they drift apart, and one multiplies while another computes. Results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewave.analysis.program_slices import following, taken_by
from tilewave.analysis.shared_space import MBARRIER_BYTES, memory_bytes, shared_bytes
from tilewave.forks import cached_property
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Allocate,
    Arrive,
    Barrier,
    Loop,
    MakeMbarriers,
    Role,
    Store,
    TurnOp,
    WaitMbarrier,
    Wgmma,
    WgmmaShared,
    Yield,
)
from tilewave.ir.placements import is_in
from tilewave.ir.remarks import RemarkKind
from tilewave.ir.rewrite import names, renamed, substitute, walk
from tilewave.ir.types import INDEX_SCALAR, Mbarriers, Memory, Vector
from tilewave.machine.chips import Chip
from tilewave.records import dataclass
from tilewave.transform.carried_count import carry_count

STAGES = 2
NO_ROOM = RemarkKind(
    "shared memory has no room for a second stage of {bytes:,} bytes for {memory}, so warpgroups meet in every step",
    "use smaller tiles or fewer stages",
)


@dataclass(frozen=True)
class PipelineExchanges:
    machine: Chip

    def __repr__(self) -> str:
        return "PipelineExchanges()"

    def __call__(self, kernel: Kernel) -> Kernel:
        roles = [op for op in kernel.body.ops if isinstance(op, Role) and not op.first]
        if len(roles) != 1:
            return kernel
        loops = [op for op in walk(roles[0].body) if isinstance(op, Loop)]
        found = [step for op in loops if (step := _Step.of(op, roles[0].last, kernel)) is not None]
        if len(found) != 1:
            return kernel
        step = found[0]
        if shared_bytes(kernel) + step.bytes + 2 * STAGES * MBARRIER_BYTES > self.machine.shared.bytes:
            return kernel.with_remarks(NO_ROOM.at(step.store.loc, bytes=step.bytes, memory=step.store.memory.name))
        return _Exchange(kernel, roles[0], step).kernel()


@dataclass(frozen=True)
class _Step:
    """A step of all consumers that stores a tile between two barriers, and multiplies it."""

    loop: Loop
    consumers: int
    store: Store
    product: WgmmaShared
    barriers: tuple[Barrier, ...]

    @staticmethod
    def of(loop: Loop, consumers: int, kernel: Kernel) -> _Step | None:
        ops = loop.body.ops[:-1]
        barriers = tuple(op for op in ops if isinstance(op, Barrier))
        stores = [op for op in ops if isinstance(op, Store) and is_in(op.memory, "shared")]
        if len(stores) != 1 or len(barriers) != 2 or {op.waves for op in barriers} != {consumers}:
            return None
        (store,) = stores
        users = [op for op in walk(kernel.body) if store.memory in op.operands]
        products = [op for op in users if isinstance(op, WgmmaShared)]
        if len(users) != 2 or len(products) != 1 or products[0] not in ops or not isinstance(store.x.type, Vector):
            return None
        step = _Step(loop, consumers, store, products[0], barriers)
        return step if step.can_lag else None

    @property
    def can_lag(self) -> bool:
        """Whether the tile is stored before it is multiplied, and only effects depend on the product."""
        ops = self.loop.body.ops
        first, second = (i for i, op in enumerate(ops) if isinstance(op, Barrier))
        in_order = first < ops.index(self.store) < second < ops.index(self.product)
        starts = self.product.acc not in self.loop.body.args
        found = {v for op in self.use for v in op.results}
        return in_order and starts and found.isdisjoint(self.loop.body.yielded) and bool(self.use)

    @property
    def bytes(self) -> int:
        return memory_bytes(self.store.memory)

    @cached_property
    def use(self) -> tuple[Op, ...]:
        """The ops that use the sums of the product, with the turns in which they are added."""
        after = following(self.loop.body.ops[:-1], {self.product.result})
        return tuple(op for op in self.loop.body.ops[:-1] if op in after or isinstance(op, TurnOp))

    @cached_property
    def places(self) -> tuple[Op, ...]:
        """The ops that make what the product and its use take besides sums and tiles."""
        return self.feeders({v for op in (self.product, *self.use) for v in taken_by(op)})

    def feeders(self, wanted: set[Value]) -> tuple[Op, ...]:
        """Return the ops, which follow from no product, that make values."""
        products = {op.result for op in self.loop.body.ops if isinstance(op, Wgmma)}
        dependent = following(self.loop.body.ops[:-1], products)
        found: list[Op] = []
        for op in reversed(self.loop.body.ops[:-1]):
            is_free = not (op.has_effect or op.read or op.blocks or op in dependent or isinstance(op, Wgmma))
            if is_free and not wanted.isdisjoint(op.results):
                found.append(op)
                wanted.update(op.operands)
        return tuple(reversed(found))

    @cached_property
    def handed_on(self) -> tuple[Value, ...]:
        """The values of a step that the next one takes for the product and its use."""
        again = (*self.places, self.product, *self.use)
        own = {v for op in again for v in op.results}
        made = {*self.loop.body.args, *(v for op in self.loop.body.ops for v in op.results)}
        return tuple(dict.fromkeys(v for op in again for v in taken_by(op) if v in made and v not in own))


class _Exchange:
    """Builds the ring, its mbarriers, and the loop around it."""

    def __init__(self, kernel: Kernel, role: Role, step: _Step) -> None:
        self.old, self.role, self.step = kernel, role, step
        self.builder, self.loc = Builder(names(kernel)), step.store.loc
        memory = step.store.memory
        assert isinstance(memory.type, Memory)
        self.ring = self.builder.fresh(
            f"{memory.name}_ring", replace(memory.type, extents=(STAGES, *memory.type.shape))
        )
        self.full, self.empty = (self.builder.fresh(name, Mbarriers((STAGES,))) for name in ("full", "empty"))

    def kernel(self) -> Kernel:
        body = carry_count(self.role.body, lambda op: op is self.step.loop, self.steps, self.builder, "exchanges")
        role = replace(self.role, body=body)
        groups = self.step.consumers // Wgmma.group.waves
        made: list[Op] = [MakeMbarriers(groups, results=(v,), loc=self.loc) for v in (self.full, self.empty)]
        ops: list[Op] = []
        for op in self.old.body.ops:
            if isinstance(op, Allocate) and op.result == self.step.store.memory:
                ops.append(replace(op, results=(self.ring,)))
                continue
            if isinstance(op, MakeMbarriers):
                ops += made
                made = []
            ops.append(role if op is self.role else op)
        return replace(self.old, body=replace(self.old.body, ops=tuple(ops)))

    def steps(self, loop: Loop, count: Value) -> tuple[list[Op], Value]:
        """Return the ops in the place of the loop, which begins after `count` exchanges, and the count after them."""
        step, b = self.step, self.builder
        with b.region():
            b.locate = lambda: self.loc
            self.stored(b.const(0.0, step.store.x.type), count)
            before, n = [b.fresh(f"{v.name}_before", v.type) for v in self.carried], b.fresh("exchange", INDEX_SCALAR)
            after = [b.fresh(v.name, v.type) for v in (*before, n)]
            init = (*loop.init, *self.first_values(), self.next(count))
            b.ops.append(replace(loop, init=init, body=self.body(before, n), results=(*loop.results, *after)))
            *values, end = after
            self.multiplied(values, Number(b, loop.trips), end)
            return list(b.ops), end

    @property
    def carried(self) -> tuple[Value, ...]:
        """What steps hand on besides their number."""
        return tuple(v for v in self.step.handed_on if v != self.step.loop.body.args[0])

    def first_values(self) -> list[Value]:
        """Return values for what the step before the first one hands on, which nothing uses."""
        outside = dict(zip(self.step.loop.body.args[1:], self.step.loop.init, strict=True))
        return [outside[v] if v in outside else self.builder.const(0, v.type) for v in self.carried]

    def body(self, before: Sequence[Value], count: Value) -> Block:
        step, b, loop = self.step, self.builder, self.step.loop
        again = {id(op) for op in (step.product, *step.use, *step.barriers, step.store)}
        first = next(op for op in loop.body.ops if isinstance(op, Wgmma) and op.acc in loop.body.args)
        with b.region():
            self.multiplied(before, Number(b, loop.body.args[0]), count)
            stored = False
            for op in loop.body.ops[:-1]:
                if (op is first or op is step.store) and not stored and self.is_made(op):
                    self.stored(step.store.x, count)
                    stored = True
                if id(op) not in again:
                    b.ops.append(op)
            end = loop.body.ops[-1]
            values = (*end.operands, *self.carried, self.next(count))
            args = (*loop.body.args, *before, count)
            return Block(args, (*b.ops, Yield(values, loc=end.loc)))

    def next(self, count: Value) -> Value:
        """Return the number of the exchange after one; numbers repeat when stages and parities do."""
        after: Value = ((Number(self.builder, count) + 1) % (2 * STAGES)).value
        return after

    def is_made(self, op: Op) -> bool:
        """Whether what is stored is computed before an op."""
        ops = self.step.loop.body.ops
        maker = next((i for i, other in enumerate(ops) if self.step.store.x in other.results), -1)
        return maker < ops.index(op)

    def stored(self, x: Value, count: Value) -> None:
        """Emit the exchange of this warpgroup's part of a tile."""
        store, b = self.step.store, self.builder
        slot, phase = self.place(count)
        free = (Number(b, b.const(1)) - Number(b, phase)).value
        b.ops.append(WaitMbarrier(self.empty, slot, free, loc=self.loc))
        steps = tuple((0, *far) for far in store.steps)
        copied = renamed(Block((), (*self.step.feeders(set(store.at)), store)), lambda v: b.fresh(v.name, v.type))
        *places, there = copied.ops
        assert isinstance(there, Store)
        b.ops += places
        at = (slot, *there.at)
        b.ops.append(replace(store, x=x, memory=self.ring, at=at, steps=steps))
        b.ops.append(Arrive(self.full, slot, waves=Wgmma.group.waves, stored=True, loc=self.loc))

    def multiplied(self, before: Sequence[Value], index: Number, count: Value) -> None:
        """Emit the product of the exchange before `count`, of the step before `index`, and but for the first step the
        use of its sums."""
        step, b = self.step, self.builder
        slot, phase = self.place(((Number(b, count) + (2 * STAGES - 1)) % (2 * STAGES)).value)
        known = dict(zip(self.carried, before, strict=True))
        if step.loop.body.args[0] in step.handed_on:
            known[step.loop.body.args[0]] = (index - 1).value
        copied = renamed(Block((), (*step.places, step.product, *step.use)), lambda v: b.fresh(v.name, v.type))
        ops = [substitute(op, known) for op in copied.ops]
        at = len(step.places)
        product, use = ops[at], ops[at + 1 :]
        assert isinstance(product, WgmmaShared)
        is_later = index.smaller(1).value
        b.ops += ops[:at]
        b.ops.append(WaitMbarrier(self.full, slot, phase, loc=self.loc))
        b.ops.append(self.from_ring(product, slot))
        b.ops.append(Arrive(self.empty, slot, waves=Wgmma.group.waves, loc=self.loc))
        once = Block((b.fresh("once", INDEX_SCALAR),), (*use, Yield((), loc=self.loc)))
        b.ops.append(Loop(is_later, (), once, loc=self.loc))

    def from_ring(self, product: WgmmaShared, slot: Value) -> Op:
        new: dict[str, Any] = {}
        if product.a == self.step.store.memory:
            new |= {"a": self.ring, "a_at": (slot, *product.a_at)}
        if product.b == self.step.store.memory:
            new |= {"b": self.ring, "b_at": (slot, *product.b_at)}
        return replace(product, **new)

    def place(self, count: Value) -> tuple[Value, Value]:
        number = Number(self.builder, count)
        return (number % STAGES).value, (number // STAGES % STAGES).value
