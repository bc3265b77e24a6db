"""Reductions: many elements become one

Neighbours are combined first, then neighbouring pairs, and so on; an element without a neighbour moves up a level:

    x0 x1 x2 x3 x4      (x0 + x1) (x2 + x3) x4      ((x0 + x1) + (x2 + x3)) x4      … + x4

So the order of a sum is deterministic: it depends only on the number of elements; of several axes the last is reduced
first.
"""

from __future__ import annotations

from math import prod

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.arith import Add, And, Binary, Max, Min, Mul, Or
from tilewave.ir.ops.kinds import Computed
from tilewave.ir.rules import ON_LANES, ON_TILES, are_axes
from tilewave.ir.types import BOOL, DType, Scalar, Tile, Type, Vector
from tilewave.records import dataclass

__all__ = [
    "AllOf",
    "Reduce",
    "ReduceHalves",
    "ReduceLanes",
    "ReduceRegisters",
    "Reduction",
    "Shift",
]

COMBINED_BY: dict[str, type[Binary]] = {"sum": Add, "prod": Mul, "max": Max, "min": Min, "any": Or, "all": And}
"""The op that combines two elements."""


def identity(how: str, dtype: DType) -> int | float | bool:
    """Return the neutral element."""
    if how in ("any", "all"):
        return how == "all"
    if how in ("sum", "prod"):
        one = int(how == "prod")
        return float(one) if dtype.is_float else one
    if dtype.is_float:
        return -dtype.largest if how == "max" else dtype.largest
    least, greatest = dtype.bounds
    return least if how == "max" else greatest


def padding(how: str, dtype: DType) -> int | float | bool:
    """Return the number that changes no result of a reduction, the sign of zeros included: -0 for sums of floats."""
    return -0.0 if how == "sum" and dtype.is_float else identity(how, dtype)


class Reduction(Computed):
    """Combines elements of `x` as `how` says."""

    x: Value
    how: str

    def _check_elements(self, want: Want) -> None:
        x, how = self.x.type, self.how
        want(how in COMBINED_BY, f"{how} is no way to combine elements; {', '.join(COMBINED_BY)} are")
        truths = how in ("any", "all")
        want((x.dtype == BOOL) == truths, f"{how} combines {'truth values' if truths else 'numbers'}, not {x}")


