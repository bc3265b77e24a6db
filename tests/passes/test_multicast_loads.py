"""TMA multicast: two neighbouring CTAs load half a tile each; right in any order, and every mistake is found."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased, both, check_biased, check_both, mapped_tiles, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, B, G, K, M, N, check_product, poisoned, sizes, tiling
from lane_runs import ORDERS, operands
from sampled import examples, some_of
from seeds import SEEDS

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp import copies
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.wave import AT_ONCE
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import (
    Arrive,
    Barrier,
    ClusterBarrier,
    Const,
    MakeMbarriers,
    Store,
    StoreEach,
    TmaLoad,
    TmaLoadMulticast,
    TmaStore,
)
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import VerifyError, verify
from tilewave.machine.chips import SM_90A
from tilewave.passes.memory.multicast_loads import SAMPLE, SAMPLE_BATCHES, sample_sizes
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run


@cache
def lanes(shape, tile=(64, 64, 64), mapping="linear()", workgroups=4, stages=3, out=f16):
    found, _ = run(mapped_tiles(shape, tile, mapping, out), lists.hopper(SM_90A, Places(), stages, workgroups))
    return found


def shares(kernel, memory="b"):
    """Whether its workgroups share the copies of one operand, and of no other."""
    return kernel.cluster == 2 and {op.memory.name for op in ops(kernel, TmaLoadMulticast)} == {memory}


def check(kernel, shape, orders=ORDERS, seed=0, out=f16):
    a, b = operands(shape, f16)
    for order in some_of(orders):
        c = poisoned(shape[:2], out)
        interpret_lanes(kernel, [a, b, c], {}, order, seed)
        check_product(c, a, b, out)


# -- what is shared is right

SHARED = {
    "whole turns": ((256, 128, 72), (64, 64, 64), "grouped(4)", 4, 2),
    "groups of odd height": ((328, 120, 136), (64, 64, 64), "grouped(3)", 4, 2),
    "a tile without a partner": ((320, 192, 72), (64, 64, 64), "grouped(4)", 4, 3),
    "its partner in the first turn": ((64 * 5, 64, 136), (64, 64, 64), "linear()", 6, 2),
    "tiles off the edges": ((250, 120, 104), (128, 64, 64), "grouped(2)", 2, 4),
    "two groups of waves": ((384, 80, 72), (128, 80, 64), "grouped(3)", 2, 3),
    "rows of 64 bytes": ((192, 128, 72), (64, 64, 32), "grouped(3)", 2, 4),
    "one turn": ((128, 192, 72), (64, 64, 64), "grouped(2)", 100, 2),
    "one turn, odd": ((192, 192, 72), (64, 64, 64), "grouped(3)", 100, 2),
    "deep steps in slices": ((128, 128, 200), (64, 64, 128), "grouped(2)", 2, 2),
    "one stage": ((192, 64, 200), (64, 64, 64), "grouped(3)", 2, 1),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", SHARED)
def test_shared_copies_bring_the_right_tiles(case):
    shape, tile, mapping, workgroups, stages = SHARED[case]
    kernel = lanes(shape, tile, mapping, workgroups, stages)
    assert shares(kernel) and kernel.workgroups % 2 == 0
    check(kernel, shape)


@pytest.mark.share(8)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ["groups of odd height", "a tile without a partner", "one turn, odd"])
def test_any_order_of_waves_and_copies(case, seed):
    shape, *more = SHARED[case]
    check(lanes(shape, *more), shape, ["random"], seed + 1)


def test_the_operand_is_shared_in_which_neighbours_agree():
    along = lanes((128, 256, 72), mapping="grouped(1)")
    assert shares(along, "a") and shares(lanes((256, 128, 72), mapping="grouped(4)"), "b")
    check(along, (128, 256, 72))


def test_all_that_is_brought_is_expected_and_shared_memory_does_not_grow():
    kernel, alone = lanes((256, 128, 72), mapping="grouped(4)"), lanes((256, 128, 128), mapping="grouped(4)")
    assert [op.expect for op in ops(kernel, Arrive) if op.expect] == [2 * 64 * 128]
    assert [op.result.type for op in ops(kernel, MakeMbarriers)] == [op.result.type for op in ops(alone, MakeMbarriers)]
    full, empty = ops(kernel, MakeMbarriers)
    assert (full.arrivals, empty.arrivals) == (1, 2)


def test_an_epilogue_that_loads_and_stores_by_lanes_writes_only_tiles_of_its_own():
    """Rows of an odd number of elements: lanes store them, and the last tile has no partner."""
    shape = (192, 61, 72)
    kernel = lanes(shape, (64, 64, 64), "grouped(3)", 100, 2, f32)
    assert shares(kernel) and not ops(kernel, TmaStore)
    assert all(op.mask for op in ops(kernel, Store, StoreEach) if op.memory.name == "c")
    check(kernel, shape, out=f32)


def test_what_others_load_is_loaded_for_the_partners_tile_too():
    shape = (64 * 3, 56, 40)
    made = wave_compile(WaveCompileOptions(subs=sizes(*shape, 64, 64, 64), target="sm_90a"), biased)
    assert made.ir().cluster == 2 and made.ir().workgroups == 4
    for order in some_of(ORDERS):
        check_biased(made, shape, order)


def test_two_products_of_one_step_share_copies():
    made = wave_compile(WaveCompileOptions(subs=sizes(70, 72, 104), target="sm_90a"), both)
    assert made.ir().cluster == 2
    check_both(made)


def test_a_workgroup_without_a_tile_takes_its_partners(monkeypatch):
    brought = {}

    def noted(self, op):
        brought.setdefault(self.state.number, []).append(int(self.env[op.at[0]]))
        return copies.tma_load(self, op)

    monkeypatch.setattr("tilewave.interp.wave.AT_ONCE", {**AT_ONCE, TmaLoad: noted})
    check(whole(), MUTATED, ["random"])
    steps = -(-MUTATED[2] // 64)
    assert {w: rows[::steps] for w, rows in brought.items()} == {0: [0, 256], 1: [64, 256], 2: [128], 3: [192]}


@given(
    shape=st.tuples(st.integers(1, 400), st.integers(1, 260), st.integers(1, 20)),
    tile=st.sampled_from([(64, 64, 64), (64, 32, 32), (128, 64, 64), (64, 128, 128)]),
    group=st.integers(1, 5),
    stages=st.integers(1, 4),
    workgroups=st.sampled_from([2, 4, 6, 100]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(12))
def test_any_shape_tile_and_number_of_workgroups(shape, tile, group, stages, workgroups, order, seed):
    shape = (*shape[:2], 8 * shape[2])
    kernel = lanes(shape, tile, f"grouped({group})", workgroups, stages)
    assert parse(str(kernel)) == kernel
    check(kernel, shape, [order], seed)


# -- what is not shared is left as it was


def unchanged(kernel, workgroups=4):
    passes = lists.hopper(SM_90A, Places(), 3, workgroups)
    _, steps = run(kernel, passes)
    (step,) = (s for s in steps if s.name == "multicast_loads")
    return not step.changed and step.after.cluster == 1


def test_rows_that_begin_on_lines_are_not_shared():
    assert unchanged(mapped_tiles((256, 128, 128), (64, 64, 64), "grouped(4)"))
    assert not unchanged(mapped_tiles((256, 128, 136), (64, 64, 64), "grouped(4)"))


def test_a_kernel_without_the_pass_has_no_clusters():
    passes = [p for p in lists.hopper(SM_90A, Places(), 3, 4) if type(p).__name__ != "MulticastLoads"]
    kernel, _ = run(mapped_tiles((256, 128, 136), (64, 64, 64), "grouped(4)"), passes)
    assert kernel.cluster == 1 and not ops(kernel, TmaLoadMulticast, ClusterBarrier)


@pytest.mark.parametrize(
    ("why", "shape", "mapping", "workgroups"),
    [
        ("few neighbours agree", (320, 192, 72), "grouped(3)", 4),
        ("one tile has no partner at all", (64, 64, 72), "linear()", 4),
        ("workgroups do not divide into pairs", (256, 192, 72), "grouped(4)", 5),
    ],
)
def test_kernels_are_left_alone_where(why, shape, mapping, workgroups):
    assert unchanged(mapped_tiles(shape, (64, 64, 64), mapping), workgroups), why


def test_kernels_that_are_persistent_themselves_are_left_alone():
    subs = SEEDS[2].subs(256, 128, 72, block_m=64, block_n=64, block_k=64, num_ctas=2)
    made = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), SEEDS[2].kernel)
    assert unchanged(made.kernel)


# -- what is left out or wrong is found

MUTATED = (320, 64, 200)
TIMES = [(order, seed) for order in ORDERS for seed in range(2)]


def whole():
    """Five tiles for four workgroups, two stages, four steps: the last tile has no partner."""
    return lanes(MUTATED, (64, 64, 64), "grouped(5)", 4, 2)


def changed(change):
    kernel = verify(rewrite(whole(), change))
    assert kernel != whole()
    return kernel


def found_by(kernel, order, seed):
    a, b = operands(MUTATED, f16)
    c = poisoned(MUTATED[:2], f16)
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(kernel, [a, b, c], {}, order, seed)
    assert np.isnan(c).all()
    assert "hopper_kernels.py:" in str(found.value)
    return str(found.value)


def test_the_kernel_that_is_mutated_is_right():
    assert shares(whole())
    for order, seed in some_of(TIMES, 2):
        check(whole(), MUTATED, [order], seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_consumers_that_do_not_tell_the_partner_are_found(order, seed):
    """Each producer waits for its own consumers only, and overwrites what its partner still reads."""

    def alone(op):
        if isinstance(op, Arrive) and op.members == 2:
            return [replace(op, members=1)]
        return [replace(op, arrivals=1)] if isinstance(op, MakeMbarriers) else None

    told = found_by(changed(alone), order, seed)
    assert "the copy of wave 4 of workgroup" in told and ("with no" in told or "before" in told)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_arrivals_that_never_come_are_found(order, seed):
    def alone(op):
        return [replace(op, members=1)] if isinstance(op, Arrive) and op.members == 2 else None

    told = found_by(changed(alone), order, seed)
    assert "no wave of workgroup 0 or 1 can go on" in told and "1 of 2 arrivals" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_count_without_the_partner_is_found(order, seed):
    def fewer(op):
        return [replace(op, arrivals=1)] if isinstance(op, MakeMbarriers) else None

    found_by(changed(fewer), order, seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
@pytest.mark.parametrize("bytes_off", [-1, 1, -64 * 64])
def test_a_wrong_number_of_bytes_is_found(order, seed, bytes_off):
    def other(op):
        return [replace(op, expect=op.expect + bytes_off)] if isinstance(op, Arrive) and op.expect else None

    told = found_by(changed(other), order, seed)
    assert "bytes" in told or "has arrived" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_workgroups_that_do_not_begin_together_are_found(order, seed):
    first = whole_barriers()[0]
    kernel = changed(lambda op: [Barrier(loc=op.loc)] if op is first else None)
    assert "with no cluster_barrier between" in found_by(kernel, order, seed)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_workgroups_that_do_not_end_together_are_found(order, seed):
    last = whole_barriers()[-1]
    told = found_by(changed(lambda op: [] if op is last else None), order, seed)
    assert "may have ended when wave" in told and "a cluster_barrier must be after it" in told


def whole_barriers():
    found = ops(whole(), ClusterBarrier)
    assert len(found) == 2
    return found


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_halves_of_different_tiles_are_found(order, seed):
    """With columns of three tiles some neighbours want different ones, and these say that they want the same."""
    kernel = lanes((328, 120, 136), (64, 64, 64), "grouped(3)", 4, 2)
    always = Const(True, results=(replace(ops(kernel, TmaLoadMulticast)[0].together, name="always"),))
    wrong = rewrite(kernel, lambda op: [always, replace(op, together=always.result)] if _is_shared(op) else None)
    a, b = operands((328, 120, 136), f16)
    with pytest.raises(InterpreterError, match=r"tma_load_multicast: wave 4 of workgroup .* a multicast loads one box"):
        interpret_lanes(verify(wrong), [a, b, poisoned((328, 120), f16)], {}, order, seed)


def _is_shared(op):
    return isinstance(op, TmaLoadMulticast)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_tile_that_both_write_is_found(order, seed):
    """The workgroup without a tile writes its partner's."""
    makers = {v: op for op in walk(whole().body) for v in op.results}

    def inside(op):
        return [replace(op, at=(makers[op.at[0]].a, *op.at[1:]))] if isinstance(op, TmaStore) else None

    assert "writes c[256, 0], which the copy of wave 0 of workgroup" in found_by(changed(inside), order, seed)


