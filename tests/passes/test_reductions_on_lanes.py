"""Reductions distributed to lanes: tiles are reduced in their layout, waves synchronize once, and each barrier is
needed."""

import numpy as np
import pytest
from kernels import UNIT, G, K, M, N, error_bound, poisoned, product
from softmax_rows import softmax_in_float64, softmax_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier, Load, ReduceHalves, ReduceLanes, Store
from tilewave.ir.placements import is_in
from tilewave.ir.rewrite import rewrite, walk

ORDERS = ("in turn", "backwards", "random")


def count(kernel, cls):
    return sum(isinstance(op, cls) for op in walk(kernel.body))


# -- what waves leave for each other -----------------------------------------------------------------------------------


def softmax(target, waves, shape=(4, 250)):
    subs = dict(zip((M, N), shape, strict=True))
    return wave_compile(WaveCompileOptions(subs=subs, target=target), softmax_of(2, 256, waves))


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("waves", [(1, 4), (2, 2), (1, 8)], ids=str)
def test_every_meeting_of_waves_is_needed(target, waves):
    compiled = softmax(target, waves)
    kernel = compiled.build.lanes if target != "sm_90a" else compiled.ir("distribute_lanes")
    needed = [op for op in walk(kernel.body) if _keeps_apart(op)]
    assert len(needed) == 4, kernel  # for the largest and for the sum: what each wave leaves, and a barrier
    x = np.random.default_rng(5).standard_normal((4, 250)).astype(np.float32)
    for gone in needed:
        with pytest.raises(InterpreterError, match=r"no barrier between|was never written") as found:
            without = rewrite(kernel, lambda op, gone=gone: [] if op is gone else None)
            for order in ORDERS:
                interpret_lanes(without, [x, np.empty_like(x)], {}, order, 1)
        assert "softmax_rows.py:" in str(found.value)


def _keeps_apart(op):
    return isinstance(op, Barrier) or (isinstance(op, Store) and is_in(op.memory, "shared"))


def test_a_barrier_between_two_meetings_in_one_place_is_needed():
    """In a loop, what was left in the round before must have been read."""

    @wave([WorkgroupConstraint(M, 1, 0), TilingConstraint(N, 256), *_among(8)])
    def walked(x: Memory[M, N, G, f32], y: Memory[M, G, f32]):
        @iterate(N, init_args=[Register[M, f32](0.0)])
        def total(acc):
            return acc + read(x).sum(dim=N)

        write(total, y)

    compiled = wave_compile(WaveCompileOptions(subs={M: 2, N: 1000}, target="gfx942"), walked)
    kernel, x, y = compiled.build.lanes, np.ones((2, 1000), np.float32), np.zeros(2, np.float32)
    barriers = [op for op in walk(kernel.body) if isinstance(op, Barrier)]
    assert len(barriers) >= 2
    interpret_lanes(kernel, [x, y], {}, "random", 3)
    np.testing.assert_array_equal(y, 1000)
    for gone in barriers:
        with pytest.raises(InterpreterError, match=r"no barrier between|was never written"):
            interpret_lanes(rewrite(kernel, lambda op, gone=gone: [] if op is gone else None), [x, y], {}, "random", 3)


def _among(waves, lanes=64):
    return [HardwareConstraint(threads_per_wave=lanes, waves_per_block=(waves, 1, 1))]


def test_waves_read_what_all_of_them_left_once():
    lanes = softmax("gfx942", (1, 4)).build.lanes
    shared = [op for op in walk(lanes.body) if isinstance(op, Load) and is_in(op.memory, "shared")]
    assert len(shared) == 2 and count(lanes, Barrier) == 2


def test_a_row_of_one_wave_needs_no_shared_memory():
    lanes = softmax("gfx942", (2, 1)).build.lanes
    assert not any(_keeps_apart(op) for op in walk(lanes.body))


