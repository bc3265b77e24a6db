"""The state of tracing: the ops so far, the value of every symbol, and the current window of each dimension.

`lang` runs the author's function once, with known tile sizes; every op it calls is recorded here with its source line.
This module knows dimensions and symbols only as keys.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from typing import Any

from tilewave.errors import Loc, TraceError, here
from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Op, Value
from tilewave.ir.ops import FloorDiv, Mul
from tilewave.ir.types import INDEX_SCALAR, DType, Type
from tilewave.records import dataclass

Index = Any
"""An int, or a number that is known only when the kernel runs."""

ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::[^=]*)?=\s*$")


@dataclass(frozen=True)
class DimensionWindow:
    """The part of a dimension that a tile spans: its first index and its length."""

    start: Index
    extent: int
    number: Index | None = None
    """The number of the tile where tiles are adjacent, so that start = number · extent; None where they are not."""
    end: Index | None = None
    """The end of a ragged dim's group, whose elements alone belong to the tile; None: that of the dimension."""

    @staticmethod
    def tile(number: Index, extent: int) -> DimensionWindow:
        """Return the window of the tile of that number among adjacent tiles."""
        return DimensionWindow(number * extent, extent, number)

    def times(self, factor: int) -> DimensionWindow:
        """Return the window of a dimension that has `factor` elements for each of this one's."""
        if self.number is not None:
            return DimensionWindow.tile(self.number, self.extent * factor)
        end = None if self.end is None else self.end * factor
        return DimensionWindow(self.start * factor, self.extent * factor, end=end)

    def per(self, block: int) -> DimensionWindow | None:
        """Return the window of a dimension that has one element for each `block` of this one's.

        A block that is longer than a tile is one element, which several tiles have; None where a block would begin
        inside a tile and end inside another.
        """
        number = self.start if self.extent == 1 else self.number
        if number is None or (self.extent % block and block % self.extent):
            return None
        if self.extent % block == 0:
            return DimensionWindow.tile(number, self.extent // block)
        return DimensionWindow.tile(number // (block // self.extent), 1)


@dataclass(frozen=True)
class WalkedDimension:
    """A dimension that `iterate` loops over: its whole length, and the length of one step."""

    length: Index
    step: int
    iters: Any = None
    """The author's expression for the most steps; None: the whole length."""
    parts: int = 1
    """The split-K parts of its steps, for workgroups that add up one tile together."""
    start: Any = None
    """The author's expression for the start of the first step; None: 0."""
    end: Any = None
    """The end of the elements that the kernel steps over, where it has set that; None: that of the dimension."""


def steps_along(length: Index, step: int, name: str) -> Index:
    """Return how many steps cover a length; `name` names the number where it is known only at the launch."""
    if isinstance(length, int):
        return -(-length // step)
    out, whole = length.builder, (length + (step - 1)).value
    return length.make(out.emit(FloorDiv, whole, out.const(step), type=INDEX_SCALAR, name=name))


@dataclass(frozen=True)
class TileLimits:
    """The most bytes of a tile that a workgroup holds on its target; None is no limit."""

    target: str = ""
    most_bytes: int | None = None


ANYWHERE = TileLimits()


@dataclass(frozen=True)
class TileTransfer:
    """A tile that is read or written, by its dims, and the dims of the enclosing loops."""

    memory: str
    dims: tuple[Any, ...]
    dtype: DType
    is_written: bool
    walked: tuple[Any, ...]


@dataclass(frozen=True)
class TileProduct:
    """A matrix product of tiles, by their dims, and the dims of the enclosing loops."""

    rows: Any
    cols: Any
    depth: Any
    batch: tuple[Any, ...]
    dtype: DType
    acc: DType
    walked: tuple[Any, ...]


@dataclass(frozen=True)
class TileWork:
    """The reads, writes and products of one tile of a kernel, in dims; sizes and tile sizes are given elsewhere."""

    transfers: tuple[TileTransfer, ...] = ()
    products: tuple[TileProduct, ...] = ()


NO_WORK = TileWork()


@dataclass
class Trace(Builder):
    """A kernel being traced; a builder whose ops know the author's line and variable."""

    locate: Callable[[], Loc] = here
    symbols: dict[Any, Index] = field(default_factory=dict)
    windows: dict[Any, DimensionWindow] = field(default_factory=dict)
    walks: Mapping[Any, WalkedDimension] = field(default_factory=dict)
    tile_at: dict[Any, Index] = field(default_factory=dict)
    """WORKGROUP_0, … as the coordinates of the workgroup's tile, in any order of tiles."""
    lengths: dict[Any, Index] = field(default_factory=dict)
    """The length of each dim of the kernel's arrays."""
    goes_with: Mapping[Any, Any] = field(default_factory=dict)
    """Dims that have the tiles of another dim."""
    bindings: Mapping[Any, Any] = field(default_factory=dict)
    """The dims of tiles, by the author's iterator symbols."""
    driven: frozenset[Any] = frozenset()
    """Dimensions of while loops; the kernel sets them itself."""
    settable: dict[Any, Number] = field(default_factory=dict)
    """The symbols that the kernel has set, with their current values."""
    made_at: dict[Value, Loc] = field(default_factory=dict)
    zero_outside: dict[Value, frozenset[Any]] = field(default_factory=dict)
    """Tiles that are 0 out of bounds along these dims, as every tile just read is."""
    read_from: dict[Value, Any] = field(default_factory=dict)
    """The memory of which a value is the workgroup's tile."""
    mapped: dict[Value, tuple[Any, Any]] = field(default_factory=dict)
    """The memory and the mapping by which a tile was read."""
    scales: dict[Value, Value] = field(default_factory=dict)
    """The tile that scales of `scaled_mma` were decoded from."""
    multiples: Mapping[Any, int] = field(default_factory=dict)
    """Numbers that the author assumes to divide dynamic dims."""
    max_sizes: Mapping[Any, int] = field(default_factory=dict)
    """The largest lengths of dynamic dimensions that a workgroup takes whole."""
    allocations: list[Op] = field(default_factory=list)
    """The allocations of shared memory, which precede all other ops."""
    mask: Any = None
    """The condition for each element under which writes store; None where they store all."""
    limits: dict[Any, tuple[int, int]] = field(default_factory=dict)
    """The least and the largest length of those dynamic dimensions that the kernel does take whole."""
    arrays: Mapping[str, Any] = field(default_factory=dict)
    """The kernel's arrays by name."""
    groups: dict[Any, Number] = field(default_factory=dict)
    """The group of the workgroup's tile, by the dim that counts the groups of a ragged dim."""
    unplaced: frozenset[Any] = frozenset()
    """Dimensions over the grid whose tiles are placed by the kernel's own loop: only it knows where they begin."""
    room: TileLimits = ANYWHERE
    transfers: list[TileTransfer] = field(default_factory=list)
    products: list[TileProduct] = field(default_factory=list)

    def emit(self, cls: Callable[..., Op], *parts: Any, type: Type, name: str = "") -> Value:
        loc = self.locate()
        result = super().emit(cls, *parts, type=type, name=name or assigned_name(loc))
        self.made_at[result] = loc
        if cls is Mul and all(part in self.zero_outside for part in parts):  # 0 · 0 is 0, while 0 · inf is NaN
            self.zero_outside[result] = frozenset.intersection(*(self.zero_outside[part] for part in parts))
        return result

    def const_named(self, value: int | float | bool, type: Type) -> Value:
        """Return a constant that the author wrote, named after the variable it is assigned to."""
        return self.const(value, type, name=assigned_name(self.locate()))

    def number(self, value: Value) -> Number:
        return Number(self, value)

    def index(self, x: Index) -> Value:
        """Return a position as a value: known numbers become constants."""
        return self.cast(x.value, INDEX_SCALAR.dtype) if isinstance(x, Number) else self.const(int(x))

    def set_symbol(self, symbol: Hashable, number: Number) -> None:
        self.symbols[symbol] = self.settable[symbol] = number

    def longest(self, dim: Hashable) -> Index:
        """Return the length of a dimension in the array that has most of it."""
        own = [a.laid_out[dim] for a in self.arrays.values() if dim in a.laid_out]
        found = self.lengths.get(dim, self.walks[dim].length)
        for length in own:
            both = (length, found)
            number = next((n for n in both if isinstance(n, Number)), None)
            found = max(both) if number is None else number.larger(both[0] if number is both[1] else both[1])
        return found

    def set_end(self, dim: Hashable, end: Number) -> None:
        """End a divided dimension after so many elements, from here on: its tiles have no others."""
        if dim in self.walks:
            end = end.smaller(self.longest(dim)).larger(0)
            self.walks = {**self.walks, dim: replace(self.walks[dim], length=end, end=end)}
        for d in [d for d in self.windows if self.goes_with.get(d, d) == dim]:
            self.windows[d] = replace(self.windows[d], end=end)
        self.set_symbol(dim, end)

    @property
    def walked(self) -> tuple[Any, ...]:
        """The dimensions of the enclosing loops."""
        return tuple(dim for dim in self.walks if dim in self.windows)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Restore symbols and windows at the end of the `with` block."""
        symbols, windows, settable = dict(self.symbols), dict(self.windows), dict(self.settable)
        try:
            yield
        finally:
            self.symbols, self.windows, self.settable = symbols, windows, settable


def assigned_name(loc: Loc) -> str:
    """Return the variable that the expression at `loc` is assigned to, where it is the whole right-hand side."""
    if loc.column < 0:
        return ""
    line = linecache.getline(loc.file, loc.line).rstrip("\n").encode()
    found = ASSIGNED.match(line[: loc.column].decode(errors="replace"))
    return found[1] if found and not line[loc.end_column :].strip() else ""


_TRACE: ContextVar[Trace | None] = ContextVar("tilewave_trace", default=None)


def current(op: str) -> Trace:
    """Return the kernel being traced; an error that names `op` where there is none."""
    trace = _TRACE.get()
    if trace is None:
        of_a_number = f";\nof a Python number, write math.{op}(…)" if hasattr(math, op) else ""
        raise TraceError(
            f"{op} is called outside a kernel",
            loc=here(),
            remedy=f"kernels run when they are compiled: put it into a function under @wave(constraints){of_a_number}",
        )
    return trace


def is_tracing() -> bool:
    """Return whether a kernel's function is running."""
    return _TRACE.get() is not None


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the current one within the `with` block."""
    token = _TRACE.set(trace)
    try:
        yield trace
    finally:
        _TRACE.reset(token)
