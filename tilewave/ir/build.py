"""Write IR by doing arithmetic: every operator on a `Number` appends one op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from tilewave.errors import NOWHERE, Loc
from tilewave.ir.core import Block, Op, Value, word
from tilewave.ir.ops import (
    Add,
    And,
    Binary,
    Broadcast,
    Cast,
    Const,
    Elementwise,
    Equal,
    FloorDiv,
    Iota,
    Less,
    LessEqual,
    Max,
    Min,
    Mod,
    Mul,
    NotEqual,
    Or,
    Select,
    Sub,
    Xor,
    Yield,
)
from tilewave.ir.types import INDEX_SCALAR, DType, Tile, Type, elementwise
from tilewave.records import dataclass


@dataclass
class Builder:
    """Appends ops to the current block; `locate` returns the source location that they get."""

    taken: set[str] = field(default_factory=set)
    ops: list[Op] = field(default_factory=list)
    locate: Callable[[], Loc] = lambda: NOWHERE
    numbered: dict[str, int] = field(default_factory=dict)
    """The last number used as a suffix of each name; no number is used again."""

    @contextmanager
    def region(self) -> Iterator[None]:
        """Collect the ops emitted inside in a new block, which `block` closes."""
        outer, self.ops = self.ops, []
        try:
            yield
        finally:
            self.ops = outer

    def fresh(self, name: str, type: Type) -> Value:
        """Return a new value named `name`, with a numeric suffix if the name is taken."""
        found = base = word(name)
        count = self.numbered.get(base, 0)
        while found in self.taken:
            count += 1
            found = f"{base}_{count}"
        self.numbered[base] = count
        self.taken.add(found)
        return Value(found, type)

    def effect(self, cls: Callable[..., Op], *parts: Any, results: tuple[Value, ...] = ()) -> None:
        """Append an op that has an effect, or several results."""
        self.ops.append(cls(*parts, results=results, loc=self.locate()))

    def emit(self, cls: Callable[..., Op], *parts: Any, type: Type, name: str = "") -> Value:
        """Append an op with one result."""
        result = self.fresh(name or cls.word(), type)  # type: ignore[attr-defined]
        self.ops.append(cls(*parts, results=(result,), loc=self.locate()))
        return result

    def const(self, value: int | float | bool, type: Type = INDEX_SCALAR, name: str = "") -> Value:
        return self.emit(Const, value, type=type, name=name or constant_name(value))

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self.emit(Cast, x, type=elementwise(x.type, dtype))

    def binary(self, cls: type[Binary], a: Value, b: Value) -> Value:
        return self.elementwise(cls, a, b)

    def elementwise(self, cls: type[Elementwise], *operands: Value) -> Value:
        return self.emit(cls, *operands, type=cls.result_type(*(v.type for v in operands)))

    def first_along(self, x: Value, axis: int, count: int, other: int | float | bool) -> Value:
        """Return x at the first `count` positions along an axis and `other` at the rest."""
        places = Tile((x.type.shape[axis],), INDEX_SCALAR.dtype)
        end = self.const(count, places)
        below = self.binary(Less, self.emit(Iota, type=places), end)
        inside = self.emit(Broadcast, below, (axis,), type=elementwise(x.type, below.type.dtype))
        return self.emit(Select, inside, x, self.const(other, x.type), type=x.type)

    def block(self, args: Iterable[Value], yields: Iterable[Value] | None = None) -> Block:
        """Return the ops of this region as a block, with a yield at the end where one is needed."""
        end = () if yields is None else (Yield(tuple(yields), loc=self.locate()),)
        return Block(tuple(args), (*self.ops, *end))


def constant_name(value: int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"c{value}" if isinstance(value, int) and value >= 0 else "c"


def _operator(cls: type[Binary], swapped: bool = False) -> Callable[[Number, Any], Any]:
    def method(self: Number, other: Any) -> Number:
        a, b = self.together(other)
        return a.make(self.builder.binary(cls, *((b.value, a.value) if swapped else (a.value, b.value))))

    return method


@dataclass(frozen=True, eq=False)
class Number:
    """A number that is known when the kernel runs; arithmetic on it emits ops."""

    builder: Builder
    value: Value

    __add__, __radd__ = _operator(Add), _operator(Add, swapped=True)
    __sub__, __rsub__ = _operator(Sub), _operator(Sub, swapped=True)
    __mul__, __rmul__ = _operator(Mul), _operator(Mul, swapped=True)
    __floordiv__, __rfloordiv__ = _operator(FloorDiv), _operator(FloorDiv, swapped=True)
    __mod__, __rmod__ = _operator(Mod), _operator(Mod, swapped=True)
    __xor__, __rxor__ = _operator(Xor), _operator(Xor, swapped=True)
    __lt__, __gt__ = _operator(Less), _operator(Less, swapped=True)
    __le__, __ge__ = _operator(LessEqual), _operator(LessEqual, swapped=True)
    __and__, __or__ = _operator(And), _operator(Or)
    smaller, larger = _operator(Min), _operator(Max)
    equals, differs = _operator(Equal), _operator(NotEqual)

    def choose(self, a: Any, b: Any) -> Any:
        """Return a where this boolean is true, else b."""
        first = a if isinstance(a, Number) else self.make(self.builder.const(a))
        x, y = first.together(b)
        return x.make(self.builder.emit(Select, self.value, x.value, y.value, type=x.value.type))

    def make(self, value: Value) -> Number:
        """Return a number of this class for `value`."""
        return Number(self.builder, value)

    def together(self, other: Any) -> tuple[Number, Number]:
        """Return this number and `other` as numbers of one type."""
        if isinstance(other, Number):
            return self, other
        return self, self.make(self.builder.const(int(other), self.value.type))

    def __bool__(self) -> bool:
        raise TypeError("a number known only when the kernel runs has no truth value yet; use choose")