def test_where_order_does_not_matter_lanes_exchange_one_number():
    def lanes_of(how):
        @wave([WorkgroupConstraint(M, 1, 0)])
        def one(x: Memory[M, N, G, f32], y: Memory[M, G, f32]):
            write(getattr(read(x), how)(dim=N), y)

        return wave_compile(WaveCompileOptions(subs={M: 4, N: 512}, target="gfx942"), one).build.lanes

    def exchanged(kernel):
        return sum(map(_given, walk(kernel.body)))

    assert exchanged(lanes_of("max")) == 6
    assert exchanged(lanes_of("sum")) == 1 + 6  # neighbours first: lanes share the registers of two chunks


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("length, waves", [(257, 4), (300, 8), (380, 2)])
def test_rows_of_any_length_are_summed_in_the_order_of_the_tile(target, length, waves):
    @wave([WorkgroupConstraint(M, 4, 0), *_among(waves, 64 if target == "gfx942" else 32)])
    def rows(x: Memory[M, N, G, f32], y: Memory[M, G, f32], z: Memory[M, G, f32]):
        write(read(x).sum(dim=N), y)
        write(read(x).prod(dim=N), z)

    compiled = rows.compile(target=target, max_sizes={N: length + 3})
    x = np.random.default_rng(length).standard_normal((6, length)).astype(np.float32)
    x = np.where(np.abs(x) < 0.5, 0.5, x).astype(np.float32)
    found = [np.full((2, 6), np.nan, np.float32) for _ in range(2)]
    for level, (y, z) in zip(("tile", "lane"), found, strict=True):
        compiled.interpret(x, y, z, level=level)
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0][0], x.astype(np.float64).sum(1), atol=length * UNIT)


def _given(op):
    """How many numbers a lane gives to others."""
    match op:
        case ReduceLanes(x, bits):
            return np.prod(x.type.shape) * len(bits)
        case ReduceHalves(x):
            return np.prod(x.type.shape) // 2
        case _:
            return 0


# -- products ----------------------------------------------------------------------------------------------------------


def of_product(epilogue, dims, tile, waves):
    cut = [WaveConstraint(d, n // w) for d, n, w in zip((M, N), tile, waves, strict=True) if w > 1]
    tiles = [WorkgroupConstraint(M, tile[0], 0), WorkgroupConstraint(N, tile[1], 1), TilingConstraint(K, 16)]

    @wave([*tiles, *cut])
    def reduced(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], y: Memory[(*dims, G, f32)]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(epilogue(total), y)

    return reduced


def turned_columns(t):
    return permute(t, target_shape=[N, M]).sum(dim=M)


EPILOGUES = {
    "rows": (lambda t: t.sum(dim=N), (M,), lambda p: p.sum(1), lambda e: e.sum(1)),
    "columns": (lambda t: t.sum(dim=M), (N,), lambda p: p.sum(0), lambda e: e.sum(0)),
    "largest of rows": (lambda t: t.max(dim=N), (M,), lambda p: p.max(1), lambda e: e.max(1)),
    "smallest of columns": (lambda t: t.min(dim=M), (N,), lambda p: p.min(0), lambda e: e.max(0)),
    "permuted columns": (turned_columns, (N,), lambda p: p.sum(0), lambda e: e.sum(0)),
    "all": (lambda t: t - t.sum(), (M, N), lambda p: p - p.sum(), lambda e: e + e.sum()),
    "both ways": (
        lambda t: t - t.max(dim=N) - t.min(dim=M),
        (M, N),
        lambda p: p - p.max(1, keepdims=True) - p.min(0, keepdims=True),
        lambda e: e + e.max(1, keepdims=True) + e.max(0, keepdims=True),
    ),
}
"""What is written, its dims, its meaning, and what becomes of the errors of a product's elements."""
SHAPES = [
    ((32, 32, 32), (32, 32), (1, 1)),
    ((30, 27, 20), (32, 32), (2, 2)),
    ((32, 32, 16), (32, 32), (1, 4)),  # padded to one block a wave
    ((8, 8, 8), (8, 8), (1, 1)),  # smaller than a block
    ((24, 40, 8), (24, 40), (1, 1)),
]


def check_product_reduced(name, shape, tile, waves, target, order):
    epilogue, dims, meaning, errors = EPILOGUES[name]
    m, n, k = shape
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(size).astype(np.float16) for size in ((m, k), (n, k)))
    y = poisoned(tuple({M: m, N: n}[d] for d in dims), f32)
    subs = {M: m, N: n, K: k}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target=target), of_product(epilogue, dims, tile, waves))
    compiled.interpret(a, b, y, level="lane", order=order, seed=4)
    p, magnitude = product(a, b)
    roundings = (m * n if name == "all" else max(m, n)) + 2  # in any order, and the operations after it
    bound = errors(error_bound(magnitude, k, f32) + roundings * UNIT / (1 - roundings * UNIT) * magnitude)
    assert (np.abs(y - meaning(p)) <= bound).all(), np.abs(y - meaning(p)).max()


