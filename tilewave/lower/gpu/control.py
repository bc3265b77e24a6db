"""Lowering of lane-level control flow: loops and the roles of waves."""

from __future__ import annotations

from tilewave.ir import ops as ir
from tilewave.ir.core import Block, Value
from tilewave.ir.launch import is_open
from tilewave.lower.gpu.arithmetic import resized
from tilewave.lower.gpu.body import LaneBody
from tilewave.lower.gpu.counts import ByteCount, StepCount
from tilewave.lower.llvm import Typed


def repeat(body: LaneBody, op: ir.Loop) -> None:
    counter, *args = op.body.args
    kind = body.registers.kind(counter)
    trips_kind, trips = body.registers.scalars[op.trips]
    trips = resized(body.f, trips, trips_kind, kind, 1)
    if body.registers.positions.ranges.of(op.trips)[1] <= 1:
        once(body, op, body.f.value(f"icmp sgt {kind} {trips}, 0"), kind)
        return

    count = counter_of(body, op, kind, trips)

    def holds(parts: list[Typed]) -> str:
        return count.goes_on(parts[0][1])

    def step(parts: list[Typed]) -> list[Typed]:
        body.registers.bind(op.body.args, [(kind, count.step(parts[0][1])), *parts[1:]])
        yielded = inside(body, op.body, counter)
        following = body.registers.carried(yielded, args)
        return [(kind, count.following(parts[0][1])), *following]

    begin = [(kind, "0"), *body.registers.carried(op.init, args)]
    body.registers.bind(op.results, body.f.loop_while(begin, holds, step)[1:])


def counter_of(body: LaneBody, op: ir.Loop, kind: str, trips: str) -> StepCount | ByteCount:
    """Return a loop's counter: steps, or, for a dynamic trip count, the bytes by which they advance windows."""
    moved = body.global_memory.moved_bytes(op, body.places) if is_open(body.kernel) and kind == "i32" else 0
    least, most = body.registers.positions.ranges.of(op.trips)
    if moved > 1 and least != most and most * moved < 1 << 32:
        return ByteCount(body.f, moved, body.f.value(f"mul nuw i32 {trips}, {moved}"))
    return StepCount(body.f, kind, trips)


def once(body: LaneBody, op: ir.Loop, holds: str, kind: str) -> None:
    """Emit a loop of at most one step as a branch: LLVM would hoist loop-invariant code out of a loop."""
    args = op.body.args[1:]
    before = body.registers.carried(op.init, args)

    def step() -> list[Typed]:
        body.registers.bind(op.body.args, [(kind, "0"), *before])
        return body.registers.carried(inside(body, op.body, op.body.args[0]), args)

    body.registers.bind(op.results, body.f.choose(holds, step, lambda: before))


def repeat_while(body: LaneBody, op: ir.While) -> None:
    def holds(parts: list[Typed]) -> str:
        body.registers.bind(op.condition.args, parts)
        (holds,) = inside(body, op.condition, op.condition.args[0])
        return body.registers.truth(holds)

    def step(parts: list[Typed]) -> list[Typed]:
        body.registers.bind(op.body.args, parts)
        return body.registers.carried(inside(body, op.body, op.body.args[0]), op.condition.args)

    body.registers.bind(op.results, body.f.loop_while(body.registers.carried(op.init, op.condition.args), holds, step))


def inside(body: LaneBody, block: Block, loop: Value) -> list[Value]:
    before, body.registers.loop = body.registers.loop, loop
    yielded = body.block(block)
    body.registers.loop = before
    return yielded


def role(body: LaneBody, op: ir.Role) -> None:
    wave = body.target.wave(body.f)
    after_first = body.f.value(f"icmp uge i32 {wave}, {op.first}")
    before_last = body.f.value(f"icmp ult i32 {wave}, {op.last}")
    mine = body.f.value(f"and i1 {after_first}, {before_last}")

    more, fewer = body.async_ops.registers(op) if body.async_ops else (_nothing, _nothing)

    def write() -> None:
        more()
        body.block(op.body)

    before, body.leader = body.leader, op.first
    body.f.when(mine, write, fewer)
    body.leader = before


def _nothing() -> None:
    pass
