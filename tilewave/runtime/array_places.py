"""Where the arrays of a call are, and how they lie; what is asked of it in every new call is code of its own.

That code is a function of Python, written for arrays of so many axes: it goes through no list and looks nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any

from tilewave.ir.python_code import code_of, pattern
from tilewave.runtime.arrays import ArrayView, Parameter, Shape

LINE = 1 << 7
"""Bytes that every alignment which anybody asks for divides."""
FAR = 1 << 30
"""Elements along an axis, and between two neighbours, up to which arrays may lie alike: the copy engine takes them."""


Lie = tuple[int, ...]
"""How the arrays of a call lie, as `lie_lines` has it."""


ArrayPlaces = tuple[Sequence[int], Sequence[Shape], Sequence[Shape]]
"""Addresses, shapes, and strides in elements of a call's arrays."""


def places_of(views: Sequence[ArrayView]) -> ArrayPlaces:
    strides = [tuple([stride // v.dtype.bytes for stride in v.strides]) for v in views]
    return [v.pointer for v in views], [v.shape for v in views], strides


def views_at(places: ArrayPlaces, like: Sequence[ArrayView]) -> list[ArrayView]:
    """Arrays of the same dtypes and devices as others, elsewhere."""
    return [
        replace(v, pointer=p, shape=tuple(shape), strides=tuple([step * v.dtype.bytes for step in steps]))
        for v, p, shape, steps in zip(like, *places, strict=True)
    ]


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
        shapes, strides = (pattern([*map(pattern, names)]) for names in (self.lengths, self.steps))
        return [f"{pattern(self.pointers)} = pointers", f"{shapes} = shapes", f"{strides} = strides"]


Look = Callable[[Sequence[int], Sequence[Shape], Sequence[Shape]], Any]
"""Addresses, shapes and strides of a call's arrays → what is asked; a ValueError where one has more axes, or fewer."""


@lru_cache(maxsize=256)
def lie_code(ranks: tuple[int, ...]) -> Look:
    """What is the same of all arrays that lie alike, wherever they are and however long."""
    of = ArrayNames(ranks)
    return code_of("pointers, shapes, strides", [*of.taken(), *lie_lines(of), "return lie"], {"gcd": gcd})


@lru_cache(maxsize=256)
def apart_code(ranks: tuple[int, ...], kinds: ArrayKinds) -> Look:
    """Whether no element of an array that is written is where another may be; else they must be looked at closely."""
    of = ArrayNames(ranks)
    lines, wrong = apart_lines(of, kinds)
    return code_of("pointers, shapes, strides", [*of.taken(), *lines, f"return not ({wrong})"])


def lie_lines(of: ArrayNames) -> list[str]:
    """The lines that find how arrays lie.

    Of addresses, steps and the lengths of rows, the power of two that divides them is left, and of other lengths
    nothing, if rows lie one behind the other, with neighbours side by side. Else what is 0, 1, negative or very far
    stays as it is.
    """
    lengths, steps = ([name for names in of_arrays for name in names] for of_arrays in (of.lengths, of.steps))
    outer = [name for names in of.steps for name in names[:-1]]
    rows = [names[-1] for names in of.lengths if names]
    usual = [*of.pointers, *(f"{names[-1]} == 1" for names in of.steps if names)]
    usual += [f"1 < {name} < {FAR}" for name in (*lengths, *outer)]
    powers = [f"gcd({name}, {LINE})" for name in (*of.pointers, *outer, *rows)]
    told = [f"{name} if {name} < 2 or {name} > {FAR} else 2" for name in (*lengths, *steps)]
    told += [*(f"{name} == 0" for name in of.pointers), *(f"gcd({name}, {LINE})" for name in steps)]
    unusual = f"if not ({' and '.join(usual) or 'True'}): lie += {pattern(told)}"
    return [f"lie = {pattern(powers)}", unusual]


def apart_lines(of: ArrayNames, kinds: ArrayKinds) -> tuple[list[str], str]:
    """The lines that find where arrays end, and when some are not surely apart."""
    lines, wrong = [], []
    for pointer, lengths, steps, (item, _) in zip(of.pointers, of.lengths, of.steps, kinds, strict=True):
        last = " + ".join([*(f"({n} - 1) * {s}" for n, s in zip(lengths, steps, strict=True)), "1"])
        lines.append(f"e{pointer} = {pointer} + ({last}) * {item}")
    for i, one in enumerate(of.pointers):
        if kinds[i][1]:
            wrong += _not_nested(of.lengths[i], of.steps[i])
            wrong += [f"{one} < e{other} and {other} < e{one}" for other in of.pointers if other != one]
    return lines, " or ".join(wrong) or "False"


def _not_nested(lengths: Sequence[str], steps: Sequence[str]) -> list[str]:
    """When the rows of an array do not surely lie one behind the other."""
    axes = [*zip(lengths, steps, strict=True)]
    back = [f"{n} > 1 and {s} < 1" for n, s in axes]
    pairs = [(*axes[i], *inner) for i in range(len(axes)) for inner in axes[i + 1 :]]
    return back + [f"{n} > 1 and {m} > 1 and {s} < {m} * {t}" for n, s, m, t in pairs]
