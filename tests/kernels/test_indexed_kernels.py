"""Rows that are gathered, added and stored at indices from memory, on every target."""

import numpy as np
import pytest
from hostile_indices import TARGETS, inside, picked, run, table_of

from tilewave import *
from tilewave import kernels
from tilewave.errors import CallError, DTypeError
from tilewave.ir.types import BOOL
from tilewave.kernels.counts import bincount_kernel
from tilewave.kernels.indexed import (
    RowTile,
    copy_kernel,
    embedding_kernel,
    fill_kernel,
    gather_tile_for,
    index_add_kernel,
    index_select_kernel,
    scatter_tile_for,
)

pytestmark = pytest.mark.share(4)
targets = pytest.mark.parametrize("target", TARGETS)
tiles = pytest.mark.parametrize("tile", [RowTile(1, 2048), RowTile(16, 64)], ids=str)


def numbers(*shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(dtype)


def added(y, index, x):
    """Return y with the rows of x added in float64, and the sum of sizes."""
    want, most, there = y.astype(np.float64), np.abs(y).astype(np.float64), inside(index, len(y))
    np.add.at(want, index[there], x[there])
    np.add.at(most, index[there], np.abs(x[there]))
    return want, most


@targets
@tiles
def test_rows_of_a_table(target, tile):
    ids, table = table_of(np.random.default_rng(1), 37, 50), numbers(50, 136, dtype=np.float16)
    y = np.full((37, 136), np.nan, np.float16)
    run(embedding_kernel(tile, f16, i32, f16), target, table, ids, y)
    np.testing.assert_array_equal(y, picked(table, ids))


@targets
def test_rows_of_each_of_several_tables(target):
    index, x = table_of(np.random.default_rng(2), 37, 50), numbers(3, 50, 72)
    y = np.full((3, 37, 72), np.nan, np.float32)
    run(index_select_kernel(RowTile(16, 64, (sym.B,)), f32, i32, f32), target, x, index, y)
    np.testing.assert_array_equal(y, np.stack([picked(one, index) for one in x]))


@pytest.mark.share(12)
@pytest.mark.parametrize("way", ["cpu", "gfx942", "sm_90a"])
@pytest.mark.parametrize("dtype", [f64, bf16, f8e4m3fn, i8, i32, i64, BOOL], ids=str)
@pytest.mark.parametrize("ids_dtype", [i8, i64], ids=str)
def test_tables_of_every_dtype(way, dtype, ids_dtype):
    table, ids = numbers(50, 72, dtype=dtype.numpy), np.random.default_rng(3).integers(-3, 53, 37, ids_dtype.numpy)
    y = np.ones((37, 72), dtype.numpy)
    run(embedding_kernel(RowTile(16, 64), dtype, ids_dtype, dtype), way, table, ids, y)
    np.testing.assert_array_equal(y.astype(np.float64), picked(table, ids).astype(np.float64))


@pytest.mark.parametrize("dtype, out", [(f16, f32), (f32, f16), (bf16, f64), (i8, i32), (i32, f32)])
def test_rows_are_written_in_other_dtypes(dtype, out):
    table, ids = numbers(50, 72, dtype=dtype.numpy), table_of(np.random.default_rng(4), 37, 50)
    y = np.ones((37, 72), out.numpy)
    run(embedding_kernel(RowTile(16, 64), dtype, i32, out), "cpu", table, ids, y)
    np.testing.assert_array_equal(y, picked(table, ids).astype(out.numpy))


@pytest.mark.parametrize("columns", [1, 128, 2048, 2049, 5000])
def test_tables_of_any_width(columns):
    table, ids = numbers(50, columns), table_of(np.random.default_rng(5), 137, 50, np.int64)
    ids[5:7] = 2**32, -(2**63)
    y = np.full((137, columns), np.nan, np.float32)
    kernels.embedding(table, ids, y)
    np.testing.assert_array_equal(y, picked(table, ids))
    other = np.full((columns, 137), np.nan, np.float32).T
    kernels.embedding(table[:, ::-1], ids, other)
    np.testing.assert_array_equal(other, y[:, ::-1])


def test_tiles_are_of_the_bytes_that_were_measured():
    assert [gather_tile_for("sm_90a", n, f16) for n in (2048, 256, 128, 5000)] == [
        RowTile(1, 2048),
        RowTile(16, 256),
        RowTile(32, 128),
        RowTile(1, 2048),
    ]
    assert [scatter_tile_for("sm_90a", n, f16) for n in (2048, 128)] == [RowTile(1, 2048), RowTile(8, 128)]
    assert gather_tile_for("sm_90a", 4096, f32) == RowTile(1, 1024)


@targets
@tiles
def test_rows_are_added_where_others_add(target, tile):
    x, index, y = numbers(137, 72), table_of(np.random.default_rng(6), 137, 20), numbers(20, 72, seed=1)
    want, most = added(y, index, x)
    run(index_add_kernel(tile, f32, i32, f32), target, x, index, y)
    assert (np.abs(y - want) <= 138 * 2.0**-24 * most).all()


@pytest.mark.share(10)
@targets
@pytest.mark.parametrize("dtype, sums", [(f16, f32), (bf16, f32), (f64, f64), (i8, i32), (i64, i64)])
def test_sums_of_every_dtype(target, dtype, sums):
    rng = np.random.default_rng(7)
    x, index = rng.integers(-7, 8, (37, 72)).astype(dtype.numpy), table_of(rng, 37, 9, np.int64)
    y = rng.integers(-7, 8, (9, 72)).astype(sums.numpy)
    want, _ = added(y, index, x.astype(np.float64))
    run(index_add_kernel(RowTile(16, 64), dtype, i64, sums), target, x, index, y)
    np.testing.assert_array_equal(y, want)  # small integers: exact in any order


@targets
def test_sums_times_a_number(target):
    rng = np.random.default_rng(8)
    x, index = rng.integers(-7, 8, (37, 72)).astype(np.float16), table_of(rng, 37, 9)
    y = np.zeros((9, 72), np.float32)
    run(index_add_kernel(RowTile(16, 64), f16, i32, f32, f32), target, x, index, y, 0.5)
    np.testing.assert_array_equal(y, added(0 * y, index, x.astype(np.float64))[0] / 2)


@targets
@pytest.mark.parametrize("dtype, counts", [(i32, i32), (i64, i64)])
def test_counts(target, dtype, counts):
    x, y = table_of(np.random.default_rng(9), 3000, 50, dtype.numpy), np.arange(50).astype(counts.numpy)
    run(bincount_kernel(dtype, counts), target, x, y)
    np.testing.assert_array_equal(y, np.arange(50) + np.bincount(x[inside(x, 50)], minlength=50))


@targets
def test_counts_with_weights(target):
    rng = np.random.default_rng(10)
    x, y, weights = table_of(rng, 3000, 50), np.zeros(50, np.float32), rng.integers(0, 9, 3000).astype(np.float16)
    run(bincount_kernel(i32, f32, f16), target, x, y, weights)
    there = inside(x, 50)
    np.testing.assert_array_equal(y, np.bincount(x[there], weights[there], minlength=50))


def test_rows_are_filled_and_copied():
    x, y = numbers(37, 72), np.full((37, 72), np.nan, np.float32)
    run(fill_kernel(RowTile(16, 64), f32), "cpu", y)
    assert (y == 0).all()
    run(copy_kernel(RowTile(16, 64), f32, f32), "cpu", x, y)
    np.testing.assert_array_equal(y, x)


X, ROW, WHOLE = np.ones((3, 16), np.float32), np.ones(3, np.float32), np.zeros(3, np.int64)
REFUSED = [
    (lambda y: kernels.embedding(X, ROW, y), DTypeError, "embedding: ids is f32, but it names rows"),
    (lambda y: kernels.embedding(X, WHOLE, y.astype(int)), DTypeError, "embedding: y is i64, but the rows are f32"),
    (lambda y: kernels.embedding(ROW, WHOLE, y), CallError, "embedding: weight has 1 axes"),
    (lambda y: kernels.embedding(X, WHOLE[:2], y), CallError, "embedding: T is 2 by ids, but 3 by y"),
    (lambda y: kernels.index_add(X, WHOLE, y.astype(np.float16)), DTypeError, "y is f16, but sums of f32 are f32"),
    (lambda y: kernels.bincount(ROW, y[0]), DTypeError, "bincount: x is f32, but it names rows"),
    (lambda y: kernels.bincount(WHOLE, y[0]), DTypeError, "bincount: y is f32, but counts are integers"),
    (lambda y: kernels.index_add(X, WHOLE, X), CallError, "index_add: x overlaps y"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_touched(call, error, message):
    y = np.full((3, 16), 5, np.float32)
    with pytest.raises(error) as found:
        call(y)
    assert message in str(found.value) and found.value.loc.file == __file__ and found.value.remedy
    assert (y == 5).all()
