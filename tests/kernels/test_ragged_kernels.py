"""Sums of segments, sparse products, and tokens to experts and back, on every target, against float64."""

from itertools import pairwise

import numpy as np
import pytest
from hostile_indices import TARGETS, distinct, inside, picked, run, table_of

from tilewave import *
from tilewave import kernels
from tilewave.errors import CallError, DTypeError
from tilewave.kernels.indexed import RowTile
from tilewave.kernels.ragged import (
    SegmentTile,
    permute_rows_kernel,
    segment_sum_kernel,
    unpermute_rows_kernel,
    unpermute_tile_for,
)

pytestmark = pytest.mark.share(4)
targets = pytest.mark.parametrize("target", TARGETS)
U = 2.0**-24
OFFSETS = (0, 3, 3, 20, 18, 61)
"""Segments of 3, none, 17, none (the bounds fall), and 43 numbers."""


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def summed(rows, offsets):
    """Return the sums of segments in float64, and those of sizes."""
    wide, last = rows.astype(np.float64), len(rows)
    bounds = [(max(int(a), 0), min(int(b), last)) for a, b in pairwise(offsets)]
    return [np.stack([x[a:b].sum(axis=0) if a < b else 0 * x[0] for a, b in bounds]) for x in (wide, np.abs(wide))]


def near(found, want, most, roundings, unit=U):
    eps = 0 if found.dtype == np.float32 else 2.0**-11
    assert (np.abs(found - want) <= roundings * unit * most + eps * (np.abs(want) + roundings * unit * most)).all()


@targets
@pytest.mark.parametrize("tile", [SegmentTile(4, 256), SegmentTile(16, 64)], ids=str)
def test_sums_of_segments(target, tile):
    x, y = numbers(61, 136, dtype=np.float16), np.full((5, 136), np.nan, np.float16)
    run(segment_sum_kernel(tile, f16, i32, f16), target, x, np.array(OFFSETS, np.int32), y)
    near(y, *summed(x, OFFSETS), 62)


@targets
def test_sums_of_segments_with_hostile_bounds(target):
    x, y = numbers(61, 72), np.full((7, 72), np.nan, np.float32)
    offsets = np.array([-(2**31), 5, 2**31 - 1, 2**31 - 1, -1, 70, 30, 61], np.int32)
    run(segment_sum_kernel(SegmentTile(8, 64), f32, i32, f32), target, x, offsets, y)
    near(y, *summed(x, offsets), 62)


def test_bounds_beyond_32_bits():
    x, y = numbers(9, 5), np.full((3, 5), np.nan, np.float32)
    offsets = np.array([-(2**63), 2**63 - 1, 2**32 + 3, 9])
    kernels.segment_sum(x, offsets, y)
    near(y, *summed(x, offsets), 10)


@targets
def test_sums_of_rows_that_an_array_names(target):
    rng = np.random.default_rng(1)
    x, rows, y = numbers(30, 72), table_of(rng, 61, 30), np.full((5, 72), np.nan, np.float32)
    run(segment_sum_kernel(SegmentTile(8, 64), f32, i32, f32, i32), target, x, np.array(OFFSETS, np.int32), y, rows)
    near(y, *summed(picked(x, rows), OFFSETS), 62)


@targets
def test_a_sparse_product(target):
    rng = np.random.default_rng(2)
    b, columns, data = numbers(30, 72), table_of(rng, 61, 30), numbers(61, seed=3)
    y, kernel = np.full((5, 72), np.nan, np.float32), segment_sum_kernel(SegmentTile(8, 64), f32, i32, f32, i32, f32)
    run(kernel, target, b, np.array(OFFSETS, np.int32), y, columns, data)
    near(y, *summed(picked(b, columns).astype(np.float64) * data[:, None], OFFSETS), 63)


def test_a_sparse_product_is_that_of_the_dense_matrix():
    rng = np.random.default_rng(4)
    a = np.where(rng.random((70, 90)) < 0.1, rng.standard_normal((70, 90)), 0).astype(np.float32)
    rows, columns = a.nonzero()
    indptr = np.searchsorted(rows, np.arange(71))
    b, y = numbers(90, 3000), np.full((70, 3000), np.nan, np.float32)
    kernels.csr_matmul(a[rows, columns], columns, indptr, b, y)
    near(y, a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b), 92)


def test_a_segment_does_not_depend_on_others():
    x = numbers(100, 200)
    alone, among = np.full((1, 200), np.nan, np.float32), np.full((4, 200), np.nan, np.float32)
    kernels.segment_sum(x[13:61], np.array([0, 48]), alone)
    kernels.segment_sum(x, np.array([0, 5, 13, 61, 100]), among)
    np.testing.assert_array_equal(among[2], alone[0])


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype, out", [(f64, f64), (bf16, f32), (f16, f64), (i8, i32), (i64, i64), (f8e4m3fn, f32)])
def test_segments_of_every_dtype(dtype, out):
    rng = np.random.default_rng(5)
    x, y = rng.integers(-7, 8, (61, 72)).astype(dtype.numpy), np.full((5, 72), 77, out.numpy)
    run(segment_sum_kernel(SegmentTile(8, 64), dtype, i64, out), "cpu", x, np.array(OFFSETS), y)
    np.testing.assert_array_equal(y.astype(np.float64), summed(x, OFFSETS)[0])  # small integers: exact in any order


