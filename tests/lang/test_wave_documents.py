"""Every kernel of Wave's documents, as typed there, gives the float64 result within a computed bound."""

import numpy as np
import pytest
from kernels import BLOCK_M, BLOCK_N, M, N, check_product, compiled, gemm, on, poisoned, random_array, sizes
from seeds import SEEDS

from tilewave import (
    WORKGROUP_0,
    WORKGROUP_1,
    GridConstraint,
    ReorderingConstraint,
    WorkgroupMapping,
    ceiling,
    f16,
    f32,
)
from tilewave.errors import CoverageError

pytestmark = on("numpy", "cpu")

SHAPES = [(300, 300, 300), (1, 1, 1), (129, 257, 65)]
SLOW_SHAPES = [(1536, 3072, 1977), (2048, 2048, 2048)]


def run_and_check(compiled, m, n, k, **how):
    rng = np.random.default_rng(m + n + k)
    a, b = random_array(rng, (m, k), f16), random_array(rng, (n, k), f16)
    c = poisoned((m, n), f32)
    if how:
        compiled.interpret(a, b, c, **how)
    else:
        compiled(a, b, c)
    check_product(c, a, b)


@pytest.mark.share(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_it_matches_float64(seed, shape):
    run_and_check(seed.compile(*shape), *shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SLOW_SHAPES, ids=str)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_it_matches_float64_on_large_shapes(seed, shape):
    run_and_check(seed.compile(*shape), *shape)


def test_the_documents_own_shape(target):
    """On the CPU in every run; the interpreter and the other kernels are slow tests."""
    side = 2048 if target == "cpu" else 512
    run_and_check(SEEDS[-1].compile(side, side, side), side, side, side)


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_the_order_of_workgroups_does_not_matter(seed):
    run_and_check(seed.compile(300, 300, 300, block_m=64, block_n=64), 300, 300, 300, order="shuffled", seed=3)


def test_reordering_with_fewer_tile_rows_than_a_group_and_with_grids_that_8_does_not_divide():
    (reordered,) = (s for s in SEEDS if "reordered" in repr(s))
    for m, n, group in [(300, 700, 8), (700, 300, 8), (450, 450, 3), (65, 65, 8)]:
        run_and_check(reordered.compile(m, n, 40, block_m=64, block_n=64, group_size_m=group), m, n, 40)


@pytest.mark.share(4)
@pytest.mark.parametrize("workgroups", [1, 2, 5, 16, 32])
def test_persistent_kernels_with_fewer_workgroups_than_tiles(workgroups):
    for seed in SEEDS[2:4]:
        run_and_check(seed.compile(300, 500, 70, block_m=64, block_n=64, num_ctas=workgroups), 300, 500, 70)


def test_the_xcd_remap_is_right_where_the_workgroups_are_a_multiple_of_xcds_times_chunk():
    run_and_check(SEEDS[-1].compile(512, 512, 64, block_m=64, block_n=64, num_ctas=16), 512, 512, 64)


def test_the_xcd_remap_does_not_compile_where_it_drops_tiles():
    """NUM_CTAS = 20 is no multiple of 8 XCDs x 2."""
    with pytest.raises(CoverageError) as raised:
        SEEDS[-1].compile(512, 512, 64, block_m=64, block_n=64, num_ctas=20)
    text = str(raised.value)
    assert text.startswith("workgroups 0 and 18 both compute tile (0, 5); tile (1, 4) is computed by none\n")
    assert "c has 64 tiles: 6 lost, 6 computed more than once." in text
    assert "GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop" in text


def test_what_the_message_says_to_write_compiles_and_is_right():
    kernel = gemm(constraints=[GridConstraint(20), WorkgroupMapping("xcd_chunked(8, 2) >> grouped(4)")])
    run_and_check(compiled(kernel, subs=sizes(512, 512, 64)), 512, 512, 64)


def test_the_super_tile_formula_does_not_compile_on_a_ragged_grid():
    """2 x 4 super-tiles with sides rounded up, as the XCD-aware GEMM of the MFMA series has them."""
    rows, cols = ceiling(M / BLOCK_M), ceiling(N / BLOCK_N)
    side_m, side_n = (rows + 1) // 2, (cols + 3) // 4
    w = WORKGROUP_1 * rows + WORKGROUP_0
    tile, local = w // (side_m * side_n), w % (side_m * side_n)
    reordering = [
        ReorderingConstraint(tile // 4 * side_m + local // side_n, 0),
        ReorderingConstraint(tile % 4 * side_n + local % side_n, 1),
    ]
    run_and_check(compiled(gemm(constraints=reordering), subs=sizes(256, 256, 40)), 256, 256, 40)
    with pytest.raises(
        CoverageError, match=r"workgroup \d+ \(.*\) computes tile \(\d, \d\), outside the 3x5 tiles of c"
    ):
        compiled(gemm(constraints=reordering), subs=sizes(3 * 64, 5 * 64, 40))
