"""The cost model of CPU cores: register blocks, threads, packing, and how times grow."""

from dataclasses import fields, replace

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm

from tilewave import *
from tilewave.cost.parameters import HOST, HostParameters
from tilewave.lang.open_tiles import tunable
from tilewave.tune.choose import rank
from tilewave.tune.default import TunableKernel
from tilewave.tune.machines import HostTiles
from tilewave.tune.space import space_of


def host(threads=2):
    return HostTiles("avx512", threads, 14, 32, 64, HOST)


def problem(shape, dtype=f32):
    sizes = dict(zip((M, N, K), shape, strict=True))
    return TunableKernel.of(gemm(dtype), sizes, (), {}, "cpu").problem


def seconds(shape, tile, threads=2, in_place=0):
    work = problem(shape).cut(dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)))
    return host(threads).predict(replace(work, in_place=in_place)).seconds


def ranked(shape, threads=2):
    """Return a kernel's configs on a machine of so many threads, the best first."""
    sizes = dict(zip((M, N, K), shape, strict=True))
    tiles = TunableKernel.of(gemm(f32), sizes, (), {}, "cpu")
    space = space_of(tunable(gemm(f32), sizes, ()), tiles.problem.work, host(threads), tiles.problem.constraints)
    return tiles.problem, rank(tiles.problem, space, host(threads)).legal


def test_a_family_has_few_parameters():
    numbers = [f.name for f in fields(HostParameters) if f.name not in ("error", "fitted_on")]
    assert len(numbers) <= 12 and HOST.fitted_on


def test_a_register_block_is_the_largest_that_divides_the_tile():
    (product,) = problem((1024, 1024, 1024)).cut({BLOCK_M: 128, BLOCK_N: 256, BLOCK_K: 64}).products
    assert host().block(product) == (8, 32)


def test_many_threads_want_more_tiles():
    def tiles(threads):
        found, legal = ranked((512, 512, 512), threads)
        return found.cut(legal[0].config).tasks

    assert tiles(64) > tiles(1)


def test_one_row_takes_a_tile_of_one_row():
    _, legal = ranked((1, 4096, 4096))
    assert legal[0].config[BLOCK_M] == 1


@pytest.mark.parametrize("in_place", [0, 1])
def test_more_work_never_takes_less_time(in_place):
    for tile in [(14, 32, 64), (112, 128, 64)]:
        times = [seconds((n, n, n), tile, in_place=in_place) for n in (64, 256, 1024, 4096)]
        assert times == sorted(times)


def test_more_threads_never_take_more_time():
    times = [seconds((1024, 1024, 1024), (112, 128, 64), threads) for threads in (1, 2, 8, 64)]
    assert times == sorted(times, reverse=True) and times[0] > 4 * times[-1]


def test_operands_in_place_are_not_packed():
    """One row uses each element of B once, so that packing it takes longer than reading it."""
    assert seconds((1, 4096, 4096), (1, 32, 64), in_place=1) < seconds((1, 4096, 4096), (1, 32, 64))
    assert seconds((2048, 2048, 2048), (112, 128, 64)) < seconds((2048, 2048, 2048), (112, 128, 64), in_place=1)


def test_nothing_is_faster_than_its_products():
    each = 2 * 32 * HOST.clock_hz  # two multiply-adds of 16 lanes in a cycle
    for threads in (1, 4):
        assert seconds((1024, 1024, 1024), (112, 128, 64), threads) > 2 * 1024**3 / (each * threads)
