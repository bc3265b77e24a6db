"""Stream-K with equal parts, in clusters with TMA multicast: both together, right in any order."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import mapped_tiles, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import G, K, M, N, check_product, poisoned, sizes, tiling
from lane_runs import ORDERS, check_same_bits, operands
from sampled import examples
from tunings import FREE, SPLITS

from tilewave import *
from tilewave.analysis.index_trace import visits
from tilewave.analysis.splits import EqualSplits
from tilewave.errors import InterpreterError
from tilewave.interp import copies
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.interp.wave import AT_ONCE
from tilewave.ir.constraint_locations import Places
from tilewave.ir.ops import And, ClusterBarrier, HandOver, MakeExchange, Read, TakeOver, TmaLoadMulticast
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.stream_k import equal_splits
from tilewave.ir.verify import verify
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid import stream_k
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

pytestmark = pytest.mark.share(4)

LINE_BYTES = 128


def anyway(workgroups):
    """Split wherever it can be, however little that saves."""
    return StreamK(workgroups, FREE, LINE_BYTES)


@cache
def lanes(shape, tile, mapping, workgroups, stages, out=f32):
    return lanes_by(anyway(workgroups), shape, tile, mapping, workgroups, stages, out)


def lanes_by(split, shape, tile, mapping, workgroups, stages, out=f32):
    passes = lists.hopper(SM_90A, Places(), stages, workgroups)
    changed = [split if isinstance(p, StreamK) else p for p in passes]
    return run(mapped_tiles(shape, tile, mapping, out), changed)[0]


def slots(kernel):
    """How many workgroups have parts; 0 where no tile is cut."""
    return sum(op.result.type.shape[0] for op in ops(kernel, MakeExchange))


# -- which workgroup has which steps


@pytest.mark.parametrize("tiles", range(1, 6))
@pytest.mark.parametrize("steps", range(2, 14))
def test_every_step_is_in_one_part_and_all_parts_are_equally_long(tiles, steps):
    for parts in range(2, min(12 // tiles, steps) + 1):
        cut = EqualSplits(tiles, steps, parts)
        if cut.first(cut.workgroups - 1) >= steps:
            continue  # a part would be empty
        seen = Counter()
        for w in range(cut.workgroups):
            inside = [(cut.tile(w), s) for s in range(cut.first(w), cut.first(w) + cut.longest) if s < steps]
            assert inside and cut.workgroup_of(cut.tile(w), w // tiles) == w
            assert len(inside) == cut.longest or w // tiles == cut.parts - 1
            seen.update(inside)
        assert seen == {(t, s): 1 for t in range(tiles) for s in range(steps)}


BEST = {
    (33, 129): 4,  # 8200 x 8200 x 8200: the last part has 30 steps of its tile and 3 after it
    (44, 129): 3,
    (43, 129): 2,  # three for each would be 129 workgroups, and one of a pair without a part
    (67, 129): 0,  # more than half the workgroups have a tile
    (33, 8): 0,  # handing over would take longer than what it saves
}


@pytest.mark.parametrize(("left", "steps"), BEST)
def test_how_many_parts_pay(left, steps):
    assert equal_splits(left, steps, 132, 128, SPLITS.hand_over_bytes) == BEST[left, steps]


# -- what is computed

FORMS = {
    "two parts for all": ((192, 128, 200), (64, 64, 64), "grouped(3)", 4, 3, 4),
    "a part runs beyond its tile": ((192, 128, 328), (64, 64, 64), "grouped(3)", 4, 2, 4),
    "three parts of two tiles": ((256, 128, 264), (64, 64, 64), "grouped(4)", 6, 2, 6),
    "two workgroups have none": ((320, 128, 328), (64, 64, 64), "grouped(5)", 8, 2, 6),
    "a pair of different parts": ((192, 192, 136), (64, 64, 64), "grouped(3)", 6, 3, 6),
    "four parts of one tile": ((320, 64, 200), (64, 64, 64), "linear()", 4, 4, 4),
    "two parts of one tile, in one pair": ((320, 64, 72), (64, 64, 64), "linear()", 4, 2, 2),
    "no full round": ((128, 64, 456), (64, 64, 64), "linear()", 8, 2, 8),
    "no full round, and beyond": ((128, 64, 328), (64, 64, 64), "linear()", 6, 2, 6),
    "rows of 64 bytes": ((192, 128, 200), (64, 64, 32), "grouped(3)", 4, 4, 4),
    "two groups of waves, off the edges": ((380, 120, 136), (128, 64, 32), "grouped(3)", 4, 3, 4),
    "deep steps in slices": ((192, 128, 392), (64, 64, 128), "grouped(3)", 4, 2, 4),
    "one stage": ((192, 128, 200), (64, 64, 64), "grouped(3)", 4, 1, 4),
}


@pytest.mark.share(8)
@pytest.mark.parametrize("form", FORMS)
def test_clusters_hand_over_parts_and_are_right_to_the_last_bit_in_any_order(form):
    *given, sharing = FORMS[form]
    shape, kernel = given[0], lanes(*given)
    assert kernel.cluster == 2 and ops(kernel, TmaLoadMulticast) and slots(kernel) == sharing
    check_same_bits(kernel, shape)


@pytest.mark.parametrize("form", FORMS)
def test_every_step_of_a_tile_is_read_once_and_beyond_its_end_nothing_is_there(form):
    shape, tile, mapping, workgroups, _, _ = FORMS[form]
    kernel, _ = run(mapped_tiles(shape, tile, mapping, f32), [anyway(workgroups), simplify])
    assert ops(kernel, TakeOver)
    for memory, rows, others, side in (("a", shape[0], shape[1], tile[:2]), ("b", shape[1], shape[0], tile[1::-1])):
        seen = Counter()
        for visit in visits(kernel, {}, (Read,)):
            if visit.op.memory.name == memory:
                seen.update(zip(*map(np.ndarray.tolist, visit.at), strict=True))
        inside = {at: times for at, times in seen.items() if at[1] < shape[2]}
        steps = range(0, shape[2], tile[2])
        assert inside == {(r, k): -(-others // side[1]) for r in range(0, rows, side[0]) for k in steps}
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret(kernel, [a, b, c], {})
    check_product(c, a, b)


@given(
    shape=st.tuples(st.integers(1, 330), st.integers(1, 200), st.integers(1, 60)),
    tile=st.sampled_from([(64, 64, 64), (64, 32, 32), (128, 64, 64)]),
    group=st.integers(1, 5),
    stages=st.integers(1, 4),
    workgroups=st.sampled_from([2, 4, 5, 6, 8]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(12))
def test_any_shape_tile_and_number_of_workgroups(shape, tile, group, stages, workgroups, order, seed):
    shape = (*shape[:2], 8 * shape[2])
    kernel = lanes(shape, tile, f"grouped({group})", workgroups, stages)
    assert parse(str(kernel)) == kernel
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, order, seed)
    check_product(c, a, b)


# -- what is shared

PAIR = "a pair of different parts"
"""Nine tiles for six workgroups, three in a column: 2 has the begin of the last one, 3 the end of another."""


def whole():
    return lanes(*FORMS[PAIR][:-1])


def test_neighbours_share_in_the_last_round_too_but_not_what_lies_at_another_depth(monkeypatch):
    shared = {}

    def noted(self, op):
        shared.setdefault(self.state.number, []).append(bool(self.env[op.together]))
        return copies.tma_load_multicast(self, op)

    monkeypatch.setattr("tilewave.interp.wave.AT_ONCE", {**AT_ONCE, TmaLoadMulticast: noted})
    shape = FORMS[PAIR][0]
    a, b = operands(shape)
    interpret_lanes(whole(), [a, b, poisoned(shape[:2], f32)], {}, "random")
    # three steps of a whole tile, and two of a part; the first round has tiles 2 and 3 in different columns
    assert shared == {w: [w not in (2, 3)] * 3 + [w not in (2, 3)] * 2 for w in range(6)}


def test_the_target_cuts_and_shares_where_rows_are_off_lines():
    made = wave_compile(WaveCompileOptions(subs=sizes(8200, 8200, 8200, 128, 256, 64), target="sm_90a"), by_halves())
    kernel = made.build.lanes
    assert (kernel.workgroups, kernel.cluster, slots(kernel)) == (132, 2, 132)
    assert {op.memory.name for op in ops(kernel, TmaLoadMulticast)} == {"b"}


def by_halves():
    @wave(tiling())
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(cast(total, f16), c)

    return gemm


# -- what is left as it was


def test_rows_on_lines_are_cut_into_ranges_as_before():
    kernel = mapped_tiles((192, 192, 256), (64, 64, 64), "grouped(3)", f32)
    found = StreamK(6, FREE, LINE_BYTES)(kernel)
    assert found != kernel and found == StreamK(6, FREE, 1)(kernel)
    unaligned_lines = mapped_tiles((192, 192, 264), (64, 64, 64), "grouped(3)", f32)
    assert StreamK(6, FREE, LINE_BYTES)(unaligned_lines) != StreamK(6, FREE, 1)(unaligned_lines)


def of_exponents(k):
    """What is read beyond an edge is 0, and its exponential is not."""

    @wave(tiling())
    def exponents(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0)])
        def total(sum):
            return mma(exp2(read(a)), exp2(read(b)), sum)

        write(total, c)

    return wave_compile(WaveCompileOptions(subs=sizes(192, 64, k, 64, 64, 8), target="numpy"), exponents).kernel


def test_what_is_not_zero_beyond_a_tile_is_not_added_to_it():
    odd, even = of_exponents(40), of_exponents(48)
    assert anyway(2)(odd).body is odd.body
    kernel = anyway(2)(even)
    assert ops(kernel, TakeOver)
    a, b = (x.astype(np.float16) for x in operands((192, 64, 48)))
    c = poisoned((192, 64), f32)
    interpret(kernel, [a, b, c], {})
    powers = [np.exp2(x.astype(np.float64)).astype(np.float16) for x in (a, b)]
    want, bound = powers[0].astype(np.float64) @ powers[1].T.astype(np.float64), 2.0**-8
    assert (np.abs(c - want) <= bound * want).all()


def test_parts_that_may_not_run_beyond_a_tile_divide_it():
    """Three tiles of ten steps for fourteen workgroups: in four parts, or in two where these must be equally long."""
    assert slots(anyway(14)(mapped_tiles((192, 64, 80), (64, 64, 8), "linear()", f32))) == 12
    assert slots(anyway(14)(of_exponents(80))) == 6


def test_memories_that_go_on_behind_the_last_step_are_not_read_there():
    text = str(mapped_tiles((192, 64, 40), (64, 64, 8), "linear()", f32))
    longer = verify(parse(text.replace("192x40xf16", "192x80xf16").replace("64x40xf16", "64x80xf16")))
    assert anyway(2)(longer).body is longer.body
    assert anyway(2)(parse(text)) != parse(text)


def test_a_pair_of_which_only_one_has_a_part_takes_its_turn_together(monkeypatch):
    """Five tiles for four workgroups; three have a part of the fifth, and the fourth loads with its neighbour."""
    shape = (320, 64, 264)
    monkeypatch.setattr(stream_k, "equal_splits", lambda *facts: 3)
    kernel = lanes_by(anyway(4), shape, (64, 64, 64), "linear()", 4, 2)
    assert slots(kernel) == 3 and kernel.cluster == 2 and ops(kernel, ClusterBarrier)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b)


# -- what is left out or wrong is found

TIMES = [(order, seed) for order in ORDERS for seed in range(2)]


def found_in(kernel, order, seed):
    shape = FORMS[PAIR][0]
    a, b = operands(shape)
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(verify(kernel), [a, b, poisoned(shape[:2], f32)], {}, order, seed)
    return str(found.value)


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_columns_that_are_compared_without_their_depth_are_found(order, seed):
    """Workgroups 2 and 3 have tiles of one column in the last wave, one its beginning and one its end."""
    makers = {v: op for op in walk(whole().body) for v in op.results}

    def careless(op):
        if not isinstance(op, TmaLoadMulticast):
            return None
        decided = makers[op.together]
        assert isinstance(decided, And)
        return [replace(op, together=decided.a)]

    told = found_in(rewrite(whole(), careless), order, seed)
    assert "tma_load_multicast: wave 4 of workgroup" in told and "a multicast loads one box" in told


@pytest.mark.parametrize(("order", "seed"), TIMES)
def test_a_part_that_is_not_handed_over_is_a_deadlock(order, seed):
    kernel = rewrite(whole(), lambda op: [] if isinstance(op, HandOver) else None)
    assert "which no earlier workgroup handed over" in found_in(kernel, order, seed)
