"""Products whose sums are an operand of another in the same step, as in attention, on every target, against float64.

    s = mma(q, k, 0);  p = max(s / 8, 0), rounded to the operands' dtype;  c += mma(p, v)

The bound follows from the sizes and the dtype: what f32 sums of `s` may be off by, p's rounding, and what f32 sums of
`p · v` may be off by. The interpreter, lanes in random order, the CPU's code and AMD's code are run, NVIDIA's is
written.
"""

from functools import cache

import numpy as np
import pytest
from kernels import *
from sampled import some_of

from tilewave.ir.ops import Convert, Shuffle, WgmmaRegisters
from tilewave.ir.rewrite import walk

pytestmark = pytest.mark.share(12)

L = sym.L
BLOCK_L = sym.BLOCK_L
CHIPS = ("gfx942", "gfx950", "sm_90a")
TARGETS = ("cpu", *CHIPS)
SCHEDULES = (SchedulingType.NONE, SchedulingType.PREFETCH)
EIGHT_BIT = {"cpu": f8e4m3fn, "gfx942": f8e4m3fnuz, "gfx950": f8e4m3fn, "sm_90a": f8e4m3fn}
SCALE = 0.125
SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f8e4m3fn": 2.0**-9, "f8e4m3fnuz": 2.0**-10, "f32": 2.0**-149}
"""The least number above 0, by dtype: smaller numbers are rounded to a multiple of it."""


def ramp(s):
    return maximum(s * SCALE, 0.0)


