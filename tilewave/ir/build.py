"""Write IR by doing arithmetic: every operator on a `Number` appends one op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilewave.errors import NOWHERE, Loc
from tilewave.ir.core import Block, Op, Value
from tilewave.ir.ops import (
    COMPARISONS,
    Add,
    Binary,
    Cast,
    Const,
    FloorDiv,
    Less,
    LessEqual,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Sub,
)
from tilewave.ir.types import BOOL, INDEX_SCALAR, DType, Type, elementwise


@dataclass
class Builder:
    """Collects the ops of one block; all builders of a kernel share the names taken."""

    taken: set[str] = field(default_factory=set)
    ops: list[Op] = field(default_factory=list)
    loc: Loc = NOWHERE

    def nested(self) -> Builder:
        return Builder(self.taken, [], self.loc)

    def fresh(self, name: str, type: Type) -> Value:
        """A value whose name is `name`, or that with a number behind it."""
        found, count = name, 0
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return Value(found, type)

    def append(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def emit(self, cls: Callable[..., Op], *parts: Any, type: Type, name: str = "") -> Value:
        """Append an op with one result."""
        result = self.fresh(name or cls.word(), type)  # type: ignore[attr-defined]
        self.ops.append(cls(*parts, results=(result,), loc=self.loc))
        return result

    def const(self, value: int | float | bool, type: Type = INDEX_SCALAR, name: str = "") -> Value:
        return self.emit(Const, value, type=type, name=name or constant_name(value))

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self.emit(Cast, x, type=elementwise(x.type, dtype))

    def binary(self, cls: type[Binary], a: Value, b: Value) -> Value:
        out = elementwise(a.type, BOOL) if cls in COMPARISONS else a.type
        return self.emit(cls, a, b, type=out)

    def block(self, args: Iterable[Value]) -> Block:
        return Block(tuple(args), tuple(self.ops))


def constant_name(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"c{value}" if isinstance(value, int) and value >= 0 else "c"


def _operator(cls: type[Binary], swapped: bool = False) -> Callable[[Number, Any], Number]:
    def method(self: Number, other: Any) -> Number:
        b = self.coerce(other)
        return self.make(self.builder.binary(cls, *((b, self.value) if swapped else (self.value, b))))

    return method


@dataclass(frozen=True, eq=False)
class Number:
    """A scalar that is known when the kernel runs; arithmetic on it becomes the kernel's code."""

    builder: Builder
    value: Value

    __add__, __radd__ = _operator(Add), _operator(Add, swapped=True)
    __sub__, __rsub__ = _operator(Sub), _operator(Sub, swapped=True)
    __mul__, __rmul__ = _operator(Mul), _operator(Mul, swapped=True)
    __floordiv__, __rfloordiv__ = _operator(FloorDiv), _operator(FloorDiv, swapped=True)
    __mod__, __rmod__ = _operator(Mod), _operator(Mod, swapped=True)
    __lt__, __gt__ = _operator(Less), _operator(Less, swapped=True)
    __le__, __ge__ = _operator(LessEqual), _operator(LessEqual, swapped=True)
    smaller, larger = _operator(Min), _operator(Max)

    def choose(self, a: Any, b: Any) -> Number:
        """a where this truth value holds, else b."""
        known = a if isinstance(a, Number) else b
        like = known if isinstance(known, Number) else self.make(self.builder.const(known))
        x, y = like.coerce(a), like.coerce(b)
        return self.make(self.builder.emit(Select, self.value, x, y, type=x.type))

    def make(self, value: Value) -> Number:
        return Number(self.builder, value)

    def coerce(self, other: Any) -> Value:
        """`other` as a value that goes together with this one."""
        if isinstance(other, Number):
            return other.value
        return self.builder.const(int(other), self.value.type)

    def __bool__(self) -> bool:
        raise TypeError("a number known only when the kernel runs has no truth value yet; use choose")