@dataclass(frozen=True)
class Reduce(Reduction):
    """x reduced along `axes`; where `run` is not 0, the one axis keeps an element for each run of so many
    neighbours."""

    levels = ON_TILES

    x: Value
    axes: tuple[int, ...]
    how: str
    run: int = 0

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Tile), f"takes a tile, not {x}")
        self._check_elements(want)
        fits = len(self.axes) > 0 and are_axes(self.axes, len(x.shape))
        want(fits, f"{x} has no axes {list(self.axes)} to reduce")
        alone = len(self.axes) == 1 and self.run > 0 and x.shape[self.axes[0]] % self.run == 0
        want(self.run == 0 or alone, f"{x} has no runs of {self.run}")
        made = self.result.type
        want(made == reduced(x, self.axes, self.run), f"makes {reduced(x, self.axes, self.run)}, not {made}")

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes of x that the result has unreduced."""
        return tuple(axis for axis in range(len(self.x.type.shape)) if axis not in self.axes)

    @property
    def has_order(self) -> bool:
        """Whether the order of combination affects the result."""
        return self.how in ("sum", "prod") and bool(self.x.type.dtype.is_float)

    @property
    def shape_with_runs(self) -> tuple[int, ...]:
        """The shape of x with an axis of runs as two axes: the run, and the position in it."""
        shape: tuple[int, ...] = self.x.type.shape
        if not self.run:
            return shape
        (axis,) = self.axes
        return (*shape[:axis], shape[axis] // self.run, self.run, *shape[axis + 1 :])

    @property
    def axes_with_runs(self) -> tuple[int, ...]:
        """The reduced axes of `shape_with_runs`."""
        return (self.axes[0] + 1,) if self.run else tuple(sorted(self.axes))

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        if self.run:
            return tuple(((self.x, axis), (self.result, axis)) for axis in self.kept)
        return tuple(((self.x, axis), (self.result, i)) for i, axis in enumerate(self.kept))

    @property
    def contracted(self) -> tuple[Axis, ...]:
        return tuple((self.x, axis) for axis in self.axes)


def reduced(x: Type, axes: tuple[int, ...], run: int = 0) -> Type:
    """Return the type of a reduced tile."""
    if run:
        return Tile(tuple(n // run if axis in axes else n for axis, n in enumerate(x.shape)), x.dtype)
    shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    return Tile(shape, x.dtype) if shape else Scalar(x.dtype)


@dataclass(frozen=True)
class ReduceRegisters(Reduction):
    """A reduction within each lane, along some axes of its registers; at least one register is left."""

    levels = ON_LANES

    x: Value
    axes: tuple[int, ...]
    how: str

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector), f"takes a vector, not {x}")
        self._check_elements(want)
        want(are_axes(self.axes, len(x.shape)), f"{x} has no axes {list(self.axes)}")
        shape = tuple(n for axis, n in enumerate(x.shape) if axis not in self.axes) or (1,)
        want(self.result.type == Vector(shape, x.dtype), f"{x} does not become {self.result.type}")


@dataclass(frozen=True)
class ReduceLanes(Reduction):
    """A reduction between lanes of a wave, register by register, over lanes whose numbers differ only in `bits`, in
    order; each of them has the result."""

    levels = ON_LANES

    x: Value
    bits: tuple[int, ...]
    how: str

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector) and self.result.type == x, f"takes a vector and gives one like it, not {x}")
        self._check_elements(want)
        want(
            len(set(self.bits)) == len(self.bits) and all(bit >= 0 for bit in self.bits), f"{list(self.bits)}: no bits"
        )

    def check_wave(self, lanes: int, want: Want) -> None:
        want(all(1 << bit < lanes for bit in self.bits), f"{lanes} lanes have no bits {list(self.bits)}")


@dataclass(frozen=True)
class ReduceHalves(Reduction):
    """A reduction between the two lanes of a wave whose numbers differ only in `bit`: registers of both are combined,
    and the lane without the bit keeps the first half of them along an axis, the other lane the second."""

    levels = ON_LANES

    x: Value
    axis: int
    bit: int
    how: str

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector), f"takes a vector, not {x}")
        self._check_elements(want)
        fits = are_axes((self.axis,), len(x.shape)) and x.shape[self.axis] % 2 == 0
        want(fits, f"{x} has no two halves along axis {self.axis}")
        shape = tuple(n // 2 if axis == self.axis else n for axis, n in enumerate(x.shape))
        want(self.result.type == Vector(shape, x.dtype), f"{x} does not become {self.result.type}")
        want(self.bit >= 0, f"{self.bit}: no bit")

    def check_wave(self, lanes: int, want: Want) -> None:
        want(1 << self.bit < lanes, f"{lanes} lanes have no bit {self.bit}")


@dataclass(frozen=True)
class AllOf(Computed):
    """The number in a register that is the same in every lane of the workgroup, as a uniform scalar."""

    levels = ON_LANES

    x: Value

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Vector) and prod(x.shape) == 1, f"takes a vector of one register, not {x}")
        want(self.result.type == Scalar(x.dtype), f"gives one number, not {self.result.type}")


@dataclass(frozen=True)
class Shift(Computed):
    """x shifted by so many positions towards the end of an axis, or by a negative number towards its start; zeros are
    shifted in."""

    levels = ON_TILES

    x: Value
    axis: int
    by: int

    def check(self, want: Want) -> None:
        x = self.x.type
        want(isinstance(x, Tile) and x.dtype != BOOL and self.result.type == x, f"moves numbers of a tile, not {x}")
        want(are_axes((self.axis,), len(x.shape)), f"{x} has no axis {self.axis}")
        want(0 < abs(self.by) < x.shape[self.axis], f"{x} cannot be moved by {self.by}")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        axes = range(len(self.x.type.shape))
        return tuple(((self.x, axis), (self.result, axis)) for axis in axes)

    @property
    def contracted(self) -> tuple[Axis, ...]:
        return ((self.x, self.axis),)


OPS: tuple[type[Op], ...] = (
    Reduce,
    ReduceRegisters,
    ReduceLanes,
    ReduceHalves,
    AllOf,
    Shift,
)
