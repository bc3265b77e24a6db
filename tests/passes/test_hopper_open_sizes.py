"""One kernel for all sizes on Hopper: rounds, parts, reciprocals and clusters that a launch decides, lane by lane."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hopper_kernels import biased, both, ops
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, check_product, gemm, poisoned, sizes
from lane_runs import operands
from sampled import some_of
from seeds import SEEDS
from tunings import SPLITS

from tilewave import *
from tilewave.analysis.splits import splits_that_pay
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.constraint_locations import Places
from tilewave.ir.launch import HostLaunch, bind
from tilewave.ir.ops import (
    DivideBy,
    FloorDiv,
    HandOver,
    Launch,
    MakeExchange,
    Mod,
    TakeOver,
    TmaLoadMulticast,
    Unset,
    WgmmaShared,
)
from tilewave.ir.stream_k import (
    equal_splits,
    reciprocal,
    reciprocal_shift,
    stream_k_workgroups,
)
from tilewave.kernels import gemm as mapped_gemm
from tilewave.machine.chips import SM_90A
from tilewave.passes.grid.stream_k import StreamK
from tilewave.pipeline import lists
from tilewave.pipeline.runner import run

pytestmark = pytest.mark.share(8)

OPEN = (M, N, K)
HAND_OVER = SPLITS.hand_over_bytes


def left_open(subs):
    return {name: value for name, value in subs.items() if name not in OPEN}


def tiles_of(kernel, subs):
    return wave_compile(WaveCompileOptions(subs=left_open(subs), target="numpy"), kernel).kernel


@cache
def mapped(tile, mapping, dtype=f16, out=f32):
    made = mapped_gemm((512, 512, 512), dtype, out, tile=tile, mapping=mapping)
    return tiles_of(made.kernel, made.subs)


@cache
def lanes(tile, mapping, workgroups, on_lines, hand_over=0, dtype=f16, out=f32, stages=2):
    """Partial sums are exchanged wherever possible, unless `hand_over` gives it a cost."""
    passes = lists.hopper(SM_90A, Places(), stages, workgroups, open_on_lines=on_lines)
    split = StreamK(workgroups, replace(SPLITS, hand_over_bytes=hand_over), SM_90A.line_bytes, on_lines)
    changed = [split if isinstance(p, StreamK) else p for p in passes]
    return run(mapped(tile, mapping, dtype, out), changed)[0]


def numbers_of(shape):
    return dict(zip("MNK", shape, strict=True))


def check_open(kernel, shape, order="random", seed=0, dtype=f16, out=f32):
    """How many workgroups ran; the outputs are poisoned before."""
    a, b = operands(shape, dtype)
    c = poisoned(shape[:2], out)
    bound = bind(kernel, numbers_of(shape))
    if bound.workgroups:
        interpret_lanes(bound, [a, b, c], numbers_of(shape), order, seed)
        check_product(c, a, b, out)
    return bound.workgroups


# -- what the host decides


def time_of(left, steps, peers, step_bytes):
    """The time of `left` tiles in ranges of `peers` workgroups; 0 peers: of whole tiles."""
    if not peers:
        return steps * step_bytes
    first = np.arange(peers + 1) * left * steps // peers
    owners = np.repeat(np.arange(peers), np.diff(first)).reshape(left, steps)
    parts = owners[:, -1] - owners[:, 0] + 1
    return np.diff(first).max() * step_bytes + parts.max() * HAND_OVER


def time_of_parts(steps, parts, step_bytes):
    return -(-steps // parts) * step_bytes + parts * HAND_OVER if parts else steps * step_bytes


def ways(left, steps):
    """The numbers of workgroups that are weighed: three for two tiles, or several for each."""
    several = (left * 3 // 2, *range(2 * left, 133, left))
    return [0, *(n for n in several if left < n <= min(132, left * steps))]


def equal_ways(left, steps):
    """The numbers of equal parts of which none is empty, for pairs of workgroups that both have one, or neither."""
    several = range(2, min(132 // left, steps) + 1)
    return [0, *(n for n in several if left * n % 2 == 0 and (n - 1) * -(-steps // n) < steps)]


@pytest.mark.parametrize("step_bytes", [32, 64, 128, 256])
def test_weighing_a_few_ways_to_share_is_as_good_as_trying_all(step_bytes):
    rng = random.Random(step_bytes)
    for _ in range(400):
        left, steps = rng.randint(1, 131), rng.choice((rng.randint(1, 60), rng.randint(1, 1500)))
        case = (left, steps, 132, step_bytes, HAND_OVER)
        best = min(time_of(left, steps, peers, step_bytes) for peers in ways(left, steps))
        assert time_of(left, steps, stream_k_workgroups(*case), step_bytes) == best, case
        best = min(time_of_parts(steps, parts, step_bytes) for parts in equal_ways(left, steps))
        assert time_of_parts(steps, equal_splits(*case), step_bytes) == best, case


@pytest.mark.parametrize("decide", [stream_k_workgroups, equal_splits])
def test_nobody_shares_where_there_is_nothing_left_or_numbers_would_not_fit(decide):
    assert decide(0, 4096, 132, 128, HAND_OVER) == 0
    assert decide(10, 0, 132, 128, HAND_OVER) == 0
    assert decide(60, 4096, 132, 128, HAND_OVER) > 0
    assert decide(60, 1 << 24, 132, 128, HAND_OVER) == 0


LARGE_SUMS, SMALL_SUMS = 128 * 256 * 4, 64 * 16 * 4


@pytest.mark.parametrize(
    ("tiles", "steps", "sums_bytes", "parts"),
    [
        (128, 128, SMALL_SUMS, 1),
        (64, 224, SMALL_SUMS, 2),
        (8, 1024, SMALL_SUMS, 16),
        (8, 1024, LARGE_SUMS, 16),
        (2, 512, SMALL_SUMS, 11),
        (2, 512, LARGE_SUMS, 64),
        (132, 4096, LARGE_SUMS, 1),
        (200, 4096, LARGE_SUMS, 1),
        (8, 1, LARGE_SUMS, 1),
        (1, 0, LARGE_SUMS, 1),
    ],
)
def test_how_many_parts_pay(tiles, steps, sums_bytes, parts):
    assert splits_that_pay(tiles, steps, 132, 128, sums_bytes, SPLITS) == parts


@pytest.mark.parametrize("shape", [(16, 64, 2048), (16, 200, 1024), (3, 64, 8), (1, 1, 0), (33, 130, 72)], ids=str)
def test_few_small_tiles_are_shared_and_many_are_not(shape):
    """Several workgroups of such tiles fit on a processor; where tiles are few, parts of them keep more of it busy."""
    subs = {s: v for s, v in sizes(0, 0, 0, 16, 64, 64).items() if v}
    made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), gemm())
    tiles, steps = -(-shape[0] // 16) * -(-shape[1] // 64), max(1, -(-shape[2] // 64))
    bound = bind(made.build.lanes, dict(zip("MNK", shape, strict=True)))
    assert bound.workgroups == (stream_k_workgroups(tiles, steps, 132, 128, HAND_OVER) or tiles)
    many = bind(made.build.lanes, {"M": 16, "N": 64 * 500, "K": 64 * 64})
    assert many.workgroups == 500
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    made.interpret(a, b, c, level="lane", order="random")
    check_product(c, a, b)


DIVISORS = (1, 2, 3, 5, 7, 12, 63, 64, 65, 192, 1000, 4160, 65535, (1 << 20) + 3, (1 << 30) - 1, (1 << 31) - 1)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_products_by_reciprocals_are_quotients_of_all_numbers_of_31_bits(divisor):
    factor, shift = reciprocal(divisor), reciprocal_shift(divisor)
    assert factor < 1 << 32
    around = [i * divisor + j for i in (*range(1, 50), (1 << 31) // divisor) for j in (-1, 0, 1)]
    for x in (*range(300), *((1 << 31) - i for i in range(1, 300)), *around):
        if 0 <= x < 1 << 31:
            assert x * factor >> shift == x // divisor


def test_what_is_divided_by_0_is_0():
    assert 12345 * reciprocal(0) >> reciprocal_shift(0) == 0


# -- what is computed

SHAPES = {
    "one tile": (64, 64, 64),
    "one element": (1, 1, 1),
    "no depth": (70, 72, 0),
    "a whole round": (128, 192, 128),
    "rounds and a rest in parts": (64 * 5, 64 * 2, 64 * 5),
    "a rest in many parts": (64 * 7, 64, 64 * 4),
    "no round, all in parts": (64, 64, 64 * 7),
    "odd tiles, too shallow for parts": (64 * 7, 64, 64),
    "off all edges": (150, 136, 200),
    "primes": (149, 131, 97),
}
CLASSES = {"on lines": True, "off lines": False}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", SHAPES)
def test_one_kernel_is_right_for_every_shape(name, kind):
    shape, kernel = SHAPES[name], lanes((64, 64, 64), "grouped(3)", 6, CLASSES[kind])
    assert kernel.cluster == (1 if CLASSES[kind] else 2)
    for order in some_of(("in turn", "backwards", "random")):
        check_open(kernel, shape, order, seed=3)


FORMS = {
    "linear": ((64, 64, 32), "linear()", 4),
    "grouped": ((64, 64, 64), "grouped(2)", 6),
    "two groups of waves": ((128, 64, 32), "grouped(3)", 4),
    "deep steps": ((64, 64, 128), "grouped(5)", 6),
}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("form", FORMS)
def test_random_shapes(form, kind):
    kernel, rng = lanes(*FORMS[form], CLASSES[kind]), random.Random(form)
    for seed in range(16):
        shape = rng.randint(1, 260), rng.randint(1, 200), rng.choice((0, 1, rng.randint(2, 400)))
        check_open(kernel, shape, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("form", FORMS)
def test_many_random_shapes(form, kind):
    kernel, rng = lanes(*FORMS[form], CLASSES[kind]), random.Random(f"many {form}")
    for seed in range(40):
        shape = rng.randint(1, 500), rng.randint(1, 400), rng.choice((0, 1, rng.randint(2, 900)))
        check_open(kernel, shape, seed=seed)


DTYPES = {"bf16": (bf16, f32), "f8": (f8e4m3fn, f16), "i8": (i8, i32), "f16 to f16": (f16, f16)}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", DTYPES)
def test_other_dtypes(name, kind):
    dtype, out = DTYPES[name]
    kernel = lanes((64, 64, 64), "grouped(3)", 4, CLASSES[kind], 0, dtype, out)
    for shape in ((64 * 5, 64, 64 * 3), (90, 70, 144), (1, 16, 0)):
        check_open(kernel, shape, dtype=dtype, out=out)


def test_the_launch_says_who_shares_and_how_many_workgroups_there_are():
    kernel = lanes((64, 64, 64), "linear()", 132, True, HAND_OVER)
    host = HostLaunch(kernel)
    found = {}
    for tiles, steps in ((1, 1), (132, 4), (133, 4), (608, 65), (80, 65), (20, 1000)):
        found[tiles, steps] = host([64 * tiles, 64 * steps, 64]).workgroups
    assert found == {(1, 1): 1, (132, 4): 132, (133, 4): 132, (608, 65): 132, (80, 65): 120, (20, 1000): 120}
    assert ops(kernel, MakeExchange)[0].result.type.shape[0] == 132


def test_sums_are_the_same_to_the_last_bit_in_any_order():
    kernel, shape = lanes((64, 64, 64), "grouped(3)", 6, False), (64 * 7, 64, 64 * 4)
    a, b = (np.random.default_rng(9).standard_normal((n, shape[2])).astype(np.float16) for n in shape[:2])
    seen = set()
    for order in some_of(("in turn", "backwards", "random"), 2):
        c = poisoned(shape[:2], f32)
        interpret_lanes(bind(kernel, numbers_of(shape)), [a, b, c], numbers_of(shape), order, 1)
        seen.add(c.tobytes())
    assert len(seen) == 1


# -- what the code is like


@pytest.mark.parametrize("kind", CLASSES)
def test_nothing_is_divided_but_by_constants_and_where_no_group_lies(kind):
    kernel = lanes((64, 64, 64), "grouped(3)", 132, CLASSES[kind], HAND_OVER)
    launch, *rest = kernel.body.ops
    assert isinstance(launch, Launch)
    inside = [op for op in ops(kernel, FloorDiv, Mod) if op not in launch.body.ops]
    constants = {op.result for op in ops(kernel, type(rest[1])) if not op.operands}
    by_number = [op for op in inside if op.b not in constants]
    in_each_role = 1 if CLASSES[kind] else 2  # the producer of a cluster also computes where its partner is
    assert len(by_number) <= 1 + in_each_role, [str(op) for op in by_number]
    assert ops(kernel, DivideBy)


@pytest.mark.parametrize("kind", CLASSES)
def test_products_make_the_first_sums_and_parts_are_handed_over(kind):
    kernel = lanes((64, 64, 64), "grouped(3)", 132, CLASSES[kind], HAND_OVER)
    assert ops(kernel, Unset) and all(op.adds for op in ops(kernel, WgmmaShared))
    assert len(ops(kernel, HandOver)) == len(ops(kernel, TakeOver)) == 1
    assert bool(ops(kernel, TmaLoadMulticast)) == (not CLASSES[kind])


# -- the kernels of the documents


@cache
def compiled(seed):
    subs = left_open(seed.subs(512, 512, 512, block_m=64, block_n=64, block_k=32))
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), seed.kernel)


ARRAYS = {
    "on lines": (130, 72, 128),
    "off lines": (130, 136, 72),
    "odd rows": (65, 67, 33),
    "odd columns alone": (65, 67, 64),
    "one element": (1, 1, 1),
    "no depth": (5, 7, 0),
    "no rows": (0, 8, 64),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("seed", SEEDS[:2], ids=repr)
def test_the_kernels_of_the_documents_take_any_arrays(seed, name):
    shape = ARRAYS[name]
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    compiled(seed).interpret(a, b, c, level="lane", order="random")
    if c.size:
        check_product(c, a, b)


@cache
def dealt_by_itself():
    """The persistent kernel, whose own loop deals tiles; the call says how many there are."""
    module = SEEDS[2].module
    told = [module.N_TILES, module.TOTAL_TILES]
    subs = {**module.subs(512, 512, 512, block_m=64, block_n=64, block_k=32, num_ctas=6)}
    subs = {name: value for name, value in left_open(subs).items() if name not in told}
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", dynamic_symbols=told), SEEDS[2].kernel)


@pytest.mark.parametrize("name", [name for name in ARRAYS if name != "no rows"])
def test_a_kernel_that_deals_its_own_tiles_takes_any_arrays(name):
    shape = m, n, _ = ARRAYS[name]
    a, b = operands(shape)
    c = poisoned(shape[:2], f32)
    rows, columns = -(-m // 64), -(-n // 64)
    dealt_by_itself().interpret(a, b, c, level="lane", order="random", N_TILES=columns, TOTAL_TILES=rows * columns)
    check_product(c, a, b)


def test_its_depth_is_known_not_to_be_0_and_its_products_make_the_first_sums():
    kernel = dealt_by_itself().build.lanes
    assert ops(kernel, Unset) and all(op.adds for op in ops(kernel, WgmmaShared))


# -- kernels of other forms


def opened(kernel, workgroups, on_lines, tile=(64, 64, 32)):
    names = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True))
    whole = wave_compile(WaveCompileOptions(subs=names, target="numpy"), kernel).kernel
    return run(whole, lists.hopper(SM_90A, Places(), 2, workgroups, open_on_lines=on_lines))[0]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("shape", [(64, 64, 32), (200, 136, 72), (330, 70, 0), (449, 131, 97)], ids=str)
def test_two_products_go_from_tile_to_tile_without_parts(shape, kind):
    """The last wave is not shared by stream-K; a tile that is left over has no partner."""
    kernel = opened(both, 4, CLASSES[kind])
    assert not ops(kernel, HandOver) and isinstance(kernel.workgroups, str)
    (a, b), (d, _) = operands(shape), operands((shape[1], 1, shape[2]), seed=8)
    c, e = poisoned(shape[:2], f32), poisoned(shape[:2], f32)
    interpret_lanes(bind(kernel, numbers_of(shape)), [a, b, d, c, e], numbers_of(shape), "random", 2)
    check_product(c, a, b)
    check_product(e, a, d)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("shape", [(64, 64, 32), (200, 136, 72), (330, 72, 400), (65, 67, 33)], ids=str)
def test_what_lanes_read_behind_the_loop_ends_where_its_memory_does(shape, kind):
    kernel = opened(biased, 4, CLASSES[kind])
    a, b = operands(shape)
    bias = np.random.default_rng(2).standard_normal(shape[1]).astype(np.float32)
    c = poisoned(shape[:2], f16)
    interpret_lanes(bind(kernel, numbers_of(shape)), [a, b, bias, c], numbers_of(shape), "random", 2)
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    np.testing.assert_allclose(c.astype(float), wanted, rtol=2e-3, atol=1e-4)
