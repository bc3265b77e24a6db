"""Assumptions of a kernel's author about sizes: checked as soon as these are known, at compile time or at the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm
from typing import Any

from tilewave.errors import CallError, ConstraintError, Loc, SymbolError
from tilewave.ir.build import Number
from tilewave.lang.constraints import Assumption, Constraint
from tilewave.lang.symbols import (
    CONDITIONS,
    ONE,
    ROUND_IT,
    Combined,
    Expression,
    Rounded,
    Symbol,
    Whole,
    quotient,
)
from tilewave.records import dataclass


@dataclass(frozen=True)
class Assumed:
    """A condition on scalar arguments and sizes of a call."""

    condition: Expression
    loc: Loc
    dim: str = ""
    """The quotient of a memory's dim that must be a whole number; nothing for an author's `Assumption`."""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the condition holds for the numbers of a call."""
        return bool(self.condition.evaluate({s: values[s.name] for s in self.condition.symbols()}))

    def want(self, kernel: str, values: Mapping[str, Any]) -> None:
        """Refuse a call with numbers for which the condition does not hold."""
        symbols = list(dict.fromkeys(self.condition.symbols()))
        if not self.holds(values):
            given = " and ".join(f"{s} is {values[s.name]}" for s in symbols)
            if self.dim:
                raise CallError(f"{kernel}: {self.dim} is no whole number, as {given}", loc=self.loc, remedy=ROUND_IT)
            raise CallError(
                f"{kernel}: it is assumed that {self.condition}, but {given}",
                loc=self.loc,
                remedy="call it with other sizes, or leave the Assumption out: nothing needs it",
            )

    @property
    def record(self) -> list[Any]:
        """Return the condition as JSON data."""
        return [_record(self.condition), self.loc.file, self.loc.line, *([self.dim] if self.dim else [])]


def assumed(constraints: Sequence[Constraint], values: Mapping[Symbol, Any]) -> tuple[Assumed, ...]:
    """Return the conditions to check at a call; an error for an assumption that these values break."""
    left = []
    for c in constraints:
        if isinstance(c, Assumption):
            numbers = {s: values[s] for s in c.expr.symbols() if isinstance(values.get(s), int)}
            found = _with(c.expr, numbers)
            if isinstance(found, Whole) or not any(True for _ in found.symbols()):
                _want(c, numbers)
            else:
                left.append(Assumed(_with_open(found, values, c), c.loc))
    return tuple(left)


def assumed_multiples(constraints: Sequence[Constraint]) -> dict[Symbol, int]:
    """Return the numbers that sizes are assumed to be multiples of: those of `Assumption(Eq(M % 64, 0))`."""
    found: dict[Symbol, int] = {}
    for c in constraints:
        match c.expr if isinstance(c, Assumption) else None:
            case Combined("==", Combined("%", Symbol() as dim, Whole(divisor)), Whole(0)) if divisor > 0:
                found[dim] = lcm(found.get(dim, 1), divisor)
    return found


def wholly_divided(dim: Expression, loc: Loc, values: Mapping[Symbol, Any]) -> Iterator[Assumed]:
    """Yield the condition that a dim such as K / 64 is a whole number, where its sizes are known only at the call."""
    above, below = quotient(dim)
    if below == ONE or all(isinstance(values.get(s), int) for s in dim.symbols()):
        return
    numbers = {s: values[s] for s in dim.symbols() if isinstance(values.get(s), int)}
    condition = _with(Combined("==", Combined("%", above, below), Whole(0)), numbers)
    if not all(_is_given(s, values) for s in condition.symbols()):
        raise SymbolError(f"{dim} may be no whole number", loc=loc, remedy=ROUND_IT)
    yield Assumed(condition, loc, str(dim))


def _is_given(s: Symbol, values: Mapping[Symbol, Any]) -> bool:
    """Return whether a call gives the symbol's value under its name."""
    value = values.get(s)
    return isinstance(value, Number) and value.value.name == s.name


def _want(c: Assumption, numbers: Mapping[Symbol, int]) -> None:
    if not c.expr.evaluate(numbers):
        given = " and ".join(f"{s} is {n}" for s, n in numbers.items())
        raise ConstraintError(
            f"it is assumed that {c.expr}, but {given}",
            loc=c.loc,
            remedy="correct the sizes, or leave the Assumption out: nothing needs it",
        )


def _with_open(e: Expression, values: Mapping[Symbol, Any], c: Assumption) -> Expression:
    """Return the expression; an error where a call does not give the value of each of its symbols."""
    for s in e.symbols():
        if not _is_given(s, values):
            raise ConstraintError(
                f"Assumption: no call gives {s}",
                loc=c.loc,
                remedy=f"give {s} a number in subs, or write the assumption with sizes of arrays",
            )
    return e


def _with(e: Expression, values: Mapping[Symbol, int]) -> Expression:
    """Return the expression with numbers for some symbols, and constant parts folded."""
    match e:
        case Symbol() if e in values:
            return Whole(values[e])
        case Combined(how, a, b):
            both = Combined(how, _with(a, values), _with(b, values))
            known = isinstance(both.a, Whole) and isinstance(both.b, Whole) and how not in ("/", *CONDITIONS)
            return Whole(both.evaluate({})) if known else both
        case Rounded(how, x):
            return Rounded(how, _with(x, values))
        case _:
            return e


def _record(e: Expression) -> Any:
    match e:
        case Whole(value):
            return value
        case Symbol(name):
            return name
        case Combined(how, a, b):
            return [how, _record(a), _record(b)]
        case Rounded(how, x):
            return [how, _record(x)]
    raise NotImplementedError(f"{type(e).__name__} cannot be written to a record")


def from_record(found: Any) -> Assumed:
    """Return the condition that `record` wrote; a ValueError for anything else."""
    condition, file, line, *dim = found
    if type(file) is not str or type(line) is not int or len(dim) > 1 or any(type(d) is not str for d in dim):
        raise ValueError("no place of an assumption")
    return Assumed(_expression(condition, depth=64), Loc(file, line), *dim)


def _expression(found: Any, depth: int) -> Expression:
    match found:
        case bool():
            pass
        case int():
            return Whole(found)
        case str():
            return Symbol(found)
        case [
            "+" | "-" | "*" | "/" | "//" | "%" | "<" | "<=" | "==" | "!=" | "&" | "|" | "Min" | "Max" as how,
            a,
            b,
        ] if depth:
            return Combined(how, _expression(a, depth - 1), _expression(b, depth - 1))
        case ["floor" | "ceiling" as how, x] if depth:
            return Rounded(how, _expression(x, depth - 1))
    raise ValueError("no expression")
