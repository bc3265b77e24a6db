"""Numbers whose values are hidden from the formulas: arrays of 32 bits that are neither ints nor numpy's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Hidden:
    """An array of numbers behind the protocol of traced values: it has no truth, and no formula can look inside.

    It computes as a kernel with indices of 32 bits does, so a value that leaves them is a wrong one from there on, and
    it refuses what a traced formula must never do: divide by zero, or divide a negative number.
    """

    def __init__(self, values: object) -> None:
        self.values = np.asarray(values, np.int32)

    def __bool__(self) -> bool:
        raise TypeError("a hidden value has no truth")

    def __index__(self) -> int:
        raise TypeError("a hidden value is no Python number")

    def smaller(self, other: object) -> Hidden:
        return Hidden(np.minimum(self.values, shown(other)))

    def larger(self, other: object) -> Hidden:
        return Hidden(np.maximum(self.values, shown(other)))

    def choose(self, a: object, b: object) -> Hidden:
        return Hidden(np.where(self.values != 0, shown(a), shown(b)))


def shown(x: object) -> np.ndarray:
    """The values of a number that a formula made."""
    if isinstance(x, Hidden):
        return x.values
    assert isinstance(x, (int, np.ndarray)), f"{x!r} is no number"
    return np.asarray(x, np.int32)


def _checked(op: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def method(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert (b > 0).all(), "a formula divides by zero, or by less"
        assert (a >= 0).all(), "a formula divides a negative number"
        return op(a, b)

    return method


def _operator(op: Callable[..., np.ndarray], swapped: bool = False) -> Callable[[Hidden, object], Hidden]:
    def method(self: Hidden, other: object) -> Hidden:
        a, b = (shown(other), self.values) if swapped else (self.values, shown(other))
        with np.errstate(over="ignore"):
            return Hidden(op(a, b))

    return method


for _name, _op in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _checked(np.floor_divide),
    "mod": _checked(np.remainder),
}.items():
    setattr(Hidden, f"__{_name}__", _operator(_op))
    setattr(Hidden, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    setattr(Hidden, f"__{_name}__", _operator(_op))
