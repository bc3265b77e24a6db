"""Carry the stage index and the mbarrier parity of a software pipeline from step to step instead of dividing.

    loop(%steps, [%sums, %step]) {             loop(%steps, [%sums, %slot, %phase]) {
      %slot = mod(%step, %c6)                    …
      %round = floor_div(%step, %c6)             %is_last = equal(%slot, %c5)
      %phase = mod(%round, %c2)              →   %next_slot = select(%is_last, %c0, ‹%slot + 1›)
      …                                          %next_phase = mod(‹%phase + (1 where %is_last, else 0)›, %c2)
      yield([%z, ‹%step + 1›])                   yield([%z, %next_slot, %next_phase])
    }                                          }

Dividing the step number by six takes five dependent instructions in every step, before a wave can test whether its
stage has arrived. Where `num_stages` is a power of two, stage index and parity are bits of the step number, and the
loop is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from tilewave.analysis.ranges import Ranges, ranges_of
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import Add, FloorDiv, Loop, Mod, Sub, WaitMbarrier, Yield
from tilewave.ir.rewrite import names, rewrite, substitute
from tilewave.ir.types import INDEX_SCALAR
from tilewave.records import dataclass


def carry_stage_index(kernel: Kernel) -> Kernel:
    """Rewrite the loops that wait on mbarriers."""
    ranges, builder = ranges_of(kernel), Builder(names(kernel))

    def carry(op: Op) -> Sequence[Op] | None:
        if not isinstance(op, Loop) or not any(isinstance(inner, WaitMbarrier) for inner in op.body.ops):
            return None
        rings = _Counters(op, ranges).rings()
        return _carrying(op, rings, builder) if rings else None

    return rewrite(kernel, carry)


@dataclass(frozen=True)
class _StageRing:
    """Pipeline stages that the steps of a loop use in turn."""

    first: Value
    """The initial value of the loop's step counter; the first stage index derives from `first + ahead`."""
    ahead: int
    count: int
    slots: list[Value] = field(default_factory=list)
    phases: list[Value] = field(default_factory=list)


class _Counters:
    """The counters of a loop that grow by one per step, and the stage indices and parities derived from them."""

    def __init__(self, loop: Loop, ranges: Ranges) -> None:
        self.loop, self.ranges = loop, ranges
        self.defs = loop.body.defs
        self.first = {arg: first for _, arg, later, first in loop.carried if self.grows(arg, later)}

    def grows(self, arg: Value, later: Value) -> bool:
        match self.defs.get(later):
            case Add(a, b):
                return a == arg and self.constant(b) == 1
            case _:
                return False

    def constant(self, v: Value) -> int | None:
        low, high = self.ranges.of(v)
        return low if low == high else None

    def rings(self) -> list[_StageRing]:
        found: dict[tuple[Value, int, int], _StageRing] = {}
        for op in self.loop.body.ops:
            match op, self.defs.get(op.a) if isinstance(op, Mod) else None:
                case Mod(_, two), FloorDiv(number, count) if self.constant(two) == 2:
                    ring = self.ring(number, count, found)
                    if ring:
                        ring.phases.append(op.result)
                case Mod(number, count), _:
                    ring = self.ring(number, count, found)
                    if ring:
                        ring.slots.append(op.result)
                case _:
                    pass  # computes no slot
        return list(found.values())

    def ring(self, number: Value, count: Value, found: dict[tuple[Value, int, int], _StageRing]) -> _StageRing | None:
        slots, place = self.constant(count), self.place(number)
        if slots is None or place is None or slots < 1 or slots & slots - 1 == 0:
            return None
        arg, ahead = place
        return found.setdefault((arg, ahead, slots), _StageRing(self.first[arg], ahead, slots))

    def place(self, number: Value) -> tuple[Value, int] | None:
        """Return the step counter that `number` derives from, and the constant difference between them."""
        if number in self.first:
            return number, 0
        match self.defs.get(number):
            case Add(a, b) if (more := self.constant(b)) is not None and (place := self.place(a)):
                return place[0], place[1] + more
            case Sub(a, b) if (less := self.constant(b)) is not None and (place := self.place(a)):
                return place[0], place[1] - less
            case _:
                return None


def _carrying(loop: Loop, rings: Sequence[_StageRing], builder: Builder) -> list[Op]:
    """Return the loop with the stage index and the parity of each software pipeline among its carried values."""
    builder.locate = lambda: loop.loc
    init: list[Value] = []
    args: list[Value] = []
    new: dict[Value, Value] = {}
    with builder.region():
        for ring in rings:
            step = Number(builder, ring.first) + ring.ahead
            init += [(step % ring.count).value, (step // ring.count % 2).value]
            slot, phase = (builder.fresh(name, INDEX_SCALAR) for name in ("slot", "phase"))
            args += [slot, phase]
            new |= dict.fromkeys(ring.slots, slot) | dict.fromkeys(ring.phases, phase)
        before = builder.ops
    with builder.region():
        here = zip(rings, args[::2], args[1::2], strict=True)
        later = [v for ring, slot, phase in here for v in _next(ring, slot, phase, builder)]
        after = builder.ops
    *inside, ends = (substitute(op, new) for op in loop.body.ops)
    assert isinstance(ends, Yield)
    ends = replace(ends, values=(*ends.values, *later))
    body = Block((*loop.body.args, *args), (*inside, *after, ends))
    results = (*loop.results, *(builder.fresh(arg.name, arg.type) for arg in args))
    return [*before, replace(loop, init=(*loop.init, *init), body=body, results=results)]


def _next(ring: _StageRing, slot: Value, phase: Value, builder: Builder) -> tuple[Value, Value]:
    here = Number(builder, slot)
    is_last = here.equals(ring.count - 1)
    return is_last.choose(0, here + 1).value, ((Number(builder, phase) + is_last.choose(1, 0)) % 2).value
