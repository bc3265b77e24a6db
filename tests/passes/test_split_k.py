"""Sums that an author cuts into parts: who adds up what, in which order, and what workgroups hand to each other."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased
from kernels import K, check_product, gemm, poisoned, product, sizes
from lane_runs import ORDERS, check_same_bits, operands
from tunings import SPLITS

from tilewave import *
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.index_trace import visits
from tilewave.errors import InterpreterError
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.launch import bind
from tilewave.ir.ops import Arrive, HandOver, Loop, MakeExchange, Read, TakeOver, WaitMbarrier
from tilewave.ir.rewrite import rewrite, walk
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid.serialize_split_k import serialize_split_k
from tilewave.passes.grid.split_k import SplitK
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

TILE = (64, 64, 16)


def in_parts(parts, **more):
    return gemm(constraints=(SplitConstraint(K, parts),), **more)


def tiles_of(shape, parts, tile=TILE, kernel=None):
    subs = {s: v for s, v in sizes(*shape, *tile).items() if v}
    return wave_compile(WaveCompileOptions(subs=subs, target="numpy"), kernel or in_parts(parts)).kernel


def shared(kernel, workgroups=132):
    return run(kernel, [SplitK(workgroups, SPLITS), simplify])[0]


def lanes_of(kernel, workgroups=132, stages=3):
    passes = lists.hopper(SM_90A, Places(), stages, workgroups)
    return run(kernel, [SplitK(workgroups, SPLITS) if isinstance(p, SplitK) else p for p in passes])[0]


def slots(kernel):
    return sum(op.result.type.shape[0] for op in walk(kernel.body) if isinstance(op, MakeExchange))


FORMS = {
    "two parts": ((128, 128, 80), 2, 132, 8, 4),
    "four parts, the last shorter": ((64, 128, 112), 4, 132, 8, 6),
    "parts without a step are none": ((64, 128, 80), 4, 132, 6, 4),
    "more parts than steps": ((64, 64, 32), 5, 132, 2, 1),
    "as many as steps": ((64, 64, 48), 3, 132, 3, 2),
    "more workgroups than run at once": ((192, 128, 64), 2, 4, 12, 6),
    "so many tiles that each computes all parts of its own": ((192, 192, 80), 3, 4, 4, 4),
    "the same, fewer tiles than workgroups": ((192, 64, 128), 4, 4, 3, 3),
}


def rows_of(form):
    return FORMS[form]


@pytest.mark.share(4)
@pytest.mark.parametrize("form", FORMS)
def test_every_tile_is_written_once_and_every_step_of_it_added_once(form):
    shape, parts, at_once, workgroups, count = rows_of(form)
    kernel = shared(tiles_of(shape, parts), at_once)
    assert slots(kernel) == count
    assert checked_schedule(kernel, {}).workgroups == workgroups
    seen = Counter()
    for visit in visits(kernel, {}, (Read,)):
        if visit.op.memory.name == "a":
            seen.update(zip(*map(np.ndarray.tolist, visit.at), strict=True))
    inside = {at: n for at, n in seen.items() if at[1] < shape[2]}
    assert inside == {(r, k): -(-shape[1] // 64) for r in range(0, shape[0], 64) for k in range(0, shape[2], 16)}


@pytest.mark.parametrize("form", FORMS)
def test_whole_tiles_have_the_same_bits_however_they_are_shared(form):
    """The interpreter adds partial sums in their order, and so does the workgroup that collects them."""
    shape, parts, at_once, *_ = rows_of(form)
    tiles = tiles_of(shape, parts)
    a, b = operands(shape)
    found = []
    for kernel in (tiles, serialize_split_k(tiles), shared(tiles, at_once), shared(tiles, 132)):
        found.append(poisoned(shape[:2], f32))
        interpret(kernel, [a, b, found[-1]], {})
        check_product(found[-1], a, b)
        np.testing.assert_array_equal(found[-1], found[0])


@pytest.mark.share(6)
@pytest.mark.parametrize("form", FORMS)
def test_lanes_compute_the_same_to_the_last_bit_in_any_order(form):
    shape, parts, at_once, workgroups, count = rows_of(form)
    kernel = lanes_of(tiles_of(shape, parts), at_once)
    assert (slots(kernel), kernel.workgroups) == (count, workgroups)
    check_same_bits(kernel, shape)


def test_parts_are_added_in_their_order():
    """1 is lost where it is added to 2^24 alone, and so are both; their sum is not."""
    a = np.zeros((64, 64), np.float16)
    a[:, 0], a[:, 16], a[:, 32] = 4096, 1, 1
    b = np.zeros((64, 64), np.float16)
    b[:, 0], b[:, 16], b[:, 32] = 4096, 1, 1
    for parts, want in ((1, 2**24), (2, 2**24), (4, 2**24)):
        c = poisoned((64, 64), f32)
        interpret(shared(tiles_of((64, 64, 64), parts)), [a, b, c], {})
        assert (c == want).all()
    a[:, 48] = b[:, 48] = 1
    c = poisoned((64, 64), f32)
    interpret(tiles_of((64, 64, 64), 2), [a, b, c], {})
    assert (c == 2**24 + 2).all()  # (2^24 + 1) + (1 + 1)


def test_neighbours_have_the_same_part_of_different_tiles_and_first_parts_come_last():
    kernel = shared(tiles_of((128, 128, 64), 2))
    steps = {}
    for visit in visits(kernel, {}, (Read,)):
        if visit.op.memory.name == "a":
            for w, k in zip(visit.workgroups.tolist(), visit.at[1].tolist(), strict=True):
                steps.setdefault(w, set()).add(k)
    assert [min(steps[w]) for w in range(8)] == [32] * 4 + [0] * 4


def test_what_is_handed_over_and_taken(monkeypatch):
    happened = []

    def noted(name):
        true = getattr(ExchangeSlots, name)

        def method(self, op, workgroup, slot, *rest):
            happened.append((workgroup, name, slot))
            return true(self, op, workgroup, slot, *rest)

        monkeypatch.setattr(ExchangeSlots, name, method)

    noted("put")
    noted("take")
    shape = (64, 128, 48)
    expected = {
        132: [*((w, "put", w) for w in range(4)), (4, "take", 0), (4, "take", 2), (5, "take", 1), (5, "take", 3)],
        1: [(0, "put", 0), (0, "take", 0), (0, "put", 0), (0, "take", 0)] * 2,
    }
    for at_once, events in expected.items():
        happened.clear()
        interpret(shared(tiles_of(shape, 3), at_once), [*operands(shape), poisoned(shape[:2], f32)], {})
        assert happened == events


# -- open sizes


@pytest.mark.parametrize("at_once", [4, 132])
def test_the_launch_decides_where_sizes_are_open(at_once):
    kernel = lanes_of(tiles_of((0, 0, 0), 3), at_once)
    for shape in [(64, 64, 80), (128, 64, 16), (200, 130, 48), (64, 64, 8)]:
        a, b = operands(shape)
        c, want = poisoned(shape[:2], f32), poisoned(shape[:2], f32)
        bound = bind(kernel, dict(zip("MNK", shape, strict=True)))
        tiles = -(-shape[0] // 64) * -(-shape[1] // 64)
        assert bound.workgroups == (3 * tiles if tiles <= at_once else at_once)
        interpret_lanes(bound, [a, b, c], dict(zip("MNK", shape, strict=True)), "random", 1)
        check_product(c, a, b)
        interpret_lanes(lanes_of(tiles_of(shape, 3), at_once), [a, b, want], {}, "random", 2)
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("opened", ["K", "M"])
def test_one_size_is_open(opened):
    shape = (100, 64, 136)
    known = tuple(0 if name == opened else n for name, n in zip("MNK", shape, strict=True))
    made = wave_compile(
        WaveCompileOptions(subs={s: v for s, v in sizes(*known, *TILE).items() if v}, target="sm_90a"), in_parts(4)
    )
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    made.interpret(a, b, c, level="lane", order="random")
    check_product(c, a, b)


# -- other kernels


@pytest.mark.parametrize("dtype", [bf16, f8e4m3fn, i8], ids=str)
def test_every_dtype(dtype):
    shape, out = (64, 128, 160), i32 if dtype is i8 else f32
    kernel = lanes_of(tiles_of(shape, 3, (64, 64, 32), in_parts(3, dtype=dtype, acc=out)))
    assert slots(kernel) == 4
    a, b = operands(shape, dtype)
    c = poisoned(shape[:2], out)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b, out)


def test_few_rows_are_turned_and_cut():
    shape = (16, 128, 512)
    kernel = lanes_of(tiles_of(shape, 4, (16, 64, 64)))
    (exchange,) = (op.result.type for op in walk(kernel.body) if isinstance(op, MakeExchange))
    assert exchange.shape == (6, 64, 16)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b)


def test_an_epilogue_is_computed_from_whole_sums():
    shape = (64, 64, 80)
    kernel = wave([*biased.constraints, SplitConstraint(K, 2)])(biased.function)
    lanes = lanes_of(tiles_of(shape, 2, TILE, kernel))
    assert slots(lanes) == 1
    a, b = operands(shape)
    bias = np.random.default_rng(2).standard_normal(shape[1]).astype(np.float32)
    c = poisoned(shape[:2], f16)
    interpret_lanes(lanes, [a, b, bias, c], {}, "random")
    want, magnitude = product(a, b)
    assert (np.abs(c - np.maximum(want + bias, 0)) <= (magnitude + np.abs(bias)) * 2.0**-10).all()


def test_a_persistent_kernel_adds_up_its_parts_by_itself():
    kernel = gemm(constraints=(SplitConstraint(K, 2), GridConstraint(2)))
    shape = (192, 64, 80)
    made = wave_compile(WaveCompileOptions(subs=sizes(*shape, *TILE), target="sm_90a"), kernel)
    assert not slots(made.build.lanes)
    assert {"split_k", "serialize_split_k"} <= {row.step for row in made.why()}
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    made.interpret(a, b, c, level="lane", order="random")
    check_product(c, a, b)


def test_a_single_step_is_one_part():
    assert tiles_of((64, 64, 16), 3) == tiles_of((64, 64, 16), 1)


def test_one_part_is_the_kernel_without_the_word():
    shape = (128, 64, 80)
    assert tiles_of(shape, 1) == tiles_of(shape, 1, kernel=gemm())


def test_parts_go_through_flags_in_ptx():
    made = wave_compile(WaveCompileOptions(subs=sizes(512, 512, 4096, 64, 64, 64), target="sm_90a"), in_parts(2))
    assert made.build.lanes.workgroups == 128
    assert [made.asm.count(word) for word in ("fence.acq_rel.gpu", "st.release.gpu", "ld.acquire.gpu")] == [1, 1, 1]


# -- what must not go unnoticed


MUTATED = ((64, 64, 160), 2)


@cache
def whole():
    return lanes_of(tiles_of(*MUTATED), stages=2)


def found_in(kernel, order="random"):
    a, b = operands(MUTATED[0])
    c = poisoned(MUTATED[0][:2], f32)
    with pytest.raises(InterpreterError) as found:
        interpret_lanes(kernel, [a, b, c], {}, order, 1)
    return str(found.value)


@pytest.mark.parametrize("order", ORDERS)
def test_a_part_that_is_not_handed_over_is_a_deadlock(order):
    told = found_in(rewrite(whole(), lambda op: [] if isinstance(op, HandOver) else None), order)
    assert "no wave of workgroup 1 can go on" in told
    assert "for exchange[0], which no earlier workgroup handed over" in told


def test_a_part_that_is_not_taken_over_is_found():
    never = next(op.result for op in whole().body.ops if getattr(op, "value", None) == 0)

    def left(op):
        takes = isinstance(op, Loop) and any(isinstance(inner, TakeOver) for inner in op.body.ops)
        return [replace(op, trips=never)] if takes else None

    assert "hands over exchange[0], which is never taken over" in found_in(rewrite(whole(), left))


@pytest.mark.parametrize("kind", [Arrive, WaitMbarrier])
def test_an_arrival_or_a_wait_that_is_missing_is_found(kind):
    """Each of them in turn, in some order of waves."""
    missing = [op for op in walk(whole().body) if isinstance(op, kind)]
    assert len(missing) == 2
    for gone in missing:
        broken = rewrite(whole(), lambda op, gone=gone: [] if op is gone else None)
        assert found_in(broken)
