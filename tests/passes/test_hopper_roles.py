"""Warp-specialized kernels for Hopper: a producer warp issues TMA loads, consumer warpgroups multiply."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import (
    MUTATED,
    biased,
    both,
    changed,
    check,
    check_biased,
    check_both,
    found_by,
    roles,
    specialized,
    tiles,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import G, K, M, N, check_product, gemm, poisoned, sizes, tiling
from lane_runs import ORDERS, operands
from sampled import examples, some_of
from seeds import SEEDS

from tilewave import *
from tilewave.interp import copies
from tilewave.interp.wave import AT_ONCE
from tilewave.ir.build import Builder, Number
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import (
    Allocate,
    Arrive,
    Barrier,
    Copy,
    Load,
    MakeMbarriers,
    Role,
    TmaLoad,
    TmaLoadMulticast,
    WaitMbarrier,
    WgmmaShared,
)
from tilewave.ir.rewrite import names, rewrite, walk
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A
from tilewave.passes.memory.stage_epilogue import StageEpilogue
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

pytestmark = pytest.mark.share(4)


def count(kernel, kind):
    return sum(isinstance(op, kind) for op in walk(kernel.body))


# -- pipeline stages


@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_a_ring_of_any_length_and_any_number_of_steps(stages, steps):
    shape = (64, 64, 16 * steps)
    check(specialized(tiles(SEEDS[0], shape, (64, 64, 16)), stages), shape)


@pytest.mark.share(6)
@pytest.mark.parametrize("seed", SEEDS[2:], ids=repr)
@pytest.mark.parametrize("stages", range(1, 7))
def test_phases_go_on_from_tile_to_tile(seed, stages):
    shape = (130, 130, 48)  # nine tiles of three steps for two workgroups: stages end in the middle of a tile
    check(specialized(tiles(seed, shape, (64, 64, 16), num_ctas=2), stages), shape, ["random"], stages)


def test_many_steps():
    shape = (64, 128, 65 * 16)
    check(specialized(tiles(SEEDS[2], shape, (64, 64, 16), num_ctas=1), 4), shape)


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
@pytest.mark.parametrize("shape", [(129, 132, 72), (1, 1, 8), (70, 140, 104)], ids=str)
def test_edges_are_filled_with_zeros(seed, shape):
    check(specialized(tiles(seed, shape), 3), shape, ["random"])


@pytest.mark.parametrize("order", ORDERS)
def test_two_groups_of_waves_share_a_ring(order):
    shape = (256, 256, 320)
    kernel = specialized(tiles(SEEDS[3], shape, (128, 256, 64), num_ctas=1), 4)
    check(kernel, shape, [order])
    assert kernel.waves == (12, 1)
    (empty,) = (op for op in walk(kernel.body) if isinstance(op, MakeMbarriers) and op.result.name == "empty")
    assert empty.arrivals == 2


@pytest.mark.parametrize("columns", [8, 48, 192])
def test_three_groups_of_waves_share_192_rows(columns):
    shape = (200, columns, 136)
    kernel = specialized(tiles(SEEDS[0], shape, (192, columns, 64)), 2)
    assert kernel.waves == (3 * 4 + 4, 1)
    check(kernel, shape, ["random"])


@pytest.mark.parametrize("dtype", [bf16, f8e4m3fn, f8e5m2, i8], ids=str)
def test_every_dtype(dtype):
    shape, out = (70, 80, 160), i32 if dtype is i8 else f32
    kernel = wave_compile(
        WaveCompileOptions(subs=sizes(*shape, 64, 64, 64), target="sm_90a"), gemm(dtype=dtype, acc=out)
    ).build.lanes
    assert roles(kernel) == 2
    check(kernel, shape, dtype=dtype, out=out)


def test_deep_steps_are_one_copy_of_each_operand():
    shape = (64, 64, 384)
    kernel = specialized(tiles(SEEDS[0], shape, (64, 64, 192)), 2)
    assert count(kernel, TmaLoad) == 2
    check(kernel, shape)


def test_an_epilogue_stays_with_those_who_multiply():
    shape = (100, 72, 40)
    made = wave_compile(WaveCompileOptions(subs=sizes(*shape), target="sm_90a"), biased)
    assert roles(made.ir()) == 2
    for order in some_of(ORDERS):
        check_biased(made, shape, order)


def test_there_are_as_many_stages_as_shared_memory_holds():
    kernel = specialized(tiles(SEEDS[0], (256, 256, 256), (128, 256, 64)), 9)
    sums, *rings = (op.result.type.shape for op in walk(kernel.body) if isinstance(op, Allocate))
    assert sums == (2, 2, 64, 32) and rings == [(4, 128, 64), (4, 256, 64)]


def test_every_op_keeps_the_line_of_the_author():
    made = wave_compile(WaveCompileOptions(subs=SEEDS[2].subs(256, 256, 256), target="sm_90a"), SEEDS[2].kernel)
    for op in walk(made.ir().body):
        assert op.loc.file.endswith("persistent_gemm.py"), op
    lines = {type(op).__name__: op.loc.excerpt()[0] for op in walk(made.ir().body)}
    assert lines["TmaLoad"].startswith("b_reg = tkw.read(b") and lines["WgmmaShared"].startswith("acc = tkw.mma(")
    assert lines["WaitMbarrier"].startswith("a_reg = tkw.read(a") and lines["TmaStore"].startswith("tkw.write(k_loop")


def test_the_producer_does_nothing_but_copy():
    kernel = specialized(tiles(SEEDS[3], (256, 256, 256), num_ctas=2), 2)
    consumer, producer = (op for op in kernel.body.ops if isinstance(op, Role))
    assert not any(isinstance(op, TmaLoad) for op in walk(consumer.body))
    assert not any(isinstance(op, (WgmmaShared, Load)) for op in walk(producer.body))
    assert all(v.type.shape == () for op in walk(producer.body) for v in op.results)


def test_copies_without_roles_are_kept_apart_by_barriers():
    passes = lists.hopper(SM_90A, Places(), 1, 1000)
    names_of = [p.__class__.__name__ for p in passes]
    shape = (130, 130, 80)
    before = [p for p in passes[: names_of.index("SpecializeWaves")] if not isinstance(p, StageEpilogue)]
    lanes, _ = run(tiles(SEEDS[2], shape, num_ctas=2), before)
    assert count(lanes, Copy) == 2 and count(lanes, Barrier) == 2
    check(lanes, shape)


def test_two_products_of_one_step_share_a_tile():
    made = wave_compile(WaveCompileOptions(subs=sizes(70, 72, 104), target="sm_90a"), both)
    found = [count(made.ir(), kinds) for kinds in ((TmaLoad, TmaLoadMulticast), WgmmaShared, WaitMbarrier)]
    assert found == [3, 2, 2]
    check_both(made)


@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 160), st.integers(1, 20)),
    tile=st.sampled_from([(64, 8, 16), (64, 64, 32), (128, 40, 32), (64, 72, 48), (192, 16, 64), (256, 32, 80)]),
    stages=st.integers(1, 6),
    workgroups=st.integers(1, 5),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(25))
def test_any_shape_tile_ring_and_number_of_workgroups(shape, tile, stages, workgroups, order, seed):
    shape = (*shape[:2], 8 * shape[2])
    kernel = wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="numpy"), gemm()).kernel
    lanes, _ = run(kernel, lists.hopper(SM_90A, Places(), stages, workgroups))
    assert roles(lanes) == 2
    check(lanes, shape, [order], seed)


# -- kernels that the engine cannot serve are left to their lanes


def check_plain(made, arrays, want):
    assert not count(made.ir(), Role) and not count(made.ir(), Copy) and count(made.ir(), Load)
    c = poisoned(want[0].shape[:1] + want[1].shape[:1], f32)
    made.interpret(*arrays, c, level="lane", order="random")
    check_product(c, *want)


def test_rows_that_begin_off_16_bytes_are_loaded_by_lanes():
    a, b = operands((70, 70, 65))
    check_plain(wave_compile(WaveCompileOptions(subs=sizes(70, 70, 65), target="sm_90a"), gemm()), [a, b], (a, b))


def test_two_loops_that_stage_are_left_to_lanes():
    @wave(tiling())
    def twice(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def once(sum):
            return mma(read(a), read(b), sum)

        @iterate(K, init_args=[once])
        def again(sum):
            return mma(read(a), read(b), sum)

        write(again, c)

    a, b = operands((70, 72, 64))
    made = wave_compile(WaveCompileOptions(subs=sizes(70, 72, 64), target="sm_90a"), twice)
    doubled = np.concatenate([a, a], axis=1), np.concatenate([b, b], axis=1)
    check_plain(made, [a, b], doubled)


# -- what is left out or wrong is found


@cache
def whole():
    return specialized(tiles(SEEDS[2], MUTATED, (64, 64, 16), num_ctas=1), 2)


CONSUMER, PRODUCER = 0, 1
TIMES = [(order, seed) for order in ORDERS for seed in range(3)]


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_product_that_does_not_wait_is_found(order, seed):
    told = found_by(changed(whole(), WaitMbarrier, CONSUMER, lambda op: []), order, seed)
    assert "before the copy of wave 4 has arrived" in told or "which was never written" in told or "no wait" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_copy_that_does_not_wait_is_found(order, seed):
    found_by(changed(whole(), WaitMbarrier, PRODUCER, lambda op: []), order, seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
@pytest.mark.parametrize("side", [CONSUMER, PRODUCER])
def test_an_arrival_that_is_left_out_is_found(order, seed, side):
    told = found_by(changed(whole(), Arrive, side, lambda op: []), order, seed)
    assert "no wave of workgroup 0 can go on" in told or "before the copy of wave 4 has arrived" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
@pytest.mark.parametrize("side", [CONSUMER, PRODUCER])
def test_a_wrong_parity_is_found(order, seed, side):
    def other(op):
        builder = Builder(names(whole()))
        turned = (1 - Number(builder, op.parity)).value
        return [*builder.ops, replace(op, parity=turned)]

    found_by(changed(whole(), WaitMbarrier, side, other), order, seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
@pytest.mark.parametrize("bytes_off", [-1, 1])
def test_a_wrong_number_of_bytes_is_found(order, seed, bytes_off):
    def other(op):
        return [replace(op, expect=op.expect + bytes_off)]

    told = found_by(changed(whole(), Arrive, PRODUCER, other), order, seed)
    assert "bytes" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_stage_that_is_left_before_its_product_is_found(order, seed):
    """The arrival comes before the product instead of after it."""
    (arrival,) = [op for op in walk(whole().body) if isinstance(op, Arrive)][:1]

    def early(op):
        if op is arrival:
            return []
        return [arrival, op] if isinstance(op, WgmmaShared) else None

    found_by(verify(rewrite(whole(), early)), order, seed)


def test_the_kernel_that_is_mutated_is_right():
    for order, seed in some_of(TIMES, 2):
        check(whole(), MUTATED, [order], seed)
    assert [type(op) for op in walk(whole().body) if isinstance(op, (WaitMbarrier, Arrive))] == [
        WaitMbarrier,
        Arrive,
        WaitMbarrier,
        Arrive,
    ]


# -- tile after tile


def test_a_kernel_with_more_tiles_than_processors_keeps_its_workgroups():
    shape = (64 * 5, 64 * 3, 64)
    kernel = tiles(SEEDS[0], shape, (64, 64, 32))
    for workgroups in (4, 14, 15):
        lanes, _ = run(kernel, lists.hopper(SM_90A, Places(), 3, workgroups))
        assert lanes.workgroups == workgroups and roles(lanes) == 2
        check(lanes, shape, ["random"])
    assert (
        wave_compile(
            WaveCompileOptions(subs=SEEDS[1].subs(2048, 4096, 64), target="sm_90a"), SEEDS[1].kernel
        ).build.lanes.workgroups
        == 132
    )


@pytest.mark.parametrize("seed", [SEEDS[0], SEEDS[2], SEEDS[4]], ids=repr)
def test_the_depth_is_walked_to_and_fro(seed, monkeypatch):
    shape = (192, 64, 72)
    more = {"num_ctas": 1} if "persistent" in repr(seed) else {}
    kernel, _ = run(tiles(seed, shape, **more), lists.hopper(SM_90A, Places(), 2, 1))
    brought, tma_load = [], copies.tma_load

    def noted(self, op):
        if op.memory.name == "a":
            brought.append(tuple(int(self.env[v]) for v in op.at))
        return tma_load(self, op)

    monkeypatch.setattr("tilewave.interp.wave.AT_ONCE", {**AT_ONCE, TmaLoad: noted})
    check(kernel, shape, ["random"])
    assert brought == [(m, k) for m, ks in ((0, (0, 32, 64)), (64, (64, 32, 0)), (128, (0, 32, 64))) for k in ks]
