"""Index arithmetic in a normal form: two formulas that are the same sum of products have the same form.

    (n + 63) // 64 * 64 - 1        is        64 · q - 1,   where q = (n + 63) // 64 is one name

A form is a sum of integer multiples of products. What is neither sum nor product (a quotient, a remainder, the
workgroup id) gets a name, and gets the same name wherever it occurs again. Equal forms are equal numbers; different
forms may be equal too, and callers must treat them as unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import cast

from tilewave.ir.core import Op
from tilewave.ir.launch import MEANINGS
from tilewave.ir.ops import Add, Const, FloorDiv, Mod, Mul, Neg, Sub
from tilewave.ir.ops.launch import LaunchOnly

Product = frozenset[tuple[int, int]]
"""Names, and the exponent of each in the product."""
Form = frozenset[tuple[Product, int]]
"""Products and the factor of each, which is not 0."""

ONE: Product = frozenset()
MOST_PRODUCTS = 64
"""A product of two sums with more terms is not expanded: it gets a name."""


def number(n: int) -> Form:
    return frozenset({(ONE, n)}) if n else frozenset()


def number_of(form: Form) -> int | None:
    """Return the number that a form is; None if it is not constant."""
    if not form:
        return 0
    ((product, times),) = form if len(form) == 1 else ((None, 0),)
    return times if product == ONE else None


def add(a: Form, b: Form, times: int = 1) -> Form:
    """a + times · b."""
    found = dict(a)
    for product, n in b:
        found[product] = found.get(product, 0) + times * n
    return _without_zeros(found)


def divided(form: Form, by: Form) -> Form | None:
    """Return the form that times `by` is this one, if both are one product and there is such a form."""
    if len(form) != 1 or len(by) != 1:
        return None
    ((product, times),), ((other, n),) = form, by
    names = dict(product)
    for name, often in other:
        names[name] = names.get(name, 0) - often
    if times % n or min(names.values(), default=0) < 0:
        return None
    return frozenset({(frozenset((name, often) for name, often in names.items() if often), times // n)})


def _without_zeros(found: Mapping[Product, int]) -> Form:
    return frozenset((product, n) for product, n in found.items() if n)


def _times(a: Product, b: Product) -> Product:
    found = dict(a)
    for name, often in b:
        found[name] = found.get(name, 0) + often
    return frozenset(found.items())


class Forms:
    """Makes forms, and keeps the names that were given."""

    def __init__(self) -> None:
        self._names: dict[Hashable, int] = {}

    def named(self, *key: Hashable) -> Form:
        """Return the form that is one name, the same for equal keys."""
        name = self._names.setdefault(key, len(self._names))
        return frozenset({(frozenset({(name, 1)}), 1)})

    def fresh(self) -> Form:
        """Return a form that is equal to no other."""
        return self.named("fresh", len(self._names))

    def mul(self, a: Form, b: Form) -> Form:
        if len(a) * len(b) > MOST_PRODUCTS:
            return self.named("Mul", frozenset({a, b}))
        found: dict[Product, int] = {}
        for one, n in a:
            for other, m in b:
                product = _times(one, other)
                found[product] = found.get(product, 0) + n * m
        return _without_zeros(found)

    def floor_div(self, a: Form, b: Form) -> Form:
        known, by = number_of(a), number_of(b)
        if known is not None and by is not None:
            return number(cast(int, MEANINGS[FloorDiv](known, by)))
        return a if by == 1 else self.named("FloorDiv", a, b)

    def steps(self, length: Form, step: int) -> Form:
        """Return how many steps cover a length."""
        return self.floor_div(add(length, number(step - 1)), number(step))

    def of(self, op: Op, operands: list[Form]) -> Form:
        """Return the form of an integer op's result."""
        match op, operands:
            case Const(value), _:
                return number(int(value))
            case Add(), [a, b]:
                return add(a, b)
            case Sub(), [a, b]:
                return add(a, b, -1)
            case Neg(), [a]:
                return add(number(0), a, -1)
            case Mul(), [a, b]:
                return self.mul(a, b)
            case FloorDiv(), [a, b]:
                return self.floor_div(a, b)
            case Mod(), [_, b] if number_of(b) == 1:
                return number(0)
            case LaunchOnly(), _:  # its attributes decide its value too
                return self.fresh()
            case _ if type(op) in MEANINGS and all(number_of(x) is not None for x in operands):
                return number(int(MEANINGS[type(op)](*map(number_of, operands))))
            case _ if type(op) in MEANINGS:
                return self.named(type(op).__name__, *operands)
            case _:
                return self.fresh()
