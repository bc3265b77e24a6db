"""Slots in which workgroups hand tiles to each other: memory of the launch, behind the kernel's arguments.

    slot 0: wave 0: registers 0 to 3 of lane 0, of lane 1, …; registers 4 to 7 of lane 0, …     wave 1: …
    slot 1: …
    behind all slots: a flag for each wave of each slot, 0 where it is empty

Both sides hold their tiles alike, so that neither changes its layout, and neighbouring lanes touch neighbouring bytes.
A wave waits for the flag of its number alone, and no waves meet.
"""

from __future__ import annotations

from math import prod

from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.types import Exchange
from tilewave.lower.gpu.asynchronous_target import AsynchronousTarget
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.values import BITS, Held, regrouped

TOGETHER, FLAG_BYTES = 4, 32
"""Registers that a lane moves at once; flags lie so far apart that waiting for one does not slow the next."""


def exchange_bytes(kind: Exchange, kernel: Kernel) -> int:
    """The slots, and their flags."""
    return prod(kind.shape) * kind.dtype.bytes + kind.shape[0] * prod(kernel.waves) * FLAG_BYTES


class Exchanges:
    """The part of a kernel that speaks with other workgroups."""

    def __init__(self, target: AsynchronousTarget, numbers: Registers, kernel: Kernel) -> None:
        self.target, self.n, self.f = target, numbers, numbers.f
        self.lanes, self.waves = kernel.lanes, prod(kernel.waves)

    def op(self, op: Op) -> None:
        match op:
            case ir.MakeExchange():
                pass  # the launch made it
            case ir.HandOver(tile, exchange, slot):
                self.hand_over(tile, exchange, slot)
            case ir.TakeOver(tile, exchange, slot):
                self.n.vectors[op.result] = self.take_over(tile, exchange, slot)
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def hand_over(self, tile: Value, exchange: Value, slot: Value) -> None:
        x = regrouped(self.f, self.n.vector(tile), TOGETHER)
        for part, where in zip(x.parts, self.places(x, exchange, slot), strict=True):
            self.f.do(f"store {x.type} {part}, {self.n.target.global_pointer} {where}, align {self.bytes(x)}")
        self.target.fill(self.f, self.flag(exchange, slot))

    def take_over(self, tile: Value, exchange: Value, slot: Value) -> Held:
        x = regrouped(self.f, self.n.vector(tile), TOGETHER)
        self.target.empty(self.f, self.flag(exchange, slot))
        add = "fadd" if x.kind == "float" else "add"
        parts = []
        for part, where in zip(x.parts, self.places(x, exchange, slot), strict=True):
            other = self.f.value(f"load {x.type}, {self.n.target.global_pointer} {where}, align {self.bytes(x)}")
            parts.append(self.f.value(f"{add} {x.type} {part}, {other}"))
        return Held(x.shape, x.kind, TOGETHER, tuple(parts))

    # -- where

    def places(self, x: Held, exchange: Value, slot: Value) -> list[str]:
        """Of each part of this lane's registers."""
        kind = exchange.type
        assert isinstance(kind, Exchange)
        far = self.scaled(self.number(slot), prod(kind.shape[1:]) * kind.dtype.bytes)
        wave = self.scaled(self.n.target.wave(self.f), len(x.parts) * self.lanes * self.bytes(x))
        lane = self.scaled(self.n.target.lane(self.f), self.bytes(x))
        first = self.f.value(f"add i64 {self.f.value(f'add i64 {far}, {wave}')}, {lane}")
        begin = self.at(f"%{exchange.name}", first)
        return [self.at(begin, str(i * self.lanes * self.bytes(x))) for i in range(len(x.parts))]

    def flag(self, exchange: Value, slot: Value) -> str:
        kind = exchange.type
        assert isinstance(kind, Exchange)
        before = self.at(f"%{exchange.name}", str(prod(kind.shape) * kind.dtype.bytes))
        number = self.f.value(f"mul i32 {self.number(slot)}, {self.waves}")
        number = self.f.value(f"add i32 {number}, {self.n.target.wave(self.f)}")
        return self.at(before, self.scaled(number, FLAG_BYTES))

    def at(self, pointer: str, far: str) -> str:
        return self.f.value(f"getelementptr i8, {self.n.target.global_pointer} {pointer}, i64 {far}")

    def scaled(self, number: str, by: int) -> str:
        wide = self.f.value(f"zext i32 {number} to i64")
        return self.f.value(f"mul i64 {wide}, {by}")

    def number(self, v: Value) -> str:
        return self.n.sum(self.n.positions.of(v), 32)

    def bytes(self, x: Held) -> int:
        """That a lane moves at once."""
        return TOGETHER * BITS[x.kind] // 8
