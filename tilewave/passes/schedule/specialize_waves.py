"""Warp specialization: a producer warp loads tiles by TMA into pipeline stages that consumer warpgroups multiply.

    loop(%steps) {                     role(consumers) {                      role(producer) {
      copy(%a, …, %x)                    loop(%steps) {                         loop(%steps) {
      copy(%b, …, %y)                      wait_mbarrier(%full, %slot, …)         wait_mbarrier(%empty, %slot, …)
      barrier()                            wgmma_shared(%x, [%slot, …])           arrive(%full, %slot) {expect = …}
      wgmma_shared(%x, %y)                 arrive(%empty, %slot)                  tma_load(%a, …, %full, %slot)
      barrier()                          }                                        tma_load(%b, …, %full, %slot)
    }                                  }                                        } }

Step s uses stage s % stages, with parity s // stages % 2 of its mbarriers. Steps are counted through all loops, so that
parities continue from tile to tile, and the producer fills stages for the next tile while this one is still multiplied
and written. Tiles for different products, as in attention, have a pipeline each; tiles that are copied outside the
innermost loop have one too. Values that consumers exchange through shared memory have barriers of the consumers alone,
in which the producer takes no part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from tilewave.analysis.program_slices import excerpt, following
from tilewave.analysis.ranges import ranges_of
from tilewave.errors import Loc
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.faults import lacking
from tilewave.ir.ops import (
    Allocate,
    Arrive,
    Barrier,
    Const,
    Copy,
    Launch,
    Load,
    Loop,
    MakeExchange,
    MakeMbarriers,
    Role,
    Store,
    TmaLoad,
    TmaStore,
    WaitMbarrier,
    Wave,
    Wgmma,
    WgmmaShared,
    While,
    Yield,
)
from tilewave.ir.placements import elements, is_in
from tilewave.ir.remarks import TILES, RemarkKind
from tilewave.ir.rewrite import blocks_in, names, renamed, rewrite_block, rewrite_blocks, walk
from tilewave.ir.types import INDEX_SCALAR, Mbarriers, Memory, Scalar
from tilewave.machine.chips import Chip
from tilewave.machine.tuning import PipelineTuning
from tilewave.records import dataclass

MBARRIER_BYTES = 8
TILE_ALIGNMENT = 1 << 10
"""The alignment of a ring in shared memory, as swizzled tiles need it."""
FEWEST_REGISTERS = 32
LEAST_REGISTERS, MANY_PRODUCTS = 24, 4
"""The least registers that a lane can have (setmaxnreg), which the producer keeps where a step has more products: then
the consumers hold more sums and operands at once than in any other kernel."""

WAVES_MEET = RemarkKind(
    "waves exchange data through global memory here, and a producer warp, which runs ahead, cannot take part in the "
    "barrier, so lanes load all tiles",
    "write what is read back in a separate kernel",
)
FEWER_STAGES = RemarkKind(
    "shared memory has room for {stages} stages of {bytes:,} bytes each, not {wished}, so the software pipeline is "
    "shorter",
    "use smaller tiles or shorter steps",
    about=TILES,
)


@dataclass(frozen=True)
class SpecializeWaves:
    """`stages`: the number of pipeline stages; where shared memory is too small, fewer, but not below `fewest`.

    None: as many as `tuning` says. Waves that do not multiply keep
    `producer_registers` for each lane, enough to issue copies.
    """

    machine: Chip
    tuning: PipelineTuning
    stages: int | None = None
    fewest: int = 1
    producer_registers: int = 40
    """With more than two consumer warpgroups, which have fewer registers each, FEWEST_REGISTERS at most."""

    def __repr__(self) -> str:
        return f"SpecializeWaves({self.stages or ''})"

    def __call__(self, kernel: Kernel) -> Kernel:
        if kernel.level != "lane":
            raise lacking("distribute_lanes", f"{kernel.name} still speaks of whole tiles")
        homes = [block for block in blocks_in(kernel.body) if any(isinstance(op, Copy) for op in block.ops)]
        meet = next((op for op in walk(kernel.body) if isinstance(op, Barrier) and op.over == "global"), None)
        if not homes or not all(_is_inside(inner, outer) for outer, inner in pairwise(homes)):
            return kernel
        if meet is not None:  # the producer runs ahead, and cannot take part in a barrier over global memory
            return kernel.with_remarks(WAVES_MEET.at(meet.loc))
        stages = self.stages_for(kernel, homes)
        many = prod(kernel.waves) // Wgmma.group.waves > 2
        registers = min(self.producer_registers, FEWEST_REGISTERS) if many else self.producer_registers
        if sum(isinstance(op, Wgmma) for op in homes[-1].ops) > MANY_PRODUCTS:
            registers = min(registers, LEAST_REGISTERS)
        made = _Split(kernel, homes, stages, registers).kernel()
        wished = self.stages or self.tuning.least_stages
        if stages[-1] >= wished:
            return made
        facts = {"stages": stages[-1], "wished": wished, "bytes": _ring_bytes(homes[-1])}
        return made.with_remarks(FEWER_STAGES.at(next(op.loc for op in homes[-1].ops if isinstance(op, Copy)), **facts))

    def stages_for(self, kernel: Kernel, homes: Sequence[Block]) -> tuple[int, ...]:
        """Return the stages of each block that copies: in the innermost loop as many as fit; around it two, where that
        leaves enough for the innermost one; and one for tiles that a workgroup loads once."""
        copied = {op.to for home in homes for op in home.ops if isinstance(op, Copy)}
        other = [op.result for op in walk(kernel.body) if isinstance(op, Allocate) and op.result not in copied]
        left = self.machine.shared.bytes - sum(map(_bytes, other))
        left -= sum(-_bytes(to) % TILE_ALIGNMENT for to in copied)
        *around, inner = (_ring_bytes(home) + 2 * MBARRIER_BYTES * len(streams(home)) for home in homes)
        wished = self.stages or self.tuning.stages(_ring_bytes(homes[-1]), _own_bytes(kernel, homes[-1]))
        once = homes[0] is kernel.body
        for outer in (2, 1):
            counts = [1 if once and home is homes[0] else outer for home in homes[:-1]]
            taken = sum(count * size for count, size in zip(counts, around, strict=True))
            found = min(wished, (left - taken) // inner)
            if found >= max(_stages_in_use(homes[-1]), self.fewest):
                break
        return (*counts, max(self.fewest, found))


@dataclass(frozen=True)
class Stream:
    """One software pipeline: tiles that are waited for together, and released together."""

    copies: tuple[Copy, ...]
    stages: int
    full: Value
    empty: Value

    @property
    def memories(self) -> frozenset[Value]:
        return frozenset(copy.to for copy in self.copies)

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return sum(_bytes(copy.to) for copy in self.copies)

    def read_by(self, op: Op) -> bool:
        """Whether `op`, or an op inside it, multiplies these tiles, or loads them to registers."""
        inside = (op, *(inner for block in op.blocks for inner in walk(block)))
        return any(isinstance(one, (Wgmma, Load)) and self.memories & set(one.read) for one in inside)


def streams(home: Block) -> list[list[Copy]]:
    """Return the copies of a block, grouped by product; products into one accumulator are one group.

    What lanes load, such as statistics of rows, is a group too: it is released as soon as registers hold it.
    """
    copies = [op for op in home.ops if isinstance(op, Copy)]
    loaded = {op.memory for op in home.ops if isinstance(op, Load)}.intersection(op.to for op in copies)
    chain: dict[Value, Value] = {}
    wanted: dict[Value, set[Value]] = {}
    for op in walk(home):
        if isinstance(op, Wgmma):
            chain[op.result] = chain.get(op.acc, op.result)
            wanted.setdefault(chain[op.result], set()).update(op.read)
    found: list[tuple[set[Value], list[Copy]]] = []
    for copy in copies:
        mine = {copy.to}.union(*(memories for memories in wanted.values() if copy.to in memories))
        mine |= loaded if copy.to in loaded else set()
        same = next((stream for stream in found if mine & stream[0]), None)
        if same is None:
            found.append((mine, [copy]))
        else:
            same[0].update(mine)
            same[1].append(copy)
    return [those for _, those in found]


class _Split:
    def __init__(self, kernel: Kernel, homes: Sequence[Block], stages: tuple[int, ...], registers: int) -> None:
        self.old, self.producer_registers = kernel, registers
        self.consumers = prod(kernel.waves)
        self.builder = Builder(names(kernel))
        loads = {memory for op in walk(kernel.body) for memory in _read_by_consumers(op)}
        staged = {op.source for op in walk(kernel.body) if isinstance(op, TmaStore)}
        self.handed = frozenset(loads - _kept_by_waves(kernel.body) - staged)
        """Memories through which consumer waves exchange values; the chunks of an epilogue have barriers already."""
        self.streams = [
            [self.stream(copies, count) for copies in streams(home)] for home, count in zip(homes, stages, strict=True)
        ]
        """The pipelines of every block that copies, from the outermost on."""
        every = [stream for those in self.streams for stream in those]
        self.loc = every[0].copies[0].loc
        self.rings = {op.to: self.ring(op.to, stream.stages) for stream in every for op in stream.copies}

    def stream(self, copies: list[Copy], stages: int) -> Stream:
        full, empty = (self.builder.fresh(name, Mbarriers((stages,))) for name in ("full", "empty"))
        return Stream(tuple(copies), stages, full, empty)

    def ring(self, memory: Value, stages: int) -> Value:
        kind = memory.type
        assert isinstance(kind, Memory)
        return self.builder.fresh(f"{memory.name}_ring", replace(kind, extents=(stages, *kind.shape)))

    def kernel(self) -> Kernel:
        shared, own = self.seen_by_all()
        self.zero = Const(0, results=(self.builder.fresh("no_step", INDEX_SCALAR),), loc=self.loc)
        consumer, producer = self.consumer(own), self.producer(own)
        mbarriers: list[Op] = []
        for stream in (stream for those in self.streams for stream in those):
            mbarriers.append(MakeMbarriers(1, results=(stream.full,), loc=self.loc))
            mbarriers.append(MakeMbarriers(self.consumers // Wgmma.group.waves, results=(stream.empty,), loc=self.loc))
        mbarriers.append(Barrier(loc=self.loc))
        roles = [
            Role(0, self.consumers, consumer, self.producer_registers, loc=self.loc),
            Role(self.consumers, self.consumers + 1, producer, loc=self.loc),
        ]
        body = replace(self.old.body, ops=(*shared, self.zero, *mbarriers, *roles))
        return replace(self.old, body=body, waves=(self.consumers + Wgmma.group.waves, 1))

    def seen_by_all(self) -> tuple[list[Op], Block]:
        """Return memories and scalars, which both roles use, and the rest of the body for the roles."""
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
        ops, _ = self.threaded(body, self.first_steps(), self.multiply)
        without = rewrite_block(Block((), tuple(ops)), lambda op: [] if op == Barrier() else None)
        return excerpt(rewrite_blocks(without, self.meeting), lambda op: op.has_effect and not op.ends_blocks)

    def first_steps(self) -> Steps:
        return (self.zero.result,) * len(self.streams)

    def meeting(self, block: Block) -> Block:
        """Return the block with barriers of the consumers alone where they exchange values: before their stores, and
        before their loads and products."""
        ops: list[Op] = []
        stored: dict[Value, bool] = {}
        for op in block.ops:
            stores = isinstance(op, Store)
            there = self.handed.intersection([op.memory] if isinstance(op, Store) else _read_by_consumers(op))
            if any(stored.get(memory) is not stores for memory in there):
                ops.append(Barrier(self.consumers, loc=op.loc))
            stored |= dict.fromkeys(there, stores)
            ops.append(op)
        return replace(block, ops=tuple(ops))

    def producer(self, body: Block) -> Block:
        ops, _ = self.threaded(body, self.first_steps(), self.bring)
        part = excerpt(Block((), tuple(ops)), lambda op: isinstance(op, (WaitMbarrier, Arrive, TmaLoad)))
        return renamed(part, lambda v: self.builder.fresh(f"{v.name}_ahead", v.type))

    def threaded(self, block: Block, steps: Steps, make: Step) -> tuple[list[Op], Steps]:
        """Return the ops of a block, with step numbers carried through the loops around copies, and the next numbers.

        `steps` has one for this block's copies, if it has any, and one for each block inside it that copies.
        """
        home = len(self.streams) - len(steps)
        ops = [op for op in block.ops if not isinstance(op, Yield)]
        copies = any(isinstance(op, Copy) for op in ops)
        inner = steps[1:] if copies else steps
        found: list[Op] = []
        for op in ops:
            if isinstance(op, (Loop, While)) and any(isinstance(inside, Copy) for inside in walk(op.body)):
                found.append(self.carrying(op, inner, make))
                inner = found[-1].results[len(found[-1].results) - len(inner) :]
            else:
                found.append(op)
        if not copies:
            return found, inner
        for stream in self.streams[home]:
            found = make(found, stream, steps[0])
        counted, after = self.counted(found, steps[0])
        return counted, (after, *inner)

    def carrying(self, op: Loop | While, steps: Steps, make: Step) -> Op:
        inside, results = (tuple(self.fresh_step() for _ in steps) for _ in range(2))
        ops, after = self.threaded(op.body, inside, make)
        end = op.body.ops[-1]
        assert isinstance(end, Yield)
        body = Block((*op.body.args, *inside), (*ops, replace(end, values=(*end.values, *after))))
        new = replace(op, init=(*op.init, *steps), body=body, results=(*op.results, *results))
        if isinstance(new, While):
            looked_at = tuple(self.fresh_step() for _ in steps)
            return replace(new, condition=replace(new.condition, args=(*new.condition.args, *looked_at)))
        return new

    def fresh_step(self) -> Value:
        return self.builder.fresh("step", INDEX_SCALAR)

    # -- one step

    def multiply(self, ops: list[Op], stream: Stream, step: Value) -> list[Op]:
        """Return the ops of a consumer: products wait until the stage is full, and release it after the last one."""
        readers = [op for op in ops if stream.read_by(op)]
        found: list[Op] = []
        for op in ops:
            if isinstance(op, Copy) and op in stream.copies:
                continue
            if op is readers[0]:
                before, slot, phase = self.place(step, stream.stages, op.loc)
                found += [*before, WaitMbarrier(stream.full, slot, phase, loc=op.loc)]
            if op in readers:
                found += rewrite_block(Block((), (op,)), partial(self.on_slot, stream, slot)).ops
            else:
                found.append(op)
            if op is readers[-1]:
                # Products have waits already; a load is complete when its registers are written.
                seen = tuple(v for reader in readers if isinstance(reader, Load) for v in reader.results)
                found.append(Arrive(stream.empty, slot, waves=Wgmma.group.waves, seen=seen, loc=op.loc))
        return found

    def bring(self, ops: list[Op], stream: Stream, step: Value) -> list[Op]:
        """Return the ops of the producer: TMA loads wait until the stage of this step is empty."""
        found: list[Op] = []
        for op in ops:
            if not isinstance(op, Copy) or op not in stream.copies:
                found.append(op)
                continue
            if op is stream.copies[0]:
                before, slot, phase = self.place(step, stream.stages, op.loc)
                one = Const(1, results=(self.builder.fresh("one", INDEX_SCALAR),), loc=op.loc)
                with self.builder.region():
                    self.builder.locate = lambda loc=op.loc: loc  # type: ignore[misc]
                    last = (Number(self.builder, one.result) - Number(self.builder, phase)).value
                    before += [one, *self.builder.ops]
                found += [*before, WaitMbarrier(stream.empty, slot, last, loc=op.loc)]
                found.append(Arrive(stream.full, slot, expect=stream.bytes, loc=op.loc))
            to = (self.rings[op.to], (slot, *op.to_at))
            found.append(TmaLoad(op.memory, op.at, *to, stream.full, slot, op.axes, op.rows_used, loc=op.loc))
        return found

    def on_slot(self, stream: Stream, slot: Value, op: Op) -> list[Op] | None:
        """Return a product or load with those operands that are in the pipeline taken from stage `slot`."""
        if isinstance(op, Load) and op.memory in stream.memories:
            steps = tuple((0, *step) for step in op.steps)
            return [replace(op, memory=self.rings[op.memory], at=(slot, *op.at), steps=steps)]
        if not isinstance(op, Wgmma):
            return None
        new: dict[str, Any] = {}
        if op.b in stream.memories:
            new |= {"b": self.rings[op.b], "b_at": (slot, *op.b_at)}
        if isinstance(op, WgmmaShared) and op.a in stream.memories:
            new |= {"a": self.rings[op.a], "a_at": (slot, *op.a_at)}
        return [replace(op, **new)] if new else None

    def place(self, step: Value, stages: int, loc: Loc) -> tuple[list[Op], Value, Value]:
        """Return the ops that compute the stage index and the parity of a step, and both values."""
        with self.builder.region():
            self.builder.locate = lambda: loc
            number = Number(self.builder, step)
            slot, phase = number % stages, number // stages % 2
            return list(self.builder.ops), slot.value, phase.value

    def counted(self, ops: list[Op], step: Value) -> tuple[list[Op], Value]:
        with self.builder.region():
            self.builder.locate = lambda: self.loc
            after = (Number(self.builder, step) + 1).value
            return [*ops, *self.builder.ops], after


Steps = tuple[Value, ...]
"""The number of the step, for each block that copies, from the outermost on."""
Step = Callable[[list[Op], Stream, Value], list[Op]]
"""A function that returns the ops of a step for one role, with what the role does for a pipeline."""


def _bytes(memory: Value) -> int:
    kind = memory.type
    assert isinstance(kind, Memory)
    return elements(kind) * kind.dtype.bytes


def _ring_bytes(home: Block) -> int:
    """Return the bytes of one stage of all that a block copies."""
    return sum(_bytes(op.to) for op in home.ops if isinstance(op, Copy))


def _stages_in_use(home: Block) -> int:
    """Return the fewest stages with which one is filled meanwhile: of steps with several products of products, the next
    one begins before a stage is released."""
    products = [op for op in home.ops if isinstance(op, Wgmma)]
    dependent = following(home.ops, {op.result for op in products})
    return 3 if len(products) > 2 and any(op in dependent for op in products) else 2


def _own_bytes(kernel: Kernel, home: Block) -> int:
    """Return the bytes of one stage whose position depends on the tile, and not on the step alone."""
    ranges, walked = ranges_of(kernel), set(home.args)
    for op in home.ops:
        if walked.intersection(op.operands):
            walked.update(op.results)

    def is_own(copy: Copy) -> bool:
        return any(len(set(ranges.of(v))) > 1 for v in copy.at if v not in walked)

    return sum(_bytes(op.to) for op in home.ops if isinstance(op, Copy) and is_own(op))


def _is_inside(inner: Block, outer: Block) -> bool:
    return any(block is inner for op in outer.ops for own in op.blocks for block in blocks_in(own))


def _read_by_consumers(op: Op) -> list[Value]:
    """Return the shared memories that lanes load, or products read."""
    return [memory for memory in op.read if isinstance(op, (Load, Wgmma)) and is_in(memory, "shared")]


def _kept_by_waves(block: Block) -> set[Value]:
    """Return memories of which every wave has its part: all stores and loads there begin with the wave's number."""
    numbers = {op.result for op in walk(block) if isinstance(op, Wave)}
    accesses = [op for op in walk(block) if isinstance(op, (Load, Store))]
    handed = {op.memory for op in accesses if op.at[0] not in numbers or any(step[0] for step in op.steps)}
    return {op.memory for op in accesses} - handed
