"""Compares the result of passes with the kernel before them, bit for bit, with floats as elements of a ring.

Passes may add in another order, defer rescaling, and round elsewhere; none of that changes an element. Any other change
shows in every element that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tilewave.errors import EndlessLoop, InterpreterError
from tilewave.interp.arithmetic import Array
from tilewave.interp.exact import ELEMENT, NAN, elements
from tilewave.interp.exact_numbers import EXACT_NUMBERS
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.core import Kernel
from tilewave.ir.effects import touched
from tilewave.ir.launch import bind
from tilewave.ir.types import Memory
from tilewave.records import dataclass


@dataclass(frozen=True)
class CheckedPass:
    """What one pass did to the results of a kernel: nothing, if `fault` is empty."""

    name: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.fault or 'bit-equal'}"


@dataclass(frozen=True)
class PassCheck:
    """The passes that changed a kernel, in order, up to the first that is wrong."""

    passes: tuple[CheckedPass, ...]
    undecided: int
    """How many elements of the results are NaN or open, so that nothing is known of them."""

    @property
    def wrong(self) -> CheckedPass | None:
        """The first pass that changes a result."""
        return next((p for p in self.passes if p.fault), None)

    def __bool__(self) -> bool:
        return self.wrong is None

    def __str__(self) -> str:
        lost = (f"{self.undecided:,} elements of the results are NaN or open",) if self.undecided else ()
        return "\n".join(map(str, (*self.passes, *lost))) or "no pass changed the kernel"


def check_passes(
    start: Kernel, made: Iterable[tuple[str, Kernel]], arrays: Mapping[str, Array], values: Mapping[str, Any]
) -> PassCheck:
    """Run a kernel, and the kernel after each pass, on the arguments of one call, and compare the results.

    `arrays` are the call's, by the kernel's names for them; they are not changed.
    """
    given = {name: array if array.dtype.kind in "iub" else elements(array) for name, array in arrays.items()}
    wanted = results(start, given, values)
    lost = sum(int((x == NAN).sum()) for x in wanted.values() if x.dtype == ELEMENT)
    return PassCheck(tuple(_checked(start, wanted, made, given, values)), lost)


def _checked(
    before: Kernel,
    wanted: Mapping[str, Array],
    made: Iterable[tuple[str, Kernel]],
    given: Mapping[str, Array],
    values: Mapping[str, Any],
) -> Iterator[CheckedPass]:
    for name, kernel in made:
        if kernel == before:
            continue
        before = kernel
        try:
            found = results(kernel, given, values)
        except (InterpreterError, EndlessLoop) as error:
            yield CheckedPass(name, str(error))
            return
        fault = next(filter(None, (_difference(array, wanted[array], found[array]) for array in wanted)), "")
        yield CheckedPass(name, fault)
        if fault:
            return


def results(kernel: Kernel, given: Mapping[str, Array], values: Mapping[str, Any]) -> dict[str, Array]:
    """Return what a kernel writes, by the names of its arrays; `given` holds elements for float dtypes."""
    bound = bind(kernel, values)
    memories = [v for v in bound.body.args if isinstance(v.type, Memory)]
    arrays = [given[v.name].copy() for v in memories]
    if bound.level == "lane":
        interpret_lanes(bound, arrays, values, numbers=EXACT_NUMBERS)
    else:
        interpret(bound, arrays, values, numbers=EXACT_NUMBERS)
    written = {v.name for v in touched(bound)[0]}
    return {v.name: array for v, array in zip(memories, arrays, strict=True) if v.name in written}


def _difference(name: str, wanted: Array, found: Array) -> str:
    other = np.argwhere(wanted != found)
    if not len(other):
        return ""
    position = ", ".join(map(str, other[0]))
    return f"{len(other):,} of {wanted.size:,} elements of {name} differ, the first at [{position}]"
