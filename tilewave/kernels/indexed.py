"""Rows at indices from memory: gathered, stored, added.

An index out of bounds, such as -1, gives a row of zeros where rows are read, and stores or adds nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.call import power_of_two_for
from tilewave.errors import DTypeError, here
from tilewave.ir.types import BOOL, DType
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import MOST_ROWS, kernel_for
from tilewave.lang.accesses import atomic_add, read, write
from tilewave.lang.constraints import Constraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.ops import cast
from tilewave.lang.reductions import SUMMED_IN
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, Indices, MemoryType, RegisterType
from tilewave.machine.chips import CHIPS
from tilewave.records import dataclass

B, T, V, D = sym.B, sym.T, sym.V, sym.D

WIDEST_BYTES = 4096
"""The widest tile of a row."""
READ_BYTES, STORED_BYTES = 8192, 2048
"""The bytes of a tile of several rows. Measured on an H200: rows of 256 bytes and more are then read at a copy's speed,
and stored at 0.92 of it; a wave that stores more has fewer beside it, and one that stores less begins too often."""
HOST_ELEMENTS, HOST_ROWS, HOST_COLUMNS = 1 << 14, (16, 256), 4096
"""The elements, the fewest and most rows, and the most columns of a tile on a CPU."""


@dataclass(frozen=True)
class RowTile:
    """The tile of a workgroup that reads or stores rows at indices."""

    rows: int
    columns: int
    batch: tuple[Any, ...] = ()
    """The dims before the rows, along which a workgroup takes one: none, or `B`."""

    def constraints(self) -> list[Constraint]:
        batch = [WorkgroupConstraint(d, 1, 2) for d in self.batch]
        return [WorkgroupConstraint(T, self.rows, 0), WorkgroupConstraint(D, self.columns, 1), *batch]

    def array(self, rows: Any, dtype: DType) -> MemoryType:
        """Return the type of an array of rows, with the dims before them."""
        return array_of(dtype, *self.batch, rows, D)


def gather_tile_for(target: str, columns: int, dtype: DType) -> RowTile:
    """Return the tile for rows that are read at indices."""
    return row_tile(columns, dtype, READ_BYTES) if target in CHIPS else _host_tile(columns)


def scatter_tile_for(target: str, columns: int, dtype: DType) -> RowTile:
    """Return the tile for rows that are stored at indices."""
    return row_tile(columns, dtype, STORED_BYTES) if target in CHIPS else _host_tile(columns)


def row_tile(columns: int, dtype: DType, tile_bytes: int, widest_bytes: int = WIDEST_BYTES) -> RowTile:
    """Return a tile of several short rows, of about `tile_bytes`, or of a row up to `widest_bytes`."""
    size = max(2, dtype.bytes)
    tile = min(power_of_two_for(columns), widest_bytes // size)
    return RowTile(max(1, min(MOST_ROWS, tile_bytes // (tile * size))) if tile < widest_bytes // size else 1, tile)


def _host_tile(columns: int) -> RowTile:
    (fewest, most), wide = HOST_ROWS, min(power_of_two_for(columns), HOST_COLUMNS)
    return RowTile(max(fewest, min(most, HOST_ELEMENTS // wide)), wide)


def array_of(dtype: DType, *dims: Any, contract: Indices | None = None) -> MemoryType:
    return MemoryType(dims, GLOBAL_ADDRESS_SPACE, dtype, contract=contract)


def want_indices(kernel: str, **dtypes: DType) -> None:
    """Raise an error where an array of indices does not hold integers."""
    for name, dtype in dtypes.items():
        if not dtype.is_int:
            what = f"{kernel}: {name} is {dtype}, but it names rows"
            raise DTypeError(what, loc=here(), remedy=f"cast {name} to i64 first")


def want_kept_kind(kernel: str, x: DType, y: DType) -> None:
    """Raise an error where values of x are not values of y's dtype: floats are floats, integers any numbers."""
    if x != y and (BOOL in (x, y) or (x.is_float and not y.is_float)):
        what = f"{kernel}: y is {y}, but the rows are {x}"
        raise DTypeError(what, loc=here(), remedy=f"pass an array of {x} as y")


