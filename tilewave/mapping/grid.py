"""The grid of tiles, the deal of tiles to workgroups, and the checks of numbers in a mapping."""

from __future__ import annotations

import operator
from dataclasses import field
from numbers import Number
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from tilewave.errors import NOWHERE, Loc, TilewaveError
from tilewave.mapping.index import Index, is_one, times
from tilewave.records import dataclass

MOST_TILES = 2**31 - 1
"""What a launch can number: HIP and CUDA both hold the first grid dimension in 31 bits."""

LARGEST_PARAMETER = 2**31

FITS_INT32 = 1 << 27
"""Up to here no intermediate value of a built-in formula leaves int32 (they stay below 16 times the count)."""


class MappingError(TilewaveError):
    """A mapping that is spelled wrongly, or does not compute every tile exactly once."""

    def __init__(self, what: str, *, loc: Loc = NOWHERE, remedy: str = "", counterexample: object = None) -> None:
        super().__init__(what, loc=loc, remedy=remedy)
        self.counterexample = counterexample


class ParameterError(MappingError):
    """One parameter of a mapping is out of range or of the wrong kind."""

    def __init__(self, what: str, parameter: str, *, remedy: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.parameter = parameter


class MappingHasNoEffect(UserWarning):
    """A parameter makes a mapping do nothing on this grid."""


@dataclass(frozen=True)
class Grid:
    """The tiles of a problem: `rows` along M, `cols` along N, `batches` of such planes."""

    rows: int
    cols: int
    batches: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "cols", "batches"):
            object.__setattr__(self, name, _count(name, getattr(self, name), f"a grid needs {name} >= 1"))
        if self.size > MOST_TILES:
            raise MappingError(f"a grid of {self} has {self.size} tiles; a launch numbers at most {MOST_TILES}")

    @property
    def plane(self) -> int:
        """Tiles in one batch."""
        return self.rows * self.cols

    @property
    def size(self) -> int:
        """Tiles in all."""
        return self.plane * self.batches

    @property
    def transposed(self) -> Grid:
        """Return this grid with M and N swapped."""
        return Grid(self.cols, self.rows, self.batches)

    def __str__(self) -> str:
        return f"{self.rows}×{self.cols}" + (f"×{self.batches}" if self.batches > 1 else "")


@dataclass(frozen=True, eq=False)
class OpenGrid:
    """A grid with dynamic sides: each is an int, or a traced number that is at least 1.

    The launcher ensures that no side is 0, and that there are at most MOST_TILES tiles.
    """

    rows: Index
    cols: Index
    batches: Index = 1
    _computed: dict[str, Index] = field(default_factory=dict, init=False, repr=False)
    """Products already computed: a product of traced numbers is an op of the kernel, and is emitted once."""

    @property
    def plane(self) -> Index:
        """Tiles in one batch."""
        if "plane" not in self._computed:
            self._computed["plane"] = times(self.rows, self.cols)
        return self._computed["plane"]

    @property
    def size(self) -> Index:
        """Tiles in all."""
        if "size" not in self._computed:
            self._computed["size"] = times(self.plane, self.batches)
        return self._computed["size"]

    @property
    def transposed(self) -> OpenGrid:
        """Return this grid with M and N swapped."""
        return OpenGrid(self.cols, self.rows, self.batches)

    def __str__(self) -> str:
        return f"{self.rows}×{self.cols}" + ("" if is_one(self.batches) else f"×{self.batches}")


AnyGrid = Grid | OpenGrid


@dataclass(frozen=True)
class Deal:
    """`count` tiles dealt to `workgroups` workgroups in rounds: tile t goes to workgroup t % workgroups."""

    count: int
    workgroups: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _count("count", self.count, "a deal needs a count >= 1"))
        object.__setattr__(self, "workgroups", checked_workgroups(self.workgroups))

    @property
    def in_one_round(self) -> bool:
        """Whether no workgroup computes a second tile: a plain launch."""
        return self.workgroups >= self.count

    @property
    def each(self) -> Deal:
        """The plain launch of the same tiles."""
        return Deal(self.count, self.count)


