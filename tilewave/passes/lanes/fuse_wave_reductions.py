"""Fuse two reductions across waves into one: a reduction of a row, and a sum of terms relative to its result.

store(%own, %m)                            store(%own, %m)                       the wave's own largest number
barrier()                                  %mine = exp2(sub(%x, %own))
%largest = reduce(load(%m))                store(reduce(%mine), %s)
%power = exp2(sub(%x, %largest))       →   barrier()
store(reduce(%power), %s)                  %all = load(%m)
barrier()                                  %largest = reduce(%all)
%sum = reduce(load(%s))                    %sum = reduce(mul(load(%s), exp2(sub(%all, %largest))))
                                           %power = exp2(sub(%x, %largest))

The terms are exponentials relative to the maximum, or squares relative to the mean: Σ (x - mean)² of n numbers is
Σ (x - own)² + n · (own - mean)², where `own` is their own mean. A wave continues as soon as its own part of the row has
arrived, while others still wait for theirs. Differences are computed twice then, so that it pays only where they are
too many to be kept over the second barrier, and are rematerialized in any case (`rematerialize`). The order of the sum
stays, but its terms are rounded differently. Squares of values cast from a narrower dtype are first summed in the lane
(`_Runs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import inf, prod
from typing import Protocol

from tilewave.analysis.ranges import ranges_of
from tilewave.analysis.register_pressure import MOST_HELD_BYTES, held_bytes
from tilewave.analysis.wave_reductions import WaveMeeting, WaveMeetings, place
from tilewave.ir.build import Builder
from tilewave.ir.copies import Copier
from tilewave.ir.core import Block, Kernel, Op, Value
from tilewave.ir.match import ANY, Captures, made
from tilewave.ir.ops import (
    Add,
    Broadcast,
    Cast,
    Concatenate,
    Const,
    Div,
    Equal,
    Exponential,
    ExtractSlice,
    Fma,
    KeepOrder,
    Load,
    Loop,
    Mul,
    OpaqueCopy,
    ReduceHalves,
    ReduceLanes,
    ReduceRegisters,
    Reduction,
    Select,
    Sub,
)
from tilewave.ir.rewrite import map_blocks, names, substitute, walk
from tilewave.ir.types import Scalar, Vector
from tilewave.records import dataclass

OTHERWISE = made(Sub, made(Const, 1), "trips")
FAR = made(Sub, "x", made(Broadcast, "base").named("shift")).named("far")
POWER = made(Exponential, FAR | made(Mul, FAR, made(Broadcast, "scale")).named("scaled")).named("power")
POWERS = POWER | made(Select, ANY, POWER, made(Const, 0)).named("masked")  # elements past the end of a row
MEAN = made(Broadcast, made(Div, "sum").named("mean")).named("shift")
SQUARES = made(Mul, made(Sub, "x", MEAN).named("far"), "far").named("square")


@dataclass(frozen=True)
class FuseWaveReductions:
    most_bytes: int = MOST_HELD_BYTES

    def __call__(self, kernel: Kernel) -> Kernel:
        wide = (held_bytes(v) > self.most_bytes for op in walk(kernel.body) for v in op.results)
        return replace(kernel, body=_Kernel(kernel, self.most_bytes).block(kernel.body)) if any(wide) else kernel


class _Terms(Protocol):
    """Terms of the second reduction: a function of the differences of `x` to `base`, which the first one computes.

    `ops` compute the terms, in order, starting with the broadcast of `base`; `leading` compute `base` from the result
    of the first reduction.
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
        """Return the base of one wave, computed from its own partial result."""
        ...

    def of_all(self, out: Builder, first: WaveMeeting, second: WaveMeeting) -> Value:
        """Return the partial results of the second reduction, relative to the base of all waves."""
        ...


