"""Lowering of a lane-level kernel to LLVM IR: one function that every lane of every workgroup runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op
from tilewave.ir.faults import lacking, telling
from tilewave.ir.launch import is_open, skeleton
from tilewave.ir.types import Memory, Vector
from tilewave.lower.elements import literal
from tilewave.lower.gpu.accesses import access, allocate, load_direct, misalignment, overlay
from tilewave.lower.gpu.arithmetic import resized
from tilewave.lower.gpu.body import LaneBody, Lowerings, exchanges, launched
from tilewave.lower.gpu.control import repeat, repeat_while, role
from tilewave.lower.gpu.exchanges import exchange_bytes
from tilewave.lower.gpu.products import multiply
from tilewave.lower.gpu.target import LaneTarget
from tilewave.lower.gpu.turns import turn
from tilewave.lower.gpu.values import cut
from tilewave.lower.launch_arguments import KernelArgument, MapArgument, Reach
from tilewave.lower.llvm import LlvmFunction
from tilewave.records import dataclass


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
        body = LaneBody(kernel, target, LOWERINGS, any_strides, alignments or {}, whole_rows)
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
    found += [KernelArgument(v.name, "symbol", dtype=v.type.dtype.name) for v in launched(kernel)]
    for v in exchanges(kernel):
        size = exchange_bytes(v, kernel)
        found.append(KernelArgument(v.name, "scratch", dtype=v.type.dtype.name, scratch_bytes=size))
    return tuple(found)


def launch(body: LaneBody, op: ir.Launch) -> None:
    for v in op.results:
        body.argument(v)


def elementwise(body: LaneBody, op: ir.Elementwise) -> None:
    """Emit a scalar elementwise op; those on vectors are emitted in runs."""
    taken = [body.registers.scalars[v] for v in op.operands]
    body.registers.put(op.result, body.registers.arithmetic.apply(op, taken, 1))


def const(body: LaneBody, op: ir.Const) -> None:
    if isinstance(op.result.type, Vector):
        vector(body, op)
    else:
        body.registers.put(op.result, literal(op.value, op.result.type.dtype))


def vector(body: LaneBody, op: Op) -> None:
    body.registers.vectors[op.result] = body.registers.make(op)


def all_of(body: LaneBody, op: ir.AllOf) -> None:
    """Bind a scalar to the first register, which is the same in all lanes."""
    x = body.registers.vector(op.x)
    (one,) = cut(body.f, x.parts[0], x.kind, x.width, 1)
    body.registers.put(op.result, one)


def matrix(body: LaneBody, op: ir.Matrix) -> None:
    a, b, acc = (body.registers.vector(v) for v in (op.a, op.b, op.acc))
    body.registers.vectors[op.result] = multiply(body.f, body.target, op, a, b, acc)


def asynchronous(body: LaneBody, op: ir.Asynchronous | ir.Copy | ir.Wgmma | ir.Agree) -> None:
    if body.async_ops is None:
        raise NotImplementedError(f"{op.loc}: this machine cannot do {op.name}")
    body.async_ops.op(op, body.leader)


def exchange(body: LaneBody, op: Op) -> None:
    if body.exchanges is None:
        raise NotImplementedError(f"{op.loc}: this machine cannot do {op.name}")
    body.exchanges.op(op)


def order(body: LaneBody, op: Op) -> None:
    """Emit ops that affect scheduling and ordering, not values."""
    match op:
        case ir.Barrier(waves=1):
            body.target.order_lanes(body.f)
        case ir.Barrier() if body.async_ops:
            body.async_ops.barrier(op)
        case ir.Barrier(over="global"):
            body.target.wait_memory(body.f)
            body.target.barrier(body.f)
        case ir.Barrier() if body.direct_loads and op in body.transits:
            if op in body.turnovers:
                body.target.wait_stores(body.f)
            body.direct_loads.direct.meet(body.f)
        case ir.Meet():
            body.target.barrier(body.f)
        case ir.Barrier():
            if body.handovers.around_a_loop(op):
                body.target.wait_stores(body.f)
            body.target.barrier(body.f)
        case ir.Priority(level):
            body.target.priority(body.f, level)
        case ir.KeepOrder():
            body.target.keep_order(body.f)
        case ir.InstructionGroup(kind, count):
            body.target.together(body.f, kind, count)
        case ir.WaitLoads():
            body.target.wait_loads(body.f)
        case _:
            raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")


def number(body: LaneBody, op: Op) -> None:
    ask: dict[type[Op], Callable[[LlvmFunction], str]] = {
        ir.Lane: body.target.lane,
        ir.Wave: body.target.wave,
        ir.Workgroup: body.target.workgroup,
    }
    body.registers.put(op.result, resized(body.f, ask[type(op)](body.f), "i32", body.registers.kind(op.result), 1))


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
LOWERINGS: Lowerings = {
    ir.Elementwise: elementwise,
    ir.Const: const,
    ir.Launch: launch,
    **dict.fromkeys(VECTORS, vector),
    ir.AllOf: all_of,
    **dict.fromkeys((ir.Lane, ir.Wave, ir.Workgroup), number),
    ir.Matrix: matrix,
    **dict.fromkeys((ir.Load, ir.LoadTransposed, ir.Store, ir.LoadEach, ir.StoreEach), access),
    ir.Misalignment: misalignment,
    ir.Allocate: allocate,
    ir.Overlay: overlay,
    **dict.fromkeys((ir.CopyAsyncChunks, ir.WaitAsync), load_direct),
    **dict.fromkeys((ir.Asynchronous, ir.Copy, ir.Wgmma, ir.Agree), asynchronous),
    **dict.fromkeys((ir.MakeExchange, ir.HandOver, ir.TakeOver, ir.TakeOverAll), exchange),
    ir.TurnOp: turn,
    **dict.fromkeys((ir.Barrier, ir.Scheduling), order),
    ir.Loop: repeat,
    ir.While: repeat_while,
    ir.Role: role,
}
"""The lowering of each lane-level op."""
