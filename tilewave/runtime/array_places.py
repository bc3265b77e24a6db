"""Where the arrays of a call are, and how they lie; what is asked of it in every new call is code of its own.

That code is a function of Python, written for arrays of so many axes: it goes through no list and looks nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from tilewave.ir.python_code import code_of, pattern
from tilewave.runtime.arrays import ArrayView, Parameter, Shape

LINE = 1 << 7
"""Bytes that every alignment which anybody asks for divides."""
FAR = 1 << 30
"""Elements along an axis, and between two neighbours, up to which arrays may lie alike: the copy engine takes them."""


class ArrayPlaces(NamedTuple):
    """The arrays of a call; strides in elements."""

    pointers: Sequence[int]
    shapes: Sequence[Shape]
    strides: Sequence[Shape]

    @staticmethod
    def of_views(views: Sequence[ArrayView]) -> ArrayPlaces:
        strides = [tuple([stride // v.dtype.bytes for stride in v.strides]) for v in views]
        return ArrayPlaces([v.pointer for v in views], [v.shape for v in views], strides)


ArrayKinds = tuple[tuple[int, bool], ...]
"""Of each array how many bytes an element has, and whether it is written."""


def kinds_of(parameters: Sequence[Parameter]) -> ArrayKinds:
    return tuple((p.item_bytes, p.written) for p in parameters)


class ArrayNames:
    """What the numbers of a call's arrays are called in code."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.pointers = [f"p{i}" for i in range(len(ranks))]
        self.lengths = [[f"n{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(ranks)]
        self.steps = [[f"s{i}_{axis}" for axis in range(rank)] for i, rank in enumerate(ranks)]

    def taken(self) -> list[str]:
        """The lines that name them."""
        pointers = [f"{pattern(self.pointers)} = pointers"]
        return pointers + taken_from("shapes", self.lengths) + taken_from("strides", self.steps)


def taken_from(of: str, names: Sequence[Sequence[str]]) -> list[str]:
    """The lines that name the lengths, or the steps, of all arrays."""
    return [f"{pattern([pattern(of_array) for of_array in names])} = {of}"]


Look = Callable[[Sequence[int], Sequence[Shape], Sequence[Shape]], Any]
"""Addresses, shapes and strides of a call's arrays → what is asked; a ValueError where one has more axes, or fewer."""


@lru_cache(maxsize=256)
def lie_code(ranks: tuple[int, ...]) -> Look:
    """What is the same of all arrays that lie alike, wherever they are and however long.

    Of addresses, steps and the lengths of rows, the power of two that divides them is left, and of other lengths
    nothing, if rows lie one behind the other, with neighbours side by side. Else what is 0, 1, negative or very far
    stays as it is.
    """
    of = ArrayNames(ranks)
    lengths, steps = ([name for names in of_arrays for name in names] for of_arrays in (of.lengths, of.steps))
    outer = [name for names in of.steps for name in names[:-1]]
    rows = [names[-1] for names in of.lengths if names]
    usual = [*of.pointers, *(f"{names[-1]} == 1" for names in of.steps if names)]
    usual += [f"1 < {name} < {FAR}" for name in (*lengths, *outer)]
    powers = [f"gcd({name}, {LINE})" for name in (*of.pointers, *outer, *rows)]
    told = [f"{name} if {name} < 2 or {name} > {FAR} else 2" for name in (*lengths, *steps)]
    told += [*(f"{name} == 0" for name in of.pointers), *(f"gcd({name}, {LINE})" for name in steps)]
    body = [f"if {' and '.join(usual) or 'True'}:", f"    return {pattern(powers)}", f"return {pattern(powers + told)}"]
    return code_of("pointers, shapes, strides", [*of.taken(), *body], {"gcd": gcd})


@lru_cache(maxsize=256)
def apart_code(ranks: tuple[int, ...], kinds: ArrayKinds) -> Look:
    """Whether no element of an array that is written is where another may be; else they must be looked at closely."""
    of, wrong = ArrayNames(ranks), []
    lines = of.taken()
    for pointer, lengths, steps, (item, _) in zip(of.pointers, of.lengths, of.steps, kinds, strict=True):
        last = " + ".join([*(f"({n} - 1) * {s}" for n, s in zip(lengths, steps, strict=True)), "1"])
        lines.append(f"e{pointer} = {pointer} + ({last}) * {item}")
    for i, one in enumerate(of.pointers):
        if kinds[i][1]:
            wrong += _not_nested(of.lengths[i], of.steps[i])
            wrong += [f"{one} < e{other} and {other} < e{one}" for other in of.pointers if other != one]
    return code_of("pointers, shapes, strides", [*lines, f"return not ({' or '.join(wrong) or 'False'})"])


def _not_nested(lengths: Sequence[str], steps: Sequence[str]) -> list[str]:
    """When the rows of an array do not surely lie one behind the other."""
    axes = [*zip(lengths, steps, strict=True)]
    back = [f"{n} > 1 and {s} < 1" for n, s in axes]
    pairs = [(*axes[i], *inner) for i in range(len(axes)) for inner in axes[i + 1 :]]
    return back + [f"{n} > 1 and {m} > 1 and {s} < {m} * {t}" for n, s, m, t in pairs]
