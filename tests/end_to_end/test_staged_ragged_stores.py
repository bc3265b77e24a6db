"""Rows of a ragged grid are staged in shared memory: whole chunks are stored by TMA, others up to the group's end."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from tilewave import *
from tilewave.ir.ops import StoreEach, TmaStore, WriteThrough
from tilewave.ir.rewrite import walk
from tilewave.kernels.grouped import GroupedForm, GroupedTile, K, N, grouped_product_kernel

COUNTS = {
    "uneven": [3, 0, 130, 70, 0, 1],
    "one has all": [0, 200, 0],
    "none": [0, 0, 0],
    "multiples of the tile": [128, 64, 128],
    "chunks end": [65, 127, 1, 63],
}


def case(counts, cols, depth=64, more=9):
    rng, rows = np.random.default_rng(0), sum(counts) + more
    x, w = (rng.standard_normal(shape) for shape in ((rows, depth), (len(counts), cols, depth)))
    x, w = (a.astype(ml_dtypes.bfloat16) for a in (x, w))
    ends, wanted, start = np.cumsum(counts).astype(np.int32), np.full((rows, cols), np.nan), 0
    for g, end in enumerate(ends):
        wanted[start:end] = x[start:end].astype(np.float64) @ w[g].astype(np.float64).T
        start = end
    return (x, w, ends), wanted


@cache
def compiled_for(target, *tile):
    return grouped_product_kernel(GroupedTile(*tile), GroupedForm(bf16, bf16, i32)).compile(target)


@cache
def unaligned():
    form = GroupedForm(bf16, bf16, i32)
    return grouped_product_kernel(GroupedTile(128, 128, 64), form).compile("sm_90a", {N: 73, K: 64})


def want_near(y, wanted, rounded):
    found = y.astype(np.float64)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))  # each row of a group, and no other row, is stored
    bound = rounded * np.abs(wanted) + 1e-4
    assert (np.isnan(wanted) | (np.abs(found - wanted) <= bound)).all()


def staged(compiled):
    step = next(s for s in compiled.steps if s.name == "stage_epilogue")
    return [op for op in walk(step.after.body) if isinstance(op, WriteThrough)]


@pytest.mark.parametrize("tile", [(128, 256, 64), (64, 256, 64), (128, 128, 64)], ids=str)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("cols", [264, 72])
def test_rows_before_the_end_are_stored_on_sm_90a(tile, counts, cols):
    arrays, wanted = case(counts, cols)
    compiled = compiled_for("sm_90a", *tile)
    (op,) = staged(compiled)
    assert op.end and any(isinstance(op, TmaStore) for op in walk(compiled.ir().body))
    assert not any(isinstance(op, StoreEach) for op in walk(compiled.ir().body))
    y = np.full(wanted.shape, np.nan, ml_dtypes.bfloat16)
    compiled.interpret(*arrays, y, level="lane")
    want_near(y, wanted, 2**-8)


@pytest.mark.share(3)
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_transposed_rows_before_the_end_are_stored(counts):
    """48 rows are the columns of the transposed product."""
    arrays, wanted = case(counts, 136)
    compiled = compiled_for("sm_90a", 48, 128, 64)
    assert next(s for s in compiled.steps if s.name == "transpose_mma").changed
    assert len(staged(compiled)) == 1
    y = np.full(wanted.shape, np.nan, ml_dtypes.bfloat16)
    compiled.interpret(*arrays, y, level="lane")
    want_near(y, wanted, 2**-8)


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_unaligned_rows_are_stored_by_lanes(counts):
    arrays, wanted = case(counts, 73)
    compiled = unaligned()
    (op,) = staged(compiled)
    assert op.end and not any(isinstance(op, TmaStore) for op in walk(compiled.ir().body))
    y = np.full(wanted.shape, np.nan, ml_dtypes.bfloat16)
    compiled.interpret(*arrays, y, level="lane")
    want_near(y, wanted, 2**-8)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_rows_before_the_end_are_stored_on_amd(target, counts):
    arrays, wanted = case(counts, 136)
    compiled = compiled_for(target, 64, 128, 64)
    assert len(staged(compiled)) == 1
    y = np.full(wanted.shape, np.nan, ml_dtypes.bfloat16)
    assert not compiled.emulate(*arrays, y).findings
    want_near(y, wanted, 2**-8)
