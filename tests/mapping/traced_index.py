"""A stand-in for the values that a kernel's trace computes with: every operation is recorded, and run later."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field


@dataclass
class Tape:
    """The recorded operations, in order; operands are ints or places on the tape."""

    ops: list[tuple[object, tuple[object, ...]]] = field(default_factory=list)

    def argument(self, name: str) -> Traced:
        return self.record(name)

    def record(self, op: object, *operands: object) -> Traced:
        self.ops.append((op, operands))
        return Traced(self, len(self.ops) - 1)

    def run(self, results: tuple[object, ...], **arguments: int) -> tuple[int, ...]:
        values: list[object] = []

        def value(x: object) -> object:
            return values[x.at] if isinstance(x, Traced) else x

        for op, operands in self.ops:
            values.append(arguments[op] if isinstance(op, str) else op(*map(value, operands)))
        assert max(map(int, values)) < 2**31 and min(map(int, values)) >= -(2**31), "an index of 32 bits overflows"
        return tuple(value(result) for result in results)


class Traced:
    """A value on the tape. It has no truth: an `if` on it is an error."""

    def __init__(self, tape: Tape, at: int) -> None:
        self.tape, self.at = tape, at

    def __bool__(self) -> bool:
        raise TypeError("a traced value has no truth at tracing time")

    def smaller(self, other: object) -> Traced:
        return self.tape.record(min, self, other)

    def larger(self, other: object) -> Traced:
        return self.tape.record(max, self, other)

    def choose(self, a: object, b: object) -> Traced:
        return self.tape.record(lambda condition, x, y: x if condition else y, self, a, b)


def _floordiv(a: int, b: int) -> int:
    assert a >= 0 and b > 0, f"{a} // {b}: indices are never negative, and nothing divides by zero"
    return a // b


def _mod(a: int, b: int) -> int:
    assert a >= 0 and b > 0, f"{a} % {b}: indices are never negative, and nothing divides by zero"
    return a % b


def _both_ways(op: object) -> tuple[object, object]:
    return (
        lambda self, other: self.tape.record(op, self, other),
        lambda self, other: self.tape.record(op, other, self),
    )


for _name, _op in {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _floordiv,
    "mod": _mod,
}.items():
    _forward, _backward = _both_ways(_op)
    setattr(Traced, f"__{_name}__", _forward)
    setattr(Traced, f"__r{_name}__", _backward)
for _name in ("lt", "le", "gt", "ge"):
    setattr(Traced, f"__{_name}__", _both_ways(getattr(operator, _name))[0])
