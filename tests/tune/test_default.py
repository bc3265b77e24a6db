"""A kernel without a tile gets one: by its sizes, or by those of a call; it is said, and the result is right."""

import math

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, check_product, gemm, poisoned, random_array, sizes, tiling

from tilewave import *
from tilewave.errors import ConstraintError, TraceError
from tilewave.tune.default import TYPICAL, TunableKernel, like

BLOCKS = (BLOCK_M, BLOCK_N, BLOCK_K)


def compiled(m, n, k, target, kernel=None):
    return wave_compile(WaveCompileOptions(subs={M: m, N: n, K: k}, target=target), kernel or gemm())


def tile(one):
    return tuple(one.choice.config[s] for s in BLOCKS)


def arrays(m, n, k, dtype=f16):
    rng = np.random.default_rng(m + n + k)
    return random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype), poisoned((m, n), f32)


def rows_kernel():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0)])
    def double(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        write(read(x) + read(x), y)

    return double


# -- it is chosen by shape --------------------------------------------------------------------------------------------


def test_a_tile_of_large_products_is_not_that_of_small_ones():
    small, large = (tile(compiled(n, n, n, "sm_90a")) for n in (1024, 8192))
    assert small != large
    assert small[0] * small[1] < 128 * 256 <= large[0] * large[1]


@pytest.mark.share(6)
@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950", "cpu", "numpy"])
@pytest.mark.parametrize("shape", [(1, 40, 30), (70, 33, 100), (130, 130, 65)])
def test_every_target_has_a_default(target, shape):
    one = compiled(*shape, target)
    assert one.choice is not None and {*one.choice.tiles} == {*BLOCKS}
    a, b, c = arrays(*shape)
    one.interpret(a, b, c)
    check_product(c, a, b)


@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950"])
def test_what_lanes_do_with_the_default_is_right(target):
    a, b, c = arrays(70, 33, 100)
    compiled(70, 33, 100, target).interpret(a, b, c, level="lane")
    check_product(c, a, b)


def test_the_default_runs_on_the_cpu():
    for shape in [(1, 40, 30), (300, 33, 100), (64, 500, 1)]:
        a, b, c = arrays(*shape)
        compiled(*shape, "cpu")(a, b, c)
        check_product(c, a, b)


@pytest.mark.parametrize("dims", [((M, K), (K, N)), ((K, M), (N, K)), ((K, M), (K, N))])
def test_other_layouts_have_a_default_too(dims):
    one = compiled(256, 256, 256, "sm_90a", gemm(a_dims=dims[0], b_dims=dims[1]))
    assert one.choice is not None


def test_a_kernel_without_products_has_one():
    x = np.arange(300 * 7, dtype=np.float32).reshape(300, 7)
    for target in ("cpu", "sm_90a", "gfx942"):
        one = wave_compile(WaveCompileOptions(subs={M: 300, N: 7}, target=target), rows_kernel())
        y = poisoned((300, 7), f32)
        one.interpret(x, y)
        assert (y == 2 * x).all() and one.choice.config[BLOCK_M] >= 1


def test_what_is_given_is_kept_and_the_rest_is_chosen():
    one = compiled(1024, 1024, 1024, "sm_90a")
    fixed = wave_compile(WaveCompileOptions(subs={M: 1024, N: 1024, K: 1024, BLOCK_N: 32}, target="sm_90a"), gemm())
    assert {*fixed.choice.tiles} == {BLOCK_M, BLOCK_K} and {*one.choice.tiles} == {*BLOCKS}
    assert "32" in str(fixed.ir("trace"))


def test_a_kernel_with_all_tiles_is_compiled_as_ever():
    one = wave_compile(WaveCompileOptions(subs=sizes(128, 128, 64), target="cpu"), gemm())
    assert one.choice is None and "tiles" not in [row.step for row in one.why()]


def test_a_choice_is_not_advised_against():
    """The search compared smaller tiles and shorter steps, and an author who gives this tile did not."""
    large, tune = {M: 4096, N: 4096, K: 4096}, Tune(BLOCK_M=128, BLOCK_N=256, BLOCK_K=128)
    chosen = wave_compile(WaveCompileOptions(subs=large, target="sm_90a", tune=tune), gemm())
    given = wave_compile(WaveCompileOptions(subs={**large, **chosen.choice.config}, target="sm_90a"), gemm())
    advice = "shared memory has room for 2 stages of 98,304 bytes each, not 4"
    assert any(row.what.startswith(advice) for row in given.why())
    assert not any(row.what.startswith(advice) for row in chosen.why())
    assert not any(remark.what.startswith(advice) for step in chosen.steps for remark in step.remarks)


def test_the_choice_as_subs_gives_the_same_code():
    one = compiled(300, 200, 100, "gfx942")
    subs = {M: 300, N: 200, K: 100, **one.choice.config}
    again = wave_compile(WaveCompileOptions(subs=subs, target="gfx942"), gemm().ordered(one.choice.order))
    assert one.asm == again.asm


def test_the_order_of_tiles_is_chosen_where_nobody_says_it():
    one = compiled(4096, 4096, 4096, "sm_90a")
    assert one.choice.order.startswith("grouped(") and one.choice.order in one.choice.reason
    said = compiled(4096, 4096, 4096, "sm_90a", gemm(constraints=[WorkgroupMapping("linear()")]))
    assert said.choice.order == ""


# -- it is said -------------------------------------------------------------------------------------------------------


def test_why_says_what_was_chosen_from_what():
    one = compiled(1024, 1024, 1024, "sm_90a")
    row = next(row for row in one.why() if row.step == "tiles")
    assert row.what.startswith("no tile was given; the model chose BLOCK_M=")
    assert "for M=1024, K=1024, N=1024: " in row.what and " µs ± " in row.what
    assert f"of {one.choice.considered} configs all are legal" in row.what
    assert (
        row.remedy.startswith("write subs={BLOCK_M: ") and "fitted on benchmarks/data/h200_kernel_set.csv" in row.remedy
    )


def test_sizes_of_a_class_are_near_and_have_one_grain():
    for n in (0, *range(1, 70), 100, 127, 128, 129, 1000, 4096, 4097, 10_000, 65_537):
        found = like(n)
        assert n <= found <= n + n // 16
        assert math.gcd(n, 64) == math.gcd(found, 64)
        assert like(found) == found
    assert like(4097) == like(4351) == 4351


def test_a_cpu_ranks_configs_once_for_a_class_of_sizes():
    tiles = TunableKernel.of(gemm(), {}, (), {}, "cpu")
    found = [tiles.predicted({M: m, N: 300, K: 200})[0] for m in (4097, 4099, 4351, 5001)]
    assert len(tiles.ranked) == 2
    assert found[0].config == found[1].config == found[2].config
    assert "M=4099" in found[1].sizes
    assert not tiles.for_all_batches().ranked


def test_a_symbol_that_is_no_tile_is_still_asked_for():
    with pytest.raises(TilewaveError, match="COUNT has no value"):
        compiled(64, 64, 64, "cpu", gemm(constraints=[GridConstraint(sym.COUNT)]))


def test_mistakes_of_the_author_are_told_as_ever():
    @wave(tiling())
    def wrong(a: Memory[M, K, G, f16], c: Memory[M, N, G, f32]):
        write(a, c)

    with pytest.raises(TraceError, match="write needs a tile"):
        wave_compile(WaveCompileOptions(subs={M: 64, N: 64, K: 64}, target="cpu"), wrong)


def test_dtypes_that_a_chip_does_not_multiply_are_told_as_ever():
    with pytest.raises(ConstraintError, match="no matrix instruction of sm_90a is used for f64 times f64"):
        compiled(64, 64, 64, "sm_90a", gemm(f64, f64))


# -- open sizes -------------------------------------------------------------------------------------------------------


def test_calls_of_one_config_share_a_kernel_and_those_of_another_have_their_own(monkeypatch):
    monkeypatch.setenv("TILEWAVE_BACKGROUND", "0")
    kernel = gemm()
    for m in (1, 100, 128, 1):
        a, b, c = arrays(m, 48, 40)
        kernel(a, b, c)
        check_product(c, a, b)
    (one,) = kernel.kept["call"]._kernels.values()
    best = {one.by_size.choice([(m, 40), (48, 40), (m, 48)]).text for m in (1, 100, 128)}
    assert best == {*one.by_size.made} and len(best) < 4
    shapes = [[(m, 4096), (4096, 4096), (m, 4096)] for m in (1, 4096)]
    assert len({one.by_size.choice(each).text for each in shapes}) == 2


def test_before_the_first_call_a_kernel_is_for_typical_sizes():
    one = wave_compile(WaveCompileOptions(target="cpu"), gemm(f32))
    a, b, c = arrays(1, 48, 40, f32)
    one(a, b, c)
    check_product(c, a, b)
    assert f"M={TYPICAL}" in str(one.why()) and tile(one)[0] > 16
    assert "M=1, " in str(one.why(a, b, c))
    assert one.by_size.choice([(1, 4096), (4096, 4096), (1, 4096)]).config[BLOCK_M] == 1


def test_an_array_with_too_few_axes_is_told_as_ever():
    a, b, c = arrays(40, 48, 40)
    kernel = gemm()
    kernel(a, b, c)
    with pytest.raises(TilewaveError, match="a has 1 axis"):
        kernel(a[0], b, c)


def test_numbers_of_a_call_go_to_the_tile_that_serves_it():
    @wave(tiling())
    def scaled(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], alpha: f32):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total * alpha, c)

    for m in (5, 50):
        a, b, c = arrays(m, 30, 20)
        scaled(a, b, c, alpha=-1.0)
        check_product(-c, a, b)
