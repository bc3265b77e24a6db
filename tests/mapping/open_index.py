"""Numbers whose values are hidden from the formulas: arrays of 32 bits that are neither ints nor numpy's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np


class Hidden:
    """An array of numbers with the interface of traced values: it has no truth value, and no formula can look inside.

    Arithmetic wraps as indices of 32 bits do, so that an overflow gives wrong results. It refuses what a traced
    formula must never do, not even in a branch that is discarded: divide by zero, or divide a negative number.
    """

    dtype: ClassVar[Any] = np.int32

    def __init__(self, values: object) -> None:
        self.values = np.asarray(values, self.dtype)

    def __bool__(self) -> bool:
        raise TypeError("a hidden value has no truth")

    def __index__(self) -> int:
        raise TypeError("a hidden value is no Python number")

    def smaller(self, other: object) -> Hidden:
        return type(self)(np.minimum(self.values, shown(other)))

    def larger(self, other: object) -> Hidden:
        return type(self)(np.maximum(self.values, shown(other)))

    def choose(self, a: object, b: object) -> Hidden:
        return type(self)(np.where(self.values != 0, shown(a), shown(b)))


class Wide(Hidden):
    """`Hidden` in 64 bits, as the IR has its indices."""

    dtype = np.int64


def shown(x: object) -> Any:
    """The values of a number that a formula made."""
    assert isinstance(x, (Hidden, int)), f"{x!r} is no number of a formula"
    return x.values if isinstance(x, Hidden) else x


def _checked(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def divided(a: Any, b: Any) -> Any:
        assert np.all(np.asarray(b) > 0), "a formula divides by zero, or by less"
        assert np.all(np.asarray(a) >= 0), "a formula divides a negative number"
        return op(a, b)

    return divided


def _both_ways(op: Callable[[Any, Any], Any]) -> tuple[object, object]:
    def forward(self: Hidden, other: object) -> Hidden:
        with np.errstate(over="ignore"):
            return type(self)(op(self.values, shown(other)))

    def backward(self: Hidden, other: object) -> Hidden:
        with np.errstate(over="ignore"):
            return type(self)(op(shown(other), self.values))

    return forward, backward


for _name, _op in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _checked(np.floor_divide),
    "mod": _checked(np.remainder),
}.items():
    _forward, _backward = _both_ways(_op)
    setattr(Hidden, f"__{_name}__", _forward)
    setattr(Hidden, f"__r{_name}__", _backward)
for _name, _op in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    setattr(Hidden, f"__{_name}__", _both_ways(_op)[0])
