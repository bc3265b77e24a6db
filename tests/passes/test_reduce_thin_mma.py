"""Products with one row or column: computed by reductions, for all layouts, with boundary tiles and epilogues."""

import numpy as np
import pytest
from kernels import check_product, poisoned, random_array
from lane_runs import ORDERS, some_of

from tilewave import *
from tilewave.ir.ops import Loop, Mma, Reduce
from tilewave.ir.rewrite import walk
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.kernels.products import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N
from tilewave.machine.chips import CHIPS
from tilewave.passes.tile.reduce_thin_mma import ReduceThinMma

reduce_thin_mma = ReduceThinMma(CHIPS["sm_90a"])
LAYOUTS = {"NT": ((M, K), (N, K)), "NN": ((M, K), (K, N)), "TT": ((K, M), (N, K)), "TN": ((K, M), (K, N))}


def thin(layout, tile, dtype=f16, target="sm_90a", **form):
    a, b = LAYOUTS[layout]
    kernel = product_kernel(ProductForm(dtype, f32 if dtype.is_float else i32, a, b, **form))
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    return wave_compile(WaveCompileOptions(subs=subs, target=target), kernel)


def check(made, layout, shape, dtype=f16, seed=3):
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    for order in some_of(ORDERS, 1):
        c = poisoned((m, n), f32 if dtype.is_float else i32)
        given = (
            np.ascontiguousarray(a.T) if layout[0] == "T" else a,
            b if layout[1] == "T" else np.ascontiguousarray(b.T),
        )
        made.interpret(*given, c, level="lane", order=order, seed=seed)
        check_product(c, a, b, f32 if dtype.is_float else i32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        ((4, 1, 64), (6, 3, 150)),
        ((1, 8, 128), (2, 13, 77)),
        ((8, 1, 32), (8, 1, 1)),
        ((4, 8, 512), (3, 13, 1101)),
        ((8, 4, 512), (13, 3, 700)),
        ((4, 128, 32), (5, 131, 71)),
        ((128, 4, 32), (131, 5, 71)),
        ((4, 4, 96), (5, 6, 97)),
    ],
)
def test_a_thin_product_is_right_and_needs_no_matrix_unit(layout, tile, shape):
    made = thin(layout, tile)
    assert not any(isinstance(op, Mma) for op in walk(made.ir("reduce_thin_mma").body))
    assert "wgmma" not in made.asm
    assert "mma.sync" not in made.asm
    check(made, layout, shape)


@pytest.mark.parametrize("dtype", [bf16, f32, i8, f8e4m3fn], ids=str)
def test_terms_are_added_in_the_dtype_of_the_sums(dtype):
    check(thin("NT", (4, 1, 64), dtype), "NT", (5, 2, 100), dtype)


def test_lanes_meet_once_after_the_loop():
    body = thin("NT", (4, 1, 64)).ir("reduce_thin_mma").body
    loops = [op for op in walk(body) if isinstance(op, Loop)]
    assert loops
    assert not any(isinstance(inner, Reduce) for loop in loops for inner in walk(loop.body))
    assert sum(isinstance(op, Reduce) for op in walk(body)) == 1


@pytest.mark.parametrize("tile", [(8, 8, 64), (64, 64, 32)])
def test_a_product_with_more_rows_and_columns_stays(tile):
    kernel = thin("NT", tile, target="numpy").kernel
    assert reduce_thin_mma(kernel) is kernel


def test_a_product_whose_instruction_is_named_stays():
    a, b = LAYOUTS["NT"]
    kernel = product_kernel(ProductForm(f16, f32, a, b), MMAType.F32_16x16x16_F16)
    made = wave_compile(WaveCompileOptions(subs={BLOCK_M: 16, BLOCK_N: 1, BLOCK_K: 32}, target="numpy"), kernel).kernel
    assert reduce_thin_mma(made) is made


def test_a_bias_and_an_activation_follow_the_sum():
    made = thin("NT", (4, 1, 64), bias=f32, activation="relu")
    rng = np.random.default_rng(5)
    a, b, bias = random_array(rng, (5, 70), f16), random_array(rng, (3, 70), f16), random_array(rng, (3,), f32)
    c = poisoned((5, 3), f32)
    made.interpret(a, b, bias, c, level="lane", order="backwards", seed=1)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    np.testing.assert_allclose(c, wanted, atol=70 * 2.0**-22)
