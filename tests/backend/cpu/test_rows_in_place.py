"""Left operands that products read where they are: every layout, ragged sizes, and nothing outside of the arrays."""

import sys

import numpy as np
import pytest
from guard_pages import after_a_guard, before_a_guard
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm, poisoned, sizes

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.ir.ops import Prepack, ReadRows
from tilewave.ir.rewrite import walk

HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
LAYOUTS = {"nt": ((M, K), (N, K)), "nn": ((M, K), (K, N)), "tt": ((K, M), (N, K)), "tn": ((K, M), (K, N))}
TILE = {BLOCK_M: 24, BLOCK_N: 192, BLOCK_K: 16}
SHAPES = [(1, 1, 1), (7, 49, 16), (25, 64, 70), (24, 193, 33), (50, 31, 129), (3, 5, 0)]


def product_of(dtype, layout, instruction_set=None, known=None):
    a_dims, b_dims = LAYOUTS[layout]
    kernel = gemm(dtype, dtype, out=dtype, a_dims=a_dims, b_dims=b_dims)
    options = WaveCompileOptions(subs=TILE | (known or {}), target="cpu", instruction_set=instruction_set)
    return wave_compile(options, kernel)


def operands(rng, m, n, k, layout, dtype):
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m)).astype(dtype.numpy)
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k)).astype(dtype.numpy)
    return a, b


def check(c, a, b, layout, dtype):
    """Compare with float64: each of K products and sums rounds once."""
    left = (a if layout[0] == "n" else a.T).astype(np.float64)
    right = (b if layout[1] == "n" else b.T).astype(np.float64)
    bound = 2 * left.shape[1] * np.finfo(dtype.numpy).eps * (np.abs(left) @ np.abs(right))
    assert (np.abs(c - left @ right) <= bound).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("instruction_set", HERE)
def test_ragged_products_of_every_layout(instruction_set, dtype, layout):
    made, rng = product_of(dtype, layout, instruction_set), np.random.default_rng(0)
    for m, n, k in SHAPES:
        (a, b), c = operands(rng, m, n, k, layout, dtype), poisoned((m, n), dtype)
        made(a, b, c)
        check(c, a, b, layout, dtype)


def is_packed(made):
    ops = [*walk(made.build.steps[-1].after.body)]
    read = {op.memory.name for op in ops if isinstance(op, ReadRows)}
    packed = {op.memory.name for op in ops if isinstance(op, Prepack)}
    assert read | packed == {"a", "b"} and not read & packed
    return "a" in packed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_along_the_depth_stay_where_an_element_is_broadcast(layout):
    assert is_packed(product_of(f32, layout, "avx512")) == (layout[0] == "t")
    assert is_packed(product_of(f32, layout, "neon"))


def test_narrower_dtypes_are_converted_once():
    made = wave_compile(WaveCompileOptions(subs=TILE, target="cpu", instruction_set="avx512"), gemm(f16, f32))
    assert is_packed(made)


def test_known_sizes_in_steps_of_eight():
    """Panels of AVX2 are a multiple of 8 deep: rows are read in place where they are as long."""
    for k, packed in ((64, False), (66, True)):
        made = product_of(f32, "nn", "avx2", {M: 26, N: 40, K: k})
        assert is_packed(made) == packed


@pytest.mark.parametrize("steps", [(2, 1), (1, 3), (3, 2)], ids=str)
def test_rows_with_any_strides(steps):
    """Rows and their elements may be apart, and rows may share elements."""
    made, rng = product_of(f32, "nn"), np.random.default_rng(1)
    whole, b = operands(rng, 25 * 3, 50, 33 * 3, "nn", f32)
    a, b, c = whole[:: steps[0], :: steps[1]][:25, :33], b[:33], poisoned((25, 50), f32)
    made(a, b, c)
    check(c, a, b, "nn", f32)
    rows = np.lib.stride_tricks.as_strided(whole[0], (25, 33), (4, 4))
    made(rows, b, c)
    check(c, rows, b, "nn", f32)


def test_the_last_row_alone_spreads_what_it_holds():
    """Rows past the end are read as the last one: its infinities reach no other row."""
    made, rng = product_of(f32, "nn"), np.random.default_rng(2)
    (a, b), c = operands(rng, 25, 50, 33, "nn", f32), poisoned((25, 50), f32)
    a[-1] = np.nan
    made(a, b, c)
    check(c[:-1], a[:-1], b, "nn", f32)
    assert np.isnan(c[-1]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made by Linux's mprotect")
@pytest.mark.parametrize("guarded", [before_a_guard, after_a_guard])
@pytest.mark.parametrize("instruction_set", HERE)
def test_nothing_outside_of_the_operands_is_read(instruction_set, guarded):
    made, rng = product_of(f32, "nn", instruction_set), np.random.default_rng(3)
    for m, n, k in ((25, 50, 33), (1, 3, 5), (23, 48, 16)):
        (a, b), c = operands(rng, m, n, k, "nn", f32), poisoned((m, n), f32)
        made(guarded(a), guarded(b), c)
        check(c, a, b, "nn", f32)


def test_batches_bias_and_activation():
    from tilewave import ops

    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((3, 21, 37)).astype("f"), rng.standard_normal((3, 37, 50)).astype("f")
    found = ops.matmul(a, b)
    for one, x, y in zip(found, a, b, strict=True):
        check(one, x, y, "nn", f32)
    x, weight, bias = (rng.standard_normal(shape).astype("f") for shape in ((21, 37), (50, 37), (50,)))
    check(
        ops.linear(x, weight, bias) - bias,
        np.c_[x, np.ones((21, 4), "f")],
        np.c_[weight, np.zeros((50, 4), "f")],
        "nt",
        f32,
    )


def test_a_product_that_is_summed_over_its_rows_is_right():
    """Rows past the end would count: the operand keeps its panels, which hold zeros there."""

    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
    def summed(
        a: Memory[M, K, GLOBAL_ADDRESS_SPACE, f32],
        b: Memory[N, K, GLOBAL_ADDRESS_SPACE, f32],
        c: Memory[N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total.sum(dim=M), c)

    subs = sizes(5, 16, 9, 8, 16, 8)
    made = wave_compile(WaveCompileOptions(subs=subs, target="cpu"), summed)
    rng = np.random.default_rng(5)
    a, b, c = rng.standard_normal((5, 9)).astype("f"), rng.standard_normal((16, 9)).astype("f"), poisoned((16,), f32)
    made(a, b, c)
    bound = 16 * np.finfo("f").eps * (np.abs(a) @ np.abs(b).T).sum(0)
    assert (np.abs(c - (a.astype(float) @ b.T.astype(float)).sum(0)) <= bound).all()
