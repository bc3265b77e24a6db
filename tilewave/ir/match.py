"""Patterns of ops as data: how a value is computed, several ops deep.

    GROWTH = made(Sub, "old", either(Max, "old", ANY))            old - max(old, …)
    FACTOR = made(Exp2, GROWTH | made(Mul, GROWTH, "scale"))      exp2 of that, or of a multiple

    found = FACTOR.match(v, kernel.defs)                          None, or the values by name
    found["old"], kernel.defs[found["old"]]

The parts of a pattern are the fields of an op in their order, and the last ones may be left out. For an operand a part
is a pattern, or a name: the value gets it, or, where it has been given before, must be the same. For an attribute a
part is what it must be equal to: `made(Const, 0)`, `made(Reduce, "x", ANY, "max")`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from tilewave.ir.core import Op, Value
from tilewave.ir.ops import Const
from tilewave.ir.types import Type
from tilewave.records import dataclass

Defs = Mapping[Value, Op]
Captures = Mapping[str, Value]
NOTHING: Captures = {}
ANY = "_"
"""The name of values that are not asked for, and may differ."""


class OpPattern(ABC):
    @abstractmethod
    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        """Yield the names of values, those of `known` among them, in every way in which `v` is computed like this."""

    def match(self, v: Value, defs: Defs, known: Captures = NOTHING) -> Captures | None:
        """Return the names of values in the first way that is found; None where `v` is computed in another way."""
        return next(self.matches(v, defs, known), None)

    def __or__(self, other: OpPattern | str) -> OpPattern:
        return _Or(self, _part(other))

    def named(self, name: str) -> OpPattern:
        """Return the pattern that also gives the value itself a name."""
        return _Named(self, name)


def made(kind: type[Op] | tuple[type[Op], ...], *parts: Any) -> OpPattern:
    """Return the pattern of a value that an op of a class, or of one of several, defines from these parts."""
    return _Made(kind, parts)


def either(kind: type[Op] | tuple[type[Op], ...], a: Any, b: Any) -> OpPattern:
    """Return the pattern of a commutative op: `a` and `b` in either order."""
    return made(kind, a, b) | made(kind, b, a)


def of_type(kind: Type, name: str) -> OpPattern:
    """Return the pattern of a value of a type, however it is computed."""
    return _Typed(kind, name)


def source(v: Value, defs: Defs, *through: type[Op]) -> Value:
    """Return the value from which ops of these classes, each with one operand, such as broadcasts, compute `v`."""
    while isinstance(op := defs.get(v), through):
        (v,) = op.operands
    return v


def constant(v: Value, defs: Defs, *through: type[Op]) -> Any:
    """Return the constant that `v` is, looking through ops of these classes; None where it is not one."""
    op = defs.get(source(v, defs, *through))
    return op.value if isinstance(op, Const) else None


@dataclass(frozen=True)
class _Name(OpPattern):
    name: str

    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        if self.name == ANY:
            yield known
        elif known.get(self.name, v) == v:
            yield {**known, self.name: v}


@dataclass(frozen=True)
class _Typed(OpPattern):
    kind: Type
    name: str

    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        return _Name(self.name).matches(v, defs, known) if v.type == self.kind else iter(())


@dataclass(frozen=True)
class _Made(OpPattern):
    kind: type[Op] | tuple[type[Op], ...]
    parts: tuple[Any, ...]

    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        op = defs.get(v)
        return self._from(op, 0, defs, known) if isinstance(op, self.kind) else iter(())

    def _from(self, op: Op, at: int, defs: Defs, known: Captures) -> Iterator[Captures]:
        """Yield the names of values in every way in which the parts from one on match."""
        if at == len(self.parts):
            yield known
            return
        part, field = self.parts[at], getattr(op, op.__match_args__[at])
        if isinstance(field, Value):
            ways = _part(part).matches(field, defs, known)
        else:
            ways = iter((known,) if part in (field, ANY) else ())
        for found in ways:
            yield from self._from(op, at + 1, defs, found)


@dataclass(frozen=True)
class _Or(OpPattern):
    one: OpPattern
    other: OpPattern

    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        yield from self.one.matches(v, defs, known)
        yield from self.other.matches(v, defs, known)


@dataclass(frozen=True)
class _Named(OpPattern):
    pattern: OpPattern
    name: str

    def matches(self, v: Value, defs: Defs, known: Captures) -> Iterator[Captures]:
        for found in _Name(self.name).matches(v, defs, known):
            yield from self.pattern.matches(v, defs, found)


def _part(part: OpPattern | str) -> OpPattern:
    return _Name(part) if isinstance(part, str) else part
