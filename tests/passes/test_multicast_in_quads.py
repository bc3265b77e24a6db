"""TMA multicast in clusters of four: CTAs load a quarter of a tile each, or halves of two tiles; right in any order."""

from dataclasses import replace

import numpy as np
import pytest
from hopper_kernels import mapped_tiles, ops
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, N, check_product, gemm, poisoned
from lane_runs import ORDERS, operands
from sampled import some_of
from tunings import tuned

from tilewave import *
from tilewave.analysis.multicast import MulticastPeers
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import Arrive, Barrier, ClusterBarrier, MakeMbarriers, TmaLoadMulticast
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite
from tilewave.ir.verify import VerifyError, verify
from tilewave.machine.chips import SM_90A
from tilewave.passes.memory.multicast_loads import SAMPLE
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

CHIP, LONG_DEPTH = SM_90A, SM_90A.tuning.loads.quad_steps


@pytest.fixture
def short(monkeypatch):
    """Depths of few steps will do."""
    monkeypatch.setitem(globals(), "CHIP", tuned(SM_90A, "loads", quad_steps=2))


def lanes(shape, tile=(64, 64, 64), mapping="grouped(4)", workgroups=0, chip=None):
    """Unless said otherwise, as many workgroups as tiles run at once, and none of them cuts a tile into parts."""
    stages, workgroups = 2, workgroups or -(-shape[0] // tile[0]) * -(-shape[1] // tile[1])
    return run(mapped_tiles(shape, tile, mapping, f16), lists.hopper(chip or CHIP, Places(), stages, workgroups))[0]


def shared(kernel):
    """Which operands its workgroups share, how many of them, and how far apart these are."""
    return {(op.memory.name, op.shares, op.apart) for op in ops(kernel, TmaLoadMulticast)}


def check(kernel, shape, order, seed):
    a, b = operands(shape, f16)
    c = poisoned(shape[:2], f16)
    interpret_lanes(kernel, [a, b, c], {}, order, seed)
    check_product(c, a, b, f16)


QUARTERS, HALVES = {("b", 4, 1)}, {("b", 2, 1), ("a", 2, 2)}
SHARED = {
    "quarters of what is below": ((256, 128, 136), (64, 64, 64), "grouped(4)", QUARTERS),
    "groups of eight": ((512, 64, 136), (64, 64, 64), "grouped(8)", QUARTERS),
    "quarters of what is beside": ((64, 512, 136), (64, 128, 64), "grouped(1)", {("a", 4, 1)}),
    "halves of both": ((128, 256, 136), (64, 64, 64), "grouped(2)", HALVES),
    "halves of both, off the edges": ((250, 248, 200), (64, 64, 64), "grouped(2)", HALVES),
    "two groups of waves": ((512, 128, 136), (128, 128, 64), "grouped(4)", QUARTERS),
    "rows of 64 bytes": ((256, 128, 104), (64, 128, 32), "grouped(4)", QUARTERS),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", SHARED)
def test_four_bring_the_right_tiles_in_any_order(case, short):
    shape, tile, mapping, wanted = SHARED[case]
    kernel = lanes(shape, tile, mapping)
    assert (kernel.cluster, shared(kernel)) == (4, wanted)
    for seed, order in some_of(enumerate(ORDERS)):
        check(kernel, shape, order, seed)


def test_deep_tiles_of_one_round_are_shared_by_four():
    shape = (256, 64, 64 * (LONG_DEPTH - 1) + 8)
    kernel = lanes(shape)
    assert shared(kernel) == QUARTERS
    check(kernel, shape, "random", 5)


@pytest.mark.parametrize(
    ("why", "shape", "mapping", "workgroups"),
    [
        ("there are few steps", (256, 64, 64 * (LONG_DEPTH - 2) + 8), "grouped(4)", 0),
        ("four do not divide the tiles", (64 * 6, 64, 3080), "grouped(6)", 0),
        ("the last ones want different tiles", (64 * 6, 128, 3080), "grouped(4)", 0),
        ("more clusters than run at once", (64 * 124, 64, 3080), "grouped(4)", 0),
        ("workgroups go from tile to tile", (64 * 8, 64, 3080), "grouped(4)", 4),
    ],
)
def test_two_share_where(why, shape, mapping, workgroups):
    kernel = lanes(shape, mapping=mapping, workgroups=workgroups)
    assert kernel.cluster == 2 and shared(kernel) == {("b", 2, 1)}, why


def test_as_many_clusters_as_run_at_once():
    engine = replace(SM_90A.tma, clusters_of_four=1)
    shape = (512, 64, 3080)
    assert [lanes(shape, chip=chip).cluster for chip in (SM_90A, replace(SM_90A, tma=engine))] == [4, 2]


def test_where_sizes_are_open_two_share_whatever_they_are_like():
    """Each workgroup has one tile, and those of the sizes that are looked at would fill clusters of four."""
    subs = {BLOCK_M: 208, BLOCK_N: 64, BLOCK_K: 64, N: 64, K: 3080}
    kernel = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), gemm()).kernel
    passes = lists.hopper(SM_90A, Places(), 2, 0, open_on_lines=False)
    assert run(kernel, passes)[0].cluster == 2
    assert lanes((SAMPLE, 64, 3080), (208, 64, 64)).cluster == 4


