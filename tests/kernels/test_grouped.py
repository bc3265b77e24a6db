"""Grouped products beside float64 numpy: any counts of rows, epilogues, dtypes and targets."""

import ml_dtypes
import numpy as np
import pytest

from tilewave import *
from tilewave.errors import CallError, DTypeError
from tilewave.kernels import grouped_product
from tilewave.kernels.grouped import GroupedForm, GroupedTile, grouped_product_kernel, grouped_tile_for

COUNTS = [3, 0, 37, 17, 0, 33]
CHOSEN, SMALL = grouped_tile_for(47, 4, f16), GroupedTile(16, 64, 32)


def floats(rng, *shape, dtype=np.float16):
    return rng.standard_normal(shape).astype(dtype)


def case(counts, cols=70, depth=50, dtype=np.float16, more=7):
    rng, rows = np.random.default_rng(0), sum(counts) + more
    x, w = floats(rng, rows, depth, dtype=dtype), floats(rng, len(counts), cols, depth, dtype=dtype)
    bias, scales = floats(rng, len(counts), cols, dtype=np.float32), floats(rng, rows, dtype=np.float32)
    return x, w, np.cumsum(counts).astype(np.int32), np.full((rows, cols), np.nan, np.float32), bias, scales


def wanted(x, w, ends, y, bias=None, scales=None, activation=lambda v: v):
    found, start = y.astype(np.float64), 0
    for g, end in enumerate(ends):
        sums = x[start:end].astype(np.float64) @ w[g].astype(np.float64).T
        sums = activation(sums if bias is None else sums + bias[g])
        found[start:end] = sums if scales is None else sums * scales[start:end, None]
        start = end
    return found


def want_near(found, expected, depth):
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    largest = np.nanmax(np.abs(expected), initial=0)
    bound = 4 * depth * np.finfo(np.float32).eps * largest
    assert np.nanmax(np.abs(found - expected), initial=0) <= bound


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("counts", [COUNTS, [0, 0], [200], [1] * 40, [130, 0, 257]], ids=str)
def test_a_grouped_product(dtype, counts):
    x, w, ends, y, _, _ = case(counts, dtype=dtype)
    expected = wanted(x, w, ends, y)
    grouped_product(x, w, ends, y)
    want_near(y, expected, 50)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_epilogues(activation):
    applied = {None: lambda v: v, "relu": lambda v: np.maximum(v, 0), "silu": lambda v: v / (1 + np.exp(-v))}
    x, w, ends, y, bias, scales = case(COUNTS)
    expected = wanted(x, w, ends, y, bias, scales, applied[activation])
    grouped_product(x, w, ends, y, bias, activation, scales)
    want_near(y, expected, 50)


ON_GPUS = [("sm_90a", CHOSEN), ("gfx942", SMALL), ("gfx950", SMALL)]
ON_GPUS += [pytest.param(target, CHOSEN, marks=pytest.mark.slow) for target in ("gfx942", "gfx950")]


@pytest.mark.parametrize(("target", "tile"), ON_GPUS, ids=str)
@pytest.mark.share(1)
def test_epilogues_on_gpus(target, tile):
    x, w, ends, y, bias, scales = case([3, 0, 20, 17])
    expected = wanted(x, w, ends, y, bias, scales, lambda v: np.maximum(v, 0))
    form = GroupedForm(f16, f32, i32, f32, "relu", f32)
    compiled = grouped_product_kernel(tile, form).compile(target=target)
    if target == "sm_90a":
        compiled.interpret(x, w, ends, y, bias, scales, level="lane")
    else:
        assert not compiled.emulate(x, w, ends, y, bias, scales).findings
    want_near(y, expected, 50)


def test_rows_have_the_same_bits_alone_and_among_others():
    x, w, ends, y, _, _ = case(COUNTS)
    grouped_product(x, w, ends, y)
    alone = np.empty((17, 70), np.float32)
    first = ends[2]
    ends_of_one = np.array([0, 0, 0, 17, 17, 17], np.int32)
    compiled = grouped_product_kernel(grouped_tile_for(len(x), len(ends), f16), GroupedForm(f16, f32, i32))
    compiled(x[first : first + 17], w, ends_of_one, alone)
    assert np.array_equal(alone, y[first : first + 17])


@pytest.mark.parametrize(
    ("rows", "groups", "tile"),
    [(90, 6, 16), (0, 4, 16), (24, 1, 16), (25, 1, 32), (40, 1, 32), (96, 1, 64), (97, 1, 128), (9000, 2, 128)],
)
def test_a_tile_has_the_rows_of_an_average_group(rows, groups, tile):
    assert grouped_tile_for(rows, groups, f16).rows == tile
    assert grouped_tile_for(rows, groups, f16).depth == 64 == 2 * grouped_tile_for(rows, groups, f32).depth


def test_wrong_arrays_are_refused():
    x, w, ends, y, _, _ = case(COUNTS)
    with pytest.raises(CallError, match="w has 2 axes, not 3"):
        grouped_product(x, w[0], ends, y)
    with pytest.raises(DTypeError, match="x is f16, but w is f32"):
        grouped_product(x, w.astype(np.float32), ends, y)
    with pytest.raises(CallError):
        grouped_product(x, w, ends[:-1], y)
    with pytest.raises(DTypeError):
        grouped_product(x, w, ends.astype(np.float32), y)
    with pytest.raises(CallError, match="swish"):
        grouped_product(x, w, ends, y, activation="swish")
    assert np.isnan(y).all()
