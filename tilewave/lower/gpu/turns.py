"""Turns at tiles of arrays: a wave polls the counter of a tile, adds, and increases it by 1."""

from __future__ import annotations

from tilewave.ir.ops import TurnOp, WaitTurn
from tilewave.lower.gpu.body import LaneBody
from tilewave.lower.gpu.memory import GlobalPlace


def turn(body: LaneBody, op: TurnOp) -> None:
    counter = counter_address(body, op)
    if isinstance(op, WaitTurn):
        before = body.registers.sum(body.registers.positions.of(op.turn), 64)
        passed = body.f.value(f"trunc i64 {body.f.value(f'mul i64 {before}, {op.waves}')} to i32")
        body.target.wait_turn(body.f, counter, passed)
    else:
        body.target.pass_turn(body.f, counter)


def counter_address(body: LaneBody, op: TurnOp) -> str:
    place = body.places[op.turns]
    assert isinstance(place, GlobalPlace), f"{op.loc}: {op.turns} is an array"
    at = [body.registers.sum(body.registers.positions.of(v), 64) for v in op.at]
    offset = body.global_memory.flat(place, at)
    return body.f.value(f"getelementptr i32, {body.target.global_pointer} {place.pointer}, i64 {offset}")
