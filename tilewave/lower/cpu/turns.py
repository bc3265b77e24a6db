"""Turns at tiles of arrays: a thread polls the counter of a tile, adds, and increases it by 1.

Threads take workgroups in the order of their numbers, so the one that is waited for is running or has ended.
"""

from __future__ import annotations

from typing import Any

from tilewave.ir.ops import PassTurn, TurnOp, WaitTurn
from tilewave.lower.cpu.body import TaskBody
from tilewave.lower.llvm import Typed


def wait_turn(body: TaskBody, op: WaitTurn) -> None:
    f, counter = body.f, counter_address(body, op)
    turn = f.value(f"trunc i64 {body.values[op.turn]} to i32")

    def passed() -> list[Typed]:
        return [("i32", f.value(f"load atomic i32, ptr {counter} acquire, align 4"))]

    f.loop_while(passed(), lambda carried: f.value(f"icmp slt i32 {carried[0][1]}, {turn}"), lambda _: passed())


def pass_turn(body: TaskBody, op: PassTurn) -> None:
    body.f.value(f"atomicrmw add ptr {counter_address(body, op)}, i32 1 release, align 4")


def counter_address(body: TaskBody, op: TurnOp) -> Any:
    return body.values[op.turns].address(body.f, body.taken(op.at))
