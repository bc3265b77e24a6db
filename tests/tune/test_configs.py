"""Kernel sets: few configs, all legal, all compiled, for every chip, dtype and layout."""

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm

from tilewave import *
from tilewave.analysis.thin_products import is_thin
from tilewave.options import as_chosen
from tilewave.tune.choose import rank
from tilewave.tune.configs import LAYOUTS, SETS, host_set, kernel_set
from tilewave.tune.default import TunableKernel
from tilewave.tune.space import NUM_STAGES, SPLIT

MOST = 32
"""The most configs of a class of products."""
MOST_ON_CPUS = 36
DTYPES = {"sm_90a": (f16, bf16, f32, f8e4m3fn), "gfx942": (f16, bf16, f32, f8e4m3fnuz), "cpu": (f16, f32)}


def tiles_of(target, dtype=f16, **more):
    return TunableKernel.of(gemm(dtype, **more), {}, (), {}, target)


@pytest.mark.parametrize("vendor", SETS)
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_set_has_few_configs_each_once(vendor, element_bytes, layout):
    found = kernel_set(vendor, element_bytes, layout)
    assert 8 <= len(found) <= MOST and len({tuple(one.items()) for one in found}) == len(found)
    assert all(one["depth"] * element_bytes >= 32 for one in found)


def test_the_longer_operand_decides_which_tiles_lanes_multiply():
    """Neighbouring lanes load neighbours: many of the depth, or many of the side."""
    few = [{(c["rows"], c["cols"], c["depth"]) for c in kernel_set("nvidia", 2, layout)} for layout in LAYOUTS]
    along, of_rows, of_columns, both = ({tile for tile in found if min(tile[:2]) == 1} for found in few)
    assert (1, 4, 1024) in along - of_rows and (1, 64, 256) in of_rows - along
    assert (4, 1, 1024) in along - of_columns and (64, 1, 256) in of_columns - along
    assert both == (of_rows | of_columns) - along | along & both


def test_depths_follow_the_width_of_a_dtype():
    by_bytes = {n: [one["depth"] * n for one in kernel_set("nvidia", n)] for n in (1, 2, 4)}
    assert by_bytes[1] == by_bytes[2] == by_bytes[4]


@pytest.mark.parametrize("reads_in_place", [False, True])
def test_cpus_have_sets_too(reads_in_place):
    found = host_set(14, 32, reads_in_place)
    assert len(found) <= MOST_ON_CPUS and any(one["in_place"] for one in found) == reads_in_place
    assert min(one["rows"] for one in found) == (1 if reads_in_place else 14)


@pytest.mark.parametrize("target", DTYPES)
def test_every_config_of_a_set_is_legal(target):
    """Lanes multiply no f32 for Hopper's matrix unit, which has tf32 only, where that is asked for."""
    for dtype in DTYPES[target]:
        tiles = tiles_of(target, dtype)
        ranked = rank(tiles.problem.sized(tiles.typical), tiles.space, tiles.machine)
        illegal = {"few rows or columns"} if (target, dtype) == ("sm_90a", f32) else set()
        assert {*ranked.illegal} == illegal
        assert ranked.considered == len([*tiles.space.configs()]) <= (MOST_ON_CPUS if target == "cpu" else MOST)


def test_a_set_is_of_products_that_a_loop_adds_up():
    assert tiles_of("sm_90a").space.configs_of_set and tiles_of("cpu").space.configs_of_set

    @wave([WorkgroupConstraint(M, BLOCK_M, 0)])
    def double(x: Memory[M, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x) * 2.0, y)

    space = TunableKernel.of(double, {}, (), {}, "sm_90a").space
    assert not space.configs_of_set and len([*space.configs()]) == len(space.decisions[0].values)


def test_what_the_author_gives_leaves_the_configs_of_the_rest():
    given = TunableKernel.of(gemm(), {BLOCK_N: 64}, (), {}, "sm_90a").space
    assert {s for c in given.configs() for s in c} == {BLOCK_M, BLOCK_K, NUM_STAGES, SPLIT}
    whole = tiles_of("sm_90a").space
    assert {c[BLOCK_M] for c in given.configs()} == {c[BLOCK_M] for c in whole.configs()}


def test_sums_in_one_order_are_split_by_no_config():
    space = tiles_of("sm_90a").for_all_batches().space
    assert SPLIT not in space.symbols and 16 < len([*space.configs()]) < len([*tiles_of("sm_90a").space.configs()])


def test_stages_that_the_options_give_are_those_of_every_config():
    tiles = TunableKernel.of(gemm(), {}, (), {}, "sm_90a", num_stages=3)
    assert {c[NUM_STAGES] for c in tiles.space.configs()} == {3} and len([*tiles.space.configs()]) > 16


LEGAL_EVERY = 8
"""One config in so many is compiled by every run; `make test-slow` compiles all."""


@pytest.mark.parametrize("every", [LEGAL_EVERY, pytest.param(1, marks=pytest.mark.slow, id="all")])
@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950"])
def test_configs_compile_with_open_sizes(target, every):
    tiles = tiles_of(target, out=f16, epilogue=lambda x: cast(x, f16))
    for choice in sorted(tiles.predicted(tiles.typical), key=lambda one: one.text)[1::every]:
        made = wave_compile(as_chosen(WaveCompileOptions(target=target), choice), tiles.decided(choice))
        assert {*made.open_sizes} == {"M", "N", "K"}, choice.text


def is_multiplied_by_lanes(choice):
    return is_thin(choice.tiles[BLOCK_M], choice.tiles[BLOCK_N])


@pytest.mark.parametrize(
    ("shape", "by_lanes"), [((4, 1, 4868), True), ((84, 1, 2259), True), ((4096, 4096, 4096), False)]
)
def test_few_columns_are_multiplied_by_lanes_where_the_model_says_so(shape, by_lanes):
    sizes = dict(zip((M, N, K), shape, strict=True))
    best, *others = tiles_of("sm_90a").predicted(sizes)
    assert is_multiplied_by_lanes(best) == by_lanes
    assert any(map(is_multiplied_by_lanes, others))


def test_a_batch_invariant_kernel_never_sums_by_lanes():
    sizes = dict(zip((M, N, K), (4, 1, 4868), strict=True))
    assert not any(map(is_multiplied_by_lanes, tiles_of("sm_90a").for_all_batches().predicted(sizes)))
