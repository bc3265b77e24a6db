"""Waves that meet for the largest number of a row, and again for the sum of its powers, meet once.

store(%own, %m)                            store(%own, %m)                       the wave's own largest number
barrier()                                  %mine = exp2(sub(%x, %own))
%largest = reduce(load(%m))                store(reduce(%mine), %s)
%power = exp2(sub(%x, %largest))       →   barrier()
store(reduce(%power), %s)                  %all = load(%m)
barrier()                                  %largest = reduce(%all)
%sum = reduce(load(%s))                    %sum = reduce(mul(load(%s), exp2(sub(%all, %largest))))
                                           %power = exp2(sub(%x, %largest))

A wave goes on as soon as its own part of the row is there, while others still wait for theirs. Powers are computed
twice then, so that it pays only where they are too many to be held over the second meeting, and would be in any case
(`recompute_rows`). The order of the sum stays, its terms are rounded otherwise: each wave's part is relative to its
own largest number first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import inf

from tilewave.analysis.held_registers import MOST_HELD_BYTES, held_bytes
from tilewave.analysis.ranges import Ranges
from tilewave.ir.build import Builder
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.ops import (
    Barrier,
    Broadcast,
    Cast,
    Const,
    Equal,
    Exp,
    Exp2,
    Load,
    Loop,
    Mul,
    Reduction,
    Renew,
    Select,
    Store,
    Sub,
)
from tilewave.ir.placements import lies_in
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import Scalar


@dataclass(frozen=True)
class MeetOnce:
    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        if not any(isinstance(op, (Exp, Exp2)) for op in walk(kernel.body)):
            return kernel
        return replace(kernel, body=_Kernel(kernel, self.most_bytes).block(kernel.body))


@dataclass(frozen=True)
class _Meeting:
    """What each wave leaves, the barrier, and what all of them make of it."""

    store: Store
    barrier: Barrier
    load: Load
    reductions: tuple[Reduction, ...]

    @property
    def how(self) -> str:
        return self.reductions[0].how

    @property
    def result(self) -> Value:
        return self.reductions[-1].result

    def is_read_like(self, other: _Meeting) -> bool:
        mine, its = self.load, other.load
        return (mine.result.type, mine.at, mine.steps) == (its.result.type, its.at, its.steps)


@dataclass(frozen=True)
class _Powers:
    """The sum of exp((x - largest) · scale), and what is computed for it, in order; `shift` repeats the largest."""

    x: Value
    shift: Broadcast
    scale: Value | None
    power: Exp | Exp2
    ops: tuple[Op, ...]


class _Kernel:
    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.ranges, self.builder, self.most_bytes = Ranges(kernel), Builder(names(kernel)), most_bytes
        self.makers: dict[Value, Op] = {}
        self.users: dict[Value, list[Op]] = {}
        for op in walk(kernel.body):
            self.makers.update(dict.fromkeys(op.results, op))
            for v in dict.fromkeys(op.operands):
                self.users.setdefault(v, []).append(op)

    def block(self, block: Block, instead: Iterable[Op] = ()) -> Block:
        """`instead` are the ops of which none runs where this block does."""
        block = replace(block, ops=tuple(self.inner(op, block) for op in block.ops))
        meetings = list(self.meetings(block.ops, set(map(id, instead))))
        for first, second in pairwise(meetings):
            if first.how == "max" and second.how == "sum" and first.is_read_like(second):
                powers = self.powers(first, second)
                if powers and (late := self.late(block.ops, first, second)) is not None:
                    return replace(block, ops=tuple(self.met(block.ops, first, second, powers, late)))
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
        return any(isinstance(op, Sub) and op.b == trips and self.is_one(op.a) for op, trips in rest)

    def is_one(self, v: Value) -> bool:
        op = self.makers.get(v)
        return isinstance(op, Const) and op.value == 1

    # -- what is there

    def meetings(self, ops: Sequence[Op], instead: set[int]) -> Iterator[_Meeting]:
        """Those of numbers that are left once, and read once behind the next barrier."""
        left: dict[Value, Store] = {}
        handed: dict[Value, tuple[Store, Barrier]] = {}
        for op in ops:
            match op:
                case Barrier(waves=0, over="shared"):
                    handed = {memory: (store, op) for memory, store in left.items()}
                    left = {}
                case Store(_, memory) if lies_in(memory, "shared"):
                    if sum(id(user) not in instead for user in self.users[memory]) == 2:
                        left[memory] = op
                case Load(memory) if memory in handed:
                    reductions = tuple(self.reductions(op.result))
                    if reductions:
                        yield _Meeting(*handed[memory], op, reductions)
                case _:
                    pass  # nobody is told of it

    def reductions(self, v: Value) -> Iterator[Reduction]:
        """What is made of a value, one after the other, and nothing else."""
        while len(users := self.users.get(v, [])) == 1 and isinstance(users[0], Reduction):
            yield users[0]
            v = users[0].result

    def powers(self, first: _Meeting, second: _Meeting) -> _Powers | None:
        """What the second meeting adds up, if these are powers of differences to what the first one found."""
        ops: list[Op] = []
        v = second.store.x
        while isinstance(op := self.makers.get(v), Reduction):
            ops.append(op)
            v = op.x
        if isinstance(op, Select) and self.is_zero(op.b):
            ops.append(op)
            op = self.makers.get(op.a)
        if not ops or not isinstance(op, (Exp, Exp2)) or held_bytes(op.result) <= self.most_bytes:
            return None
        power, scale = op, None
        op = self.makers.get(power.x)
        ops.append(power)
        if isinstance(op, Mul):
            ops.append(op)
            scale, op = op.b, self.makers.get(op.a)
        if not isinstance(op, Sub) or (scale and self.number(scale) is None):
            return None
        shift = self.makers.get(op.b)
        is_largest = isinstance(shift, Broadcast) and shift.x == first.result
        if not is_largest or not isinstance(shift, Broadcast) or not self.repeats(first):
            return None
        return _Powers(op.a, shift, scale, power, (shift, op, *reversed(ops)))

    def repeats(self, first: _Meeting) -> bool:
        """Whether a wave's own number, and what all have left, are held as the largest of them is."""
        whole, found = first.load.result.type, first.result.type
        return first.store.x.type == found and whole.shape[:1] == found.shape

    def is_zero(self, v: Value) -> bool:
        op = self.makers.get(v)
        return isinstance(op, Const) and op.value == 0

    def number(self, v: Value) -> Value | None:
        """What all registers hold, where it is one number."""
        op = self.makers.get(v)
        return op.x if isinstance(op, Broadcast) and isinstance(op.x.type, Scalar) else None

    def late(self, ops: Sequence[Op], first: _Meeting, second: _Meeting) -> set[int] | None:
        """What between the barriers comes from the first meeting, by identity; None where it cannot wait."""
        begin, end = _index(ops, first.barrier), _index(ops, second.barrier)
        found, made = {id(first.load)}, set(first.load.results)
        for op in ops[begin + 1 : end]:
            if made.intersection(op.operands) and op is not second.store:
                found.add(id(op))
                made.update(op.results)
                if op.has_effect or (op.read and op is not first.load):
                    return None
            elif op not in (first.load, second.store) and (
                op.blocks or any(lies_in(m, "shared") for m in (*op.read, *op.written))
            ):
                return None
        return found

    # -- the block

    def met(
        self, ops: Sequence[Op], first: _Meeting, second: _Meeting, powers: _Powers, late: set[int]
    ) -> Iterator[Op]:
        begin, end, last = (_index(ops, op) for op in (first.barrier, second.barrier, second.reductions[-1]))
        between = [op for op in ops[begin + 1 : end] if op is not second.store]
        yield from ops[:begin]
        yield from (op for op in between if id(op) not in late)
        yield from self.of_own(first, second, powers)
        yield from (second.barrier, first.load, *first.reductions)
        known = {id(first.load), *map(id, first.reductions)}
        waiting = [op for op in between if id(op) in late - known]
        for op in ops[end + 1 : last + 1]:
            if any(v in op.operands for other in waiting for v in other.results):
                yield from waiting
                waiting = []
            yield from self.relative(op, first, second, powers)
        yield from (*waiting, *ops[last + 1 :])  # the sum is there before what would have to be held meanwhile

    def relative(self, op: Op, first: _Meeting, second: _Meeting, powers: _Powers) -> list[Op]:
        """The op; in front of what adds up the waves' sums, these are made relative to the largest number of all."""
        if op is not second.reductions[0]:
            return [op]
        out, left = self.builder, second.load.result
        out.locate = lambda: op.loc
        with out.region():
            far = out.elementwise(Sub, first.load.result, out.emit(Broadcast, first.result, (0,), type=left.type))
            if powers.scale:
                far = out.elementwise(Mul, far, out.emit(Broadcast, self.number(powers.scale), type=left.type))
            scaled = out.elementwise(Mul, left, out.elementwise(type(powers.power), far))
            return [*out.ops, substitute(op, {left: scaled})]

    def of_own(self, first: _Meeting, second: _Meeting, powers: _Powers) -> list[Op]:
        """The sum of the powers of a wave, relative to its own largest number."""
        out, own = self.builder, first.store.x
        out.locate = lambda: second.store.loc
        with out.region():
            none = out.elementwise(Equal, own, out.const(-inf, own.type))
            base = out.emit(Select, none, out.const(0.0, own.type), own, type=own.type)  # -inf - -inf is no number
            copier = Copier(out, "own")
            copier.new.update({first.result: base, powers.x: self.renewed(powers.x)})
            out.ops += [copier.op(op) for op in powers.ops]
            return [*out.ops, replace(second.store, x=copier.new[second.store.x])]

    def renewed(self, x: Value) -> Value:
        """So that nobody holds wide numbers from the largest on to the powers where narrow ones are at hand."""
        op = self.makers.get(x)
        if not isinstance(op, Cast) or not isinstance(self.makers.get(op.x), Load) or held_bytes(op.x) >= held_bytes(x):
            return x
        return self.builder.cast(self.builder.emit(Renew, op.x, 0, type=op.x.type), x.type.dtype)


def _index(ops: Sequence[Op], wanted: Op) -> int:
    return next(i for i, op in enumerate(ops) if op is wanted)
