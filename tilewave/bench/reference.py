"""The check of any kernel's result against the same program interpreted in float64.

A kernel's tile ops have a meaning in numpy. With every float made float64 the program gives `wide`, its result
without rounding; with its declared dtypes it gives `own`, one correct result among many, since a target may sum in
another order. A result c may differ from `wide` by

    |own - wide|            what these very roundings do, cancellation included, and on average elsewhere
  + n · (|wide| + s)        n: the kernel's roundings, relative (`rounding.py`); s: how far the result moves, per unit,
                            when every input moves by a random share of itself
  + half a unit of c's last place.

Integers must be equal, and a float cast to one may round to either side. Where the whole kernel would take too long, a
random sample of workgroups is checked, and their number is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewave.bench.problem import Array
from tilewave.bench.rounding import casts_floats_to_integers, rounding_error, smallest, unit
from tilewave.compiled import Compiled
from tilewave.interp.tiles import interpret
from tilewave.ir.core import Kernel
from tilewave.ir.rewrite import made_in, rename_block
from tilewave.ir.types import F64, DType
from tilewave.records import dataclass

CHECK_SECONDS = 4.0
"""The approximate time limit for all runs of the interpreter."""
NUDGES = 2
"""Runs with inputs moved at random."""
NUDGE = 2.0**-20
"""The share of itself by which an input moves: far above float64's digits, far below what curves."""


NO_NUMBERS: Mapping[str, float] = {}


def widened(kernel: Kernel) -> Kernel:
    """Return the kernel with every float type replaced by float64."""
    floats = (v for v in made_in(kernel.body) if v.type.dtype.is_float)
    new = {v: replace(v, type=replace(v.type, dtype=F64)) for v in floats}
    return replace(kernel, body=rename_block(kernel.body, new))


@dataclass(frozen=True)
class Accuracy:
    """A result compared with its reference; `max_difference` is nan if an element is unexpectedly not a number."""

    max_difference: float
    errors: int
    elements: int
    """The number of elements that were checked."""
    numberless: int
    """Elements that are no number in float64 either."""
    workgroups: int
    of_workgroups: int
    bitwise_equal: bool

    @property
    def passed(self) -> bool:
        return self.errors == 0 and self.bitwise_equal


@dataclass(frozen=True, eq=False)
class Output:
    """One array that a kernel writes, and the bound of its elements' distance from `wide`."""

    at: int
    dtype: DType
    own: Array
    wide: Array
    bound: Array
    seen: Array
    """Which elements the interpreter has written."""

    def wrong(self, found: Array) -> Array:
        """A number is near, or as the interpreter has it; what is none must be none there too."""
        with np.errstate(all="ignore"):
            near = np.abs(_numbers(found) - _numbers(self.wide)) <= self.bound
        wrong: Array = self.seen & ~(near | _same(found, self.own) | _same(found, self.wide))
        return wrong

    def largest_difference(self, found: Array) -> float:
        with np.errstate(all="ignore"):
            off = np.abs(_numbers(found) - _numbers(self.wide))
        counted = off[self.seen & ~_same(found, self.wide)]
        return float(counted.max()) if counted.size else 0.0

    def agrees_with(self, other: Output) -> bool:
        """Whether two kernels mean the same by this array, as far as both were looked at."""
        with np.errstate(all="ignore"):
            near = np.abs(_numbers(self.wide) - _numbers(other.wide)) <= self.bound + other.bound
        return bool((near | _same(self.wide, other.wide) | ~self.seen | ~other.seen).all())