# -- text and verifier


def test_a_cluster_reads_back():
    text = str(whole())
    assert "cluster = 2" in text and "members = 2" in text and parse(text) == whole()


def test_what_a_cluster_needs_is_verified():
    with pytest.raises(VerifyError, match="5 workgroups are no whole clusters of 2"):
        verify(replace(whole(), workgroups=5))
    with pytest.raises(VerifyError, match="needs a cluster of two workgroups or more"):
        verify(replace(whole(), cluster=1))
    with pytest.raises(VerifyError, match="each expects its own"):
        verify(
            rewrite(whole(), lambda op: [replace(op, expect=16)] if isinstance(op, Arrive) and not op.expect else None)
        )
    with pytest.raises(VerifyError, match="a box of \\[64\\] cannot be split into 2 parts"):
        verify(rewrite(whole(), _one_axis))
    with pytest.raises(VerifyError, match="takes together as a truth value"):
        verify(rewrite(whole(), lambda op: [replace(op, together=op.mbarrier)] if _is_shared(op) else None))


def _one_axis(op):
    return [replace(op, to_at=(*op.to_at, op.mbarrier), axes=(1,))] if _is_shared(op) else None


def test_every_op_keeps_the_line_of_the_author():
    assert all(op.loc.file.endswith(".py") for op in walk(whole().body))
    assert {op.loc for op in ops(whole(), TmaLoadMulticast)} == {op.loc for op in ops(without(), TmaLoad)[1:]}


