"""The shape of tiles"""

from __future__ import annotations

from tilewave.ir.core import Axis, Op, Value, Want
from tilewave.ir.ops.kinds import Computed, Pure
from tilewave.ir.rules import ON_BOTH, ON_LANES, ON_TILES, are_axes, want_results
from tilewave.ir.types import BOOL, Scalar, Tile, Vector, is_held
from tilewave.records import dataclass

__all__ = [
    "Broadcast",
    "Concatenate",
    "Convert",
    "ExtractSlice",
    "Iota",
    "Permute",
]


@dataclass(frozen=True)
class Broadcast(Pure):
    """Repeat x along the result's other axes; axis i of x becomes axis `axes[i]`."""

    levels = ON_BOTH

    x: Value
    axes: tuple[int, ...] = ()

    def check(self, want: Want) -> None:
        x, out, axes = self.x.type, self.result.type, self.axes
        _want_same_kind(self, want)
        fits = len(axes) == len(x.shape) and are_axes(axes, len(out.shape))
        want(fits and tuple(out.shape[a] for a in axes) == x.shape, f"{x} along {axes} is not {out}")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return tuple(((self.x, i), (self.result, axis)) for i, axis in enumerate(self.axes))


@dataclass(frozen=True)
class ExtractSlice(Pure):
    """A slice of a tile, or of a vector's registers, from `first` on along one axis, as long as the result."""

    levels = ON_BOTH

    x: Value
    axis: int
    first: int

    def check(self, want: Want) -> None:
        whole, part, axis = self.x.type, self.result.type, self.axis
        _want_same_kind(self, want)
        want(len(whole.shape) == len(part.shape) and 0 <= axis < len(whole.shape), f"takes a part of {whole}")
        others = whole.shape[:axis] + whole.shape[axis + 1 :] == part.shape[:axis] + part.shape[axis + 1 :]
        inside = 0 <= self.first <= whole.shape[axis] - part.shape[axis]
        want(others and inside, f"{part} at {self.first} is no part of {whole}")


@dataclass(frozen=True)
class Concatenate(Computed):
    """Vectors concatenated along an axis."""

    levels = ON_LANES

    vectors: tuple[Value, ...]
    axis: int

    def check(self, want: Want) -> None:
        whole, axis = self.result.type, self.axis
        shapes = [v.type.shape for v in self.vectors]
        kinds = isinstance(whole, Vector) and all(isinstance(v.type, Vector) for v in self.vectors)
        want(kinds and all(v.type.dtype == whole.dtype for v in self.vectors), f"makes {whole} of such vectors")
        want(0 <= axis < len(whole.shape), f"{whole} has no axis {axis}")
        others = {shape[:axis] + shape[axis + 1 :] for shape in shapes} == {
            whole.shape[:axis] + whole.shape[axis + 1 :]
        }
        want(others and sum(s[axis] for s in shapes) == whole.shape[axis], f"{shapes} do not make {whole}")


@dataclass(frozen=True)
class Permute(Pure):
    """Axis i of the result is axis `axes[i]` of x."""

    levels = ON_BOTH

    x: Value
    axes: tuple[int, ...]

    def check(self, want: Want) -> None:
        x, out, axes = self.x.type, self.result.type, self.axes
        _want_same_kind(self, want)
        fits = sorted(axes) == list(range(len(x.shape)))
        want(fits and tuple(x.shape[a] for a in axes) == out.shape, f"{x} along {axes} is not {out}")

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return tuple(((self.x, axis), (self.result, i)) for i, axis in enumerate(self.axes))


@dataclass(frozen=True)
class Convert(Computed):
    """The tile in the layout in which it is needed: lanes of a wave move elements among their registers, or between
    each other."""

    levels = ON_TILES

    x: Value

    def check(self, want: Want) -> None:
        want(isinstance(self.x.type, Tile), f"converts a tile, not {self.x.type}")
        want_results(self, want, self.x.type)

    def corresponding(self) -> tuple[tuple[Axis, Axis], ...]:
        return tuple(((self.x, axis), (self.result, axis)) for axis in range(len(self.x.type.shape)))


def _want_same_kind(op: Broadcast | ExtractSlice | Permute, want: Want) -> None:
    x, out = op.x.type, op.result.type
    want(is_held(x) and isinstance(out, (Tile, Vector)), f"{x} cannot become {out}")
    want(isinstance(x, (Scalar, type(out))), f"{x} cannot become {out}")
    want(x.dtype == out.dtype, f"{x} and {out} differ in dtype")


class Iota(Pure):
    """0, 1, 2, … along a tile of one axis."""

    levels = ON_TILES

    def check(self, want: Want) -> None:
        kind = self.result.type
        fits = isinstance(kind, Tile) and len(kind.shape) == 1 and kind.dtype != BOOL
        want(fits, f"makes a tile of one axis that holds numbers, not {kind}")


OPS: tuple[type[Op], ...] = (
    Broadcast,
    ExtractSlice,
    Concatenate,
    Permute,
    Convert,
    Iota,
)
