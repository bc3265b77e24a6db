"""Products whose operands are read in place: the results are equal, and nothing is packed before the launch."""

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, check_product, gemm, poisoned, random_array, sizes

from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.cost.work import UNSAID
from tilewave.tune.space import IN_PLACE

HERE = [s.name for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
LAYOUTS = [((M, K), (N, K)), ((M, K), (K, N)), ((K, M), (N, K)), ((K, M), (K, N))]


def arrays(m, n, k, dims, dtype):
    rng = np.random.default_rng(m + n + k)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    lying = [np.ascontiguousarray(x.T) if d[0] is K else x for x, d in ((a, dims[0]), (b, dims[1]))]
    return a, b, *lying, poisoned((m, n), dtype)


@pytest.mark.share(8)
@pytest.mark.parametrize("dims", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 40, 70), (37, 1, 33), (50, 65, 1), (64, 96, 128)])
def test_products_in_place_are_right(shape, dims):
    a, b, x, y, c = arrays(*shape, dims, f32)
    kernel = gemm(f32, f32, out=f32, a_dims=dims[0], b_dims=dims[1])
    subs = sizes(*shape) | {BLOCK_M: 14, BLOCK_N: 32, BLOCK_K: 64}
    one = wave_compile(WaveCompileOptions(subs=subs, target="cpu", in_place=True), kernel)
    one(x, y, c)
    check_product(c, a, b)
    assert "prepack" not in str(one.steps[-1].after)


@pytest.mark.share(8)
@pytest.mark.parametrize("dims", LAYOUTS[:2])
@pytest.mark.parametrize("tile", [(1, 32, 256), (2, 24, 16), (16, 1, 64), (12, 4, 40), (8, 64, 33)], ids=str)
@pytest.mark.parametrize("instruction_set", HERE)
def test_few_rows_and_few_columns_of_ragged_products(instruction_set, tile, dims):
    kernel = gemm(f32, f32, out=f32, a_dims=dims[0], b_dims=dims[1])
    subs = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    options = WaveCompileOptions(subs=subs, target="cpu", in_place=True, instruction_set=instruction_set)
    one = wave_compile(options, kernel)
    for shape in [(1, 67, 300), (35, 1, 129), (17, 23, 31), (24, 64, 64)]:
        a, b, x, y, c = arrays(*shape, dims, f32)
        one(x, y, c)
        check_product(c, a, b)


@pytest.mark.parametrize("instruction_set", HERE)
def test_results_that_do_not_stand_side_by_side_leave_what_lies_between(instruction_set):
    options = WaveCompileOptions(
        subs={BLOCK_M: 8, BLOCK_N: 32, BLOCK_K: 64}, target="cpu", in_place=True, instruction_set=instruction_set
    )
    one = wave_compile(options, gemm(f32, f32, out=f32))
    a, b, x, y, _ = arrays(13, 45, 70, LAYOUTS[0], f32)
    whole = np.full((2 * 13, 3 * 45 + 1), 7, np.float32)
    for c in (whole[::2, 1::3], whole.T[:45, :13].T, whole[3:16, 5:50]):
        whole[:] = 7
        c[:] = np.nan
        one(x, y, c)
        check_product(np.ascontiguousarray(c), a, b)
        c[:] = 7
        assert (whole == 7).all()


@pytest.mark.parametrize("dtypes", [(f16, f32), (bf16, f32), (f64, f64), (i8, i32)], ids=str)
def test_other_dtypes_and_open_sizes_too(dtypes):
    dtype, acc = dtypes
    kernel = gemm(dtype, acc, out=acc)
    subs = {BLOCK_M: 8, BLOCK_N: 32, BLOCK_K: 64}
    one = wave_compile(WaveCompileOptions(subs=subs, target="cpu", in_place=True), kernel)
    rng = np.random.default_rng(0)
    for m, n, k in [(1, 40, 30), (33, 17, 65)]:
        a, b, c = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype), poisoned((m, n), acc)
        one(a, b, c)
        check_product(c, a, b)


def test_what_is_packed_is_another_program_in_the_cache():
    subs = sizes(64, 64, 64)
    packed, lying = (
        wave_compile(WaveCompileOptions(subs=subs, target="cpu", in_place=where), gemm(f32, f32, out=f32))
        for where in (False, True)
    )
    assert "prepack" in str(packed.steps[-1].after) and packed.build.code != lying.build.code


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_a_chip_packs_nothing_and_says_so(target):
    with pytest.raises(TilewaveError, match=f"in_place is given, but on {target} nothing is packed"):
        wave_compile(WaveCompileOptions(subs=sizes(64, 64, 64), target=target, in_place=True), gemm())


def test_one_row_is_read_in_place_by_default_and_large_products_are_packed():
    def chosen(*shape):
        options = WaveCompileOptions(subs=dict(zip((M, N, K), shape, strict=True)), target="cpu")
        return wave_compile(options, gemm(f32, f32, out=f32)).choice

    assert chosen(1, 4096, 4096).knob(IN_PLACE) == chosen(4096, 1, 4096).knob(IN_PLACE) == 1
    assert chosen(2048, 2048, 2048).knob(IN_PLACE) == UNSAID
    assert "in_place=1 to keep it" in chosen(1, 4096, 4096).remarks().remedy


def test_narrow_dtypes_are_converted_once_and_so_packed():
    options = WaveCompileOptions(subs={M: 1, N: 512, K: 512}, target="cpu", tune=Tune(in_place=1))
    assert IN_PLACE not in wave_compile(options, gemm(f16, f32, out=f32)).choice.config