@dataclass(frozen=True, eq=False)
class KernelReference:
    """What a kernel should write, given its arguments."""

    outputs: tuple[Output, ...]
    workgroups: int
    of_workgroups: int

    @staticmethod
    def of(
        compiled: Compiled,
        arrays: Sequence[Array],
        seed: int,
        seconds: float | None = None,
        numbers: Mapping[str, float] = NO_NUMBERS,
    ) -> KernelReference:
        """Compute the reference for arguments before a call, which are not changed; `numbers` are scalar arguments."""
        kernel, draw = compiled.kernel, np.random.default_rng(seed)
        limit = CHECK_SECONDS if seconds is None else seconds
        chosen = _chosen(lambda some: _run(kernel, arrays, some, numbers), kernel.workgroup_count, draw, limit)
        own = _run(kernel, arrays, chosen, numbers)
        wide_kernel, inputs = widened(kernel), [_wide(x) for x in arrays]
        wide = _run(wide_kernel, inputs, chosen, numbers)
        nudged = [_run(wide_kernel, [_nudged(x, draw) for x in inputs], chosen, numbers) for _ in range(NUDGES)]
        roundings, slack = rounding_error(kernel), float(casts_floats_to_integers(kernel))
        made = []
        for at, parameter in enumerate(compiled.parameters):
            if parameter.written:
                moved = [run[at] for run in nudged]
                bound = _bound(own[at], wide[at], moved, roundings, slack, parameter.dtype)
                seen = ~_same(own[at], arrays[at]) | ~_same(wide[at], inputs[at])
                everything = np.ones_like(seen) if len(chosen) == kernel.workgroup_count else seen
                made.append(Output(at, parameter.dtype, own[at], wide[at], bound, everything))
        return KernelReference(tuple(made), len(chosen), kernel.workgroup_count)

    def agrees_with(self, other: KernelReference) -> bool:
        return all(a.agrees_with(b) for a, b in zip(self.outputs, other.outputs, strict=True))

    def check(self, arrays: Sequence[Array], repeated: Sequence[Array]) -> Accuracy:
        """Check the arguments after a call, and after a second call."""
        found = [(output, arrays[output.at]) for output in self.outputs]
        return Accuracy(
            max((output.largest_difference(x) for output, x in found), default=0.0),
            sum(int(np.count_nonzero(output.wrong(x))) for output, x in found),
            sum(int(np.count_nonzero(output.seen)) for output in self.outputs),
            sum(int(np.count_nonzero(output.seen & np.isnan(_numbers(output.wide)))) for output in self.outputs),
            self.workgroups,
            self.of_workgroups,
            all(arrays[o.at].tobytes() == repeated[o.at].tobytes() for o in self.outputs),
        )


def _chosen(run: Callable[[list[int]], object], count: int, draw: np.random.Generator, limit: float) -> list[int]:
    """Return as many random workgroups as fit into the time limit, from a warm run of the first one."""
    order = [int(w) for w in draw.permutation(count)]
    run(order[:1])
    start = time.perf_counter()
    run(order[:1])
    seconds = (time.perf_counter() - start) * (2 + NUDGES)
    return sorted(order[: max(1, int(limit / max(seconds, 1e-9)))])


def _run(kernel: Kernel, arrays: Sequence[Array], workgroups: list[int], numbers: Mapping[str, float]) -> list[Array]:
    made = [x.copy() for x in arrays]
    interpret(kernel, made, numbers, workgroups)
    return made


def _wide(x: Array) -> Array:
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def _nudged(x: Array, draw: np.random.Generator) -> Array:
    return x if x.dtype.kind in "iub" else x * (1 + NUDGE * draw.uniform(-1, 1, x.shape))


def _numbers(x: Array) -> Array:
    return x.astype(np.float64)


def _bound(own: Array, wide: Array, moved: list[Array], roundings: float, slack: float, dtype: DType) -> Array:
    if not dtype.is_float:
        return np.full(own.shape, slack)
    with np.errstate(all="ignore"):
        exact, off = np.abs(wide), _distance(own, wide)
        follows = np.maximum.reduce([_distance(x, wide) for x in moved]) / NUDGE
        bound: Array = off + _mean(off) + roundings * (exact + follows + _mean(follows))
        return bound + exact * unit(dtype) / 2 + smallest(dtype)


def _distance(a: Array, b: Array) -> Array:
    """Without end where one of them has none, or is no number."""
    return np.where(_same(a, b), 0.0, np.nan_to_num(np.abs(_numbers(a) - _numbers(b)), nan=np.inf))


def _mean(x: Array) -> float:
    """The root of the mean square of those that are numbers."""
    numbers = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(numbers)))) if numbers.size else 0.0


def _same(a: Array, b: Array) -> Array:
    """Equal, or no number both."""
    x, y = (v if v.dtype.kind in "iub" else _numbers(v) for v in (a, b))
    equal: Array = x == y
    return equal if x.dtype.kind in "iub" or y.dtype.kind in "iub" else equal | (np.isnan(x) & np.isnan(y))
