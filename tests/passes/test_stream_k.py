"""Stream-K: the tiles of the last wave, split along K: which workgroup computes which steps, and what they exchange."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import (
    BLOCK_B,
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    B,
    G,
    K,
    M,
    N,
    check_product,
    gemm,
    poisoned,
    product,
    random_array,
    sizes,
    tiling,
)
from lane_runs import ORDERS, check_same_bits, operands
from sampled import examples, some_of
from seeds import SEEDS
from tunings import FREE, SPLITS

from tilewave import *
from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.index_trace import visits
from tilewave.analysis.splits import Split
from tilewave.errors import InterpreterError
from tilewave.interp.exchanges import ExchangeSlots
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.tiles import interpret
from tilewave.ir.constraint_locations import Places
from tilewave.ir.launch import bind
from tilewave.ir.ops import HandOver, Loop, MakeExchange, Read, TakeOver, Write
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.stream_k import stream_k_workgroups
from tilewave.ir.verify import VerifyError, verify
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid.stream_k import StreamK
from tilewave.passes.grid.take_first_step import take_first_step
from tilewave.passes.tile.simplify import simplify
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

pytestmark = pytest.mark.share(4)

TILE = (64, 64, 16)


def tiles_of(shape, tile=TILE, kernel=None):
    return wave_compile(WaveCompileOptions(subs=sizes(*shape, *tile), target="numpy"), kernel or gemm()).kernel


def split(kernel, workgroups):
    """Split wherever it can be, however little that saves."""
    return run(kernel, [StreamK(workgroups, FREE), simplify])[0]


def lanes_of(kernel, workgroups, stages=3):
    passes = lists.hopper(SM_90A, Places(), stages, workgroups)
    anyway = [StreamK(workgroups, FREE) if isinstance(p, StreamK) else p for p in passes]
    return run(kernel, anyway)[0]


def slots(kernel):
    """Return how many workgroups share the last wave; 0 where it is not split."""
    return sum(op.result.type.shape[0] for op in walk(kernel.body) if isinstance(op, MakeExchange))


def has_split(kernel):
    return any(isinstance(op, TakeOver) for op in walk(kernel.body))


# -- which workgroup has which steps


@pytest.mark.parametrize("tiles", range(1, 9))
@pytest.mark.parametrize("steps", range(1, 12))
def test_every_step_is_in_one_range_and_a_range_is_no_longer_than_a_tile(tiles, steps):
    for workgroups in range(tiles + 1, tiles * steps + 1):
        cut = Split(tiles * steps, workgroups)
        first = [cut.first(w) for w in range(workgroups + 1)]
        assert (first[0], first[-1]) == (0, tiles * steps)
        lengths = np.diff(first)
        assert lengths.min() >= 1 and lengths.max() <= steps
        owners = np.repeat(np.arange(workgroups), lengths)
        assert [cut.workgroup_of(s) for s in range(tiles * steps)] == owners.tolist()


SHAPES = {
    (2048, 2048, 2048): None,
    (4096, 4096, 4096): None,
    (4864, 4096, 4160): 120,
    (4864, 8192, 4160): 112,
    (16384, 4096, 8192): 102,
    (8192, 8192, 8192): 102,
    (1024, 1024, 8192): 128,  # no round is full, and 32 tiles are shared
    (8448, 4096, 4096): None,  # eight full rounds
    (4864, 4096, 512): None,  # handing over would take longer than what it saves
    (256, 256, 1 << 20): 128,  # two tiles of 64 parts: with more, the exchange would cost more than it saves
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_how_many_workgroups_share_the_last_round(shape):
    m, n, k = shape
    left, steps = (m // 128) * (n // 256) % 132, k // 64
    assert stream_k_workgroups(left, steps, 132, 128, SPLITS.hand_over_bytes) == (SHAPES[shape] or 0)


def test_deep_steps_count_by_their_bytes():
    shallow, deep = (stream_k_workgroups(2, 16, 8, step_bytes, SPLITS.hand_over_bytes) for step_bytes in (32, 512))
    assert (shallow, deep) == (0, 8)


# -- what the kernel does


FORMS = {
    "two for each tile": (4, (192, 128, 80), 4),
    "three for each tile": (3, (128, 128, 80), 3),
    "three for two tiles": (3, (320, 64, 80), 3),
    "four for three tiles": (4, (448, 64, 80), 4),
    "no full round": (5, (64, 128, 80), 4),
    "two for each of two, a fifth has none": (5, (448, 64, 80), 4),
    "as many workgroups as steps": (7, (64, 128, 48), 6),
}


def kernel_is_full(shape, workgroups):
    """Whether every workgroup has a whole tile."""
    return (shape[0] // 64) * (shape[1] // 64) >= workgroups


@pytest.mark.parametrize("form", FORMS)
def test_every_tile_is_written_once_and_every_step_of_it_added_once(form):
    workgroups, shape, sharing = FORMS[form]
    kernel = split(tiles_of(shape), workgroups)
    assert slots(kernel) == sharing
    assert checked_schedule(kernel, {}).workgroups == (workgroups if kernel_is_full(shape, workgroups) else sharing)
    for memory in "ab":
        seen = Counter()
        for visit in visits(kernel, {}, (Read,)):
            if visit.op.memory.name == memory:
                seen.update(zip(*map(np.ndarray.tolist, visit.at), strict=True))
        rows, others = (shape[0], shape[1]) if memory == "a" else (shape[1], shape[0])
        times = -(-others // 64)
        assert seen == {(r, k): times for r in range(0, rows, 64) for k in range(0, shape[2], 16)}


@pytest.mark.parametrize("form", FORMS)
def test_whole_tiles_mean_the_same_afterwards(form):
    workgroups, shape, _ = FORMS[form]
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret(split(tiles_of(shape), workgroups), [a, b, c], {})
    check_product(c, a, b)


@pytest.mark.share(8)
@pytest.mark.parametrize("form", FORMS)
def test_lanes_compute_the_same_to_the_last_bit_in_any_order(form):
    workgroups, shape, sharing = FORMS[form]
    kernel = lanes_of(tiles_of(shape), workgroups)
    assert slots(kernel) == sharing
    check_same_bits(kernel, shape)


@given(
    shape=st.tuples(st.integers(1, 330), st.integers(1, 200), st.integers(1, 14)),
    tile=st.sampled_from([(64, 8, 16), (64, 64, 32), (128, 40, 32), (64, 72, 48)]),
    workgroups=st.integers(2, 9),
    stages=st.integers(1, 5),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(25))
def test_any_shape_tile_and_number_of_workgroups(shape, tile, workgroups, stages, order, seed):
    shape = (*shape[:2], 8 * shape[2])
    kernel = lanes_of(tiles_of(shape, tile), workgroups, stages)
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, order, seed)
    check_product(c, a, b)


@pytest.mark.parametrize("dtype", [bf16, f8e4m3fn, i8], ids=str)
def test_every_dtype(dtype):
    shape, out = (192, 64, 160), i32 if dtype is i8 else f32
    kernel = lanes_of(tiles_of(shape, (64, 64, 32), gemm(dtype=dtype, acc=out)), 2)
    assert slots(kernel) == 2
    a, b = operands(shape, dtype)
    c = poisoned(shape[:2], out)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b, out)


def test_two_groups_hand_over_a_large_tile():
    shape = (384, 256, 320)
    kernel = lanes_of(tiles_of(shape, (128, 256, 64)), 2, 4)
    assert (slots(kernel), kernel.waves) == (2, (12, 1))
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b)


def test_an_epilogue_is_computed_from_whole_sums():
    shape = (192, 64, 80)
    kernel = lanes_of(tiles_of(shape, TILE, biased), 2)
    assert has_split(kernel)
    a, b = operands(shape)
    bias = np.random.default_rng(2).standard_normal(shape[1]).astype(np.float32)
    c = poisoned(shape[:2], f16)
    interpret_lanes(kernel, [a, b, bias, c], {}, "random")
    want, magnitude = product(a, b)
    assert (np.abs(c - np.maximum(want + bias, 0)) <= (magnitude + np.abs(bias)) * 2.0**-10).all()


def test_batches_are_split_too():
    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            WorkgroupConstraint(B, BLOCK_B, 2),
            TilingConstraint(K, BLOCK_K),
        ]
    )
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    subs = {**sizes(70, 64, 80, *TILE), B: 3, BLOCK_B: 1}
    tiles = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), batched).kernel
    kernel = lanes_of(tiles, 4)
    assert slots(kernel) == 4  # six tiles, two of them left
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (3, 70, 80), f16), random_array(rng, (3, 64, 80), f16)
    c = poisoned((3, 70, 64), f32)
    interpret_lanes(kernel, [a, b, c], {}, "random")
    check_product(c, a, b)


def test_what_is_handed_over_comes_before_what_is_waited_for(monkeypatch):
    """No workgroup then waits for one that waits itself; and partial sums are added in the order of workgroups."""
    happened = []

    def noted(name):
        true = getattr(ExchangeSlots, name)

        def method(self, op, workgroup, slot, *rest):
            happened.append((workgroup, name, slot))
            return true(self, op, workgroup, slot, *rest)

        monkeypatch.setattr(ExchangeSlots, name, method)

    noted("put")
    noted("take")
    expected = {
        "three for two tiles": [(0, "put", 0), (1, "put", 1), (1, "take", 0), (2, "take", 1)],
        "three for each tile": [(0, "put", 0), (1, "put", 1), (2, "take", 0), (2, "take", 1)],
    }
    for form, events in expected.items():
        happened.clear()
        shape = FORMS[form][1]
        interpret(split(tiles_of(shape), 3), [*operands(shape), poisoned(shape[:2], f32)], {})
        assert happened == events


def first_steps(kernel):
    """Where along the depth each workgroup begins."""
    found = {}
    for visit in visits(kernel, {}, (Read,)):
        for w, k in zip(visit.workgroups.tolist(), visit.at[1].tolist(), strict=True):
            found[w] = min(k, found.get(w, k))
    return [found[w] for w in range(kernel.workgroups)]


@pytest.mark.parametrize("is_open", [False, True])
def test_neighbours_have_the_same_steps_of_different_tiles_where_no_round_is_full(is_open):
    """Both then find in the cache what they share."""
    shape = (128, 128, 80)
    kernel = tiles_of(shape)
    if is_open:
        subs = {s: v for s, v in sizes(0, 0, 0, *TILE).items() if v}
        tiles = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), gemm()).kernel
        parted = bind(StreamK(8, FREE)(take_first_step(tiles)), dict(zip("MNK", shape, strict=True)))
    else:
        parted = split(kernel, 8)
    assert first_steps(parted) == [0, 0, 0, 0, 32, 32, 32, 32]


# -- what stays as it was


@pytest.mark.parametrize(
    ("workgroups", "shape"),
    [(4, (256, 128, 80)), (5, (576, 64, 80)), (5, (256, 64, 80)), (2, (192, 64, 16))],
    ids=["full rounds", "four tiles for five", "four tiles, no round", "a single step"],
)
def test_a_round_that_is_full_enough_stays(workgroups, shape):
    kernel = tiles_of(shape)
    assert StreamK(workgroups, FREE)(kernel).body is kernel.body


def test_persistent_kernels_of_the_author_stay():
    seed = SEEDS[2]
    subs = seed.subs(192, 64, 80, block_m=64, block_n=64, block_k=16, num_ctas=2)
    kernel = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), seed.kernel).kernel
    assert StreamK(2, FREE)(kernel).body is kernel.body


def test_sums_that_begin_with_something_stay():
    @wave(tiling())
    def more(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](1.0)])
        def total(sum):
            return mma(read(a), read(b), sum)

        write(total, c)

    kernel = tiles_of((192, 64, 80), TILE, more)
    assert StreamK(2, FREE)(kernel).body is kernel.body


def test_sums_that_something_else_is_done_to_stay():
    @wave(tiling())
    def capped(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(sum):
            return minimum(mma(read(a), read(b), sum), 5.0)

        write(total, c)

    kernel = tiles_of((192, 64, 80), TILE, capped)
    assert StreamK(2, FREE)(kernel).body is kernel.body


def test_the_pass_has_nothing_left_to_do_the_second_time():
    once = StreamK(4, FREE)(tiles_of((192, 128, 80)))
    assert StreamK(4, FREE)(once) is once


def test_without_it_make_persistent_makes_the_rounds():
    shape = (192, 64, 80)
    passes = [p for p in lists.hopper(SM_90A, Places(), 3, 2) if not isinstance(p, StreamK)]
    kernel, _ = run(tiles_of(shape), passes)
    assert kernel.workgroups == 2 and not has_split(kernel)


def test_the_target_splits_where_it_pays():
    made = wave_compile(
        WaveCompileOptions(subs=SEEDS[1].subs(4864, 4096, 4160, block_m=128, block_n=256, block_k=64), target="sm_90a"),
        SEEDS[1].kernel,
    )
    assert (slots(made.build.lanes), made.build.lanes.workgroups) == (120, 132)
    assert not has_split(made.build.plain.lanes)
    assert "stream_k" in [step.name for step in made.steps if step.changed]


def test_every_op_keeps_the_line_of_the_author():
    seed = SEEDS[1]
    subs = seed.subs(192, 64, 80, block_m=64, block_n=64, block_k=16)
    tiles = wave_compile(WaveCompileOptions(subs=subs, target="numpy"), seed.kernel).kernel
    for kernel in (split(tiles, 2), lanes_of(tiles, 2)):
        assert has_split(kernel)
        assert all(op.loc.line and op.loc.file.endswith(".py") for op in walk(kernel.body))


# -- exchanged partial sums


@pytest.mark.parametrize("kernel", [split(tiles_of((192, 64, 80)), 2), lanes_of(tiles_of((192, 64, 80)), 2)])
def test_the_text_is_read_back(kernel):
    assert has_split(kernel)
    assert parse(str(kernel)) == kernel


MUTATED = (192, 64, 80)
"""Three tiles for two workgroups: the second finishes the third tile, whose first part the first one computes."""


@cache
def whole():
    return lanes_of(tiles_of(MUTATED), 2)


def changed(kind, change):
    return verify(rewrite(whole(), lambda op: change(op) if isinstance(op, kind) else None))


def found_in(kernel, level="lane", order="random"):
    a, b = operands(MUTATED)
    c = poisoned(MUTATED[:2], f32)
    with pytest.raises(InterpreterError) as found:
        if level == "lane":
            interpret_lanes(kernel, [a, b, c], {}, order)
        else:
            interpret(kernel, [a, b, c], {})
    assert np.isnan(c).all()
    return str(found.value)


@pytest.mark.parametrize("order", ORDERS)
def test_a_tile_that_is_not_handed_over_is_a_deadlock(order):
    told = found_in(changed(HandOver, lambda op: []), order=order)
    assert "no wave of workgroup 1 can go on" in told and "kernels.py" in told
    assert "for exchange[0], which no earlier workgroup handed over" in told


def test_a_tile_that_is_not_taken_over_is_found():
    told = found_in(changed(Loop, lambda op: [replace(op, trips=never(whole()))] if takes(op) else None))
    assert "workgroup 0 hands over exchange[0], which is never taken over" in told and "kernels.py" in told


def never(kernel):
    """A number that is 0."""
    return next(op.result for op in kernel.body.ops if getattr(op, "value", None) == 0)


def takes(op):
    return any(isinstance(inner, TakeOver) for inner in op.body.ops)


def test_a_slot_that_is_full_is_not_filled_again():
    told = found_in(changed(HandOver, lambda op: [op, op]))
    assert "workgroup 0 hands over exchange[0], which workgroup 0 filled" in told
    assert "must be taken over first" in told


def test_a_slot_that_does_not_exist_is_found():
    def far(op):
        return [replace(op, slot=next(o.result for o in whole().body.ops if getattr(o, "value", None) == 5))]

    told = found_in(changed(HandOver, far))
    assert "workgroup 0 wants exchange[5], outside exchange<2x64x64xf32>" in told


def test_a_workgroup_that_waits_for_a_later_one_is_found():
    a, b = operands(MUTATED)
    c = poisoned(MUTATED[:2], f32)
    with pytest.raises(InterpreterError, match="no wave of workgroup 1 can go on"):
        interpret_lanes(whole(), [a, b, c], {}, workgroups=[1, 0])


def test_whole_tiles_that_are_not_handed_over_are_found_too():
    kernel = rewrite(split(tiles_of(MUTATED), 2), lambda op: [] if isinstance(op, HandOver) else None)
    told = found_in(kernel, level="tile")
    assert "workgroup 1 waits for exchange[0], which no earlier workgroup handed over" in told


EXCHANGE = """
kernel @k {workgroups = 1} (%a: memory<4x4xf32, global>) {
  %zero = const() {value = 0} : index
  %x = read(%a, [%zero, %zero]) {axes = [0, 1]} : tile<4x4xf32>
  %e = make_exchange() : EXCHANGE
  hand_over(%x, %e, SLOT)
  %y = take_over(%x, %e, %zero) : RESULT
  write(%y, %a, [%zero, %zero]) {axes = [0, 1]}
}
"""


@pytest.mark.parametrize(
    ("exchange", "slot", "result", "why"),
    [
        ("exchange<2x4x4xf32>", "%zero", "tile<4x4xf32>", ""),
        ("exchange<2x4x2xf32>", "%zero", "tile<4x4xf32>", "is not what the slots of exchange<2x4x2xf32> hold"),
        ("exchange<2x4x4xf16>", "%zero", "tile<4x4xf32>", "is not what the slots of exchange<2x4x4xf16> hold"),
        ("exchange<2xf32>", "%zero", "tile<4x4xf32>", "makes slots for tiles"),
        ("tile<2x4x4xf32>", "%zero", "tile<4x4xf32>", "makes slots for tiles"),
        ("exchange<2x4x4xf32>", "%x", "tile<4x4xf32>", "counts slots by an index, not tile<4x4xf32>"),
        ("exchange<2x4x4xf32>", "%zero", "tile<2x4xf32>", "gives"),
    ],
)
def test_what_is_handed_over_fits_its_slot(exchange, slot, result, why):
    text = EXCHANGE.replace("EXCHANGE", exchange).replace("SLOT", slot).replace("RESULT", result)
    if not why:
        kernel = verify(parse(text))
        x = np.arange(16, dtype=np.float32).reshape(4, 4)
        interpret(kernel, [x], {})
        np.testing.assert_array_equal(x, 2 * np.arange(16).reshape(4, 4))
        return
    with pytest.raises(VerifyError, match=why):
        verify(parse(text))


def test_only_whole_tiles_are_written():
    kernel = split(tiles_of(MUTATED), 2)
    (outer,) = (op for op in kernel.body.ops if isinstance(op, Loop))
    inner = [op for op in outer.body.ops if isinstance(op, Loop)]
    assert [[type(o) for o in walk(op.body) if isinstance(o, (HandOver, TakeOver, Write))] for op in inner] == [
        [],
        [HandOver],
        [TakeOver],
        [Write],
    ]


def _in_place(reads_first):
    """Return a kernel for c = c + a · b, where c is read before the loop, or after it."""

    @wave(tiling())
    def in_place(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        old = read(c) if reads_first else None

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            return mma(read(a), read(b), x)

        write(total + (old if reads_first else read(c)), c)

    return in_place


@pytest.mark.parametrize("reads_first", [True, False])
def test_whoever_has_a_part_of_a_tile_does_not_read_what_its_end_overwrites(reads_first):
    shape = (192, 64, 128)
    kernel = lanes_of(tiles_of(shape, kernel=_in_place(reads_first)), 2)
    is_split = any(isinstance(op, HandOver) for op in walk(kernel.body))
    assert is_split != reads_first
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 128)).astype(np.float16) for rows in shape[:2])
    for order in some_of(ORDERS):
        c = rng.integers(-9, 10, shape[:2]).astype(np.float32)
        want = c + a.astype(np.float32) @ b.astype(np.float32).T
        interpret_lanes(kernel, [a, b, c], {}, order, 1)
        np.testing.assert_array_equal(c, want)