@pytest.mark.share(8)
@pytest.mark.parametrize(("shape", "tile", "waves"), SHAPES, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_sums_of_products_are_reduced_as_they_lie(name, shape, tile, waves):
    number = list(EPILOGUES).index(name) + SHAPES.index((shape, tile, waves))
    check_product_reduced(name, shape, tile, waves, ("gfx942", "sm_90a", "gfx950")[number % 3], ORDERS[number % 3])


def test_what_pads_a_product_is_not_reduced():
    """exp of the zeros beyond 8 columns would count; so would their 0 as the largest of negative numbers."""

    def powers(t):
        return exp(t).sum(dim=N) + (-abs(t) - 1.0).max(dim=N)

    a = b = np.ones((8, 8), np.float16)
    for target in ("gfx942", "sm_90a"):
        y = poisoned((8,), f32)
        options = WaveCompileOptions(subs={M: 8, N: 8, K: 8}, target=target)
        wave_compile(options, of_product(powers, (M,), (8, 8), (1, 1))).interpret(a, b, y, level="lane")
        want = 8 * np.exp(8.0) - 9
        assert np.abs(y - want).max() <= 32 * UNIT * want  # three roundings of eight numbers, and exp within two units


# -- loops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_softmax_that_walks_its_rows_carries_the_largest_and_the_sum(target, steps):
    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 64)])
    def online(x: Memory[M, N, G, f32], y: Memory[M, G, f32], z: Memory[M, G, f32]):
        @iterate(N, init_args=[Register[M, f32](-1e30), Register[M, f32](0.0)])
        def both(largest, total):
            tile = read(x)
            new = maximum(largest, tile.max(dim=N))
            return new, total * exp(largest - new) + exp(tile - new).sum(dim=N)

        write(both[0], y)
        write(both[1], z)

    columns = max(0, 64 * steps - 5)
    x = np.random.default_rng(1).standard_normal((6, columns)).astype(np.float32)
    y, z = poisoned((6,), f32), poisoned((6,), f32)
    compiled = wave_compile(WaveCompileOptions(subs={M: 6, N: columns}, target=target), online)
    compiled.interpret(x, y, z, level="lane", order="random", seed=steps)
    if not columns:
        assert (y == np.float32(-1e30)).all() and (z == 0).all()
        return
    np.testing.assert_array_equal(y, x.max(1))
    want = np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1)
    roundings = 8 * steps + 8  # six levels of a tile's tree, two a step, and exp
    assert (np.abs(z - want) <= roundings * 2 * UNIT * want).all()


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
def test_softmax_is_that_of_float64(target):
    for waves in [(1, 1), (2, 1), (1, 8)]:
        x = np.random.default_rng(5).standard_normal((5, 250)).astype(np.float32)
        y = np.full_like(x, np.nan)
        softmax(target, waves, (5, 250)).interpret(x, y, level="lane", order="random")
        want = softmax_in_float64(x)
        roundings = 8 + 2 * 2 + 1 + np.abs(x).max()  # the sum's levels, two of exp, the division, the difference's
        assert (np.abs(y - want) <= roundings * 2 * UNIT * want).all()