@dataclass(frozen=True)
class _Powers:
    """Terms exp((x - largest) · scale)."""

    x: Value
    base: Value
    ops: tuple[Op, ...]
    power: type[Exponential]
    scale: Value | None
    leading: tuple[Op, ...] = ()

    def own_base(self, out: Builder, own: Value) -> Value:
        none = out.elementwise(Equal, own, out.const(-inf, own.type))  # because -inf - -inf is NaN
        return out.emit(Select, none, out.const(0.0, own.type), own, type=own.type)

    def of_all(self, out: Builder, first: WaveMeeting, second: WaveMeeting) -> Value:
        kind = first.all.type
        far = out.elementwise(Sub, first.all, out.emit(Broadcast, self.base, (0,), type=kind))
        if self.scale:
            far = out.elementwise(Mul, far, out.emit(Broadcast, self.scale, type=kind))
        return out.elementwise(Mul, second.all, out.elementwise(self.power, far))


@dataclass(frozen=True)
class _Squares:
    """Terms (x - mean)², where a wave has `count` elements of x."""

    x: Value
    base: Value
    ops: tuple[Op, ...]
    count: int
    leading: tuple[Op, ...]

    def own_base(self, out: Builder, own: Value) -> Value:
        return out.elementwise(Div, own, out.const(float(self.count), own.type))

    def of_all(self, out: Builder, first: WaveMeeting, second: WaveMeeting) -> Value:
        kind = first.all.type
        count = out.const(float(self.count), kind)
        means = out.elementwise(Div, first.all, count)
        far = out.elementwise(Sub, means, out.emit(Broadcast, self.base, (0,), type=kind))
        return out.elementwise(Add, second.all, out.elementwise(Mul, out.elementwise(Mul, far, far), count))


@dataclass(frozen=True)
class _Runs:
    """Runs of neighbouring elements that a lane sums first: each run is converted once, for its sum and its squares.

    The wide elements of a run are live only for that long, without a wait in between: squares are relative to the run's
    own mean, before the wave's is known. Of n numbers Σ (x - own)² is Σ (x - mean)² + (Σ x - n · own)² / n. A lane sums
    all its squares before lanes are combined.
    """

    instead_of: Op
    ops: tuple[Op, ...]
    sums: Value
    squares: Value
    count: int
    bits: tuple[int, ...]
    """Bits of the lane number in which the lanes of one row differ."""

    @staticmethod
    def of(out: Builder, narrow: Value, sums: ReduceRegisters, bits: tuple[int, ...]) -> _Runs:
        wide, count = sums.x.type, sums.x.type.shape[-1]
        found: list[Value] = []
        squares: Value | None = None
        with out.region():
            for i in range(wide.shape[1]):
                x = out.cast(
                    out.emit(ExtractSlice, narrow, 1, i, type=Vector((1, 1, count), narrow.type.dtype)), wide.dtype
                )
                found.append(out.emit(ReduceRegisters, x, sums.axes, "sum", type=Vector((1, 1), wide.dtype)))
                mean = out.elementwise(Div, found[-1], out.const(float(count), found[-1].type))
                far = out.elementwise(Sub, x, out.emit(Broadcast, mean, (0, 1), type=x.type))
                squares = _squares(out, far, squares)
            whole = Concatenate(tuple(found), 1, results=(sums.result,), loc=sums.loc)
            assert squares is not None, "there is a run at least"
            return _Runs(sums, (KeepOrder(loc=sums.loc), *out.ops, whole), sums.result, squares, count, bits)

    def relative_to(self, out: Builder, own: Value) -> Value:
        """Return the sum of a wave's squares, relative to its own mean."""
        kind = self.sums.type
        all_own = out.elementwise(Mul, own, out.const(float(self.count), own.type))
        far = out.elementwise(Sub, self.sums, out.emit(Broadcast, all_own, (0,), type=kind))
        between = out.emit(ReduceRegisters, out.elementwise(Mul, far, far), (1,), "sum", type=own.type)
        between = out.elementwise(Div, between, out.const(float(self.count), own.type))
        within = out.emit(ReduceRegisters, self.squares, (1, 2), "sum", type=own.type)
        return out.emit(ReduceLanes, out.elementwise(Add, within, between), self.bits, "sum", type=own.type)