@dataclass(frozen=True, eq=False)
class OpenDeal:
    """The deal of an open grid; `launched` may be an int or a traced number, and is None for one workgroup per tile.

    Unlike in a Deal, there may be more workgroups than tiles: the rest is then all there is, and no round is full.
    """

    grid: OpenGrid
    launched: Index | None = None

    @property
    def count(self) -> Index:
        """Tiles in all."""
        return self.grid.size

    @property
    def workgroups(self) -> Index:
        """Workgroups launched."""
        return self.count if self.launched is None else self.launched

    @property
    def in_one_round(self) -> bool:
        """Whether this is known to be a plain launch before anything runs."""
        return self.workgroups is self.count

    @property
    def each(self) -> OpenDeal:
        """The plain launch of the same tiles."""
        return OpenDeal(self.grid)


AnyDeal = Deal | OpenDeal


@overload
def deal_of(grid: Grid, workgroups: int | None) -> Deal: ...
@overload
def deal_of(grid: OpenGrid, workgroups: Index | None) -> OpenDeal: ...


def deal_of(grid: AnyGrid, workgroups: Index | None) -> AnyDeal:
    """How a launch deals the grid; without `workgroups`, one workgroup per tile. More than that have nothing to do."""
    if isinstance(grid, OpenGrid):
        return OpenDeal(grid, workgroups)
    return Deal(grid.size, grid.size if workgroups is None else min(checked_workgroups(workgroups), grid.size))


def checked_workgroups(workgroups: int) -> int:
    """A number of workgroups that can be launched."""
    return _count("workgroups", workgroups, "a launch needs workgroups >= 1")


def _count(name: str, value: object, need: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise MappingError(f"{name} is a whole number, not {value!r}")
    number = operator.index(value)
    if number < 1:
        raise MappingError(f"{need}, not {number}")
    if number > MOST_TILES:
        raise MappingError(f"{name} = {number} is too large; a launch numbers at most {MOST_TILES} tiles")
    return number


def checked_number(number: Index, count: int, where: str) -> Index:
    """Return a tile number, or an array of them, checked to be below `count`; traced numbers are not checked."""
    if isinstance(number, (bool, np.bool_)) or (
        isinstance(number, Number) and not isinstance(number, (int, np.integer))
    ):
        raise MappingError(f"{where}: the number of a tile is a whole number, not {number!r}")
    if isinstance(number, (int, np.integer)):
        return _below(int(number), count, where)
    if isinstance(number, np.ndarray):
        return _all_below(number, count, where)
    if not hasattr(number, "__floordiv__"):
        raise MappingError(f"{where}: the number of a tile is a whole number, not {number!r}")
    return number


def _all_below(numbers: npt.NDArray[Any], count: int, where: str) -> npt.NDArray[Any]:
    if numbers.dtype.kind not in "iu":
        raise MappingError(f"{where}: the numbers of tiles are whole numbers, not {numbers.dtype}")
    if numbers.size:
        _below(int(numbers.min()), count, where)
        _below(int(numbers.max()), count, where)
    is_roomy = numbers.dtype == np.int64 or (numbers.dtype == np.int32 and count <= FITS_INT32)
    return numbers if is_roomy else numbers.astype(np.int64)  # narrow ones would wrap in the middle of a formula


def _below(number: int, count: int, where: str) -> int:
    if not 0 <= number < count:
        raise MappingError(f"{where}: there is no tile {number}", remedy=f"they are numbered from 0 to {count - 1}")
    return number


def checked_parameter(step: str, name: str, value: Index) -> Index:
    """Return a parameter as an int if its value is known, and unchanged if it is known only at launch."""
    if isinstance(value, (bool, np.bool_)) or value is None or isinstance(value, (str, bytes)):
        raise ParameterError(f"{step}: {name} is a whole number, not {value!r}", name)
    if hasattr(value, "__index__") and not isinstance(value, np.ndarray) and _is_plain_integer(value):
        number = operator.index(value)
        if number < 1:
            raise ParameterError(f"{step}: {name} is {number}, but must be at least 1", name)
        if number > LARGEST_PARAMETER:
            raise ParameterError(f"{step}: {name} is {number}, but may be at most {LARGEST_PARAMETER}", name)
        return number
    if isinstance(value, (Number, np.floating)) or not hasattr(value, "__floordiv__"):
        raise ParameterError(f"{step}: {name} is a whole number, not {value!r}", name)
    return value


def _is_plain_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer))


def checked_along(step: str, along: object) -> None:
    """Raise ParameterError unless `along` is "m" or "n"."""
    if along not in ("m", "n"):
        raise ParameterError(f'{step}: along is "m" or "n", not {along!r}', "along")
