"""Lowering of a lane-level kernel to LLVM IR: one function that every lane of every workgroup runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard

from tilewave.analysis.barriers import Handovers, Transits, touched_by_lanes, written_by_lanes
from tilewave.errors import NOWHERE
from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.dispatch import row_of
from tilewave.ir.faults import lacking, telling
from tilewave.ir.launch import is_open, launch_of, skeleton
from tilewave.ir.placements import elements
from tilewave.ir.rewrite import walk
from tilewave.ir.types import BOOL, INDEX, Memory, Vector
from tilewave.lower.elements import in_memory, literal
from tilewave.lower.gpu.arithmetic import resized
from tilewave.lower.gpu.asynchronous import AsynchronousOps
from tilewave.lower.gpu.counts import ByteCount, StepCount
from tilewave.lower.gpu.direct_loads import DirectLoads
from tilewave.lower.gpu.exchanges import Exchanges, exchange_bytes
from tilewave.lower.gpu.memory import ArrayWindow, GlobalAccess, GlobalPlace
from tilewave.lower.gpu.pointers import Pointers
from tilewave.lower.gpu.products import multiply
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.shared import SharedAccess, SharedPlace
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.unaligned import is_quicker_in_blocks, load_in_blocks, store_unaligned, takes_blocks
from tilewave.lower.gpu.values import Held, cut, regrouped
from tilewave.lower.launch_arguments import KernelArgument, MapArgument, Reach
from tilewave.lower.lines import Lines, LocatedFunction, first_line
from tilewave.lower.llvm import LlvmFunction, Module, Typed

SHARED_ALIGNMENT = 16


@dataclass(frozen=True)
class LoweredLanes:
    """A kernel in LLVM IR, and the needs of its launch."""

    llvm_ir: str
    name: str
    arguments: tuple[KernelArgument, ...]
    shared_bytes: int
    workgroup_size: int
    workgroups: int | str
    """The number of workgroups, or the name of the argument that gives it."""
    reaches: tuple[Reach, ...]
    """How far windows reach into each array; a layout that a reach does not allow needs a separate build."""
    maps: tuple[MapArgument, ...] = ()
    """The TMA tensor maps; these parameters follow the arguments."""
    launch: str = ""
    """The text of the ops computed at each launch, for dynamic shapes."""


def lower_lanes(
    kernel: Kernel,
    target: LaneTarget,
    any_strides: frozenset[str] = frozenset(),
    alignments: Mapping[str, int] | None = None,
    whole_rows: bool = False,
) -> LoweredLanes:
    """Return the LLVM IR of a kernel; arrays in `any_strides` may have any strides, others have a last stride of 1.

    `alignments`: bytes that an array's address and row strides are multiples of; with `whole_rows` so is the length of
    its rows.
    """
    with telling("the lowering of lanes", kernel):
        if kernel.level != "lane":
            raise lacking("distribute_lanes", f"{kernel.name} is still at the tile level")
        body = _Body(kernel, target, any_strides, alignments or {}, whole_rows)
        text = body.write()
    size = kernel.lanes * prod(kernel.waves)
    maps = tuple(body.async_ops.maps) if body.async_ops else ()
    launch = str(skeleton(kernel)) if is_open(kernel) else ""
    facts = body.shared_bytes, size, kernel.workgroups, body.reaches, maps, launch
    return LoweredLanes(text, kernel.name, _arguments(kernel), *facts)


def _arguments(kernel: Kernel) -> tuple[KernelArgument, ...]:
    found: list[KernelArgument] = []
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            found.append(KernelArgument(v.name, "pointer", dtype=v.type.dtype.name))
            found += [KernelArgument(v.name, "stride", axis) for axis in range(v.type.rank)]
        else:
            found.append(KernelArgument(v.name, "symbol", dtype=v.type.dtype.name))
    found += [KernelArgument(v.name, "symbol", dtype=v.type.dtype.name) for v in _launched(kernel)]
    for v in _exchanges(kernel):
        size = exchange_bytes(v.type, kernel)  # type: ignore[arg-type]
        found.append(KernelArgument(v.name, "scratch", dtype=v.type.dtype.name, scratch_bytes=size))
    return tuple(found)


def _launched(kernel: Kernel) -> tuple[Value, ...]:
    """Return the values computed once per launch, which are passed after the scalar arguments."""
    launch = launch_of(kernel)
    return launch.results if launch else ()


def _exchanges(kernel: Kernel) -> list[Value]:
    return [op.result for op in walk(kernel.body) if isinstance(op, ir.MakeExchange)]


class _Body:
    """The function of one lane; it has an LLVM value for each value of the kernel."""

    def __init__(
        self,
        kernel: Kernel,
        target: LaneTarget,
        any_strides: frozenset[str],
        alignments: Mapping[str, int],
        whole_rows: bool,
    ) -> None:
        self.kernel, self.target, self.any_strides, self.alignments = kernel, target, any_strides, alignments
        self.whole_rows = whole_rows
        self.module = Module()
        self.lines = Lines(first_line(kernel), target.line_detail)
        located = self.lines.function(kernel.name)
        self.f = LocatedFunction(self.module, kernel.name, _parameters(kernel, target), located)
        self.registers = Registers(self.f, kernel, target)
        self.handovers = Handovers(kernel, written_by_lanes, any_strides)
        self.turnovers = Handovers(kernel, touched_by_lanes, any_strides)
        self.transits = Transits(kernel)
        self.places: dict[Value, GlobalPlace | SharedPlace] = {}
        self.written = _stored(kernel)
        self.shared_bytes = 0
        self.leader = 0
        """The first of the waves that run the current block."""
        reach = ArrayWindow if target.windows else Pointers
        self.global_memory, self.shared_memory = GlobalAccess(self.registers, reach), SharedAccess(self.registers)
        # After shared_memory, because direct loads decide the metadata of its loads.
        self.direct_loads = self.make_direct_loads()
        self.async_ops = (
            AsynchronousOps(target.asynchronous, self.registers, kernel, self.places, self.allot)
            if target.asynchronous
            else None
        )
        self.exchanges = Exchanges(target.asynchronous, self.registers, kernel) if target.asynchronous else None

    def make_direct_loads(self) -> DirectLoads | None:
        """Return the direct-to-shared loads, if any; the kernel waits for them, so LLVM must not insert waits."""
        direct = self.target.direct
        if direct is None or not any(isinstance(op, ir.CopyAsyncChunks) for op in walk(self.kernel.body)):
            return None
        self.shared_memory.note = direct.read_note
        return DirectLoads(self.global_memory, direct, self.kernel.lanes)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        return tuple(self.global_memory.reaches.values())

    def write(self) -> str:
        for v in self.kernel.body.args:
            self.argument(v)
        self.block(self.kernel.body)
        self.f.loc = NOWHERE
        attributes = self.target.attributes(self.kernel.lanes, prod(self.kernel.waves), self.kernel.resident)
        text = self.f.finish(attributes=attributes, linkage=self.target.convention)
        self.module.functions.append(text)
        flags = [*self.target.flags(), self.lines.flag]
        numbered = [f"!{i} = {flag}" for i, flag in enumerate(flags)]
        named = f"!llvm.module.flags = !{{{', '.join(f'!{i}' for i in range(len(flags)))}}}"
        notes = self.direct_loads.direct.notes if self.direct_loads else ()
        return "\n".join([str(self.module), named, *numbered, *notes, self.lines.metadata()])

    def argument(self, v: Value) -> None:
        if isinstance(v.type, Memory):
            strides = tuple(f"%{v.name}.{axis}" for axis in range(v.type.rank))
            any_strides, aligned = v.name in self.any_strides, self.alignments.get(v.name, 1)
            of_rows = v in self.written, self.whole_rows and not any_strides
            place = GlobalPlace(v.name, v.type, f"%{v.name}", strides, any_strides, aligned, *of_rows)
            self.places[v] = place
            if isinstance(extent := v.type.extents[-1], str):
                self.registers.multiples[extent] = max(place.whole, self.registers.multiples.get(extent, 1))
            return
        kind = _parameter_kind(v)
        name = f"%{v.name}"
        if v.type.dtype == BOOL:
            self.registers.scalars[v] = "i1", self.f.value(f"icmp ne {kind} {name}, 0")
        elif kind == "i64" and self.registers.positions.ranges.bits(v) < 64:
            self.registers.scalars[v] = "i32", self.f.value(f"trunc i64 {name} to i32")
        else:
            self.registers.scalars[v] = kind, name

    def launch(self, op: ir.Launch) -> None:
        for v in op.results:
            self.argument(v)

    # -- blocks and ops

    def block(self, block: Block) -> list[Value]:
        """Emit a block's ops and return what it yields."""
        for run in _runs(block.ops):
            self.at(run[0])
            if isinstance(run[0], ir.Yield):
                return list(run[0].values)
            if _is_elementwise(run[0]):
                self.registers.elementwise(run, self.at)
            else:
                self.op(run[0])
        return []

    def at(self, op: Op) -> None:
        self.f.loc = op.loc

    def op(self, op: Op) -> None:
        row_of(LOWERINGS, op, "cannot lower")(self, op)

    # -- numbers and vectors

    def elementwise(self, op: ir.Elementwise) -> None:
        """Emit a scalar elementwise op; those on vectors are emitted in runs."""
        taken = [self.registers.scalars[v] for v in op.operands]
        self.registers.put(op.result, self.registers.arithmetic.apply(op, taken, 1))

    def const(self, op: ir.Const) -> None:
        if isinstance(op.result.type, Vector):
            self.vector(op)
        else:
            self.registers.put(op.result, literal(op.value, op.result.type.dtype))

    def vector(self, op: Op) -> None:
        self.registers.vectors[op.result] = self.registers.make(op)

    def all_of(self, op: ir.AllOf) -> None:
        """Bind a scalar to the first register, which is the same in all lanes."""
        x = self.registers.vector(op.x)
        (one,) = cut(self.f, x.parts[0], x.kind, x.width, 1)
        self.registers.put(op.result, one)

    def matrix(self, op: ir.Matrix) -> None:
        a, b, acc = (self.registers.vector(v) for v in (op.a, op.b, op.acc))
        self.registers.vectors[op.result] = multiply(self.f, self.target, op, a, b, acc)

    def asynchronous(self, op: ir.Asynchronous | ir.Copy | ir.Wgmma | ir.Agree) -> None:
        if self.async_ops is None:
            raise NotImplementedError(f"{op.loc}: this machine cannot do {op.name}")
        self.async_ops.op(op, self.leader)

    def exchange(self, op: Op) -> None:
        if self.exchanges is None:
            raise NotImplementedError(f"{op.loc}: this machine cannot do {op.name}")
        self.exchanges.op(op)

    def order(self, op: Op) -> None:
        """Emit ops that affect scheduling and ordering, not values."""
        match op:
            case ir.Barrier(waves=1):
                self.target.order_lanes(self.f)
            case ir.Barrier() if self.async_ops:
                self.async_ops.barrier(op)
            case ir.Barrier(over="global"):
                self.target.wait_memory(self.f)
                self.target.barrier(self.f)
            case ir.Barrier() if self.direct_loads and op in self.transits:
                if op in self.turnovers:
                    self.target.wait_stores(self.f)
                self.direct_loads.direct.meet(self.f)
            case ir.Meet():
                self.target.barrier(self.f)
            case ir.Barrier():
                if self.handovers.around_a_loop(op):
                    self.target.wait_stores(self.f)
                self.target.barrier(self.f)
            case ir.Priority(level):
                self.target.priority(self.f, level)
            case ir.KeepOrder():
                self.target.keep_order(self.f)
            case ir.InstructionGroup(kind, count):
                self.target.together(self.f, kind, count)
            case ir.WaitLoads():
                self.target.wait_loads(self.f)
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def number(self, op: Op) -> None:
        ask: dict[type[Op], Callable[[LlvmFunction], str]] = {
            ir.Lane: self.target.lane,
            ir.Wave: self.target.wave,
            ir.Workgroup: self.target.workgroup,
        }
        self.registers.put(op.result, resized(self.f, ask[type(op)](self.f), "i32", self.registers.kind(op.result), 1))

    # -- memory

    def allocate(self, op: ir.Allocate) -> None:
        memory = op.result.type
        assert isinstance(memory, Memory)
        aligned = self.target.asynchronous.tile_alignment if self.target.asynchronous else SHARED_ALIGNMENT
        pointer = self.allot(op.result.name, elements(memory) * memory.dtype.bytes, aligned)
        self.places[op.result] = SharedPlace(memory, pointer)

    def overlay(self, op: ir.Overlay) -> None:
        under = self.places[op.memory]
        assert isinstance(under, SharedPlace) and isinstance(op.result.type, Memory)
        self.places[op.result] = SharedPlace(op.result.type, under.pointer)

    def allot(self, name: str, size: int, alignment: int) -> str:
        """Return the address of `size` bytes of shared memory after those allocated so far."""
        begin = -(-self.shared_bytes // alignment) * alignment
        self.shared_bytes = begin + -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        return self.target.shared_memory(self.module, f"{self.kernel.name}.{name}", begin, size)

    def access(self, op: ir.Load | ir.LoadTransposed | ir.Store | ir.LoadEach | ir.StoreEach) -> None:
        place = self.places[op.memory]
        memory = self.global_memory if isinstance(place, GlobalPlace) else self.shared_memory
        match op:
            case ir.Load() if self.loads_blocks(op, place):
                assert isinstance(place, GlobalPlace)
                loaded = load_in_blocks(self.global_memory, op, place)
                self.registers.vectors[op.result] = self.from_memory(loaded, op.result)
            case ir.StoreUnaligned(x) if self.in_rows(place) and takes_blocks(
                self.global_memory, op, place, x.type.shape
            ):
                assert isinstance(place, GlobalPlace)
                store_unaligned(self.global_memory, op, self.to_memory(x), place)
            case ir.Load():
                self.registers.vectors[op.result] = self.from_memory(memory.load(op, place), op.result)  # type: ignore[arg-type]
            case ir.LoadTransposed():
                assert isinstance(place, SharedPlace), f"{op.loc}: {op.memory} is not shared"
                found = self.shared_memory.load_transposed(op, place)
                self.registers.vectors[op.result] = self.from_memory(found, op.result)
            case ir.LoadEach():
                self.registers.vectors[op.result] = self.from_memory(memory.load_each(op, place), op.result)  # type: ignore[arg-type]
            case ir.Store(x):
                memory.store(op, self.to_memory(x), place)  # type: ignore[arg-type]
            case ir.StoreEach(x):
                memory.store_each(op, self.to_memory(x), place)  # type: ignore[arg-type]
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def in_rows(self, place: GlobalPlace | SharedPlace) -> TypeGuard[GlobalPlace]:
        """Return whether `place` is global memory without windows; windows move unaligned chunks by elements."""
        return isinstance(place, GlobalPlace) and self.target.windows is None

    def loads_blocks(self, op: ir.Load, place: GlobalPlace | SharedPlace) -> bool:
        """Return whether unaligned chunks are loaded as aligned blocks and shifted."""
        if not self.in_rows(place):
            return False
        if isinstance(op, ir.LoadUnaligned):
            return takes_blocks(self.global_memory, op, place, op.result.type.shape)
        return is_quicker_in_blocks(self.global_memory, op, place)

    def load_direct(self, op: ir.CopyAsyncChunks | ir.WaitAsync) -> None:
        assert self.direct_loads is not None, (
            f"{op.loc}: {self.kernel.name} has no direct loads, or its target lacks them"
        )
        if isinstance(op, ir.WaitAsync):
            self.direct_loads.wait(op)
            return
        place, to = self.places[op.memory], self.places[op.to]
        assert isinstance(place, GlobalPlace) and isinstance(to, SharedPlace)
        self.direct_loads.load_direct(op, place, to)

    def from_memory(self, x: Held, v: Value) -> Held:
        """Return x as held in registers: booleans are bytes in memory and bits in registers."""
        if v.type.dtype != BOOL:
            return x
        x = regrouped(self.f, x, 1)
        return Held(x.shape, "i1", 1, tuple(self.f.value(f"icmp ne i8 {part}, 0") for part in x.parts))

    def to_memory(self, v: Value) -> Held:
        x = self.registers.vector(v)
        if v.type.dtype != BOOL:
            return x
        x = regrouped(self.f, x, 1)
        kind = in_memory(BOOL)
        return Held(x.shape, kind, 1, tuple(self.f.value(f"zext i1 {part} to {kind}") for part in x.parts))

    # -- control

    def repeat(self, op: ir.Loop) -> None:
        counter, *args = op.body.args
        kind = self.registers.kind(counter)
        trips_kind, trips = self.registers.scalars[op.trips]
        trips = resized(self.f, trips, trips_kind, kind, 1)
        if self.registers.positions.ranges.of(op.trips)[1] <= 1:
            self.once(op, self.f.value(f"icmp sgt {kind} {trips}, 0"), kind)
            return

        count = self.count(op, kind, trips)

        def holds(parts: list[Typed]) -> str:
            return count.goes_on(parts[0][1])

        def step(parts: list[Typed]) -> list[Typed]:
            self.registers.bind(op.body.args, [(kind, count.step(parts[0][1])), *parts[1:]])
            yielded = self.inside(op.body, counter)
            following = self.registers.carried(yielded, args)
            return [(kind, count.following(parts[0][1])), *following]

        begin = [(kind, "0"), *self.registers.carried(op.init, args)]
        self.registers.bind(op.results, self.f.loop_while(begin, holds, step)[1:])

    def count(self, op: ir.Loop, kind: str, trips: str) -> StepCount | ByteCount:
        """Return a loop's counter: steps, or, for a dynamic trip count, the bytes by which they advance windows."""
        moved = self.global_memory.moved_bytes(op, self.places) if is_open(self.kernel) and kind == "i32" else 0
        least, most = self.registers.positions.ranges.of(op.trips)
        if moved > 1 and least != most and most * moved < 1 << 32:
            return ByteCount(self.f, moved, self.f.value(f"mul nuw i32 {trips}, {moved}"))
        return StepCount(self.f, kind, trips)

    def once(self, op: ir.Loop, holds: str, kind: str) -> None:
        """Emit a loop of at most one step as a branch: LLVM would hoist loop-invariant code out of a loop."""
        args = op.body.args[1:]
        before = self.registers.carried(op.init, args)

        def step() -> list[Typed]:
            self.registers.bind(op.body.args, [(kind, "0"), *before])
            return self.registers.carried(self.inside(op.body, op.body.args[0]), args)

        self.registers.bind(op.results, self.f.choose(holds, step, lambda: before))

    def repeat_while(self, op: ir.While) -> None:
        def holds(parts: list[Typed]) -> str:
            self.registers.bind(op.condition.args, parts)
            (holds,) = self.inside(op.condition, op.condition.args[0])
            return self.registers.truth(holds)

        def step(parts: list[Typed]) -> list[Typed]:
            self.registers.bind(op.body.args, parts)
            return self.registers.carried(self.inside(op.body, op.body.args[0]), op.condition.args)

        self.registers.bind(
            op.results, self.f.loop_while(self.registers.carried(op.init, op.condition.args), holds, step)
        )

    def inside(self, block: Block, loop: Value) -> list[Value]:
        before, self.registers.loop = self.registers.loop, loop
        yielded = self.block(block)
        self.registers.loop = before
        return yielded

    def role(self, op: ir.Role) -> None:
        wave = self.target.wave(self.f)
        after_first = self.f.value(f"icmp uge i32 {wave}, {op.first}")
        before_last = self.f.value(f"icmp ult i32 {wave}, {op.last}")
        mine = self.f.value(f"and i1 {after_first}, {before_last}")

        more, fewer = self.async_ops.registers(op) if self.async_ops else (_nothing, _nothing)

        def write() -> None:
            more()
            self.block(op.body)

        before, self.leader = self.leader, op.first
        self.f.when(mine, write, fewer)
        self.leader = before


VECTORS: tuple[type[Op], ...] = (
    ir.Broadcast,
    ir.Permute,
    ir.ExtractSlice,
    ir.Concatenate,
    ir.Rearrange,
    ir.Shuffle,
    ir.ReduceRegisters,
    ir.ReduceLanes,
    ir.ReduceHalves,
    ir.OpaqueCopy,
    ir.Below,
    ir.Ramp,
    ir.Unset,
)
LOWERINGS: dict[type[Op], Callable[[_Body, Any], None]] = {
    ir.Elementwise: _Body.elementwise,
    ir.Const: _Body.const,
    ir.Launch: _Body.launch,
    **dict.fromkeys(VECTORS, _Body.vector),
    ir.AllOf: _Body.all_of,
    **dict.fromkeys((ir.Lane, ir.Wave, ir.Workgroup), _Body.number),
    ir.Matrix: _Body.matrix,
    **dict.fromkeys((ir.Load, ir.LoadTransposed, ir.Store, ir.LoadEach, ir.StoreEach), _Body.access),
    ir.Allocate: _Body.allocate,
    ir.Overlay: _Body.overlay,
    **dict.fromkeys((ir.CopyAsyncChunks, ir.WaitAsync), _Body.load_direct),
    **dict.fromkeys((ir.Asynchronous, ir.Copy, ir.Wgmma, ir.Agree), _Body.asynchronous),
    **dict.fromkeys((ir.MakeExchange, ir.HandOver, ir.TakeOver, ir.TakeOverAll), _Body.exchange),
    **dict.fromkeys((ir.Barrier, ir.Scheduling), _Body.order),
    ir.Loop: _Body.repeat,
    ir.While: _Body.repeat_while,
    ir.Role: _Body.role,
}
"""The lowering of each lane-level op."""


def _is_elementwise(op: Op) -> bool:
    return isinstance(op, ir.Elementwise) and isinstance(op.result.type, Vector)


def _reduces_rows(op: Op, run: Sequence[Op]) -> bool:
    """Return whether an op reduces rows of a result of a run of elementwise ops."""
    made = {other.result for other in run}
    return isinstance(op, ir.ReduceRegisters) and op.x in made and len(op.x.type.shape) - 1 in op.axes


def _runs(ops: Sequence[Op]) -> list[list[Op]]:
    """Return the ops in runs: elementwise ops of one shape together, pure ops between them moved before the run."""
    found: list[list[Op]] = []
    run: list[Op] = []
    """The last of `found`, if it can be extended."""
    for op in ops:
        if run and _is_elementwise(op) and op.result.type.shape == run[0].result.type.shape:
            run.append(op)
        elif run and _reduces_rows(op, run):
            run.append(op)
            run = []
        elif run and op.is_pure and not set(op.operands) & {other.result for other in run}:
            found.insert(-1, [op])
        else:
            found.append([op])
            run = found[-1] if _is_elementwise(op) else []
    return found


def _nothing() -> None:
    pass


def _parameter_kind(v: Value) -> str:
    return "i64" if v.type.dtype == INDEX else in_memory(v.type.dtype)


def _stored(kernel: Kernel) -> set[Value]:
    """Return the memories that lanes or TMA write."""
    return {v for op in walk(kernel.body) for v in op.written}


def _parameters(kernel: Kernel, target: LaneTarget) -> list[Typed]:
    # LLVM assumes that no other pointer writes the memory of a `noalias` one, from the function's entry on, and keeps
    # loaded values across barriers; so arrays that are also stored, or written by an earlier kernel (PDL), have none.
    uses_pdl = any(isinstance(op, ir.WaitPriorLaunch) for op in walk(kernel.body))
    loaded = {v for op in walk(kernel.body) for v in op.read}
    shared_with_others = loaded & _stored(kernel)
    found: list[Typed] = []
    for v in kernel.body.args:
        if isinstance(v.type, Memory):
            alone = "" if uses_pdl or v in shared_with_others else " noalias"
            found.append((f"{target.global_pointer}{alone}", f"%{v.name}"))
            found += [("i64", f"%{v.name}.{axis}") for axis in range(v.type.rank)]
        else:
            found.append((_parameter_kind(v), f"%{v.name}"))
    found += [(_parameter_kind(v), f"%{v.name}") for v in _launched(kernel)]
    found += [(target.global_pointer, f"%{v.name}") for v in _exchanges(kernel)]
    return found
