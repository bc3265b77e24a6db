"""Batch-invariant results: proved for the kernels that have them, and refused, with the line, for the others."""

from dataclasses import replace

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, check_product, gemm, poisoned, random_array, sizes

from tilewave import *
from tilewave.analysis.reduction_order import sum_orders
from tilewave.backend.nvidia.build import build_with, copying_passes
from tilewave.compile import compile_with
from tilewave.errors import ConstraintError
from tilewave.ir.core import BATCH_INVARIANT
from tilewave.ir.ops import Unset
from tilewave.ir.rewrite import walk
from tilewave.machine.chips import SM_90A
from tilewave.pipeline.batch_invariant import judged
from tilewave.pipeline.runner import pass_name
from tilewave.tune.default import IllegalRecord, TunableKernel
from tilewave.tune.records import TileRecord
from tilewave.tune.space import SPLIT

TARGETS = ["cpu", "numpy", "gfx942", "gfx950", "sm_90a"]
MANY = sizes(2048, 2304, 8192, 128, 128, 64)
"""288 tiles: two full waves of an H200, and 24 tiles that stream-K would share."""


def compiled(subs, target, kernel=None, **more):
    options = WaveCompileOptions(subs=subs, target=target, batch_invariant=True, **more)
    return wave_compile(options, kernel or gemm())


def proofs(one):
    return [row.what for row in one.why() if row.step == "batch_invariant"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_is_proved_for_every_target(target):
    one = compiled(sizes(300, 200, 100), target)
    (said,) = proofs(one)
    assert said == (
        "proved: every element of every tile is summed in 4 steps of 32, one after the other, whatever the other sizes"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_open_sizes_are_proved_by_the_depth_alone(target):
    subs = {s: v for s, v in sizes(1, 1, 1).items() if s not in (M, N, K)}
    (said,) = proofs(compiled(subs, target))
    assert "summed in as many steps of 32 as cover its depth, one after the other" in said


def test_without_the_option_hopper_s_sums_depend_on_the_tile():
    """The proof is of what passes leave: with those that share tiles and turn round in K there is none."""
    one = wave_compile(WaveCompileOptions(subs=MANY, target="sm_90a"), gemm())
    found, broken = sum_orders(judged(one.kernel, one.build.steps))
    assert found == () and {why.what.split(" depends")[0] for why in broken} == {"the number of steps of this sum"}


def test_with_it_both_passes_decline_and_say_so():
    why = compiled(MANY, "sm_90a").why()
    said = {row.step: row.what for row in why}
    assert said["stream_k"] == "the kernel is batch-invariant, so stream-K is not used for the last wave"
    assert said["alternate_k_direction"] == ("the kernel is batch-invariant, so no tile iterates over K backwards")


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("stream_k", "the order in which this sum reads a depends on the tile"),
        ("alternate_k_direction", "the number of steps of this sum depends on the tile"),
    ],
)
def test_a_list_of_passes_that_breaks_it_is_refused(left_out, told):
    def build(tiles, places):
        passes = [p for p in copying_passes(SM_90A, places) if pass_name(p) != left_out]
        return build_with(replace(tiles, sums=""), SM_90A, passes)

    options = WaveCompileOptions(subs=MANY, target="sm_90a", batch_invariant=True)
    with pytest.raises(ConstraintError, match=f"gemm is not batch-invariant: {told}"):
        compile_with(options, gemm(), build)


def test_a_kernel_whose_steps_depend_on_the_tile_is_refused_at_its_line():
    @wave(
        [
            WorkgroupConstraint(M, 16, 0),
            WorkgroupConstraint(N, 16, 1),
            TilingConstraint(K, 16, iters=WORKGROUP_0 + 1),
        ]
    )
    def triangle(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    with pytest.raises(ConstraintError) as error:
        compiled({M: 64, N: 64, K: 64}, "cpu", triangle)
    assert error.value.what.startswith(
        "triangle is not batch-invariant: the number of steps of this sum depends on the tile"
    )
    assert error.value.loc.file == __file__ and "leave out iters" in error.value.remedy


def test_a_sum_that_starts_where_its_tile_says_is_refused():
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, 16)])
    def from_the_diagonal(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)], start=first_index(M))
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    with pytest.raises(ConstraintError, match="is not batch-invariant"):
        compiled({M: 64, N: 64, K: 64}, "cpu", from_the_diagonal)


def test_a_kernel_that_adds_nothing_up_is_told_so():
    @wave([WorkgroupConstraint(M, 16, 0)])
    def double(x: Memory[M, G, f32], y: Memory[M, G, f32]):
        write(read(x) * 2.0, y)

    assert proofs(compiled({M: 40}, "cpu", double)) == ["it has no sum over several steps"]


@pytest.mark.parametrize("subs", [sizes(256, 256, 8192, 128, 128, 64), {BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64}])
def test_parts_that_the_author_cuts_keep_it_though_workgroups_share_them(subs):
    one = compiled(subs, "sm_90a", gemm(constraints=[SplitConstraint(K, 4)]))
    assert any(step.name == "split_k" and step.changed for step in one.build.steps)
    (said,) = proofs(one)
    assert "in 4 parts, one after the other" in said


