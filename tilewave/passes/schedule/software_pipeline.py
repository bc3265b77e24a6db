"""Software-pipeline a loop: load the tiles of a later step into shared memory while this step computes.

                                  one stage                          two stages: step s uses stage s % 2
loop(%trips) {                    loop(min(trips, 1)) {              loop(min(trips, 1)) {
  x = read(a, i)                    x = read(a, i)                     x = read(a, i)
  write(x, sa)                →     write(x, sa)                       write(x, sa[i % 2])
  xs = read(sa)                   }                                  }
  acc = mma(xs, …, acc)           loop(max(trips - 1, 0)) {          loop(max(trips - 1, 0)) {
}                                   next = read(a, i + 1)              next = read(a, i + 1)
                                    acc = mma(read(sa), …, acc)        acc = mma(read(sa[i % 2]), …, acc)
                                    write(next, sa)                    write(next, sa[(i + 1) % 2])
                                  }                                  }
                                  loop(min(trips, 1)) {              loop(min(trips, 1)) {
                                    acc = mma(read(sa), …, acc)        acc = mma(read(sa[i % 2]), …, acc)
                                  }                                  }

The load comes first, so that it is in flight during the products; the loaded tile stays in registers until the write.
A tile that is copied past the registers (`copy_async`) is written to its stage directly, and waited for before the step
that uses it begins; it needs two stages at least:

    wait_async(); copy_async(a, i + 1, sa[(i + 1) % 2]); acc = mma(read(sa[i % 2]), …, acc)

More stages load more steps ahead. The prologue and the epilogue loop are correct for any number of steps, zero
included; `fold_trivial_loops` replaces those of one iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewave.analysis.stages_in_flight import StageRoom
from tilewave.ir.build import Builder, Number
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Allocate,
    Barrier,
    Binary,
    Const,
    CopyAsync,
    Gather,
    Loop,
    Max,
    Min,
    Mma,
    Mod,
    Read,
    Scatter,
    Sub,
    WaitAsync,
    While,
    Write,
    Yield,
)
from tilewave.ir.placements import is_in, size_bytes
from tilewave.ir.remarks import Left, Remark, RemarkKind, want
from tilewave.ir.rewrite import map_blocks, names, rewrite, rewrite_block, uses, walk
from tilewave.ir.types import INDEX_SCALAR, Memory
from tilewave.records import dataclass
from tilewave.transform.loop_schedule import LoopSchedule, Steps

Span = tuple[int, int]

NOTHING_STAGED = RemarkKind(
    "no tile of this loop is staged in shared memory, so the loop is not software-pipelined",
    "declare what it reads in SHARED_ADDRESS_SPACE, or split its tile among several waves",
)
WAVES_MEET = RemarkKind(
    "this loop already has barriers, so it is not software-pipelined",
    "run software_pipeline before place_barriers",
)
ONE_BY_ONE = RemarkKind("this staged tile is gathered by element, so it is not software-pipelined")
USED_ELSEWHERE = RemarkKind("this staged tile is also used outside its loop, so it is not software-pipelined")
EARLIER_STEP = RemarkKind("a step uses what an earlier step staged here, so this tile is not software-pipelined")
COMPUTED = RemarkKind("this staged tile is computed in the loop, not loaded, so it is not software-pipelined")
CARRIED = RemarkKind(
    "this load depends on a result of the previous step, so it is not software-pipelined",
    "compute its position from the step index",
)
WRITTEN = RemarkKind(
    "the loop writes {memory}, which it loads here, so this load is not software-pipelined",
    "write to a separate memory",
)


@dataclass(frozen=True)
class SoftwarePipeline:
    """Loads ahead in loops that stage tiles: with one stage one step, with more all stages but one.

    A loop is unchanged if what it loads, or from where, is carried from step to step or written by the loop itself.
    Where the author leaves one stage, a loop with one product that copies tiles past the registers has the fewest with
    which `in_flight_bytes` are in flight, in all workgroups that the `shared_bytes` of a processor hold.
    """

    num_stages: int = 1
    shared_bytes: int = 0
    in_flight_bytes: int = 0

    def __repr__(self) -> str:
        return f"SoftwarePipeline({self.num_stages})"

    @property
    def slots_of_brought(self) -> int:
        """The number of stages for tiles that are copied past the registers."""
        return max(2, self.num_stages)

    def __call__(self, kernel: Kernel) -> Kernel:
        used, taken = uses(kernel), names(kernel)
        numbers = (op for op in walk(kernel.body) if isinstance(op, Const))
        constants = {op.result: int(op.value) for op in numbers if op.result.type == INDEX_SCALAR}
        grown: dict[Value, Value] = {}
        remarks: list[Remark] = []

        def pipeline(op: Op) -> Sequence[Op] | None:
            if not isinstance(op, Loop) or not (finder := _Finder(op, used, constants, self.num_stages)).loads_tiles():
                return None
            try:
                staging = finder.staging()
            except Left as left:
                remarks.append(left.remarks)
                return None
            slots = self.slots(kernel, staging, grown) if staging.brought_bytes else self.num_stages
            if slots > 1:
                grown.update({m: _with_slots(m, slots) for m in staging.memories})
            return _Writer(staging, max(1, slots - 1), slots, grown, taken).ops()

        def grow(op: Op) -> Sequence[Op] | None:
            is_grown = isinstance(op, Allocate) and op.result in grown
            return [replace(op, results=(grown[op.result],))] if is_grown else None

        after = rewrite(kernel, pipeline).with_remarks(*remarks)
        return rewrite(after, grow) if grown else after

    def slots(self, kernel: Kernel, staging: Staging, grown: Mapping[Value, Value]) -> int:
        """Return the stages of a loop that copies tiles past the registers; `grown`: memories of other loops."""
        products = sum(isinstance(op, Mma) for op in walk(staging.loop.body))
        if self.num_stages > 1 or products != 1:
            return self.slots_of_brought
        copied = {op.to for op in walk(kernel.body) if isinstance(op, CopyAsync)}
        others = 0
        for op in walk(kernel.body):
            if isinstance(op, Allocate) and is_in(op.result, "shared") and op.result not in staging.memories:
                now = grown.get(op.result)
                others += _bytes(now or op.result) * (2 if op.result in copied and not now else 1)

        room = StageRoom(self.shared_bytes, self.in_flight_bytes)
        return room.stages(staging.brought_bytes, self.slots_of_brought, others)


def _bytes(memory: Value) -> int:
    assert isinstance(memory.type, Memory)
    return size_bytes(memory.type)


def _with_slots(memory: Value, slots: int) -> Value:
    assert isinstance(memory.type, Memory)
    return Value(memory.name, replace(memory.type, extents=(slots, *memory.type.shape)))


# -- the part of a loop's body that loads tiles, and the part that computes with them ----------------------------------


@dataclass(frozen=True)
class Staging:
    """The loads, the writes and the computation of a loop body; shared ops are in each."""

    loop: Loop
    memories: tuple[Value, ...]
    loads: tuple[Op, ...]
    """Global reads, or asynchronous copies, and the arithmetic of their positions."""
    writes: tuple[Op, ...]
    """Writes to shared memory, and the ops on a tile between its load and its write."""
    compute: tuple[Op, ...]

    @property
    def brought_bytes(self) -> int:
        """Bytes that one step copies asynchronously."""
        async_tiles = (op.to.type for op in self.loads if isinstance(op, CopyAsync))
        return sum(prod(memory.shape) * memory.dtype.bytes for memory in async_tiles)


class _Finder:
    def __init__(self, loop: Loop, used: Counter[Value], constants: dict[Value, int], num_stages: int) -> None:
        self.loop, self.used, self.constants, self.num_stages = loop, used, constants, num_stages
        self.ops = loop.body.ops
        self.makers = {v: position for position, op in enumerate(self.ops) for v in op.results}
        self.inside = [(position, op) for position, top in enumerate(self.ops) for op in _within(top)]
        self.written = {_target(op) for _, op in self.inside if isinstance(op, (Write, Scatter, CopyAsync))}

    def loads_tiles(self) -> bool:
        """Whether the loop stages tiles, or is an innermost loop that loads; other loops get no remark."""
        innermost = not any(isinstance(op, (Loop, While)) for op in self.ops)
        loads = any(isinstance(op, (Read, Gather, CopyAsync)) and not is_in(op.memory, "shared") for op in self.ops)
        return bool(self.async_tiles()) or (innermost and loads)

    def staging(self) -> Staging:
        """Return the parts of the loop; raise `Left` where it cannot load ahead."""
        memories, loc = self.async_tiles(), self.loop.loc
        want(memories, NOTHING_STAGED, loc)
        want(not any(isinstance(op, Barrier) for _, op in self.inside), WAVES_MEET, loc)
        for memory in memories:
            self.check_memory(memory)
        return self.parted(memories)

    def async_tiles(self) -> list[Value]:
        return [m for m in dict.fromkeys(self.stored()) if any(self.brings(w) for w in self.writes_to(m))]

    def stored(self) -> Iterable[Value]:
        return (_target(op) for op in self.ops if isinstance(op, (Write, CopyAsync)) and is_in(_target(op), "shared"))

    def writes_to(self, memory: Value) -> list[int]:
        return [p for p, op in enumerate(self.ops) if isinstance(op, (Write, CopyAsync)) and _target(op) == memory]

    def brings(self, position: int) -> bool:
        """Whether the write at `position` stores what was loaded, and not what was computed."""
        needed = [self.ops[p] for p in self.needs(position)]
        if isinstance(self.ops[position], CopyAsync):
            return all(op.is_pure for op in needed)
        moves = [op for op in needed if isinstance(op, (Read, Gather))]
        can_move = all(op.is_pure or isinstance(op, (Read, Gather)) for op in needed)
        return can_move and bool(moves) and not any(is_in(op.memory, "shared") for op in moves)

    def needs(self, position: int) -> list[int]:
        """Return the positions of the ops that the op at `position` depends on, in order, without itself."""
        found: set[int] = set()
        todo = [position]
        while todo:
            for v in _all_operands(self.ops[todo.pop()]):
                if v in self.makers and self.makers[v] not in found:
                    found.add(self.makers[v])
                    todo.append(self.makers[v])
        return sorted(found)

    def check_memory(self, memory: Value) -> None:
        writes = self.writes_to(memory)
        touching = [(p, op) for p, op in self.inside if memory in op.operands]
        reads = [(p, op) for p, op in touching if isinstance(op, Read)]
        loc = self.ops[writes[0]].loc
        want(all(isinstance(op, (Read, Write, CopyAsync)) for _, op in touching), ONE_BY_ONE, loc)
        want(len(touching) == self.used[memory] == len(reads) + len(writes), USED_ELSEWHERE, loc)
        want(all(p > writes[-1] for p, _ in reads), EARLIER_STEP, loc)
        for w in writes:
            want(self.brings(w), COMPUTED, self.ops[w].loc)
            self.check_load(w)
        if self.num_stages > 1:
            want(all(self.wrote_all_of(op, writes) for _, op in reads), EARLIER_STEP, loc)

    def check_load(self, write: int) -> None:
        carried = set(self.loop.body.args[1:])
        for op in (self.ops[p] for p in (*self.needs(write), write)):
            want(not carried & set(_all_operands(op)), CARRIED, op.loc)
            loaded = op.memory if isinstance(op, (Read, Gather, CopyAsync)) else None
            want(loaded not in self.written, WRITTEN, op.loc, memory=loaded.name if loaded else "")

    def wrote_all_of(self, read: Op, writes: list[int]) -> bool:
        """Whether one write of a step covers what `read` reads; with several stages, earlier steps wrote elsewhere."""
        assert isinstance(read, Read)
        extents = enumerate(read.memory.type.shape)
        needed = [self.span(read, read.result.type.shape, axis) or (0, extent) for axis, extent in extents]

        def covers(write: Op) -> bool:
            if isinstance(write, CopyAsync):
                return True
            assert isinstance(write, Write)
            written = [self.span(write, write.tile.type.shape, axis) or (0, 0) for axis in range(len(needed))]
            return all(w[0] <= n[0] and n[1] <= w[1] for w, n in zip(written, needed, strict=True))

        return any(covers(self.ops[p]) for p in writes)

    def span(self, op: Read | Write, tile: tuple[int, ...], axis: int) -> Span | None:
        """Return the range of an access along an axis of its memory; None where its begin is no constant."""
        first = self.constants.get(op.at[axis])
        length = tile[op.axes.index(axis)] if axis in op.axes else 1
        return None if first is None else (max(first, 0), min(first + length, op.memory.type.shape[axis]))

    def own_waits(self) -> set[int]:
        """Return where the loop waits for its own copies; the waits of a loop inside it stay."""
        found, brings = set(), False
        for p, op in enumerate(self.ops):
            brings = isinstance(op, CopyAsync) or (brings and not isinstance(op, (Loop, While)))
            if brings and isinstance(op, WaitAsync):
                found.add(p)
        return found

    def parted(self, memories: list[Value]) -> Staging:
        writes = {p for m in memories for p in self.writes_to(m)}
        bring = {p for w in writes for p in self.needs(w)}
        begins = [p for p in (*bring, *writes) if isinstance(self.ops[p], (Read, Gather, CopyAsync))]
        loads = {p for m in begins for p in (m, *self.needs(m))}
        own = set(range(len(self.ops))) - writes - bring - self.own_waits()
        compute = {p for o in own for p in (o, *self.needs(o))}
        parts = (tuple(self.ops[p] for p in sorted(part)) for part in (loads, (bring | writes) - loads, compute))
        return Staging(self.loop, tuple(memories), *parts)


def _target(op: Write | Scatter | CopyAsync) -> Value:
    """Return the memory that an op writes."""
    return op.to if isinstance(op, CopyAsync) else op.memory


def _within(op: Op) -> Iterable[Op]:
    yield op
    for block in op.blocks:
        yield from walk(block)


def _all_operands(op: Op) -> tuple[Value, ...]:
    """Return the values that an op uses, those inside its regions included."""
    return tuple(v for inner in _within(op) for v in inner.operands) if op.blocks else op.operands


# -- three loops in place of one --------------------------------------------------------------------------------------


class _Writer:
    """Emits the three loops: `x_first` is loaded before the main loop, `x_next` in it, and `x_last` used after it."""

    def __init__(self, staging: Staging, ahead: int, slots: int, grown: dict[Value, Value], taken: set[str]) -> None:
        self.staging, self.loop, self.grown = staging, staging.loop, grown
        self.index, self.end = self.loop.body.args[0], self.loop.body.ops[-1]
        self.builder = Builder(taken, locate=lambda: self.loop.loc)
        self.ahead = self.builder.const(ahead, name="ahead")
        self.still_on_the_way = staging.brought_bytes * (ahead - 1)
        self.few_steps = self.number(Min, self.loop.trips, self.ahead, "few_steps")
        left = self.number(Sub, self.loop.trips, self.ahead, "left")
        self.main_steps = self.number(Max, left, self.builder.const(0), "main_steps")
        self.slot = self.slot_of_a_step(slots) if slots > 1 else ()

    def slot_of_a_step(self, num_stages: int) -> tuple[Op, ...]:
        """Return the op that computes the stage index of step `index`; it is copied with the accesses that use it."""
        slots = self.builder.const(num_stages, name="slots")
        return (Mod(self.index, slots, results=(self.builder.fresh("slot", INDEX_SCALAR),), loc=self.loop.loc),)

    def number(self, cls: type[Binary], a: Value, b: Value, name: str) -> Value:
        return self.builder.emit(cls, a, b, type=INDEX_SCALAR, name=name)

    def ops(self) -> list[Op]:
        compute = (*self.slot, *map(self.in_slot, self.staging.compute[:-1]))
        brings = self.staging.brought_bytes > 0
        loads = (*(self.slot if brings else ()), *map(self.in_slot, self.staging.loads))
        writes = (*(() if brings else self.slot), *map(self.in_slot, self.staging.writes))
        args, done = self.loop.body.args, Number(self.builder, self.main_steps)
        parts = (
            Steps(Block(args[:1], (*loads, *writes, Yield((), loc=self.end.loc))), self.few_steps, suffix="first"),
            Steps(Block(args, self.steady(loads, compute, writes)), self.main_steps),
            Steps(Block(args, (*self.waiting(0), Yield(args[1:])))),
            Steps(Block(args, (*compute, self.end)), self.few_steps, done, suffix="last"),
        )
        LoopSchedule(self.loop, parts).expand(self.builder)
        return self.builder.ops

    def in_slot(self, op: Op) -> Op:
        """Return the op with its accesses to memories of several stages at the stage of the step."""
        inner = map_blocks(op, lambda block: rewrite_block(block, lambda o: [self.access_in_slot(o)]))
        return self.access_in_slot(inner)

    def access_in_slot(self, op: Op) -> Op:
        if isinstance(op, CopyAsync) and op.to in self.grown:
            return replace(op, to=self.grown[op.to], to_at=(self.slot[0].result, *op.to_at))
        if not isinstance(op, (Read, Write)) or op.memory not in self.grown:
            return op
        at, axes = (self.slot[0].result, *op.at), tuple(a + 1 for a in op.axes)
        guard = tuple(a + 1 for a in op.guard)
        return replace(op, memory=self.grown[op.memory], at=at, axes=axes, guard=guard)

    def steady(self, loads: Sequence[Op], compute: Sequence[Op], writes: Sequence[Op]) -> tuple[Op, ...]:
        """Return a step of the main loop: wait for its copies, load ahead, compute, then write the loaded tiles."""
        lasting = self.lasting()
        made = {v for op in lasting for v in op.results}
        changing = [[op for op in part if made.isdisjoint(op.results)] for part in (loads, compute, writes)]
        loads, compute, writes = changing
        with self.builder.region():
            copier = Copier(self.builder, "next")
            copier.new[self.index] = self.number(Add, self.index, self.ahead, "next")
            (add,) = self.builder.ops
        waits = self.waiting(self.still_on_the_way)
        return (*lasting, *waits, add, *map(copier.renamed, loads), *compute, *map(copier.renamed, writes), self.end)

    def waiting(self, pending: int) -> tuple[Op, ...]:
        return (WaitAsync(pending, loc=self.loop.loc),) if self.staging.brought_bytes else ()

    def lasting(self) -> list[Op]:
        """Return the loop-invariant arithmetic of the loads and writes, which the parts of the main loop share."""
        changing, lasting = {self.index}, []
        for op in (*self.staging.loads, *self.staging.writes):
            if op.is_pure and changing.isdisjoint(op.operands):
                lasting.append(op)
            else:
                changing.update(op.results)
        return lasting