# reads ----------------------------------------------------------------------------------------------------------------


def embedding(weight: Any, ids: Any, y: Any) -> None:
    """y[t] = weight[ids[t]]: a row of weights for each id; zeros for an id out of bounds."""
    kernel_for(embedding_kernel, gather_tile_for, weight=weight, ids=ids, y=y)(weight, ids, y)


@cache
def embedding_kernel(tile: RowTile, weight_dtype: DType, ids_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from weight[V, D] and ids[T] to y[T, D]."""
    return _gather("embedding", ("weight", "ids"), tile, weight_dtype, ids_dtype, y_dtype)


@cache
def index_select_kernel(tile: RowTile, x_dtype: DType, index_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[V, D] and index[T] to y[T, D], with dims before the rows where the tile has them."""
    return _gather("index_select", ("x", "index"), tile, x_dtype, index_dtype, y_dtype)


def _gather(
    name: str, arrays: tuple[str, str], tile: RowTile, x_dtype: DType, index_dtype: DType, y_dtype: DType
) -> WaveKernel:
    x, index = arrays
    want_indices(name, **{index: index_dtype})
    want_kept_kind(name, x_dtype, y_dtype)

    def gather(to: Any) -> None:
        write(cast(read(getattr(to, x), at={V: read(getattr(to, index))}), y_dtype), to.y)

    parameters = {x: tile.array(V, x_dtype), index: array_of(index_dtype, T), "y": tile.array(T, y_dtype)}
    return kernel_of(name, tile.constraints(), parameters, gather)


# sums -----------------------------------------------------------------------------------------------------------------


def index_add(x: Any, index: Any, y: Any) -> None:
    """y[index[t]] += x[t], for all t, in any order; an index out of bounds adds nothing.

    Sums are those of y's dtype: f32, f64, i32 or i64.
    """
    kernel_for(index_add_kernel, scatter_tile_for, x=x, index=index, y=y)(x, index, y)


@cache
def index_add_kernel(
    tile: RowTile, x_dtype: DType, index_dtype: DType, y_dtype: DType, alpha_dtype: DType | None = None
) -> WaveKernel:
    """Return the kernel that adds x[T, D], times alpha where it has one, to the rows index[T] of y[V, D]."""
    want_indices("index_add", index=index_dtype)
    want_sums("index_add", x_dtype, y_dtype)

    def add(to: Any) -> None:
        rows = cast(read(to.x), y_dtype)
        atomic_add(rows * cast(to.alpha, y_dtype) if alpha_dtype else rows, to.y, at={V: read(to.index)})

    arrays = {"x": tile.array(T, x_dtype), "index": array_of(index_dtype, T), "y": tile.array(V, y_dtype)}
    return kernel_of("index_add", tile.constraints(), {**arrays, **given(alpha=alpha_dtype)}, add)


def want_sums(kernel: str, x: DType, y: DType) -> None:
    """Raise an error where y cannot take atomic sums of x: these are of 32 or 64 bits, as steps are rounded."""
    wide = SUMMED_IN.get(x, x)
    if y.kind != wide.kind or y.bits < wide.bits:
        what = f"{kernel}: y is {y}, but sums of {x} are {wide}"
        raise DTypeError(what, loc=here(), remedy=f"pass an array of {wide} as y")


# rows where they are --------------------------------------------------------------------------------------------------


@cache
def fill_kernel(tile: RowTile, y_dtype: DType) -> WaveKernel:
    """Return the kernel that writes 0 to y[T, D]."""

    def fill(to: Any) -> None:
        write(RegisterType((T, D), y_dtype)(0), to.y)

    return kernel_of("fill", tile.constraints(), {"y": array_of(y_dtype, T, D)}, fill)


@cache
def copy_kernel(tile: RowTile, x_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel that copies x[T, D] to y[T, D], in y's dtype, with the dims before the rows of the tile."""
    want_kept_kind("copy", x_dtype, y_dtype)

    def copy(to: Any) -> None:
        write(cast(read(to.x), y_dtype), to.y)

    return kernel_of("copy", tile.constraints(), {"x": tile.array(T, x_dtype), "y": tile.array(T, y_dtype)}, copy)
