"""Sums of rows in segments whose bounds are in memory: ragged batches, sparse matrices, tokens back from experts."""

from __future__ import annotations

from functools import cache
from typing import Any

from tilewave.backend.targets import target_named
from tilewave.call import power_of_two_for
from tilewave.errors import CallError, here
from tilewave.ir.types import INDEX, DType
from tilewave.kernels.indexed import (
    READ_BYTES,
    WIDEST_BYTES,
    D,
    RowTile,
    T,
    V,
    array_of,
    gather_tile_for,
    scatter_tile_for,
    want_indices,
    want_kept_kind,
)
from tilewave.kernels.parameters import given, kernel_of
from tilewave.kernels.rows import MOST_ROWS, arithmetic_of, kernel_for, looked_at
from tilewave.kernels.sums import summed_in
from tilewave.lang.accesses import read, write
from tilewave.lang.constraints import TilingConstraint, WorkgroupConstraint
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.loops import iterate
from tilewave.lang.ops import cast, first_index, maximum, minimum, scalar, select, self_index
from tilewave.lang.symbols import sym
from tilewave.lang.types import Indices, RegisterType
from tilewave.records import dataclass

S, L, K = sym.S, sym.L, sym.K
LEAST_STEP = 4
"""The rows of a step of the widest tiles: one row alone would wait for memory at every step."""
SUMMED_BYTES = 2048
"""What a step of `unpermute_rows` reads on a GPU: many workgroups that wait for little each keep memory busy."""


@dataclass(frozen=True)
class SegmentTile:
    """The rows that a workgroup adds in one step, and the columns of its tile."""

    step: int
    columns: int