@cache
def chain(dtype=f16, v_dims=(N, L), waves=0, step="nested"):
    """`nested`: a loop over K inside each step of L; `whole`: K is one tile."""
    cut = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(L, BLOCK_L)]
    cut += [TilingConstraint(K, BLOCK_K)] if step == "nested" else [WorkgroupConstraint(K, BLOCK_K, 2)]
    cut += [WaveConstraint(M, BLOCK_M / waves), WaveConstraint(N, BLOCK_N)] if waves else []

    @wave(cut)
    def chain(
        q: Memory[M, K, G, dtype], k: Memory[L, K, G, dtype], v: Memory[(*v_dims, G, dtype)], c: Memory[M, N, G, f32]
    ):
        @iterate(L, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(cast(ramp(scores(q, k)), dtype), read(v), acc)

        write(total, c)

    def scores(q, k):
        zero = Register[M, L, f32](0.0)
        if step == "whole":
            return mma(read(q), read(k), zero)

        @iterate(K, init_args=[zero])
        def sums(s):
            return mma(read(q), read(k), s)

        return sums

    return chain


def blocks(tile):
    return dict(zip((BLOCK_M, BLOCK_N, BLOCK_K, BLOCK_L), tile, strict=True))


def wanted(q, k, v, dtype):
    """In float64, and what may differ."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s, magnitude = product(q, k)
    p = np.maximum(s * SCALE, 0)
    off = (error_bound(magnitude, q.shape[1], f32) + UNIT * np.abs(s)) * SCALE
    unit = 2.0 ** -(MANTISSA.get(dtype.name, 23) + 1)
    off = off + unit * (p + off) + SMALLEST[dtype.name] / 2
    return p @ v.T, off @ np.abs(v).T + error_bound((p + off) @ np.abs(v).T, k.shape[0], f32)


def results(made, arrays, shape):
    for order in some_of(("in turn", "random")):
        c = poisoned(shape, f32)
        made.interpret(*arrays, c, level="tile" if made.target == "cpu" else "lane", order=ORDER[made.target, order])
        yield c
    if made.target == "sm_90a":
        assert made.asm
        return
    c = poisoned(shape, f32)
    (made if made.target == "cpu" else made.emulate)(*arrays, c)
    yield c


ORDER = {(t, order): order if t != "cpu" else "launch" for t in TARGETS for order in ("in turn", "random")}


def check(made, shape, dtype=f16, v_dims=(N, L)):
    m, n, k, length = shape
    rng = np.random.default_rng(11)
    q, ks, v = (random_array(rng, s, dtype) for s in ((m, k), (length, k), (n, length)))
    want, bound = wanted(q, ks, v, dtype)
    for c in results(made, (q, ks, np.ascontiguousarray(v.T) if v_dims == (L, N) else v), (m, n)):
        assert np.isfinite(c).all()
        excess = np.abs(c - want) - bound
        assert excess.max() <= 0, f"off by {np.abs(c - want).max()}, {excess.max()} too much"


def compiled_chain(target, tile, shape, kernel, **options):
    subs = {**blocks(tile), **dict(zip((M, N, K, L), shape, strict=True))}
    return compiled(kernel, target=target, subs=subs, **options)


@pytest.mark.parametrize("v_dims", [(N, L), (L, N)], ids=["NL", "LN"])
@pytest.mark.parametrize("step", ["nested", "whole"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_an_operand_in_the_same_step(target, schedule, step, v_dims):
    tile, shape = (64, 64, 40 if step == "whole" else 32, 32), (70, 70, 40, 100)
    made = compiled_chain(target, tile, shape, chain(v_dims=v_dims, step=step), schedule=schedule)
    check(made, shape, v_dims=v_dims)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, "f8"], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_every_dtype(target, dtype):
    if dtype == f32 and target == "sm_90a":
        pytest.skip("sm_90a multiplies no f32")
    dtype = EIGHT_BIT[target] if dtype == "f8" else dtype
    tile, shape = (64, 32, 32, 64), (70, 40, 40, 150)
    check(compiled_chain(target, tile, shape, chain(dtype)), shape, dtype)


@pytest.mark.parametrize("waves", [1, 2, 4, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", CHIPS)
def test_waves_below_each_other(target, schedule, waves):
    tile, shape = (128, 32, 32, 32), (140, 40, 40, 70)
    check(compiled_chain(target, tile, shape, chain(waves=waves), schedule=schedule), shape)


@pytest.mark.share(12)
@pytest.mark.parametrize("steps", [0, 1, 32, 33, 65])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("target", TARGETS)
def test_no_step_one_step_and_some(target, schedule, steps):
    tile, shape = (64, 32, 32, 32), (40, 32, 32, steps)
    check(compiled_chain(target, tile, shape, chain(), schedule=schedule), shape)


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_stay_open(target):
    made = compiled(chain(v_dims=(L, N)), target=target, subs=blocks((64, 32, 32, 32)), schedule=SCHEDULES[1])
    for shape in ((70, 40, 40, 100), (64, 32, 32, 32), (1, 1, 1, 1), (5, 5, 5, 0), (5, 5, 0, 5)):
        check(made, shape, v_dims=(L, N))


@pytest.mark.parametrize("tile", [(8, 8, 8, 8), (16, 40, 24, 40), (1, 64, 64, 64)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_tiles_that_grow(target, tile):
    """The columns of one product are the depth of the next: what is computed beyond them must not count."""
    shape = tuple(2 * n - n // 3 for n in tile)
    check(compiled_chain(target, tile, shape, chain()), shape)


@pytest.mark.parametrize("tile", [(64, 64, 64, 128), (128, 64, 32, 192), (64, 64, 64, 80)], ids=str)
def test_sums_deeper_than_the_rows_of_a_matrix_unit(tile):
    shape = (tile[0] + 6, 70, 64, 300)
    made = compiled_chain("sm_90a", tile, shape, chain())
    (taker,) = (op for op in walk(made.ir().body) if isinstance(op, WgmmaRegisters))
    assert taker.shape[2] >= tile[3]  # padded to whole instructions
    check(made, shape)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tile", [(64, 64, 128), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_transposed(target, tile, side):
    """The rows of the sums are K of the next product; groups of waves hold slices of it, and exchange them."""
    block_l, block_n, block_m = tile

    @wave(
        [
            WorkgroupConstraint(L, block_l, 0),
            WorkgroupConstraint(N, block_n, 1),
            TilingConstraint(M, block_m),
            WorkgroupConstraint(K, 32, 2),
        ]
    )
    def transposed(q: Memory[M, K, G, f16], k: Memory[L, K, G, f16], d: Memory[M, N, G, f16], c: Memory[L, N, G, f32]):
        @iterate(M, init_args=[Register[L, N, f32](0.0)])
        def total(acc):
            p = cast(ramp(mma(read(q), read(k), Register[M, L, f32](0.0))), f16)
            return mma(p, read(d), acc) if side == "left" else mma(read(d), p, acc)

        write(total, c)

    rng = np.random.default_rng(5)
    q, k, d = (rng.integers(-2, 3, s).astype(np.float16) for s in ((150, 32), (70, 32), (150, 70)))
    p = np.maximum(q.astype(float) @ k.astype(float).T * SCALE, 0)
    made = compiled(transposed, target=target, subs={M: 150, N: 70, K: 32, L: 70})
    for c in results(made, (q, k, d), (70, 70)):
        assert np.array_equal(c, p.T @ d.astype(float))


@pytest.mark.parametrize("target", TARGETS)
def test_two_products_of_what_is_computed_from_sums_and_reads(target):
    @wave(
        [
            WorkgroupConstraint(M, 64, 0),
            WorkgroupConstraint(N, 32, 1),
            TilingConstraint(L, 128),
            WorkgroupConstraint(K, 16, 2),
            WaveConstraint(M, 16),
            WaveConstraint(N, 32),
        ]
    )
    def both(
        q: Memory[M, K, G, f16],
        k: Memory[L, K, G, f16],
        e: Memory[M, L, G, f16],
        v: Memory[N, L, G, f16],
        w: Memory[L, N, G, f16],
        c: Memory[M, N, G, f32],
    ):
        @iterate(L, init_args=[Register[M, N, f32](0.0), Register[M, N, f32](0.0)])
        def total(x, y):
            p = cast(ramp(mma(read(q), read(k), Register[M, L, f32](0.0))), f16) + read(e)
            return mma(p, read(v), x), mma(p, read(w), y)

        write(total[0] + total[1] * 2.0, c)

    rng = np.random.default_rng(5)
    q, k, e, v, w = (
        rng.integers(-2, 3, s).astype(np.float16) for s in ((70, 16), (200, 16), (70, 200), (40, 200), (200, 40))
    )
    p = np.maximum(q.astype(float) @ k.astype(float).T * SCALE, 0) + e
    made = compiled(both, target=target, subs={M: 70, N: 40, K: 16, L: 200})
    for c in results(made, (q, k, e, v, w), (70, 40)):
        assert np.array_equal(c, p @ v.astype(float).T + 2 * p @ w.astype(float))


@pytest.mark.parametrize("waves", [1, 2, 4])
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_waves_that_hold_whole_rows_need_no_exchange(target, waves):
    made = compiled_chain(target, (64, 64, 32, 32), (64, 64, 32, 64), chain(waves=waves))
    assert [op for op in walk(made.ir("convert_layouts").body) if isinstance(op, Convert)]
    assert not [op for op in walk(made.ir("distribute_lanes").body) if isinstance(op, Shuffle)]
    assert not [op for op in walk(made.ir("convert_layouts").body) if "moved" in "".join(v.name for v in op.results)]
