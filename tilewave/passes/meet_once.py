"""Waves that meet for one number of a row, and again for a sum of what is relative to it, meet once.

store(%own, %m)                            store(%own, %m)                       the wave's own largest number
barrier()                                  %mine = exp2(sub(%x, %own))
%largest = reduce(load(%m))                store(reduce(%mine), %s)
%power = exp2(sub(%x, %largest))       →   barrier()
store(reduce(%power), %s)                  %all = load(%m)
barrier()                                  %largest = reduce(%all)
%sum = reduce(load(%s))                    %sum = reduce(mul(load(%s), exp2(sub(%all, %largest))))
                                           %power = exp2(sub(%x, %largest))

So with powers relative to the largest number, and with squares relative to the mean: Σ (x - mean)² of n numbers is
Σ (x - own)² + n · (own - mean)², where `own` is their own mean. A wave goes on as soon as its own part of the row is
there, while others still wait for theirs. Differences are computed twice then, so that it pays only where they are too
many to be held over the second meeting, and would be in any case (`recompute_rows`). The order of the sum stays, its
terms are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import inf, prod
from typing import Protocol

from tilewave.analysis.held_registers import MOST_HELD_BYTES, held_bytes
from tilewave.analysis.meetings import Meeting, Meetings, place
from tilewave.analysis.ranges import Ranges
from tilewave.ir.build import Builder
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Const,
    Div,
    Equal,
    Exp,
    Exp2,
    Exp2Flushed,
    Load,
    Loop,
    Mul,
    ReduceHalves,
    ReduceLanes,
    ReduceRegisters,
    Reduction,
    Renew,
    Select,
    Sub,
)
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import Scalar


@dataclass(frozen=True)
class MeetOnce:
    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        wide = (held_bytes(v) > self.most_bytes for op in walk(kernel.body) for v in op.results)
        return replace(kernel, body=_Kernel(kernel, self.most_bytes).block(kernel.body)) if any(wide) else kernel


class _Terms(Protocol):
    """What the second meeting adds up: something of the differences of `x` to `base`, which the first one found.

    `ops` compute it, in order, from the one on that repeats `base`; `leading` compute `base` of what was found.
    """

    @property
    def x(self) -> Value: ...
    @property
    def base(self) -> Value: ...
    @property
    def leading(self) -> tuple[Op, ...]: ...
    @property
    def ops(self) -> tuple[Op, ...]: ...

    def own_base(self, out: Builder, own: Value) -> Value:
        """What a wave takes for the base, from what it has found itself."""
        ...

    def of_all(self, out: Builder, first: Meeting, second: Meeting) -> Value:
        """What the waves left for the second meeting, relative to the base of all of them."""
        ...


@dataclass(frozen=True)
class _Powers:
    """exp((x - largest) · scale)."""

    x: Value
    base: Value
    ops: tuple[Op, ...]
    power: type[Exp | Exp2 | Exp2Flushed]
    scale: Value | None
    leading: tuple[Op, ...] = ()

    def own_base(self, out: Builder, own: Value) -> Value:
        none = out.elementwise(Equal, own, out.const(-inf, own.type))  # -inf - -inf is no number
        return out.emit(Select, none, out.const(0.0, own.type), own, type=own.type)

    def of_all(self, out: Builder, first: Meeting, second: Meeting) -> Value:
        kind = first.all.type
        far = out.elementwise(Sub, first.all, out.emit(Broadcast, self.base, (0,), type=kind))
        if self.scale:
            far = out.elementwise(Mul, far, out.emit(Broadcast, self.scale, type=kind))
        return out.elementwise(Mul, second.all, out.elementwise(self.power, far))


@dataclass(frozen=True)
class _Squares:
    """(x - mean)², where a wave has `count` numbers of x."""

    x: Value
    base: Value
    ops: tuple[Op, ...]
    count: int
    leading: tuple[Op, ...]

    def own_base(self, out: Builder, own: Value) -> Value:
        return out.elementwise(Div, own, out.const(float(self.count), own.type))

    def of_all(self, out: Builder, first: Meeting, second: Meeting) -> Value:
        kind = first.all.type
        count = out.const(float(self.count), kind)
        means = out.elementwise(Div, first.all, count)
        far = out.elementwise(Sub, means, out.emit(Broadcast, self.base, (0,), type=kind))
        return out.elementwise(Add, second.all, out.elementwise(Mul, out.elementwise(Mul, far, far), count))


class _Kernel:
    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.ranges, self.builder, self.most_bytes = Ranges(kernel), Builder(names(kernel)), most_bytes
        self.meetings = Meetings(kernel)
        self.makers = self.meetings.makers

    def block(self, block: Block, instead: Iterable[Op] = ()) -> Block:
        """`instead` are the ops of which none runs where this block does."""
        block = replace(block, ops=tuple(self.inner(op, block) for op in block.ops))
        meetings = list(self.meetings.among(block.ops, set(map(id, instead))))
        for first, second in pairwise(meetings):
            terms = self.terms(first, second)
            late = self.meetings.known_from(block.ops, first, second) if terms else None
            if terms and late is not None and not _take(terms, late):
                return replace(block, ops=tuple(self.met(block.ops, first, second, terms, late)))
        return block

    def inner(self, op: Op, around: Block) -> Op:
        """Also in what is done once or not at all; in a loop, waves could leave their next numbers too early."""
        if not isinstance(op, Loop) or self.ranges.of(op.trips)[1] > 1:
            return op
        others = [o for o in around.ops if isinstance(o, Loop) and self.is_instead(o, op)]
        return map_blocks(op, lambda block: self.block(block, chain.from_iterable(walk(o.body) for o in others)))

    def is_instead(self, one: Loop, other: Loop) -> bool:
        """Whether one of two goes round, and the other does not."""
        rest = [(self.makers.get(a.trips), b.trips) for a, b in ((one, other), (other, one))]
        return any(isinstance(op, Sub) and op.b == trips and self.is_const(op.a, 1) for op, trips in rest)

    def is_const(self, v: Value, value: int) -> bool:
        op = self.makers.get(v)
        return isinstance(op, Const) and op.value == value

    # -- what is added up

    def terms(self, first: Meeting, second: Meeting) -> _Terms | None:
        if second.how != "sum" or not first.is_read_like(second) or not first.is_held_alike():
            return None
        added, reductions = self.meetings.reduced_to(second.own)
        if held_bytes(added) <= self.most_bytes:
            return None
        return self.powers(first, added, reductions) if first.how == "max" else self.squares(first, added, reductions)

    def powers(self, first: Meeting, added: Value, reductions: Sequence[Op]) -> _Powers | None:
        ops, op = list(reductions), self.makers.get(added)
        if isinstance(op, Select) and self.is_const(op.b, 0):  # what lies past the end of a row
            ops.append(op)
            op = self.makers.get(op.a)
        if not isinstance(op, (Exp, Exp2, Exp2Flushed)):
            return None
        ops.append(op)
        power, scale, op = type(op), None, self.makers.get(op.x)
        if isinstance(op, Mul):
            ops.append(op)
            scale, op = self.number(op.b), self.makers.get(op.a)
            if scale is None:
                return None
        shift = self.makers.get(op.b) if isinstance(op, Sub) else None
        if not isinstance(op, Sub) or not isinstance(shift, Broadcast) or shift.x != first.result:
            return None
        return _Powers(op.a, shift.x, (shift, op, *reversed(ops)), power, scale)

    def squares(self, first: Meeting, added: Value, reductions: Sequence[Op]) -> _Squares | None:
        """Only where each wave has as many numbers: without those past the end of a row."""
        square = self.makers.get(added)
        op = self.makers.get(square.a) if isinstance(square, Mul) and square.a == square.b else None
        shift = self.makers.get(op.b) if isinstance(op, Sub) else None
        mean = self.makers.get(shift.x) if isinstance(shift, Broadcast) else None
        if not (square and shift and isinstance(op, Sub) and isinstance(mean, Div)) or mean.a != first.result:
            return None
        summed, steps = self.meetings.reduced_to(first.own)
        if first.how != "sum" or summed != op.a:
            return None
        return _Squares(op.a, mean.result, (shift, op, square, *reversed(reductions)), _combined(steps), (mean,))

    def number(self, v: Value) -> Value | None:
        """What all registers hold, where it is one number."""
        op = self.makers.get(v)
        return op.x if isinstance(op, Broadcast) and isinstance(op.x.type, Scalar) else None

    # -- the block

    def met(
        self, ops: Sequence[Op], first: Meeting, second: Meeting, terms: _Terms, late: Sequence[Op]
    ) -> Iterator[Op]:
        begin, end, last = (place(ops, op) for op in (first.barrier, second.barrier, second.reductions[-1]))
        waits = set(map(id, late))
        yield from ops[:begin]
        yield from (op for op in ops[begin + 1 : end] if id(op) not in waits and op is not second.store)
        yield from self.of_own(first, second, terms)
        known = (first.load, *first.reductions, *terms.leading)
        yield from (second.barrier, *known)
        waiting = [op for op in late if not any(op is other for other in known)]
        for op in ops[end + 1 : last + 1]:
            if any(v in op.operands for other in waiting for v in other.results):
                yield from waiting
                waiting = []
            yield from self.of_all(op, first, second, terms) if op is second.reductions[0] else [op]
        yield from (*waiting, *ops[last + 1 :])  # the sum is there before what would have to be held meanwhile

    def of_own(self, first: Meeting, second: Meeting, terms: _Terms) -> list[Op]:
        """The sum of a wave's own terms, relative to what it found itself."""
        out = self.builder
        out.locate = lambda: second.store.loc
        with out.region():
            copier = Copier(out, "own")
            copier.new.update({terms.base: terms.own_base(out, first.own), terms.x: self.renewed(terms.x)})
            out.ops += [copier.op(op) for op in terms.ops]
            return [*out.ops, replace(second.store, x=copier.new[second.own])]

    def of_all(self, op: Op, first: Meeting, second: Meeting, terms: _Terms) -> list[Op]:
        """What adds up what the waves left, once that is relative to what all of them found."""
        out = self.builder
        out.locate = lambda: op.loc
        with out.region():
            left = terms.of_all(out, first, second)
            return [*out.ops, substitute(op, {second.all: left})]

    def renewed(self, x: Value) -> Value:
        """So that nobody holds wide numbers from the one meeting on to the other where narrow ones are at hand."""
        op = self.makers.get(x)
        if not isinstance(op, Cast) or not isinstance(self.makers.get(op.x), Load) or held_bytes(op.x) >= held_bytes(x):
            return x
        return self.builder.cast(self.builder.emit(Renew, op.x, 0, type=op.x.type), x.type.dtype)


def _take(terms: _Terms, late: Sequence[Op]) -> bool:
    """Whether terms need more of what the first meeting found than their base."""
    own = {terms.base, *(v for op in terms.ops for v in op.results)}
    found = {v for op in late for v in op.results} - own
    return terms.x in found or any(v in found for op in terms.ops for v in op.operands)


def _combined(steps: Iterable[Reduction]) -> int:
    """How many elements become one."""
    count = 1
    for op in steps:
        match op:
            case ReduceRegisters(x, axes):
                count *= prod(x.type.shape[axis] for axis in axes)
            case ReduceLanes(_, bits):
                count *= 1 << len(bits)
            case ReduceHalves():
                count *= 2
            case _:
                raise NotImplementedError(f"{op.loc}: cannot count what {op.name} combines")
    return count
