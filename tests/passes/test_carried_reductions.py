"""Loops that carry what is left of a tile which they carry too, on every target.

All values are whole and small, so that every order of sums gives the same; numpy runs the same kernel on whole tiles.
"""

from functools import cache

import numpy as np
import pytest
from kernels import *

TARGETS = ("gfx942", "gfx950", "sm_90a")
L = sym.L
LONGEST = 50


def small(x):
    """As it is, where sums of many stay exact."""
    most = cast(LONGEST, x.dtype)
    return maximum(minimum(x, most), -most)


def behind(acc, left, x):
    """Reduce the tile at the end of the step."""
    acc = acc + x - left
    return acc, acc.max(dim=N)


def before(acc, left, x):
    """Reduce the tile at the beginning of the step."""
    return small(acc + x - left), small(cast(acc.sum(dim=N), acc.dtype))


def of_columns(acc, left, x):
    acc = acc + x - left
    return acc, acc.min(dim=M)


def place(acc, left, x):
    acc = acc + x - left
    return acc, cast(acc.argmax(N), acc.dtype)


def running(acc, left, x):
    acc = small(cast((acc - left).cumsum(dim=N), acc.dtype)) + x
    return acc, acc.max(dim=N)


def truth(acc, left, x):
    acc = select(left > cast(0, acc.dtype), acc + x, acc - x)
    return acc, cast((acc > cast(1, acc.dtype)).any(dim=N), acc.dtype)


def repeated(acc, left, x):
    """Compute the tile from the loop-carried values in every step."""
    acc = broadcast(left, target_shape=[M, N]) - x
    return acc, acc.max(dim=N)


STEPS = (behind, before, of_columns, place, running, truth, repeated)


def one_loop(step, dims, dtype, x):
    @iterate(K, init_args=[Register[M, N, dtype](0), Register[(*dims, dtype)](1)])
    def loop(acc, left):
        return step(acc, left, read(x))

    return loop


def nested(step, dims, dtype, x):
    """The outer loop carries the inner loop's result, and takes a step with it."""

    @iterate(K, init_args=[Register[M, N, dtype](0), Register[(*dims, dtype)](1)])
    def outer(acc, left):
        @iterate(L, init_args=[acc, left])
        def inner(acc, left):
            return step(acc, left, read(x))

        return step(*inner, read(x))

    return outer


def crosswise(step, dims, dtype, x):
    """Two tiles, each of which takes what is left of the other."""
    tile, left = Register[M, N, dtype](0), Register[(*dims, dtype)](1)

    @iterate(K, init_args=[tile, tile, left, left])
    def loop(one, other, of_one, of_other):
        one, of_one = step(one, of_other, read(x))
        other, of_other = step(other, of_one, -read(x))
        return other, one, of_one, of_other

    return loop[0], loop[3]


LOOPS = (one_loop, nested, crosswise)


def kernel_of(step, loop, tile, dtype, waves):
    dims = (N,) if step is of_columns else (M,)
    cut = [WaveConstraint(d, size // n) for d, size, n in zip((M, N), tile, waves, strict=True) if n > 1]

    @wave([WorkgroupConstraint(M, tile[0], 0), WorkgroupConstraint(N, tile[1], 1), TilingConstraint(K, 1), *cut])
    def carried(x: Memory[M, N, G, dtype], y: Memory[M, N, G, dtype], z: Memory[(*dims, G, dtype)]):
        acc, left = loop(step, dims, dtype, x)
        write(acc, y)
        write(left, z)

    return carried, dims


def arrays(tile, dims, dtype):
    x = np.random.default_rng(sum(tile)).integers(-3, 4, tile).astype(dtype.numpy)
    return x, np.full(tile, 77, dtype.numpy), np.full(tile[1] if dims == (N,) else tile[0], 77, dtype.numpy)


def compiled_for(target, step, loop, tile, dtype=f32, waves=(1, 1)):
    kernel, dims = kernel_of(step, loop, tile, dtype, waves)
    subs = {M: tile[0], N: tile[1], K: 3, L: 2}
    extra = [TilingConstraint(L, 1)] if loop is nested else []
    made = wave_compile(
        WaveCompileOptions(subs=subs, target=target), wave([*kernel.constraints, *extra])(kernel.function)
    )
    return made, arrays(tile, dims, dtype)


@cache
def wanted(step, loop, tile, dtype):
    made, found = compiled_for("numpy", step, loop, tile, dtype)
    made.interpret(*found)
    return found[1:]


def check(target, step, loop, tile, dtype=f32, waves=(1, 1)):
    made, found = compiled_for(target, step, loop, tile, dtype, waves)
    made.interpret(*found, level="lane", order="random", seed=3)
    for here, there in zip(found[1:], wanted(step, loop, tile, dtype), strict=True):
        np.testing.assert_array_equal(here, there)
    return made


TILES = ((1, 256), (16, 1), (4, 100))
"""With a single row, a single column, and no power of two."""


@pytest.mark.share(24)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_what_is_left_of_a_carried_tile_is_carried(step, loop, target, tile):
    check(target, step, loop, tile)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_single_row_is_reduced_to_settles(target):
    """Lanes hold it as they hold the row, and the loop pulls both into one layout."""
    for loop in LOOPS:
        check(target, of_columns, loop, (1, 256))


def test_what_waves_exchanged_does_not_decide_again_how_the_rest_is_held():
    check("sm_90a", running, nested, (16, 1))


@pytest.mark.share(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [i32, f16], ids=str)
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_other_dtypes(step, dtype, target):
    check(target, step, one_loop, (1, 64), dtype)
    check(target, step, crosswise, (8, 32), dtype)


@pytest.mark.share(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("waves", [(1, 4), (2, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_tiles_cut_among_waves(step, waves, target):
    check(target, step, nested, (16, 128), waves=waves)


@pytest.mark.share(4)
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("step", [of_columns, running], ids=lambda f: f.__name__)
def test_machine_code(step, target):
    for tile in ((1, 256), (16, 64)):
        made = check(target, step, crosswise, tile)
        found = compiled_for(target, step, crosswise, tile)[1]
        made.emulate(*found, order="random", seed=1)
        for here, there in zip(found[1:], wanted(step, crosswise, tile, f32), strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tile", [(32, 40), (8, 100)], ids=str)
def test_of_the_waves_that_hold_a_carried_row_one_stores_it(tile, target):
    """Lanes do not divide the tile that it is repeated in, and hold it as they hold that: several times."""
    waves = HardwareConstraint(threads_per_wave=64, waves_per_block=(4, 1, 1))
    space = [WorkgroupConstraint(M, tile[0], 0), WorkgroupConstraint(N, tile[1], 1), TilingConstraint(K, 1)]

    @wave([*space, waves])
    def rows(x: Memory[N, G, f32], y: Memory[M, N, G, f32], z: Memory[N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0), read(x)])
        def loop(acc, row):
            return acc + row, row + 1.0

        write(loop[0], y)
        write(loop[1], z)

    made = wave_compile(WaveCompileOptions(subs={M: tile[0], N: tile[1], K: 3}, target=target), rows)
    x = np.arange(tile[1], dtype=np.float32)
    for run in (lambda *given: made.interpret(*given, level="lane"), made.emulate):
        y, z = poisoned(tile, f32), poisoned(tile[1:], f32)
        run(x, y, z)
        np.testing.assert_array_equal(z, x + 3)
        np.testing.assert_array_equal(y, np.broadcast_to(3 * x + 3, tile))
