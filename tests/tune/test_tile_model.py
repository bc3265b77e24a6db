"""The model of launches: what it is fitted on, what it calls illegal, and how it agrees with the compiler."""

import csv
import math
from pathlib import Path

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm

import tilewave.tune
from tilewave import *
from tilewave.errors import ConstraintError
from tilewave.tune.choose import rank
from tilewave.tune.default import UndecidedKernel, machine_of
from tilewave.tune.fitted import HOST
from tilewave.tune.host import HostTiles

BLOCKS = (BLOCK_M, BLOCK_N, BLOCK_K)
ROWS = Path(tilewave.tune.__file__).parent / "data" / "h200_tiles.csv"


def undecided(shape, target="sm_90a", kernel=None):
    return UndecidedKernel.of(kernel or gemm(out=f16, epilogue=lambda x: cast(x, f16)), sized(shape), (), {}, target)


def sized(shape):
    return dict(zip((M, N, K), shape, strict=True))


def cut(shape, tile, target="sm_90a"):
    return undecided(shape, target).problem.cut(dict(zip(BLOCKS, tile, strict=True)))


def measured():
    """(shape, tile, seconds) of the rows that the model is fitted on."""
    for row in csv.DictReader(ROWS.read_text().splitlines()):
        shape, tile = tuple(int(row[x]) for x in "mnk"), tuple(map(int, row["tile"].split("x")))
        if row["layout"] == "NT" and shape[2] % 8 == 0 and shape[1] % 8 == 0:
            yield shape, tile, float(row["microseconds"]) * 1e-6


@pytest.fixture(scope="module")
def rows():
    return [(shape, tile, seconds, cut(shape, tile)) for shape, tile, seconds in measured()]


def test_the_error_that_is_said_is_the_one_that_is_left(rows):
    machine = machine_of("sm_90a")
    logs = [math.log(machine.predict(work).seconds / seconds) for _, _, seconds, work in rows]
    assert len(logs) > 70
    assert math.sqrt(sum(x * x for x in logs) / len(logs)) <= machine.timing.error


def test_the_tile_predicted_best_loses_little(rows):
    machine, by_shape = machine_of("sm_90a"), {}
    for shape, _, seconds, work in rows:
        by_shape.setdefault(shape, []).append((machine.predict(work).seconds, seconds))
    shares = [min(s for _, s in tiles) / min(tiles)[1] for tiles in by_shape.values() if len(tiles) > 2]
    assert len(shares) >= 10
    assert math.exp(sum(map(math.log, shares)) / len(shares)) >= 0.98 and min(shares) >= 0.95


def test_shared_memory_and_stages_are_those_that_the_compiler_takes():
    machine = machine_of("sm_90a")
    for tile in [(128, 256, 64), (64, 64, 128), (128, 64, 128), (256, 128, 64), (64, 16, 128), (128, 256, 128)]:
        subs = {**sized((4096, 4096, 4096)), **dict(zip(BLOCKS, tile, strict=True))}
        kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16))
        made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)
        work = cut((4096, 4096, 4096), tile)
        assert machine.shared_bytes(work, machine.stages(work)) == made.resources.shared_bytes, tile


@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950"])
def test_the_compiler_takes_what_is_legal(target):
    open_tiles = undecided((512, 512, 512), target)
    ranked = rank(open_tiles.problem, open_tiles.space, open_tiles.machine)
    corners = [*ranked.legal[:2], *sorted(ranked.legal, key=lambda p: -math.prod(p.point.values()))[:3]]
    for one in corners:
        options = WaveCompileOptions(subs={**sized((512, 512, 512)), **one.point}, target=target)
        assert wave_compile(options, open_tiles.kernel).resources.shared_bytes > 0


def test_the_compiler_refuses_what_registers_make_illegal():
    open_tiles = undecided((512, 512, 512))
    refused = 0
    for point in open_tiles.space.points():
        if open_tiles.machine.refused(open_tiles.problem.cut(point)) == "registers":
            refused += 1
            options = WaveCompileOptions(subs={**sized((512, 512, 512)), **point}, target="sm_90a")
            with pytest.raises(ConstraintError, match="sums to hold"):
                wave_compile(options, open_tiles.kernel)
    assert refused


def test_illegal_points_are_counted_by_what_there_is_too_little_of():
    open_tiles = undecided((4096, 4096, 4096))
    ranked = rank(open_tiles.problem, open_tiles.space, open_tiles.machine)
    assert ranked.considered == len(open_tiles.space)
    assert set(ranked.illegal) == {"registers", "shared memory"}


def test_tiles_longer_than_a_dim_are_left_out():
    open_tiles = undecided((40, 5000, 64))
    values = {d.symbol: d.values for d in open_tiles.space.within(open_tiles.problem.values).decisions}
    assert values[BLOCK_M] == (64,) and max(values[BLOCK_N]) == 256


def test_more_work_never_takes_less_time():
    machine = machine_of("sm_90a")
    for tile in [(64, 64, 64), (128, 256, 64)]:
        times = [machine.predict(cut((n, n, n), tile)).seconds for n in (64, 256, 1024, 4096, 8192)]
        assert times == sorted(times)


def test_nothing_is_faster_than_its_bytes():
    machine = machine_of("sm_90a")
    for shape in [(1, 8192, 8192), (16, 16384, 16384)]:
        least = 2 * shape[1] * shape[2] / machine.card.hbm.bytes_per_second
        for tile in [(64, 64, 64), (128, 256, 64)]:
            assert machine.predict(cut(shape, tile)).seconds > least


# -- the CPU ----------------------------------------------------------------------------------------------------------


def host(threads):
    return HostTiles("avx512", threads, 14, 32, 64, HOST)


def test_a_register_block_is_the_largest_that_divides_the_tile():
    (product,) = cut((1024, 1024, 1024), (128, 256, 64), "cpu").products
    assert host(2).block(product) == (8, 32)


def test_many_threads_want_more_tiles():
    def tiles(threads):
        open_tiles = undecided((512, 512, 512), "cpu")
        best = rank(open_tiles.problem, open_tiles.space, host(threads)).legal[0]
        return open_tiles.problem.cut(best.point).tasks

    assert tiles(64) > tiles(1)


def test_one_row_takes_a_tile_of_one_row():
    open_tiles = undecided((1, 4096, 4096), "cpu")
    assert open_tiles.choices()[0].point[BLOCK_M] == 1
