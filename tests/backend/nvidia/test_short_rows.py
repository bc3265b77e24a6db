"""Rows shorter than a cache line are packed several to a line, and take the code for rows that begin on lines."""

import numpy as np
import pytest

from tilewave import *
from tilewave.backend.nvidia.code import CACHE_LINE
from tilewave.backend.nvidia.packing import padded_row
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.runtime.arrays import view


@pytest.mark.parametrize(
    ("columns", "dtype", "row_bytes"),
    [
        (1, f16, 16),
        (8, f16, 16),
        (9, f16, 32),
        (10, f16, 32),
        (17, f16, 64),
        (33, f16, 128),
        (67, f16, 256),
        (5, f32, 32),
    ],
)
def test_a_packed_row_takes_a_line_or_a_part_of_one(columns, dtype, row_bytes):
    assert padded_row(view(np.zeros((3, columns), dtype.numpy))) * dtype.bytes == row_bytes


@pytest.fixture(scope="module")
def product():
    kernel = product_kernel(ProductForm(f16, f16, (K, M), (K, N)))
    subs = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)


def operands(m, n, k):
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.integers(-3, 4, sides).astype(np.float16) for sides in ((k, m), (k, n)))
    return a, b, np.full((m, n), np.nan, np.float16)


@pytest.mark.parametrize(("m", "n", "k"), [(2, 71, 4099), (10, 131, 2050)])
def test_packed_copies_of_short_rows_are_short_and_taken_for_aligned(product, m, n, k):
    plan = product.build.program.plans.plan_for([view(x) for x in operands(m, n, k)])
    pitches = {one.name: one.pitch_bytes for one in plan.packed_copies}
    assert pitches["a"] == {2: 16, 10: 32}[m] and pitches["b"] % CACHE_LINE == 0
    assert plan.key.rows == CACHE_LINE


@pytest.mark.parametrize(("m", "n", "k"), [(2, 71, 4099), (10, 131, 330)])
def test_products_of_packed_short_rows_are_right(product, m, n, k):
    a, b, c = operands(m, n, k)
    product.interpret(a, b, c, level="lane", order="random", seed=m)
    np.testing.assert_array_equal(c, (a.astype(float).T @ b.astype(float)).astype(np.float16))