def _squares(out: Builder, far: Value, so_far: Value | None) -> Value:
    """Return running sums of squares, half as many as a run has elements: both halves are added to them."""
    half = Vector((1, 1, far.type.shape[-1] // 2), far.type.dtype)
    for first in (0, half.shape[-1]):
        x = out.emit(ExtractSlice, far, 2, first, type=half)
        so_far = out.elementwise(Mul, x, x) if so_far is None else out.elementwise(Fma, x, x, so_far)
    assert so_far is not None, "there are two halves"
    return so_far


class _Kernel:
    def __init__(self, kernel: Kernel, most_bytes: int) -> None:
        self.ranges, self.builder, self.most_bytes = ranges_of(kernel), Builder(names(kernel)), most_bytes
        self.meetings = WaveMeetings(kernel)
        self.defs = kernel.defs

    def block(self, block: Block, instead: Iterable[Op] = ()) -> Block:
        """Return the block with reductions fused; `instead`: ops that do not run in a launch where this block runs."""
        block = replace(block, ops=tuple(self.inner(op, block) for op in block.ops))
        meetings = list(self.meetings.among(block.ops, set(map(id, instead))))
        for first, second in pairwise(meetings):
            terms = self.terms(first, second)
            late = self.meetings.known_from(block.ops, first, second) if terms else None
            if terms and late is not None and not _take(terms, late):
                return replace(block, ops=tuple(self.met(block.ops, first, second, terms, late)))
        return block

    def inner(self, op: Op, around: Block) -> Op:
        """Fuse in loops of at most one trip too; in longer ones, waves could store their next numbers too early."""
        if not isinstance(op, Loop) or self.ranges.of(op.trips)[1] > 1:
            return op
        others = [o for o in around.ops if isinstance(o, Loop) and self.is_instead(o, op)]
        return map_blocks(op, lambda block: self.block(block, chain.from_iterable(walk(o.body) for o in others)))

    def is_instead(self, one: Loop, other: Loop) -> bool:
        """Whether one of two loops has a trip, and the other has none."""
        pairs = ((one.trips, other.trips), (other.trips, one.trips))
        return any(OTHERWISE.match(v, self.defs, {"trips": trips}) is not None for v, trips in pairs)

    # -- the terms

    def terms(self, first: WaveMeeting, second: WaveMeeting) -> _Terms | None:
        if second.how != "sum" or not first.is_read_like(second) or not first.has_same_layout():
            return None
        added, reductions = self.meetings.reduced_to(second.own)
        if held_bytes(added) <= self.most_bytes:
            return None
        return self.powers(first, added, reductions) if first.how == "max" else self.squares(first, added, reductions)

    def powers(self, first: WaveMeeting, added: Value, reductions: Sequence[Op]) -> _Powers | None:
        found = POWERS.match(added, self.defs, {"base": first.result})
        if found is None or ("scale" in found and not isinstance(found["scale"].type, Scalar)):
            return None
        power = self.defs[found["power"]]
        assert isinstance(power, Exponential)
        ops = (*self.named(found, "shift", "far", "scaled", "power", "masked"), *reversed(reductions))
        return _Powers(found["x"], first.result, ops, type(power), found.get("scale"))

    def squares(self, first: WaveMeeting, added: Value, reductions: Sequence[Op]) -> _Squares | None:
        """Return the squares, only where each wave has the same number of elements: none are past the end of a row."""
        found = SQUARES.match(added, self.defs, {"sum": first.result})
        summed, steps = self.meetings.reduced_to(first.own)
        if found is None or first.how != "sum" or summed != found["x"]:
            return None
        ops = (*self.named(found, "shift", "far", "square"), *reversed(reductions))
        return _Squares(found["x"], found["mean"], ops, _combined(steps), self.named(found, "mean"))

    def named(self, found: Captures, *names: str) -> tuple[Op, ...]:
        return tuple(self.defs[found[name]] for name in names if name in found)

    # -- the block

    def met(
        self, ops: Sequence[Op], first: WaveMeeting, second: WaveMeeting, terms: _Terms, late: Sequence[Op]
    ) -> Iterator[Op]:
        begin, end, last = (place(ops, op) for op in (first.barrier, second.barrier, second.reductions[-1]))
        waits = set(map(id, late))
        runs = self.runs(first) if isinstance(terms, _Squares) else None
        for op in ops[:begin]:
            yield from runs.ops if runs and op is runs.instead_of else [op]
        yield from (op for op in ops[begin + 1 : end] if id(op) not in waits and op is not second.store)
        yield from self.of_own(first, second, terms, runs)
        known = (first.load, *first.reductions, *terms.leading)
        yield from (second.barrier, *known)
        waiting = [op for op in late if not any(op is other for other in known)]
        for op in ops[end + 1 : last + 1]:
            if any(v in op.operands for other in waiting for v in other.results):
                yield from waiting
                waiting = []
            yield from self.of_all(op, first, second, terms) if op is second.reductions[0] else [op]
        yield from (*waiting, *ops[last + 1 :])  # after the sum, so that these values are not live across it

    def of_own(self, first: WaveMeeting, second: WaveMeeting, terms: _Terms, runs: _Runs | None) -> list[Op]:
        """Return the ops that sum a wave's own terms, relative to its own base."""
        out = self.builder
        out.locate = lambda: second.store.loc
        with out.region():
            base = terms.own_base(out, first.own)
            if runs:
                found = runs.relative_to(out, base)
                return [*out.ops, replace(second.store, x=found)]
            copier = Copier(out, "own")
            copier.new.update({terms.base: base, terms.x: self.opaque(terms.x)})
            out.ops += [copier.renamed(op) for op in terms.ops]
            return [*out.ops, replace(second.store, x=copier.new[second.own])]

    def runs(self, first: WaveMeeting) -> _Runs | None:
        """Return the runs where a lane sums elements of a narrower dtype before lanes are combined, else None."""
        x, steps = self.meetings.reduced_to(first.own)
        narrow, sums = self.narrow(x), steps[-1]
        if narrow is None or not isinstance(sums, ReduceRegisters) or sums.axes != (2,):
            return None
        if len(x.type.shape) != 3 or x.type.shape[0] > 1 or first.own.type.shape != (1,) or x.type.shape[2] % 2:
            return None
        self.builder.locate = lambda: sums.loc
        return _Runs.of(self.builder, narrow, sums, tuple(sorted(set(chain.from_iterable(map(_bits, steps))))))

    def of_all(self, op: Op, first: WaveMeeting, second: WaveMeeting, terms: _Terms) -> list[Op]:
        """Return the reduction over the partial results of all waves, made relative to the base of all waves."""
        out = self.builder
        out.locate = lambda: op.loc
        with out.region():
            left = terms.of_all(out, first, second)
            return [*out.ops, substitute(op, {second.all: left})]

    def opaque(self, x: Value) -> Value:
        """Return `x` cast again from its narrow source, so that no wide value is live across the barrier."""
        narrow = self.narrow(x)
        if narrow is None:
            return x
        return self.builder.cast(self.builder.emit(OpaqueCopy, narrow, 0, type=narrow.type), x.type.dtype)

    def narrow(self, x: Value) -> Value | None:
        """Return the loaded value that `x` is cast from, if it takes fewer registers."""
        op = self.defs.get(x)
        if not isinstance(op, Cast) or not isinstance(self.defs.get(op.x), Load) or held_bytes(op.x) >= held_bytes(x):
            return None
        return op.x


def _take(terms: _Terms, late: Sequence[Op]) -> bool:
    """Whether the terms need more from the first reduction than their base."""
    own = {terms.base, *(v for op in terms.ops for v in op.results)}
    found = {v for op in late for v in op.results} - own
    return terms.x in found or any(v in found for op in terms.ops for v in op.operands)


def _bits(op: Reduction) -> tuple[int, ...]:
    """Return the bits of the lane number over which `op` combines lanes."""
    return op.bits if isinstance(op, ReduceLanes) else (op.bit,) if isinstance(op, ReduceHalves) else ()


def _combined(steps: Iterable[Reduction]) -> int:
    """Return how many elements the steps combine into one."""
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
