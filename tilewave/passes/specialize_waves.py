"""One wave brings tiles while the others multiply: a ring of stages between them, and signals that say which are full.

    loop(%steps) {                     role(consumers) {                      role(producer) {
      copy(%a, …, %x)                    loop(%steps) {                         loop(%steps) {
      copy(%b, …, %y)                      await(%full, %slot, %phase)            await(%empty, %slot, 1 - %phase)
      barrier()                            matrix_shared(%x, [%slot, …])          arrive(%full, %slot) {expect = …}
      matrix_shared(%x, %y)                arrive(%empty, %slot)                  copy_async_signal(%a, …, %full, %slot)
      barrier()                          }                                        copy_async_signal(%b, …, %full, %slot)
    }                                  }                                        } }

Step s uses slot s % stages in phase s // stages % 2. Steps are counted through all loops, so that phases go on from
tile to tile, and the producer fills stages for the next tile while this one is still multiplied and written. What
consumers hand to each other through shared memory has barriers of its own, which the producer knows nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

from tilewave.analysis.excerpts import excerpt, renamed
from tilewave.errors import Loc
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.faults import lacking
from tilewave.ir.ops import (
    Allocate,
    Arrive,
    Await,
    Barrier,
    Const,
    Copy,
    CopyAsyncSignal,
    Launch,
    Load,
    Loop,
    MakeExchange,
    MakeSignals,
    MatrixShared,
    Role,
    Store,
    While,
    Yield,
)
from tilewave.ir.placements import elements, lies_in
from tilewave.ir.reasons import Reason
from tilewave.ir.rewrite import map_blocks, names, rewrite_block, walk
from tilewave.ir.types import INDEX_SCALAR, Memory, Scalar, Signals
from tilewave.layouts.fragments import GROUP
from tilewave.machine.chips import Chip

SIGNAL_BYTES = 8
LEAST_STAGES = 4
"""Three cost one percent on the shapes measured, two a third."""
IN_FLIGHT_BYTES = 96 << 10
"""Of a ring: with so much on its way memory is busy, and on an H200 more of it was no quicker. Two workgroups that have
such a ring each fit on a processor."""

WAVES_MEET = Reason(
    "waves hand global memory over to each other here, and a wave that runs ahead to bring tiles could not meet them: "
    "lanes load all tiles",
    "write what is read back in a kernel of its own",
)
FEWER_STAGES = Reason(
    "shared memory holds {stages} of {wished} steps, {bytes:,} bytes each, so tiles are brought less far ahead",
    "take smaller tiles or shorter steps",
)


@dataclass(frozen=True)
class SpecializeWaves:
    """`stages`: how many steps the ring holds; where shared memory is too small, fewer, but not below `fewest`.

    Unsaid, four, or as many as keep memory busy where tiles are small. Waves that do not multiply keep
    `producer_registers` for each lane, enough to ask for copies.
    """

    machine: Chip
    stages: int | None = None
    fewest: int = 1
    producer_registers: int = 40

    def __repr__(self) -> str:
        return f"SpecializeWaves({self.stages or ''})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if kernel.level != "lane":
            raise lacking("distribute_lanes", f"{kernel.name} still speaks of whole tiles")
        homes = [block for block in _blocks(kernel.body) if any(isinstance(op, Copy) for op in block.ops)]
        meet = next((op for op in walk(kernel.body) if isinstance(op, Barrier) and op.over == "global"), None)
        if len(homes) != 1:
            return kernel
        if meet is not None:  # the producer runs ahead, and cannot meet the others where they hand memory over
            return kernel.declining(WAVES_MEET.at(meet.loc))
        ring = {op.to for op in homes[0].ops if isinstance(op, Copy)}
        stages = self.stages_for(kernel, ring)
        made = _Split(kernel, homes[0], stages, self.producer_registers).kernel()
        wished = self.stages or LEAST_STAGES
        if stages >= wished:
            return made
        facts = {"stages": stages, "wished": wished, "bytes": sum(map(_bytes, ring))}
        return made.declining(FEWER_STAGES.at(next(op.loc for op in homes[0].ops if isinstance(op, Copy)), **facts))

    def stages_for(self, kernel: Kernel, ring: set[Value]) -> int:
        other = [op.result for op in walk(kernel.body) if isinstance(op, Allocate) and op.result not in ring]
        left, stage_bytes = self.machine.shared.bytes - sum(map(_bytes, other)), sum(map(_bytes, ring))
        wished = self.stages or max(LEAST_STAGES, IN_FLIGHT_BYTES // stage_bytes)
        return max(self.fewest, min(wished, left // (stage_bytes + 2 * SIGNAL_BYTES)))


class _Split:
    def __init__(self, kernel: Kernel, home: Block, stages: int, producer_registers: int) -> None:
        self.old, self.home, self.stages, self.producer_registers = kernel, home, stages, producer_registers
        self.consumers = prod(kernel.waves)
        self.copies = [op for op in home.ops if isinstance(op, Copy)]
        self.builder = Builder(names(kernel))
        self.loc = self.copies[0].loc
        loads = [op.memory for op in walk(kernel.body) if isinstance(op, Load)]
        self.handed = frozenset(memory for memory in loads if lies_in(memory, "shared"))
        """What lanes of the consumers write for others of them."""
        self.rings = {op.to: self.ring(op.to) for op in self.copies}
        self.full, self.empty = (self.builder.fresh(name, Signals((stages,))) for name in ("full", "empty"))

    def ring(self, memory: Value) -> Value:
        kind = memory.type
        assert isinstance(kind, Memory)
        return self.builder.fresh(f"{memory.name}_ring", replace(kind, extents=(self.stages, *kind.shape)))

    def kernel(self) -> Kernel:
        shared, own = self.seen_by_all()
        self.zero = Const(0, results=(self.builder.fresh("no_step", INDEX_SCALAR),), loc=self.loc)
        consumer, producer = self.consumer(own), self.producer(own)
        signals = [
            MakeSignals(1, results=(self.full,), loc=self.loc),
            MakeSignals(self.consumers // GROUP, results=(self.empty,), loc=self.loc),
            Barrier(loc=self.loc),
        ]
        roles = [
            Role(0, self.consumers, consumer, self.producer_registers, loc=self.loc),
            Role(self.consumers, self.consumers + 1, producer, loc=self.loc),
        ]
        body = replace(self.old.body, ops=(*shared, self.zero, *signals, *roles))
        return replace(self.old, body=body, waves=(self.consumers + GROUP, 1))

    def seen_by_all(self) -> tuple[list[Op], Block]:
        """Memories and numbers, which both roles use, and what is left for the roles."""
        before: list[Op] = []
        rest: list[Op] = []
        known = set(self.old.body.args)
        for op in self.old.body.ops:
            numbers = op.is_pure and all(isinstance(v.type, Scalar) for v in op.results)
            if isinstance(op, (Allocate, Launch, MakeExchange)) or (numbers and known.issuperset(op.operands)):
                before.append(replace(op, results=tuple(self.rings.get(v, v) for v in op.results)))
                known.update(op.results)
            else:
                rest.append(op)
        return before, Block((), tuple(rest))

    # -- the two roles

    def consumer(self, body: Block) -> Block:
        ops, _ = self.threaded(body, self.zero.result, self.multiply)
        without = rewrite_block(Block((), tuple(ops)), lambda op: [] if op == Barrier() else None)
        return excerpt(self.meeting(without), lambda op: op.has_effect and not op.ends_blocks)

    def meeting(self, block: Block) -> Block:
        """With barriers of the consumers alone, where they hand something to each other: in front of what they store
        and in front of what they load."""
        ops: list[Op] = []
        last: dict[Value, type[Op]] = {}
        for old in block.ops:
            op = map_blocks(old, self.meeting)
            if isinstance(op, (Load, Store)) and op.memory in self.handed and last.get(op.memory) is not type(op):
                ops.append(Barrier(self.consumers, loc=op.loc))
                last[op.memory] = type(op)
            ops.append(op)
        return replace(block, ops=tuple(ops))

    def producer(self, body: Block) -> Block:
        ops, _ = self.threaded(body, self.zero.result, self.bring)
        part = excerpt(Block((), tuple(ops)), lambda op: isinstance(op, (Await, Arrive, CopyAsyncSignal)))
        return renamed(part, lambda v: self.builder.fresh(f"{v.name}_ahead", v.type))

    def threaded(self, block: Block, step: Value, make: Step) -> tuple[list[Op], Value]:
        """The ops of a block, with the number of the step handed through the loops around the copies."""
        ops = [op for op in block.ops if not isinstance(op, Yield)]
        if any(isinstance(op, Copy) for op in ops):
            return make(ops, step)
        found: list[Op] = []
        for op in ops:
            if isinstance(op, (Loop, While)) and any(isinstance(inner, Copy) for inner in walk(op.body)):
                found.append(self.carrying(op, step, make))
                step = found[-1].results[-1]
            else:
                found.append(op)
        return found, step

    def carrying(self, op: Loop | While, step: Value, make: Step) -> Op:
        inside, result = (self.builder.fresh("step", INDEX_SCALAR) for _ in range(2))
        ops, after = self.threaded(op.body, inside, make)
        end = op.body.ops[-1]
        assert isinstance(end, Yield)
        body = Block((*op.body.args, inside), (*ops, replace(end, values=(*end.values, after))))
        new = replace(op, init=(*op.init, step), body=body, results=(*op.results, result))
        if isinstance(new, While):
            looked_at = self.builder.fresh("step", INDEX_SCALAR)
            return replace(new, condition=replace(new.condition, args=(*new.condition.args, looked_at)))
        return new

    # -- one step

    def multiply(self, ops: list[Op], step: Value) -> tuple[list[Op], Value]:
        """Products take the stage of this step when it is full, and leave it behind the last one."""
        readers = [op for op in ops if isinstance(op, MatrixShared)]
        found: list[Op] = []
        for op in ops:
            if not isinstance(op, (Copy, MatrixShared)):
                found.append(op)
            if not isinstance(op, MatrixShared):
                continue
            if op is readers[0]:
                before, slot, phase = self.place(step, op.loc)
                found += [*before, Await(self.full, slot, phase, loc=op.loc)]
            found.append(self.on_slot(op, slot))
            if op is readers[-1]:
                found.append(Arrive(self.empty, slot, waves=GROUP, loc=op.loc))
        return self.counted(found, step)

    def bring(self, ops: list[Op], step: Value) -> tuple[list[Op], Value]:
        """Copies go to the stage of this step when it is empty."""
        expected = sum(_bytes(copy.to) for copy in self.copies)
        found: list[Op] = []
        for op in ops:
            if not isinstance(op, Copy):
                found.append(op)
                continue
            if op is self.copies[0]:
                before, slot, phase = self.place(step, op.loc)
                one = Const(1, results=(self.builder.fresh("one", INDEX_SCALAR),), loc=op.loc)
                with self.builder.region():
                    self.builder.locate = lambda loc=op.loc: loc  # type: ignore[misc]
                    last = (Number(self.builder, one.result) - Number(self.builder, phase)).value
                    before += [one, *self.builder.ops]
                found += [*before, Await(self.empty, slot, last, loc=op.loc)]
                found.append(Arrive(self.full, slot, expect=expected, loc=op.loc))
            to = self.rings[op.to]
            found.append(CopyAsyncSignal(op.memory, op.at, to, (slot, *op.to_at), self.full, slot, op.axes, loc=op.loc))
        return self.counted(found, step)

    def on_slot(self, op: MatrixShared, slot: Value) -> MatrixShared:
        return replace(op, a=self.rings[op.a], a_at=(slot, *op.a_at), b=self.rings[op.b], b_at=(slot, *op.b_at))

    def place(self, step: Value, loc: Loc) -> tuple[list[Op], Value, Value]:
        """The slot and the phase of a step, and the ops that compute them."""
        with self.builder.region():
            self.builder.locate = lambda: loc
            number = Number(self.builder, step)
            slot, phase = number % self.stages, number // self.stages % 2
            return list(self.builder.ops), slot.value, phase.value

    def counted(self, ops: list[Op], step: Value) -> tuple[list[Op], Value]:
        with self.builder.region():
            self.builder.locate = lambda: self.loc
            after = (Number(self.builder, step) + 1).value
            return [*ops, *self.builder.ops], after


Step = Callable[[list[Op], Value], tuple[list[Op], Value]]
"""The ops of a step for one role, and the number of the next step."""


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from _blocks(inner)


def _bytes(memory: Value) -> int:
    kind = memory.type
    assert isinstance(kind, Memory)
    return elements(kind) * kind.dtype.bytes