def segment_tile_for(target: str, columns: int, dtype: DType) -> SegmentTile:
    """Return the tile for sums of segments."""
    size = max(2, dtype.bytes)
    tile = min(power_of_two_for(columns), WIDEST_BYTES // size)
    return SegmentTile(max(LEAST_STEP, READ_BYTES // (tile * size)), tile)


def segment_sum(x: Any, offsets: Any, y: Any, rows: Any = None, weights: Any = None) -> None:
    """y[s] = the sum of x[t] for t from offsets[s] up to offsets[s + 1].

    With `rows` the sum is of x[rows[t]], and with `weights` of weights[t] times these. What is outside the arrays
    counts as 0. A sum depends on its segment alone, so results are batch-invariant.
    """
    bounds, sums = (looked_at("segment_sum", name, array).shape for name, array in (("offsets", offsets), ("y", y)))
    if bounds and sums and bounds[0] != sums[0] + 1:
        what = f"segment_sum: offsets has {bounds[0]} numbers, but y has {sums[0]} segments"
        raise CallError(what, loc=here(), remedy="offsets has one number more than there are segments")
    arrays = {"x": x, "offsets": offsets, "y": y, "rows": rows, "weights": weights}
    kernel = kernel_for(segment_sum_kernel, segment_tile_for, **arrays)
    kernel(*(array for array in arrays.values() if array is not None))


def csr_matmul(data: Any, indices: Any, indptr: Any, b: Any, y: Any) -> None:
    """y = a · b for a sparse matrix a in CSR form: row m has data[j] in column indices[j], for the j from indptr[m] up
    to indptr[m + 1]."""
    segment_sum(b, indptr, y, indices, data)


@cache
def segment_sum_kernel(
    tile: SegmentTile,
    x_dtype: DType,
    offsets_dtype: DType,
    y_dtype: DType,
    rows_dtype: DType | None = None,
    weights_dtype: DType | None = None,
) -> WaveKernel:
    """Return the kernel from x[T, D] and offsets[L] to y[S, D]; with rows[T] from x[V, D], with weights[T] times
    these."""
    want_indices("segment_sum", offsets=offsets_dtype, rows=rows_dtype or offsets_dtype)
    of = summed_in("segment_sum", x_dtype, y_dtype)
    if weights_dtype is not None:
        of = arithmetic_of("segment_sum", x=x_dtype, y=y_dtype, weights=weights_dtype)

    def add(to: Any) -> None:
        begin = maximum(_number(to.offsets, first_index(S)), scalar(0, INDEX))
        count = minimum(_number(to.offsets, first_index(S) + 1), scalar(T, INDEX)) - begin

        @iterate(T, init_args=[RegisterType((S, D), of)(0)], stop=count)
        def total(so_far: Any) -> Any:
            counted = self_index(T, INDEX)
            is_inside, place = counted < count, counted + begin
            row = cast(read(to.rows, at={T: place}), INDEX) if rows_dtype else place
            found = cast(read(to.x, at={V if rows_dtype else T: select(is_inside, row, -1)}), of)
            if weights_dtype is not None:
                found = found * cast(read(to.weights, at={T: place}), of)
            return so_far + found.sum(dim=T)

        write(cast(total, y_dtype), to.y)

    x = array_of(x_dtype, V if rows_dtype else T, D)
    arrays = given(x=x, offsets=array_of(offsets_dtype, L), y=array_of(y_dtype, S, D))
    more = given(rows=rows_dtype and array_of(rows_dtype, T), weights=weights_dtype and array_of(weights_dtype, T))
    constraints = [
        WorkgroupConstraint(S, 1, 0),
        WorkgroupConstraint(D, tile.columns, 1),
        TilingConstraint(T, tile.step),
    ]
    return kernel_of("segment_sum", constraints, {**arrays, **more}, add)


def _number(offsets: Any, at: Any) -> Any:
    return cast(read(offsets, at={L: at}), INDEX)


# tokens to experts and back -------------------------------------------------------------------------------------------


def permute_rows(x: Any, slots: Any, y: Any) -> None:
    """y[slots[t, k]] = x[t] for each k: the copies of token t, where its experts find them.

    No two slots are equal, apart from those out of bounds, which store nothing. Other rows of y are kept.
    """
    kernel_for(permute_rows_kernel, scatter_tile_for, x=x, slots=slots, y=y)(x, slots, y)


@cache
def permute_rows_kernel(tile: RowTile, x_dtype: DType, slots_dtype: DType, y_dtype: DType) -> WaveKernel:
    """Return the kernel from x[T, D] and slots[T, K] to y[V, D]."""
    want_indices("permute_rows", slots=slots_dtype)
    want_kept_kind("permute_rows", x_dtype, y_dtype)

    def permute(to: Any) -> None:
        rows = cast(read(to.x), y_dtype)

        @iterate(K)
        def store() -> None:
            write(rows, to.y, at={V: read(to.slots)})

    slots = array_of(slots_dtype, T, K, contract=Indices(unique=True))
    arrays = {"x": array_of(x_dtype, T, D), "slots": slots, "y": array_of(y_dtype, V, D)}
    return kernel_of("permute_rows", [*tile.constraints(), TilingConstraint(K, 1)], arrays, permute)


def unpermute_rows(x: Any, slots: Any, y: Any, weights: Any = None) -> None:
    """y[t] = the sum of weights[t, k] · x[slots[t, k]] over k, of weights of 1 where there are none.

    A slot out of bounds adds nothing. Sums are added in the order of k, in f32 or wider.
    """
    arrays = {"x": x, "slots": slots, "y": y, "weights": weights}
    kernel = kernel_for(unpermute_rows_kernel, unpermute_tile_for, **arrays)
    kernel(*(array for array in arrays.values() if array is not None))


def unpermute_tile_for(target: str, columns: int, dtype: DType) -> RowTile:
    """Return the tile for sums of the rows of each token."""
    if target_named(target).most_bytes is None:
        return gather_tile_for(target, columns, dtype)
    size = max(2, dtype.bytes)
    tile = min(power_of_two_for(columns), SUMMED_BYTES // size)
    return RowTile(max(1, min(MOST_ROWS, SUMMED_BYTES // (tile * size))), tile)


@cache
def unpermute_rows_kernel(
    tile: RowTile, x_dtype: DType, slots_dtype: DType, y_dtype: DType, weights_dtype: DType | None = None
) -> WaveKernel:
    """Return the kernel from x[V, D], slots[T, K] and weights[T, K] to y[T, D]."""
    want_indices("unpermute_rows", slots=slots_dtype)
    of = arithmetic_of("unpermute_rows", x=x_dtype, y=y_dtype, weights=weights_dtype)

    def unpermute(to: Any) -> None:
        @iterate(K, init_args=[RegisterType((T, D), of)(0)])
        def total(so_far: Any) -> Any:
            rows = cast(read(to.x, at={V: read(to.slots)}), of)
            return so_far + (rows * cast(read(to.weights), of) if weights_dtype else rows).sum(dim=K)

        write(cast(total, y_dtype), to.y)

    arrays = given(x=array_of(x_dtype, V, D), slots=array_of(slots_dtype, T, K), y=array_of(y_dtype, T, D))
    more = given(weights=weights_dtype and array_of(weights_dtype, T, K))
    return kernel_of("unpermute_rows", [*tile.constraints(), TilingConstraint(K, 1)], {**arrays, **more}, unpermute)
