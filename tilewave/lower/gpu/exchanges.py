"""Slots through which workgroups exchange tiles: memory of the launch, passed after the kernel's arguments.

    slot 0: wave 0: registers 0 to 3 of lane 0, of lane 1, …; registers 4 to 7 of lane 0, …     wave 1: …
    slot 1: …
    after all slots: a flag for each wave of each slot, 0 where it is empty

Both sides have the same layout, so neither converts it, and accesses of neighbouring lanes coalesce. Where lanes hold
copies of an element, each stores and loads its own, and a slot is longer than the tile. A wave waits only for the flag
of the wave with its number; there is no barrier.
"""

from __future__ import annotations

from math import gcd, prod

from tilewave.ir import ops as ir
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Exchange
from tilewave.lower.gpu.asynchronous_target import AsynchronousTarget
from tilewave.lower.gpu.registers import Registers
from tilewave.lower.gpu.values import BITS, Held, regrouped

TOGETHER, FLAG_BYTES = 4, 32
"""Registers that a lane moves at once; the distance of flags, so that polling one does not slow down the next."""


def exchange_bytes(exchange: Value, kernel: Kernel) -> int:
    """Return the bytes of the slots and their flags."""
    return exchange.type.shape[0] * (slot_bytes(exchange, kernel) + prod(kernel.waves) * FLAG_BYTES)