def test_no_rows_and_no_segments():
    y = np.full((2, 5), np.nan, np.float32)
    kernels.segment_sum(numbers(0, 5), np.zeros(3, np.int32), y)
    assert (y == 0).all()
    kernels.segment_sum(numbers(3, 5), np.zeros(1, np.int32), y[:0])


@targets
@pytest.mark.parametrize("tile", [RowTile(1, 256), RowTile(16, 64)], ids=str)
def test_rows_are_stored_for_their_experts(target, tile):
    rng = np.random.default_rng(6)
    x, slots, y = numbers(37, 136, dtype=np.float16), distinct(rng, (37, 3), 150), np.full((150, 136), -7, np.float16)
    want, there = y.copy(), inside(slots, 150)
    want[slots[there]] = np.repeat(x[:, None], 3, axis=1)[there]
    made = run(permute_rows_kernel(tile, f16, i32, f16), target, x, slots, y)
    np.testing.assert_array_equal(y, want)
    assert made.proof.verdict in ("right for every size", "checked when it was compiled")


@targets
@pytest.mark.parametrize("weights", [None, f32])
@pytest.mark.parametrize("tile", [RowTile(16, 64), RowTile(1, 128)], ids=str)
def test_rows_come_back_with_weights(target, tile, weights):
    rng = np.random.default_rng(7)
    x, slots, y = (
        numbers(150, 136, dtype=np.float16),
        table_of(rng, (37, 3), 150),
        np.full((37, 136), np.nan, np.float16),
    )
    shares = rng.random((37, 3)).astype(np.float32) if weights else np.ones((37, 3), np.float32)
    slots[slots == 0], x[0] = 1, np.nan  # where a step goes past the last slot, it does not read row 0
    run(unpermute_rows_kernel(tile, f16, i32, f16, weights), target, x, slots, y, *[shares] * bool(weights))
    x[0] = 0
    terms = picked(x, slots).astype(np.float64) * shares[..., None]
    near(y, terms.sum(axis=1), np.abs(terms).sum(axis=1), 5)


def test_a_step_back_is_two_kilobytes_of_one_row_on_a_gpu():
    """Steps of several rows are slower, by a factor of three where their number does not divide a token's experts."""
    assert unpermute_tile_for("sm_90a", 2048, bf16) == RowTile(1, 1024)
    assert unpermute_tile_for("sm_90a", 2048, f32) == RowTile(1, 512)
    assert unpermute_tile_for("sm_90a", 96, bf16) == RowTile(8, 128)


def test_tokens_to_experts_and_back():
    rng = np.random.default_rng(8)
    tokens, experts, chosen = 70, 8, 2
    expert = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)])
    slots = np.argsort(np.argsort(expert.reshape(-1), kind="stable"), kind="stable").reshape(tokens, chosen)
    x, sent, back = (
        numbers(tokens, 3000),
        np.empty((tokens * chosen, 3000), np.float32),
        np.empty((tokens, 3000), np.float32),
    )
    kernels.permute_rows(x, slots, sent)
    kernels.unpermute_rows(sent, slots, back)
    np.testing.assert_array_equal(back, 2 * x)


def test_slots_that_collide_are_found(monkeypatch):
    slots, y = np.array([[0, 1], [2, 1]]), np.zeros((4, 16), np.float32)
    monkeypatch.setenv("TILEWAVE_CHECK", "1")
    with pytest.raises(TilewaveError, match="are both 1, and they are said to be unique"):
        kernels.permute_rows(np.ones((2, 16), np.float32), slots, y)


X, WHOLE = np.ones((3, 16), np.float32), np.zeros((3, 16), np.int64)
REFUSED = [
    (lambda y: kernels.segment_sum(X, [0, 1, 2, 3], y), CallError, "segment_sum: offsets is a list, not an array"),
    (lambda y: kernels.segment_sum(X, WHOLE[:, :4], y), CallError, "segment_sum: offsets has 3 numbers"),
    (lambda y: kernels.segment_sum(X, np.zeros(3, np.int32), y), CallError, "offsets has 3 numbers, but y has 3"),
    (lambda y: kernels.segment_sum(X, np.zeros(4), y), DTypeError, "offsets is f64, but it names rows"),
    (lambda y: kernels.segment_sum(WHOLE, np.zeros(4, np.int32), y), DTypeError, "y is f32, but sums of i64 are i64"),
    (lambda y: kernels.permute_rows(X, X, y), DTypeError, "slots is f32, but it names rows"),
    (lambda y: kernels.unpermute_rows(WHOLE, WHOLE, y), DTypeError, "x is i64, but it takes floats"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_and_nothing_is_touched(call, error, message):
    y = np.full((3, 16), 5, np.float32)
    with pytest.raises(error) as found:
        call(y)
    assert message in str(found.value) and found.value.loc.file == __file__ and found.value.remedy
    assert (y == 5).all()