def test_rows_that_begin_on_lines_are_not_shared():
    assert lanes((256, 64, 64 * LONG_DEPTH)).cluster == 1


# -- what is left out or wrong is found

MUTATED = (128, 256, 200)


def found_by(change, order, seed):
    kernel = lanes(MUTATED, mapping="grouped(2)")
    wrong = verify(rewrite(kernel, change))
    assert shared(kernel) == HALVES and wrong != kernel
    a, b = operands(MUTATED, f16)
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(wrong, [a, b, poisoned(MUTATED[:2], f16)], {}, order, seed)
    return str(found.value)


@pytest.mark.parametrize("order", ORDERS)
def test_consumers_that_tell_nobody_else_are_found(order, short):
    def alone(op):
        if isinstance(op, Arrive) and op.members == 4:
            return [replace(op, members=1)]
        return [replace(op, arrivals=1)] if isinstance(op, MakeMbarriers) else None

    assert "the copy of wave 4 of workgroup" in found_by(alone, order, 1)


@pytest.mark.parametrize("order", ORDERS)
def test_parts_for_neighbours_who_want_something_else_are_found(order, short):
    def beside(op):
        return [replace(op, apart=1)] if isinstance(op, TmaLoadMulticast) and op.apart == 2 else None

    assert "a multicast loads one box" in found_by(beside, order, 2)


@pytest.mark.parametrize("order", ORDERS)
def test_workgroups_that_do_not_begin_together_are_found(order, short):
    first = ops(lanes(MUTATED, mapping="grouped(2)"), ClusterBarrier)[0]
    told = found_by(lambda op: [Barrier(loc=op.loc)] if op == first else None, order, 3)
    assert "with no cluster_barrier between" in told


ALONE = """
kernel @alone {workgroups = 2, level = lane, waves = [1, 1], lanes = 32, cluster = 2} (%b: memory<64x64xf16, global>) {
  %own = workgroup() : index
  %o = const() {value = 0} : index
  %one = const() {value = 1} : index
  %true = const() {value = true} : bool
  %times = sub(%one, %own) : index
  %y = allocate() : memory<1x64x64xf16, shared, xor(8, 8, 1)>
  %full = make_mbarriers() {arrivals = 1} : mbarriers<1>
  cluster_barrier()
  arrive(%full, %o) {expect = 4096}
  loop(%times, []) do (%i: index) {
    tma_load_multicast(%b, [%o, %o], %y, [%o], %full, %o, %true) {axes = [0, 1]}
    yield([])
  }
  wait_mbarrier(%full, %o, %o)
  cluster_barrier()
}
"""


def test_a_part_without_the_others_is_found():
    """All wait for the bytes of the one part that arrives, so that none waits for the missing ones."""
    with pytest.raises(
        InterpreterError, match="wave 0 of workgroup 0 loads a part of a multicast box, and the others are never loaded"
    ):
        interpret_lanes(verify(parse(ALONE)), [np.zeros((64, 64), np.float16)], {}, "random", 1)


def test_who_shares_is_verified(short):
    kernel = lanes(MUTATED, mapping="grouped(2)")
    assert parse(str(kernel)) == kernel
    with pytest.raises(VerifyError, match="multicasts in 2 workgroups 4 apart, and a cluster has 4"):
        verify(rewrite(kernel, lambda op: [replace(op, apart=4)] if isinstance(op, TmaLoadMulticast) else None))
    with pytest.raises(VerifyError, match=r"a box of \[64, 64\] cannot be split into 3 parts"):
        verify(rewrite(kernel, lambda op: [replace(op, shares=3)] if isinstance(op, TmaLoadMulticast) else None))


def test_groups_of_a_cluster_are_rows_of_numbers():
    numbers = np.arange(8)
    assert MulticastPeers(4, 2, 2).groups(numbers).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert MulticastPeers(4, 4).groups(numbers[:6]).tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