def slot_bytes(exchange: Value, kernel: Kernel) -> int:
    """Return the bytes of a slot: of the tile, or of the registers of all lanes where these hold copies.

    Those of warp-specialized kernels hold none, and not all of their waves have a part of the tile.
    """
    kind, ops = exchange.type, list(walk(kernel.body))
    tile = prod(kind.shape[1:]) * int(kind.dtype.bytes)
    if any(isinstance(op, ir.Role) for op in ops):
        return tile
    moved = (op for op in ops if isinstance(op, (ir.HandOver, ir.TakeOver)) and op.exchange == exchange)
    registers = (prod(op.tile.type.shape) // (op.wide if isinstance(op, ir.HandOver) else 1) for op in moved)
    return max(tile, max(registers, default=0) * kernel.lanes * prod(kernel.waves) * int(kind.dtype.bytes))


class Exchanges:
    """Lowers the ops that exchange tiles between workgroups."""

    def __init__(self, target: AsynchronousTarget, numbers: Registers, kernel: Kernel) -> None:
        self.target, self.n, self.f = target, numbers, numbers.f
        self.lanes, self.waves, self.kernel = kernel.lanes, prod(kernel.waves), kernel
        self.slot_bytes: dict[Value, int] = {}

    def op(self, op: Op) -> None:
        match op:
            case ir.MakeExchange():
                pass  # the launch made it
            case ir.HandOver(tile, exchange, slot, wide):
                self.hand_over(tile, exchange, slot, wide)
            case ir.TakeOverAll(tile, exchange, slot, apart, count):
                self.n.vectors[op.result] = self.take_over_all(tile, exchange, slot, apart, count)
            case ir.TakeOver(tile, exchange, slot):
                self.n.vectors[op.result] = self.take_over(tile, exchange, slot)
            case _:
                raise NotImplementedError(f"{op.loc}: cannot lower {op.name}")

    def hand_over(self, tile: Value, exchange: Value, slot: Value, wide: int) -> None:
        x = self.held(tile)
        each, first = len(x.parts) // wide, self.number(slot)
        for i in range(wide):
            for part, where in zip(
                x.parts[i * each :], self.places(each, x, exchange, self.after(first, i)), strict=False
            ):
                self.f.do(f"store {x.type} {part}, {self.n.target.global_pointer} {where}, align {self.bytes(x)}")
        if wide == 1:
            self.target.flags.fill(self.f, self.flag(exchange, first))
        else:
            mine, has_one = self.one_of(first, "1", wide)
            self.target.flags.fill_each(self.f, self.flag(exchange, mine), has_one)

    def take_over(self, tile: Value, exchange: Value, slot: Value) -> Held:
        x = self.held(tile)
        number = self.number(slot)
        self.target.flags.empty(self.f, self.flag(exchange, number))
        return self.added(x, exchange, number)

    def take_over_all(self, tile: Value, exchange: Value, slot: Value, apart: Value, count: int) -> Held:
        """Return the tile plus those of `count` slots: each lane polls one flag, then all slots are loaded."""
        x = self.held(tile)
        first, far = self.number(slot), self.number(apart)
        for done in range(0, count, self.lanes):
            begin = self.f.value(f"add i32 {first}, {self.f.value(f'mul i32 {far}, {done}')}")
            mine, has_one = self.one_of(begin, far, min(self.lanes, count - done))
            self.target.flags.empty_each(self.f, self.flag(exchange, mine), has_one)
        for i in range(count):
            x = self.added(x, exchange, self.f.value(f"add i32 {first}, {self.f.value(f'mul i32 {far}, {i}')}"))
        return x

    def held(self, tile: Value) -> Held:
        """Return the registers of a lane in the groups that it moves at once."""
        return regrouped(self.f, self.n.vector(tile), gcd(TOGETHER, prod(tile.type.shape)))

    def added(self, x: Held, exchange: Value, slot: str) -> Held:
        """Return x plus the tile in a slot."""
        add = "fadd" if x.kind == "float" else "add"
        parts = []
        for part, where in zip(x.parts, self.places(len(x.parts), x, exchange, slot), strict=True):
            other = self.f.value(f"load {x.type}, {self.n.target.global_pointer} {where}, align {self.bytes(x)}")
            parts.append(self.f.value(f"{add} {x.type} {part}, {other}"))
        return Held(x.shape, x.kind, x.width, tuple(parts))

    def one_of(self, first: str, apart: str, count: int) -> tuple[str, str]:
        """Return a slot for each lane, and 1 where it is that lane's alone: lanes beyond `count` repeat the last."""
        lane = self.n.target.lane(self.f)
        inside = self.f.value(f"icmp ult i32 {lane}, {count}")
        which = self.f.value(f"select i1 {inside}, i32 {lane}, i32 {count - 1}")
        far = self.f.value(f"mul i32 {which}, {apart}")
        return self.f.value(f"add i32 {first}, {far}"), self.f.value(f"zext i1 {inside} to i32")

    # -- where

    def after(self, slot: str, count: int) -> str:
        return self.f.value(f"add i32 {slot}, {count}") if count else slot

    def places(self, count: int, x: Held, exchange: Value, slot: str) -> list[str]:
        """Return the addresses in a slot of the `count` parts of this lane's registers."""
        kind = exchange.type
        assert isinstance(kind, Exchange)
        far = self.scaled(slot, self.bytes_of_slot(exchange))
        wave = self.scaled(self.n.target.wave(self.f), count * self.lanes * self.bytes(x))
        lane = self.scaled(self.n.target.lane(self.f), self.bytes(x))
        first = self.f.value(f"add i64 {self.f.value(f'add i64 {far}, {wave}')}, {lane}")
        begin = self.at(f"%{exchange.name}", first)
        return [self.at(begin, str(i * self.lanes * self.bytes(x))) for i in range(count)]

    def flag(self, exchange: Value, slot: str) -> str:
        kind = exchange.type
        assert isinstance(kind, Exchange)
        before = self.at(f"%{exchange.name}", str(kind.shape[0] * self.bytes_of_slot(exchange)))
        number = self.f.value(f"mul i32 {slot}, {self.waves}")
        number = self.f.value(f"add i32 {number}, {self.n.target.wave(self.f)}")
        return self.at(before, self.scaled(number, FLAG_BYTES))

    def bytes_of_slot(self, exchange: Value) -> int:
        if exchange not in self.slot_bytes:
            self.slot_bytes[exchange] = slot_bytes(exchange, self.kernel)
        return self.slot_bytes[exchange]

    def at(self, pointer: str, far: str) -> str:
        return self.f.value(f"getelementptr i8, {self.n.target.global_pointer} {pointer}, i64 {far}")

    def scaled(self, number: str, by: int) -> str:
        wide = self.f.value(f"zext i32 {number} to i64")
        return self.f.value(f"mul i64 {wide}, {by}")

    def number(self, v: Value) -> str:
        return self.n.sum(self.n.positions.of(v), 32)

    def bytes(self, x: Held) -> int:
        """Return the bytes that a lane moves at once."""
        return x.width * BITS[x.kind] // 8
