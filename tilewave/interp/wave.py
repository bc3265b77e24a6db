"""The semantics of the lane level's ops: one wave runs them, all its lanes at once.

A scalar is one number where all lanes agree, else an array of lanes; a vector is an array (lanes or 1) x its shape,
1 where all lanes hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from tilewave.errors import EndlessLoop
from tilewave.interp import tiles as interp
from tilewave.interp.arithmetic import Array
from tilewave.interp.copies import AsynchronousMeaning
from tilewave.interp.lane_order import lane_bits
from tilewave.interp.memory import LaneMemory, WaveAccess
from tilewave.interp.positions import Elements, OutsideMemory, RegisterOffsets, by_lane, elements_at, in_a_row, strides
from tilewave.interp.reductions import reduced_along
from tilewave.interp.tiles import spread
from tilewave.interp.workgroup import Wait, WorkgroupState
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.dispatch import find_row, row_of
from tilewave.ir.ops import (
    Agree,
    Allocate,
    AllOf,
    Arrive,
    Barrier,
    Below,
    Broadcast,
    ClusterBarrier,
    Concatenate,
    Const,
    Copy,
    CopyAsyncChunks,
    Elementwise,
    ExtractSlice,
    HandOver,
    Lane,
    LaunchDependents,
    Load,
    LoadEach,
    LoadTransposed,
    LoadUnaligned,
    Loop,
    MakeExchange,
    MakeMbarriers,
    Matrix,
    Meet,
    OpaqueCopy,
    Overlay,
    Permute,
    Ramp,
    Rearrange,
    ReduceHalves,
    ReduceLanes,
    ReduceRegisters,
    Role,
    Scheduling,
    Select,
    Shuffle,
    Store,
    StoreEach,
    StoreUnaligned,
    TakeOver,
    TakeOverAll,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
    Unset,
    WaitAsync,
    WaitMbarrier,
    WaitMma,
    WaitOlderMma,
    WaitPriorLaunch,
    WaitTmaStores,
    Wave,
    Wgmma,
    WgmmaRegisters,
    WgmmaShared,
    While,
    Workgroup,
    Yield,
)
from tilewave.ir.types import Scalar
from tilewave.layouts.bits import applied
from tilewave.layouts.fragments import Fragment
from tilewave.machine.matrix import NAMED

Running = Generator[None, None, tuple[Any, ...]]
"""A running wave; it yields wherever another wave may run."""

WITHOUT_END = -1
"""The `stretch` of a wave that runs until it must wait."""


class WaveRun(AsynchronousMeaning):
    """One wave of a workgroup: its values, and its position in the program."""

    def __init__(self, number: int, state: WorkgroupState, registers: dict[int, RegisterOffsets]) -> None:
        super().__init__(number, state)
        self.registers = registers
        """Register offsets per op, by its id: they are the same for all waves."""
        self.stretch = WITHOUT_END
        """How many more memory accesses until another wave may run."""
        self.has_ended = False
        self.products = 0
        """How many MMAs this wave made with its warpgroup."""
        self.begun: list[tuple[Value, int]] = []
        """Sums of asynchronous MMAs in flight, in order, with the segments of their reads."""

    @property
    def can_run(self) -> bool:
        return not self.has_ended and (self.wait is None or self.wait.is_over())

    def run(self, body: Block) -> Running:
        result = yield from self.block(body)
        self.has_ended = True
        self.want_nothing_under_way()
        if self.begun:
            why = f"{self.name} ends while its MMA {self.begun[0][0]} may still read shared memory"
            self.fail(body.ops[-1], why, "a wait_mma must be between the MMA and the end")
        if self.products < len(self.state.products.get(self.number // Wgmma.group.waves, ())):
            self.fail(
                body.ops[-1], f"wave {self.number} ends without an MMA that the other waves of its warpgroup execute"
            )
        return result

    def block(self, block: Block, *args: Any, round: int = 0) -> Running:
        outer = self.path, self.place
        self.path = (*self.path, self.place, round)
        results = yield from self.ops(block, *args)
        self.path, self.place = outer
        return results

    def ops(self, block: Block, *args: Any) -> Running:
        env = self.env
        env.update(zip(block.args, args, strict=False))
        for self.place, op in enumerate(block.ops):
            if (at_once := find_row(AT_ONCE, op)) is not None:
                result = at_once(self, op)
                if op.results:
                    env[op.results[0]] = result
                if self.stretch != WITHOUT_END and _is_seen_by_others(op):
                    self.stretch -= 1
                    if self.stretch <= 0:
                        yield
            elif isinstance(op, Yield):
                return tuple(env[v] for v in op.values)
            else:
                results = yield from row_of(IN_STEPS, op, "no meaning is given to")(self, op)
                env.update(zip(op.results, results, strict=True))
        return ()

    # -- numbers

    def const(self, op: Const) -> Any:
        found = self.numbers.constant(op, op.value)
        return found if isinstance(op.result.type, Scalar) else found[None]

    def elementwise(self, op: Op) -> Any:
        kind = op.results[0].type
        operands = [self.env[v] for v in op.operands]
        if isinstance(op, Select) and kind.shape:
            operands[0] = by_lane(operands[0], len(kind.shape))
        found, storage = self.numbers.elementwise(op, operands), self.numbers.storage(kind.dtype)
        if isinstance(found, np.ndarray) and found.dtype != storage:
            return found.astype(storage)
        return found

    def broadcast(self, op: Broadcast) -> Array:
        shape = op.result.type.shape
        x = by_lane(self.env[op.x], len(op.x.type.shape))
        return np.broadcast_to(spread(x, (0, *(a + 1 for a in op.axes)), len(shape) + 1), (len(x), *shape))

    def permute(self, op: Permute) -> Array:
        x: Array = self.env[op.x].transpose(0, *(a + 1 for a in op.axes))
        return x

    def part(self, op: ExtractSlice) -> Array:
        count = op.result.type.shape[op.axis]
        part: Array = self.env[op.x].take(range(op.first, op.first + count), axis=op.axis + 1)
        return part

    def concatenate(self, op: Concatenate) -> Array:
        whole: Array = np.concatenate([self.env[part] for part in op.vectors], axis=op.axis + 1)
        return whole

    def rearrange(self, op: Rearrange) -> Array:
        x, lane = self.each_register(op.x), np.arange(self.state.lanes)[:, None]
        register = np.arange(1 << len(op.of_register))
        found: Array = x[lane, applied(op.of_register, register) ^ applied(op.of_lane, lane)]
        return found.reshape(-1, *op.result.type.shape)

    def shuffle(self, op: Shuffle) -> Array:
        x, lane = self.each_register(op.x), np.arange(self.state.lanes)[:, None]
        register = np.arange(1 << len(op.of_register))
        found: Array = x[applied(op.of_register, register) ^ applied(op.of_lane, lane), register]
        return found.reshape(-1, *op.result.type.shape)

    def opaque_copy(self, op: OpaqueCopy) -> Array:
        held: Array = self.env[op.x]
        return held

    def reduce_registers(self, op: ReduceRegisters) -> Array:
        x = reduced_along(self.numbers, op.how, self.env[op.x], tuple(axis + 1 for axis in op.axes))
        return x.reshape(-1, *op.result.type.shape)

    def reduce_lanes(self, op: ReduceLanes) -> Array:
        x, lane = self.every_lane(op.x), np.arange(self.state.lanes)
        for bit in op.bits:
            x = self.numbers.combined(op.how, x[lane & ~(1 << bit)], x[lane | 1 << bit])
        return x

    def reduce_halves(self, op: ReduceHalves) -> Array:
        x, lane, bit = self.every_lane(op.x), np.arange(self.state.lanes), 1 << op.bit
        both = self.numbers.combined(op.how, x[lane & ~bit], x[lane | bit])
        first, second = np.split(both, 2, op.axis + 1)
        has_bit = (lane & bit != 0).reshape(-1, *[1] * (x.ndim - 1))
        return np.where(has_bit, second, first)

    def all_of(self, op: AllOf) -> Any:
        held = self.every_lane(op.x).reshape(-1)
        assert held.tobytes() == held[:1].tobytes() * len(held), f"{op.loc}: lanes hold different numbers"
        return held[0]

    def each_register(self, value: Value) -> Array:
        """Return a vector as lanes x registers, in the vector's order."""
        return self.every_lane(value).reshape(self.state.lanes, -1)

    def ramp(self, op: Ramp) -> Array:
        kind = op.result.type
        numbers = zip(np.indices(kind.shape), op.steps, strict=True)
        far = sum((n * step for n, step in numbers), np.zeros(kind.shape, np.int64))
        return self.numbers.counted(far, kind.dtype)[None]

    def below(self, op: Below) -> Array:
        shape = op.result.type.shape
        far = sum((n * step for n, step in zip(np.indices(shape), op.steps, strict=True)), np.zeros(shape, np.int64))
        first, bound = (by_lane(self.env[v], 0) for v in (op.first, op.bound))
        lanes = np.broadcast_to(np.asarray(first).reshape(-1, *[1] * len(shape)), (self.state.lanes, *[1] * len(shape)))
        found: Array = lanes + far < np.asarray(bound).reshape(-1, *[1] * len(shape))
        return found

    def unset(self, op: Unset) -> Array:
        """Return poison, which is noticed where it is used."""
        kind = op.result.type
        shows = self.numbers.poison(kind.dtype) if kind.dtype.is_float else 0x5A
        return np.full((1, *kind.shape), shows, self.numbers.storage(kind.dtype))

    def workgroup(self, op: Workgroup) -> int:
        return self.state.number

    def wave(self, op: Wave) -> int:
        return self.number

    def lane(self, op: Lane) -> Array:
        return np.arange(self.state.lanes)

    def matrix(self, op: Matrix) -> Array:
        fragment = self.fragment(op)
        a, b, acc = (self.every_lane(v) for v in (op.a, op.b, op.acc))
        factors = fragment.matrix(a, 0), fragment.matrix(b, 1)
        sums = self.numbers.multiplied(*factors, fragment.from_sums(acc, op.transposed))
        whole = fragment.to_sums(sums, op.transposed)
        if not op.rows:
            return whole
        kept = np.array(acc)
        kept[..., slice(*op.rows), :, :, :] = whole[..., slice(*op.rows), :, :, :]
        return kept

    def fragment(self, op: Matrix) -> Fragment:
        """Return the fragment of an instruction."""
        if op.instruction not in NAMED:
            self.fail(op, f"no matrix instruction of a wave is called {op.instruction!r}")
        row = NAMED[op.instruction]
        found = row.fragment(max(op.shape[2], row.depth))
        if found.shape != op.shape or found.lanes != self.state.lanes or found.per_lane != op.a.type.shape[-1]:
            self.fail(op, f"{op.instruction} computes no blocks of {list(op.shape)} of {op.a.type}")
        return found

    def schedule(self, op: Op) -> None:
        """Do nothing, because scheduling has no effect on results."""

    def wgmma_shared(self, op: WgmmaShared) -> Array:
        own = np.arange(0, op.shape[0], op.group.rows)[:, None] + 16 * (self.number % op.group.waves) + np.arange(16)
        reading = self.reading(op)
        return self.wgmma(op, reading, self.take_operand(op, reading, 0, own.reshape(-1)))

    def wgmma_registers(self, op: WgmmaRegisters) -> Array:
        return self.wgmma(op, self.reading(op), op.group.from_sums(self.every_lane(op.a)))

    def reading(self, op: Wgmma) -> WaveAccess:
        """Return the read of an MMA's operands: made now, or pending until the MMA is waited for."""
        if not self.state.comes_along(self.number // op.group.waves, self.products, (*self.path, self.place)):
            self.fail(
                op,
                f"wave {self.number} executes an MMA that the other waves of its warpgroup do not",
                "the four waves of a warpgroup execute it together",
            )
        self.products += 1
        if not op.later:
            return self.access(op, "read")
        segment = self.state.ledger.clocks.new_segment()
        self.begun.append((op.result, segment))
        return self.access(op, "read", segment)

    def wait_mma(self, op: WaitMma) -> Array:
        self.end_products(op.pending)
        if any(v == op.sums for v, _ in self.begun):
            self.fail(op, f"{op.sums} is among the last {op.pending} MMAs, which may still be in flight")
        sums: Array = self.env[op.sums]
        return sums

    def wait_older_mma(self, op: WaitOlderMma) -> None:
        self.end_products(op.pending)

    def end_products(self, pending: int) -> None:
        """Complete all but the last `pending` MMAs, and so their reads."""
        over = self.begun[: max(0, len(self.begun) - pending)]
        self.state.ledger.clocks.learn(self.index, [segment for _, segment in over])
        self.begun = self.begun[len(over) :]

    def wgmma(self, op: Wgmma, reading: WaveAccess, a: Array) -> Array:
        """Return the sums of a warpgroup's MMA, given this wave's rows of `a`."""
        b = self.take_operand(op, reading, 1, np.arange(op.shape[1]))
        acc = self.every_lane(op.acc)
        if not all(self.uniform(op, v) for v in op.adds):
            acc = np.zeros_like(acc)
        (shared, _), sums = op.factor(1), op.group.from_sums(acc)
        depth = op.group.depth_bytes // shared.type.dtype.bytes
        return op.group.to_sums(self.numbers.multiplied_in_turn(a, b, sums, depth, op.ignored_bits))

    def take_operand(self, op: Wgmma, reading: WaveAccess, side: int, rows: Array) -> Array:
        """Return rows of an operand, each along K."""
        (memory, at), depth, batch = op.factor(side), op.shape[-1], op.acc.type.shape[:-4]
        if side not in op.transposed:
            return self.take_rows(op, reading, memory, at, (*batch, rows, depth))
        return np.swapaxes(self.take_rows(op, reading, memory, at, (*batch, depth, rows)), -1, -2)

    def take_rows(
        self, op: Op, reading: WaveAccess, shared: Value, at: tuple[Value, ...], box: tuple[Any, ...]
    ) -> Array:
        """Return a part of a shared memory; `box` has its extents along the last axes, or the rows it takes."""
        memory: LaneMemory = self.env[shared]
        first = [self.uniform(op, v) for v in at]
        extents = [np.arange(n) if isinstance(n, int) else n for n in (*[1] * (len(at) - len(box)), *box)]
        along = [start + extent for start, extent in zip(first, extents, strict=True)]
        for positions, limit in zip(along, memory.shape, strict=True):
            if positions[0] < 0 or positions[-1] >= limit:
                where = ", ".join(map(str, first))
                self.fail(op, f"wave {self.number} multiplies {memory.name}[{where}], outside {shared.type}")
        steps = zip(np.ix_(*along), strides(memory.shape), strict=True)
        flat = sum((p * step for p, step in steps), np.zeros(1, np.int64))
        memory.order_machine(self.state.ledger, reading, flat.reshape(-1))
        self.state.note_read(memory, reading, flat.reshape(-1))
        return memory.data.take(flat.reshape([len(e) for e in extents[-len(box) :]]))

    def every_lane(self, value: Value) -> Array:
        return np.broadcast_to(self.env[value], (self.state.lanes, *value.type.shape))

    # -- memory

    def allocate(self, op: Allocate) -> LaneMemory:
        return self.state.allocate(op.result)

    def overlay(self, op: Overlay) -> LaneMemory:
        return self.state.overlay(op.memory, self.env[op.memory], op.result)

    def load(self, op: Load) -> Array:
        memory: LaneMemory = self.env[op.memory]
        return self.take(op, memory, self.elements(op, memory, op.result.type.shape))

    def load_transposed(self, op: LoadTransposed) -> Array:
        memory: LaneMemory = self.env[op.memory]
        found = self.take(op, memory, self.elements(op, memory, op.read_shape))
        read = np.broadcast_to(found, (self.state.lanes, *op.read_shape))
        *front, _ = read.shape[1:]
        rows = np.moveaxis(read.reshape(-1, op.lanes, *front, op.rows), 1, -2).reshape(-1, *front, op.rows, op.lanes)
        return np.moveaxis(rows, -1, 1).reshape(-1, *op.result.type.shape)

    def store(self, op: Store) -> None:
        memory: LaneMemory = self.env[op.memory]
        self.put(op, memory, self.elements(op, memory, op.x.type.shape), op.x)

    def load_each(self, op: LoadEach) -> Array:
        memory: LaneMemory = self.env[op.memory]
        return self.take(op, memory, self.elements_each(op, memory, len(op.result.type.shape)))

    def store_each(self, op: StoreEach) -> None:
        memory: LaneMemory = self.env[op.memory]
        elements = self.elements_each(op, memory, len(op.x.type.shape))
        if op.combine:
            self.combine(op, memory, elements)
        else:
            self.put(op, memory, elements, op.x)

    def combine(self, op: StoreEach, memory: LaneMemory, elements: Elements) -> None:
        """Combine elements with what the memory has, one after the other, as atomic operations do."""
        x = by_lane(self.env[op.x], len(op.x.type.shape))
        shape = np.broadcast_shapes(x.shape, elements.flat.shape)
        active = None if elements.active is None else np.broadcast_to(elements.active, shape)
        kept, new = (in_a_row(np.broadcast_to(each, shape), active) for each in (elements.flat, x))
        if len(kept):
            self.state.note_combined(op, memory, kept)
            memory.combine(op.combine, kept, new)

    def copy_async_chunks(self, op: CopyAsyncChunks) -> None:
        self.bring_elements(op, self.elements(op, self.env[op.memory], op.shape))

    def elements(
        self, op: Load | LoadTransposed | Store | CopyAsyncChunks, memory: LaneMemory, shape: tuple[int, ...]
    ) -> Elements:
        if id(op) not in self.registers:
            steps = op.read_steps if isinstance(op, LoadTransposed) else op.steps
            self.registers[id(op)] = RegisterOffsets.of(shape, steps, memory.shape)
        begin = op.begin if isinstance(op, (Load, Store)) and op.begin else (0,) * len(op.at)
        at = [self.env[v] + far for v, far in zip(op.at, begin, strict=True)]
        if isinstance(op, CopyAsyncChunks) and op.columns:
            columns = np.stack(np.broadcast_arrays(*(by_lane(self.env[v], 1) for v in op.columns)), axis=1)
            at = [*(by_lane(a, 2) for a in at[:-1]), columns]
        try:
            return self.registers[id(op)].elements(at, memory.shape, op.guard, self.touching(op, len(shape)))
        except OutsideMemory as outside:
            position = ", ".join(map(str, outside.position))
            verb = "writes" if isinstance(op, Store) else "reads"
            self.fail(
                op,
                f"lane {outside.lane} of wave {self.number} {verb} {memory.name}[{position}], outside {op.memory.type}",
            )

    def touching(self, op: Load | LoadTransposed | Store | CopyAsyncChunks, rank: int) -> Array | None:
        """Return which lanes, or which of their registers, access the memory; None: all do."""
        mask = self.mask(op, rank)
        if isinstance(op, (CopyAsyncChunks, LoadTransposed)) or not op.own:
            return mask
        below = self.registers[id(op)].below([self.env[v] for v in op.own], op.within)
        return below if mask is None else below & mask

    def elements_each(self, op: LoadEach | StoreEach, memory: LaneMemory, rank: int) -> Elements:
        at = [by_lane(self.env[v], rank) for v in op.at]
        return elements_at(at, memory.shape, range(len(memory.shape)), self.mask(op, rank))

    def mask(
        self, op: Load | LoadTransposed | Store | LoadEach | StoreEach | CopyAsyncChunks, rank: int
    ) -> Array | None:
        if not op.mask:
            return None
        (mask,) = (self.env[v] for v in op.mask)
        return None if mask is True else by_lane(mask, rank)

    def take(self, op: Load | LoadTransposed | LoadEach, memory: LaneMemory, elements: Elements) -> Array:
        kept = elements.kept
        if len(kept):
            self.want_waited(op, memory)
            access = self.access(op, "read", self.read_late(op, memory))
            lanes = lane_bits(elements.flat, elements.active, self.state.lanes)
            memory.order_lanes(self.state.ledger, access, kept, lanes, None)
            self.state.note_read(memory, access, kept)
        if elements.active is None:
            found = memory.data.take(elements.flat)
        else:
            found = np.zeros(elements.flat.shape, memory.data.dtype)
            found[elements.active] = memory.data[kept]
        return found

    def read_late(self, op: Load | LoadTransposed | LoadEach, memory: LaneMemory) -> int | None:
        """Return a new segment for a load from memory that copies fill: it may read until something waits for it.

        An arrival does not wait, unless it names what was loaded: the assembler may place it before the data has come.
        """
        if op.memory not in self.state.launch.filled:
            return None
        self.loading[op.result] = self.state.ledger.clocks.new_segment()
        return self.loading[op.result]

    def put(self, op: Store | StoreEach, memory: LaneMemory, elements: Elements, value: Value) -> None:
        x = by_lane(self.env[value], len(value.type.shape))
        shape = np.broadcast_shapes(x.shape, elements.flat.shape)
        active = None if elements.active is None else np.broadcast_to(elements.active, shape)
        kept, new = (in_a_row(np.broadcast_to(each, shape), active) for each in (elements.flat, x))
        if not len(kept):
            return
        self.want_waited(op, memory)
        access = self.access(op, "write")
        lanes = lane_bits(np.broadcast_to(elements.flat, shape), active, self.state.lanes)
        memory.order_lanes(self.state.ledger, access, kept, lanes, new)
        self.state.note_write(memory, access, kept, new)
        twice = memory.put(kept, new)
        if twice is not None:
            at = memory.element(kept[twice])
            self.fail(op, f"two lanes of wave {self.number} write different values to {at}")

    # -- control

    def loop(self, op: Loop) -> Running:
        carried = tuple(self.env[v] for v in op.init)
        rounds = self.uniform(op, op.trips)
        for i in range(rounds):
            carried = yield from self.block(op.body, i, *carried, round=i)
        if rounds == 0:
            self.state.leave_out(op)
        return carried

    def loop_while(self, op: While) -> Running:
        carried = tuple(self.env[v] for v in op.init)
        for i in range(interp.MOST_ROUNDS):
            (goes_on,) = yield from self.block(op.condition, *carried, round=i)
            if not self.agreed(op, goes_on):
                return carried
            carried = yield from self.block(op.body, *carried, round=i)
        rounds = f"{interp.MOST_ROUNDS:,}"
        raise EndlessLoop(
            f"wave {self.number} of workgroup {self.state.number} ran {rounds} iterations and is not done",
            loc=op.loc,
        )

    def role(self, op: Role) -> Running:
        if op.first <= self.number < op.last:
            outer, self.leader = self.leader, max(self.leader, op.first)
            yield from self.block(op.body)
            self.leader = outer
        return ()

    def barrier(self, op: Barrier) -> Running:
        self.end_loads()
        self.state.come_to_barrier(self.number, op)
        if self.is_past_barrier():
            yield  # let others run first, so that the last wave to arrive does not always continue first
        yield from self.until(Wait(op, self.is_past_barrier, lambda: f"at the barrier of {op.loc}"))
        return ()

    def agree(self, op: Agree) -> Running:
        self.end_loads()
        self.state.come_to_barrier(self.number, op, bool(np.all(self.env[op.x])))
        yield from self.until(Wait(op, self.is_past_barrier, lambda: f"at {op.loc} for others to agree"))
        return (self.state.agreed[self.number],)

    def is_past_barrier(self) -> bool:
        return self.number not in self.state.at_barrier


AT_ONCE: dict[type[Op], Callable[[WaveRun, Any], Any]] = {
    Elementwise: WaveRun.elementwise,
    Const: WaveRun.const,
    Broadcast: WaveRun.broadcast,
    Permute: WaveRun.permute,
    ExtractSlice: WaveRun.part,
    Concatenate: WaveRun.concatenate,
    Rearrange: WaveRun.rearrange,
    Shuffle: WaveRun.shuffle,
    OpaqueCopy: WaveRun.opaque_copy,
    ReduceRegisters: WaveRun.reduce_registers,
    ReduceLanes: WaveRun.reduce_lanes,
    ReduceHalves: WaveRun.reduce_halves,
    AllOf: WaveRun.all_of,
    Ramp: WaveRun.ramp,
    Below: WaveRun.below,
    Unset: WaveRun.unset,
    Workgroup: WaveRun.workgroup,
    Wave: WaveRun.wave,
    Lane: WaveRun.lane,
    Matrix: WaveRun.matrix,
    WgmmaShared: WaveRun.wgmma_shared,
    WgmmaRegisters: WaveRun.wgmma_registers,
    WaitOlderMma: WaveRun.wait_older_mma,
    WaitMma: WaveRun.wait_mma,
    Allocate: WaveRun.allocate,
    Overlay: WaveRun.overlay,
    Load: WaveRun.load,
    LoadUnaligned: WaveRun.load,
    LoadTransposed: WaveRun.load_transposed,
    Store: WaveRun.store,
    StoreUnaligned: WaveRun.store,
    LoadEach: WaveRun.load_each,
    StoreEach: WaveRun.store_each,
    MakeMbarriers: WaveRun.make_mbarriers,
    Arrive: WaveRun.arrive,
    CopyAsyncChunks: WaveRun.copy_async_chunks,
    Copy: WaveRun.copy,
    TmaLoad: WaveRun.tma_load,
    TmaLoadMulticast: WaveRun.tma_load_multicast,
    TmaStore: WaveRun.tma_store,
    WaitPriorLaunch: WaveRun.wait_prior_launch,
    LaunchDependents: WaveRun.schedule,
    MakeExchange: WaveRun.make_exchange,
    HandOver: WaveRun.hand_over,
    Scheduling: WaveRun.schedule,
}
"""Ops that a wave runs without a pause."""

IN_STEPS: dict[type[Op], Callable[[WaveRun, Any], Running]] = {
    Loop: WaveRun.loop,
    While: WaveRun.loop_while,
    Role: WaveRun.role,
    Barrier: WaveRun.barrier,
    Agree: WaveRun.agree,
    Meet: WaveRun.barrier,
    ClusterBarrier: WaveRun.cluster_barrier,
    WaitMbarrier: WaveRun.wait_mbarrier,
    WaitTmaStores: WaveRun.wait_tma_stores,
    TakeOver: WaveRun.take_over,
    TakeOverAll: WaveRun.take_over_all,
    WaitAsync: WaveRun.wait_async,
}
"""Ops during which other waves may run."""


def _is_seen_by_others(op: Op) -> bool:
    """Return whether other waves can observe when the op runs."""
    return bool(op.reads or op.writes) or isinstance(op, MakeMbarriers)
