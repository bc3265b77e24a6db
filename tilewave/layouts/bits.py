"""Matrices over bits: a matrix is its columns, a column is an int, and adding is XOR.

(1, 2, 4)     leaves every number below 8 as it is
(4, 2, 1)     turns the order of its three bits around: 0b110, which is 2 + 4, becomes 2 + 1, 0b011
(1, 2, 0)     forgets the last bit: 3 and 7 become the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Columns = tuple[int, ...]


def applied(columns: Sequence[int], x: Any) -> Any:
    """Return the matrix times a vector: the columns of all bits of x, added; x is an int or an array."""
    found = x & 0
    for i, column in enumerate(columns):
        found = found ^ ((x >> i & 1) * column)
    return found


def after(outer: Sequence[int], inner: Sequence[int]) -> Columns:
    """Return the product of two matrices: `inner` is applied first."""
    return tuple(applied(outer, column) for column in inner)


def added(a: Sequence[int], b: Sequence[int]) -> Columns:
    return tuple(x ^ y for x, y in zip(a, b, strict=True))


def identity(bits: int) -> Columns:
    return tuple(1 << i for i in range(bits))


def stacked(upper: Sequence[int], lower: Sequence[int], lower_bits: int) -> Columns:
    """Return a matrix of two, one below the other."""
    return tuple(x << lower_bits | y for x, y in zip(upper, lower, strict=True))


class Span:
    """The span of columns, with the combination that gives each vector; earlier columns are used first."""

    def __init__(self, columns: Sequence[int] = ()) -> None:
        self.pivots: dict[int, tuple[int, int]] = {}
        """By leading bit: a vector, and the columns that add up to it."""
        self.kernel: list[int] = []
        """A basis of the sums of columns that are 0."""
        self.count = 0
        for column in columns:
            self.add(column)

    def add(self, column: int) -> bool:
        """Add a column and return whether it is independent of those before."""
        rest, used = self.reduced(column)
        used ^= 1 << self.count
        self.count += 1
        if rest:
            self.pivots[rest.bit_length()] = rest, used
        else:
            self.kernel.append(used)
        return bool(rest)

    def solve(self, vector: int) -> int | None:
        """Return the columns that add up to a vector; None where none do."""
        rest, used = self.reduced(vector)
        return None if rest else used

    def reduced(self, vector: int) -> tuple[int, int]:
        """Return the remainder of a vector, and the columns that were subtracted."""
        used = 0
        for lead in sorted(self.pivots, reverse=True):
            if vector.bit_length() >= lead and vector >> (lead - 1) & 1:
                vector ^= self.pivots[lead][0]
                used ^= self.pivots[lead][1]
        return vector, used

    def __contains__(self, vector: int) -> bool:
        return self.solve(vector) is not None

    def __len__(self) -> int:
        """Return the rank."""
        return len(self.pivots)