def without():
    passes = [p for p in lists.hopper(SM_90A, Places(), 2, 4) if type(p).__name__ != "MulticastLoads"]
    return run(mapped_tiles(MUTATED, (64, 64, 64), "grouped(5)"), passes)[0]


@wave(tiling())
def _in_place(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(x):
        return mma(read(a), read(b), x)

    write(total + read(c), c)


@pytest.mark.parametrize(("rows", "shares_b"), [(256, True), (320, False)])
def test_a_tile_in_place_is_not_computed_twice(rows, shares_b):
    """Where the last tile has no partner, a workgroup that computes it too would read what the other one writes."""
    tiles = wave_compile(WaveCompileOptions(subs=sizes(rows, 64, 72, 64, 64, 64), target="numpy"), _in_place).kernel
    kernel, _ = run(tiles, lists.hopper(SM_90A, Places(), 3, 132))
    assert shares(kernel) == shares_b
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (size, 72)).astype(np.float16) for size in (rows, 64))
    for order in some_of(ORDERS):
        c = rng.integers(-9, 10, (rows, 64)).astype(np.float32)
        want = c + a.astype(np.float32) @ b.astype(np.float32).T
        interpret_lanes(kernel, [a, b, c], {}, order, 1)
        np.testing.assert_array_equal(c, want)


def test_few_batches_are_looked_at_of_any_number():
    """Which neighbours share is the same in every batch, and there may be thousands of them."""
    batch = WorkgroupConstraint(B, 1, 2)

    @wave(tiling(batch))
    def products(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f16]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(cast(total, f16), c)

    blocks = {BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 64}
    kernel = wave_compile(WaveCompileOptions(subs=blocks, target="sm_90a"), products).build.lanes
    assert sample_sizes(kernel) == {"B": SAMPLE_BATCHES, "M": SAMPLE, "N": SAMPLE, "K": SAMPLE}