def test_the_kernel_s_text_says_that_its_sums_are_in_one_order():
    one = compiled(sizes(64, 64, 64), "gfx942")
    assert one.kernel.sums == BATCH_INVARIANT and "sums = one_order" in str(one.kernel).splitlines()[0]


# -- autotuned tiles


@pytest.mark.parametrize("target", ["cpu", "gfx942"])
def test_the_tile_that_is_chosen_is_one_for_every_batch(target):
    """Instructions of several depths, or sums that are under way at once: a tile decides among them."""
    points = {tuple(compiled({M: m, N: 512, K: 256}, target).choice.config.values()) for m in (1, 16, 300, 8192)}
    assert len(points) == 1
    one = compiled({}, target)
    assert one.by_size is None and one.choice is not None


def scaled_by_step():
    """Each step's products are scaled before they are added: how many these are is part of the sum."""

    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
    def scaled(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return acc + mma(read(a), read(b), Register[M, N, f32](0.0)) * 0.5

        write(total, c)

    return scaled


def chosen(kernel=None):
    """Points for several batches, of open sizes and of these."""
    one = compiled({}, "sm_90a", kernel)
    fixed = [compiled({M: m, N: 4096, K: 14336}, "sm_90a", kernel).choice for m in (1, 16, 300, 8192)]
    opened = [made.choice for made in one.by_size.made.values()]
    return [choice.config for choice in (*fixed, one.choice, *opened)]


def test_where_one_instruction_adds_up_tiles_of_every_depth_serve_every_batch():
    points = chosen()
    assert all(len({point[s] for point in points}) > 1 for s in (BLOCK_M, BLOCK_K))
    assert not any(SPLIT in point for point in points)


def test_where_more_is_done_in_a_step_one_depth_serves_every_batch():
    points = chosen(scaled_by_step())
    assert len({point[BLOCK_M] for point in points}) > 1 and len({point[BLOCK_K] for point in points}) == 1


def test_zeros_that_sums_begin_with_are_kept():
    """With a sum of -0 alone, the zeros of a tile at the boundary of K would make it 0."""
    one = compiled(sizes(128, 128, 256, 64, 64, 64), "sm_90a")
    assert any(row.step == "peel_accumulator_init" and "start from zero" in row.what for row in one.why())
    assert not any(isinstance(op, Unset) for op in walk(one.build.steps[-1].after.body))
    free = wave_compile(WaveCompileOptions(subs=sizes(128, 128, 256, 64, 64, 64), target="sm_90a"), gemm())
    assert any(isinstance(op, Unset) for op in walk(free.build.steps[-1].after.body))


def test_a_record_of_another_depth_does_not_serve_it():
    tiles = TunableKernel.of(scaled_by_step(), {M: 1, N: 4096, K: 4096}, (), {}, "sm_90a").for_all_batches()
    taken = tiles.choices()[0]
    depth = 128 if taken.config[BLOCK_K] == 64 else 64
    for values, serves in (({}, True), ({BLOCK_K.name: depth}, False)):
        choice = {s.name: n for s, n in taken.config.items() if s in tiles.space.tiles} | values
        record = TileRecord(tiles.key({}), choice=choice, considered=36, predicted=5e-6)
        if serves:
            assert tiles.of_record(record, {}) is not None
        else:
            with pytest.raises(IllegalRecord, match="batch-invariant sums need BLOCK_K"):
                tiles.of_record(record, {})


# -- bits


def rows_of(one, m, n, k, level=None):
    rng = np.random.default_rng(7)
    b, a = random_array(rng, (n, k), f16), random_array(rng, (m, k), f16)
    c = poisoned((m, n), f32)
    if level:
        one.interpret(a, b, c, level=level)
    else:
        one(a, b, c)
    check_product(c, a, b)
    return c.view(np.uint32)


def test_a_row_has_the_same_bits_in_every_batch_on_the_cpu():
    one = compiled({}, "cpu")
    first = rows_of(one, 1, 70, 300)
    for m in (2, 3, 13, 64, 129, 500):
        assert (rows_of(one, m, 70, 300)[0] == first[0]).all()


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_a_row_has_the_same_bits_in_every_batch_lane_by_lane(target):
    subs = {BLOCK_M: 64, **{s: v for s, v in sizes(1, 1, 1).items() if s not in (M, N, K)}}
    one = compiled(subs, target)
    first = rows_of(one, 1, 70, 100, "lane")
    for m in (2, 65):
        assert (rows_of(one, m, 70, 100, "lane")[0] == first[0]).all()


@pytest.mark.parametrize("k", [128, 192, 100])
def test_tiles_of_every_depth_come_to_the_same_bits_lane_by_lane(k):
    """Equal even where one of the tiles is a boundary tile along K, and the other is not."""
    tiles = [(8, 64, 64), (8, 64, 128), (64, 32, 64), (64, 64, 128)]
    found = [rows_of(compiled(sizes(9, 70, k, *tile), "sm_90a"), 9, 70, k, "lane") for tile in tiles]
    assert all((one == found[0]).all() for one in found)
