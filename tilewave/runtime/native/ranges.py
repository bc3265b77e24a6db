"""The ranges of a host program's numbers, from ranges of those given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import isqrt
from typing import NamedTuple

from tilewave.ir.host_program import LINE, STEPS, HostProgram

LEAST, MOST = -(1 << 63), (1 << 63) - 1


class Range(NamedTuple):
    """All integers from `least` to `most`; beyond 64 bits for results that may not fit."""

    least: int
    most: int

    @property
    def fits(self) -> bool:
        return self.least >= LEAST and self.most <= MOST

    @property
    def is_one(self) -> bool:
        return self.least == self.most


ANY, TRUTH = Range(LEAST, MOST), Range(0, 1)
SIZE = Range(0, (1 << 20) - 1)
"""The range of extents that code is compiled for: the products of three fit 64 bits."""


def ranges_of(program: HostProgram, given: Sequence[Range]) -> list[Range]:
    """Return the range of each number of a program; one that may not fit 64 bits has a range beyond them.

    A result that does not fit ends the program, so the steps that read it find a number of 64 bits.
    """
    found = [*given, *(Range(n, n) for n in program.constants)]
    for does, *operands in program.steps:
        found.append(_RESULTS.get(STEPS[does], _any)(*(_within(found[at]) for at in operands)))
    return found


def _within(found: Range) -> Range:
    return Range(max(found.least, LEAST), min(found.most, MOST))


def _any(*operands: Range) -> Range:
    return ANY


def _corners(of: Callable[[int, int], int]) -> Callable[[Range, Range, Range], Range]:
    """Return the range of a function that is monotonic in each of two operands."""

    def result(x: Range, y: Range, _: Range) -> Range:
        values = [of(a, b) for a, b in product(x, y)]
        return Range(min(values), max(values))

    return result


def _divided(of: Callable[[int, int], int]) -> Callable[[Range, Range, Range], Range]:
    """Return the range of a quotient, which is 0 where the divisor is; of negative divisors anything."""
    quotients = _corners(of)

    def result(x: Range, y: Range, z: Range) -> Range:
        if y.least < 0:
            return ANY
        found = quotients(x, Range(max(1, y.least), max(1, y.most)), z)
        return found if y.least else Range(min(0, found.least), max(0, found.most))

    return result


def _remainder(x: Range, y: Range, _: Range) -> Range:
    return Range(0, max(0, y.most - 1 if x.least < 0 else min(x.most, y.most - 1))) if y.least >= 0 else ANY


def _bitwise(x: Range, y: Range, _: Range) -> Range:
    return Range(0, (1 << max(x.most, y.most).bit_length()) - 1) if x.least >= 0 <= y.least else ANY


def _compared(holds: Callable[[Range, Range], bool], fails: Callable[[Range, Range], bool]) -> Callable[..., Range]:
    def result(x: Range, y: Range, _: Range) -> Range:
        return Range(1, 1) if holds(x, y) else Range(0, 0) if fails(x, y) else TRUTH

    return result


def _chosen(x: Range, y: Range, z: Range) -> Range:
    if x == (0, 0):
        return z
    return y if x.least > 0 or x.most < 0 else Range(min(y.least, z.least), max(y.most, z.most))


_RESULTS: Mapping[str, Callable[[Range, Range, Range], Range]] = {
    "add": lambda x, y, _: Range(x.least + y.least, x.most + y.most),
    "sub": lambda x, y, _: Range(x.least - y.most, x.most - y.least),
    "mul": _corners(lambda a, b: a * b),
    "quotient": _divided(lambda a, b: a // b),
    "rounded_up": _divided(lambda a, b: -(-a // b)),
    "remainder": _remainder,
    "and": _bitwise,
    "or": _bitwise,
    "xor": _bitwise,
    "less": _compared(lambda x, y: x.most < y.least, lambda x, y: x.least >= y.most),
    "less_equal": _compared(lambda x, y: x.most <= y.least, lambda x, y: x.least > y.most),
    "equal": lambda x, y, _: TRUTH,
    "not_equal": lambda x, y, _: TRUTH,
    "smaller": lambda x, y, _: Range(min(x.least, y.least), min(x.most, y.most)),
    "larger": lambda x, y, _: Range(max(x.least, y.least), max(x.most, y.most)),
    "chosen": _chosen,
    "root": lambda x, y, _: Range(0, isqrt(max(0, x.most))),
    "grain": lambda x, y, _: Range(1, LINE),
    "bits": lambda x, y, _: Range(0, 64),
}
