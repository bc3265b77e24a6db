"""Lowering of lane-level accesses: allocations, loads and stores of global and shared memory."""

from __future__ import annotations

from typing import TypeGuard

from tilewave.ir import ops as ir
from tilewave.ir.core import Value
from tilewave.ir.placements import elements
from tilewave.ir.types import BOOL, Memory
from tilewave.lower.elements import in_memory
from tilewave.lower.gpu.arithmetic import resized
from tilewave.lower.gpu.body import SHARED_ALIGNMENT, LaneBody
from tilewave.lower.gpu.memory import GlobalPlace
from tilewave.lower.gpu.shared import SharedPlace
from tilewave.lower.gpu.unaligned import is_quicker_in_blocks, request_blocks, store_unaligned, takes_blocks
from tilewave.lower.gpu.values import Held, regrouped


def allocate(body: LaneBody, op: ir.Allocate) -> None:
    memory = op.result.type
    assert isinstance(memory, Memory)
    aligned = body.target.asynchronous.tile_alignment if body.target.asynchronous else SHARED_ALIGNMENT
    pointer = body.allot(op.result.name, elements(memory) * memory.dtype.bytes, aligned)
    body.places[op.result] = SharedPlace(memory, pointer)


def overlay(body: LaneBody, op: ir.Overlay) -> None:
    under = body.places[op.memory]
    assert isinstance(under, SharedPlace) and isinstance(op.result.type, Memory)
    body.places[op.result] = SharedPlace(op.result.type, under.pointer)


def access(body: LaneBody, op: ir.Load | ir.LoadTransposed | ir.Store | ir.LoadEach | ir.StoreEach) -> None:
    place = body.places[op.memory]
    memory = body.global_memory if isinstance(place, GlobalPlace) else body.shared_memory
    each = body.indexed_memory if isinstance(place, GlobalPlace) else body.shared_memory
    match op:
        case ir.Load() if loads_blocks(body, op, place):
            assert isinstance(place, GlobalPlace)
            finish = request_blocks(body.global_memory, op, place)
            body.requested[op.result] = lambda: from_memory(body, finish(), op.result)
        case ir.StoreUnaligned(x) if in_rows(place, body) and takes_blocks(body.global_memory, op, place, x.type.shape):
            assert isinstance(place, GlobalPlace)
            store_unaligned(body.global_memory, op, to_memory(body, x), place)
        case ir.Load():
            body.registers.vectors[op.result] = from_memory(body, memory.load(op, place), op.result)  # type: ignore[arg-type]
        case ir.LoadTransposed():
            assert isinstance(place, SharedPlace), f"{op.loc}: {op.memory} is not shared"
            found = body.shared_memory.load_transposed(op, place)
            body.registers.vectors[op.result] = from_memory(body, found, op.result)
        case ir.LoadEach():
            found = each.load_each(op, place)  # type: ignore[arg-type]
            body.registers.vectors[op.result] = from_memory(body, found, op.result)
        case ir.Store(x):
            memory.store(op, to_memory(body, x), place)  # type: ignore[arg-type]
        case ir.StoreEach(x):
            each.store_each(op, to_memory(body, x), place)  # type: ignore[arg-type]
        case _:
            raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")


def misalignment(body: LaneBody, op: ir.Misalignment) -> None:
    f, memory, place = body.f, body.global_memory, body.places[op.memory]
    assert isinstance(place, GlobalPlace), f"{op.loc}: {op.memory} is not global"
    elements = memory.flat(place, [memory.n.sum(memory.n.positions.of(v), 64) for v in op.at])
    far = f.value(f"mul i64 {elements}, {place.bytes}")
    begin = f.value(f"ptrtoint {memory.target.global_pointer} {place.pointer} to i64")
    address = f.value(f"add i64 {begin}, {far}")
    found = f.value(f"lshr i64 {address}, {place.bytes.bit_length() - 1}")
    inside = f.value(f"and i64 {found}, {op.chunk - 1}")
    body.registers.put(op.result, resized(f, inside, "i64", body.registers.kind(op.result), 1))


def in_rows(place: GlobalPlace | SharedPlace, body: LaneBody) -> TypeGuard[GlobalPlace]:
    """Return whether `place` is global memory without windows; windows move unaligned chunks by elements."""
    return isinstance(place, GlobalPlace) and body.target.windows is None


def loads_blocks(body: LaneBody, op: ir.Load, place: GlobalPlace | SharedPlace) -> bool:
    """Return whether unaligned chunks are loaded as aligned blocks and shifted."""
    if not in_rows(place, body):
        return False
    if isinstance(op, ir.LoadUnaligned):
        return takes_blocks(body.global_memory, op, place, op.result.type.shape)
    return is_quicker_in_blocks(body.global_memory, op, place)


def load_direct(body: LaneBody, op: ir.CopyAsyncChunks | ir.WaitAsync) -> None:
    assert body.direct_loads is not None, f"{op.loc}: {body.kernel.name} has no direct loads, or its target lacks them"
    if isinstance(op, ir.WaitAsync):
        body.direct_loads.wait(op)
        return
    place, to = body.places[op.memory], body.places[op.to]
    assert isinstance(place, GlobalPlace) and isinstance(to, SharedPlace)
    body.direct_loads.load_direct(op, place, to)


def from_memory(body: LaneBody, x: Held, v: Value) -> Held:
    """Return x as held in registers: booleans are bytes in memory and bits in registers."""
    if v.type.dtype != BOOL:
        return x
    x = regrouped(body.f, x, 1)
    return Held(x.shape, "i1", 1, tuple(body.f.value(f"icmp ne i8 {part}, 0") for part in x.parts))


def to_memory(body: LaneBody, v: Value) -> Held:
    x = body.registers.vector(v)
    if v.type.dtype != BOOL:
        return x
    x = regrouped(body.f, x, 1)
    kind = in_memory(BOOL)
    return Held(x.shape, kind, 1, tuple(body.f.value(f"zext i1 {part} to {kind}") for part in x.parts))
