"""Segments of rows: workgroup s has the rows from offsets[s] up to offsets[s + 1].

No row is in two segments if no offset is less than the one before, which `Indices(sorted=True)` promises. An index in a
segment is spelled in one of two ways, where t counts the elements of a window:

    select((offsets[s] <= t) & (t < offsets[s + 1]), t, -1)
    select(t < offsets[s + 1] - offsets[s], offsets[s] + t, -1)

The first number may be larger, and the last smaller, than the offsets: max(offsets[s], 0), min(offsets[s + 1], T). So
may be their difference: min(lengths[s], offsets[s + 1] - offsets[s]).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product

from tilewave.analysis.affine import Affine, Sums
from tilewave.ir.core import Kernel, Op, Value
from tilewave.ir.ops import (
    Add,
    And,
    Broadcast,
    Cast,
    Const,
    Elementwise,
    Iota,
    Less,
    LessEqual,
    Max,
    Min,
    Read,
    Reduce,
    Sub,
    Write,
)
from tilewave.ir.types import I64, INDEX, Scalar, Tile, Type
from tilewave.records import dataclass


@dataclass(frozen=True)
class RowSegment:
    """The rows between two offsets: where the first is read, and the tile that counts within the segment."""

    begin: Read
    counted: Value


class SameNumbers:
    """Compares the numbers that a kernel computes or loads."""

    def __init__(self, kernel: Kernel) -> None:
        self.defs = kernel.defs
        self.written = {v for op in kernel.body.all_ops for v in op.written}

    def plain(self, v: Value) -> Value:
        """Return an integer before it was cast to as many bits or more."""
        op = self.defs.get(v)
        return self.plain(op.x) if isinstance(op, Cast) and keeps_apart(op) else v

    def number(self, v: Value) -> Value:
        """Return the number that a tile holds everywhere, before casts; of a tile with one element, the tile."""
        op = self.defs.get(self.plain(v))
        if isinstance(op, Broadcast) and isinstance(op.x.type, Scalar):
            return self.number(op.x)
        if isinstance(op, Reduce) and all(n == 1 for n in op.x.type.shape):
            return self.number(op.x)
        return self.plain(v)

    def same(self, a: Value, b: Value) -> bool:
        """Return whether two values are the same computation."""
        a, b = self.number(a), self.number(b)
        one, other = self.defs.get(a), self.defs.get(b)
        if a == b:
            return True
        if one is None or type(one) is not type(other) or not self.is_repeatable(one):
            return False
        kept = {f.name for f in fields(one)} - {"results", "loc"}
        facts = ((getattr(one, name), getattr(other, name)) for name in kept)
        return _same_numbers(a.type, b.type) and all(
            self.same(x, y) if isinstance(x, Value) and isinstance(y, Value) else x == y for x, y in facts
        )

    def is_repeatable(self, op: Op) -> bool:
        """Return whether an op gives the same numbers wherever its operands are the same."""
        return isinstance(op, (Const, Elementwise, Broadcast, Iota, Reduce)) or (
            isinstance(op, Read) and op.memory not in self.written
        )


class WindowPlaces(SameNumbers):
    """Where a kernel reads and writes windows of its memories."""

    def are_one(self, accesses: Sequence[Op]) -> bool:
        """Return whether all accesses are reads and writes of one window, whatever numbers say where it is."""
        first, *others = accesses
        return all(isinstance(op, (Read, Write)) for op in accesses) and all(self.is_same(first, op) for op in others)

    def is_same(self, a: Op, b: Op) -> bool:
        assert isinstance(a, (Read, Write)) and isinstance(b, (Read, Write))
        shapes = [(op.tile if isinstance(op, Write) else op.result).type.shape for op in (a, b)]
        return shapes[0] == shapes[1] and a.axes == b.axes and all(map(self.same, a.at, b.at))


class Segments(SameNumbers):
    """The indices of a kernel that are in segments."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.sums = Sums(kernel)

    def of(self, condition: Value, index: Value) -> RowSegment | None:
        """Return the segment that an index is in where a condition holds, if that is known."""
        index = self.plain(index)
        made = self.defs.get(index)
        pairs = [(made.a, made.b), (made.b, made.a)] if isinstance(made, Add) else []
        for test in self.conjuncts(condition):
            if not isinstance(test, Less):
                continue
            if self.same(test.a, index) and (begin := self.lower(condition, index)):
                return self.between(begin, test.b, index)
            for count, (counted, begin) in product(self.least_of(test.b), pairs):
                if isinstance(count, Sub) and self.same(test.a, counted) and self.same(count.b, begin):
                    return self.between(begin, count.a, counted)
        return None

    def lower(self, condition: Value, index: Value) -> Value | None:
        """Return the number that an index is at least where a condition holds."""
        tests = (test for test in self.conjuncts(condition) if isinstance(test, LessEqual))
        return next((test.a for test in tests if self.same(test.b, index)), None)

    def between(self, begin: Value, end: Value, counted: Value) -> RowSegment | None:
        first, last = self.offset(begin, Max), self.offset(end, Min)
        if first is None or last is None or first.memory != last.memory or first.memory.type.rank != 1:
            return None
        apart = self.sums.of(last.at[0]) + self.sums.of(first.at[0]).times(-1)
        return RowSegment(first, counted) if apart == Affine(1) else None

    def offset(self, v: Value, how: type[Op]) -> Read | None:
        """Return the read of the offset that bounds a number, which `how` may bring nearer."""
        op = self.defs.get(self.number(v))
        match op:
            case Read() if all(n == 1 for n in op.result.type.shape):
                return op
            case Max(a, b) | Min(a, b) if isinstance(op, how):
                return self.offset(a, how) or self.offset(b, how)
            case _:
                return None

    def least_of(self, v: Value) -> Iterator[Op]:
        """Yield the numbers that a number is at most: itself, and those that it is the least of."""
        op = self.defs.get(self.number(v))
        if isinstance(op, Min):
            yield from (*self.least_of(op.a), *self.least_of(op.b))
        elif op is not None:
            yield op

    def conjuncts(self, condition: Value) -> Iterator[Op]:
        op = self.defs.get(condition)
        if isinstance(op, And):
            yield from self.conjuncts(op.a)
            yield from self.conjuncts(op.b)
        elif isinstance(op, Broadcast) and isinstance(op.x.type, Tile) and op.x.type.shape == op.result.type.shape:
            yield from self.conjuncts(op.x)
        elif op is not None:
            yield op


def _same_numbers(a: Type, b: Type) -> bool:
    """Return whether two types are equal; `index` and `i64` are the same integers."""
    index = (INDEX, I64)
    return a == b or (
        isinstance(a, Tile) and isinstance(b, Tile) and a.shape == b.shape and {a.dtype, b.dtype} <= {*index}
    )


def keeps_apart(op: Cast) -> bool:
    """Return whether a cast gives different numbers for different ones: an integer as one of as many bits."""
    old, new = op.x.type.dtype, op.result.type.dtype
    return old.is_int and new.is_int and new.bits >= old.bits
