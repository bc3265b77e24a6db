"""The cost model of launches: what it chooses among measured configs, what it calls illegal, and how it grows."""

import csv
import math
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm

from tilewave import *
from tilewave.cost.gpu import GpuCost
from tilewave.cost.parameters import CLOCKED, HOPPER
from tilewave.cost.prediction import ADVICE
from tilewave.errors import ConstraintError
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.tune.choose import rank
from tilewave.tune.configs import kernel_set
from tilewave.tune.default import TunableKernel
from tilewave.tune.machines import machine_of
from tilewave.tune.space import NUM_STAGES, SPLIT

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_kernel_set.csv"
MOST_PARAMETERS = 12
SHAPES = [(1, 4096, 4096), (64, 4096, 14336), (304, 400, 512), (4096, 4096, 4096), (2056, 3000, 1024)]
CONFIGS = [(128, 256, 64, 4, 1), (64, 128, 64, 8, 1), (8, 64, 128, 5, 1), (64, 64, 128, 6, 4), (16, 64, 128, 8, 4)]


@cache
def problem(layout="NT", target="sm_90a"):
    axes = (K, M) if layout[0] == "T" else (M, K), (N, K) if layout[1] == "T" else (K, N)
    return TunableKernel.of(product_kernel(ProductForm(f16, f16, *axes)), {}, (), {}, target).problem


def cut(shape, config, layout="NT", target="sm_90a"):
    *tile, stages, split = config
    values = dict(zip((BLOCK_M, BLOCK_N, BLOCK_K), tile, strict=True)) | {NUM_STAGES: stages, SPLIT: split}
    return problem(layout, target).sized(dict(zip((M, N, K), shape, strict=True))).cut(values)


def time(shape, config, layout="NT", target="sm_90a"):
    return machine_of(target).picoseconds(cut(shape, config, layout, target))


# -- what was measured ------------------------------------------------------------------------------------------------


@cache
def measured():
    """Return for each shape and layout its configs with their microseconds."""
    found = {}
    for row in csv.DictReader(ROWS.read_text().splitlines()):
        shape = tuple(int(row[name]) for name in "mnk")
        config = (*map(int, row["tile"].split("x")), int(row["stages"]), int(row["split"]))
        found.setdefault((shape, row["layout"]), {})[config] = float(row["microseconds"])
    return found


@pytest.mark.parametrize("every", [pytest.param(4, id="sample"), pytest.param(1, marks=pytest.mark.slow, id="all")])
def test_the_chosen_config_of_the_set_is_nearly_the_best_of_all(every):
    names = "rows", "cols", "depth", "num_stages", "split"
    of_set = {tuple(one[name] or 1 for name in names) for one in kernel_set("nvidia", 2)}
    shares = []
    for (shape, layout), times in [*measured().items()][::every]:
        known = [config for config in times if config in of_set]
        if known:
            taken = min(known, key=lambda config: time(shape, config, layout))
            shares.append(min(times.values()) / times[taken])
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    assert len(shares) >= 160 // every and mean >= 0.9 and min(shares) > 0.5


def test_the_error_that_is_said_is_the_one_that_is_left():
    """Of launches that take at most twice the time of the best of their shape."""
    errors = []
    for (shape, layout), times in [*measured().items()][::4]:
        least = min(times.values())
        near = [(config, us) for config, us in times.items() if us < 2 * least]
        errors += [math.log(time(shape, config, layout) / 1e6 / us) for config, us in near]
    spread = math.sqrt(sum(e * e for e in errors) / len(errors))
    assert len(errors) > 800 and 0.6 * HOPPER.error < spread < 1.2 * HOPPER.error


def test_a_family_has_few_parameters():
    for one in (HOPPER, *CLOCKED.values()):
        numbers = [f.name for f in fields(one) if f.name not in ("error", "fitted_on")]
        assert len(numbers) <= MOST_PARAMETERS
        assert all(type(getattr(one, name)) is int for name in numbers) and one.fitted_on


# -- how times grow ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
@pytest.mark.parametrize("config", CONFIGS)
def test_longer_dims_never_take_much_less_time(target, config):
    """A little less is right: stream-K fills the last wave, and a launch that fits no longer waits for its turn."""
    config = config if target == "sm_90a" else (*config[:3], 0, 1)
    for shape in SHAPES:
        for axis in range(3):
            longer = [*shape]
            longer[axis] *= 2
            assert time(longer, config, target=target) > 0.97 * time(shape, config, target=target), (shape, axis)


@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_faster_than_its_bytes(config):
    machine = machine_of("sm_90a")
    for m, n, k in [(1, 8192, 8192), (16, 16384, 16384), (8192, 8192, 64)]:
        least = 2 * (m * k + n * k + m * n) / machine.card.hbm.bytes_per_second
        assert time((m, n, k), config) / 1e12 > least


@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_faster_than_its_products(config):
    machine = machine_of("sm_90a")
    assert time((8192, 8192, 8192), config) / 1e12 > 2 * 8192**3 / machine.card.flops("f16")


def test_parts_of_sums_do_not_pay_where_there_are_many_tiles():
    assert time((4096, 4096, 1024), (64, 64, 128, 6, 4)) > time((4096, 4096, 1024), (64, 64, 128, 6, 1))


def test_parts_that_would_be_empty_come_last():
    assert time((64, 64, 128), (64, 64, 128, 6, 4)) > 100 * time((64, 64, 128), (64, 64, 128, 6, 1))


def test_few_stages_wait_for_loads():
    """A tile of 128x256 is alone on its SM, whatever its stages."""
    one, two, four = (time((4096, 4096, 4096), (128, 256, 64, n, 1)) for n in (1, 2, 4))
    assert one > two > four


def test_two_workgroups_on_an_sm_fill_each_others_gaps(monkeypatch):
    two, five = ((64, 128, 64, n, 1) for n in (2, 5))
    assert [machine_of("sm_90a").resident(cut((4096, 4096, 4096), one)) for one in (two, five)] == [2, 1]
    beside = time((4096, 4096, 4096), two)
    monkeypatch.setattr(GpuCost, "resident", lambda self, work: 1)
    assert beside < time((4096, 4096, 4096), two)


def test_two_consumer_warpgroups_are_alone_on_an_sm():
    """They have all registers of the SM, so that short steps, which leave shared memory free, do not help."""
    machine = machine_of("sm_90a")
    assert machine.resident(cut((512, 6656, 64), (128, 128, 16, 8, 1))) == 1
    assert time((512, 6656, 64), (128, 128, 16, 8, 1)) > time((512, 6656, 64), (128, 128, 64, 6, 1))


def test_unaligned_rows_are_slower():
    aligned, unaligned = (time((4096, 4096, k), (128, 256, 64, 4, 1)) for k in (4096, 4095))
    assert unaligned > 1.02 * aligned


def test_stream_k_is_off_where_results_are_batch_invariant():
    work = cut((132 * 128 + 128, 256, 8192), (128, 256, 64, 4, 1))
    machine = machine_of("sm_90a")
    assert machine.picoseconds(replace(work, in_fixed_order=True)) > 1.2 * machine.picoseconds(work)


@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950"])
def test_the_parts_of_a_time_make_up_its_bottleneck(target):
    machine = machine_of(target)
    limits = set()
    for shape in [*SHAPES, (8192, 8192, 8192), (1, 16384, 16384), (1, 1, 1)]:
        found = machine.predict(cut(shape, (128, 128, 64, 0, 1), target=target))
        assert found.seconds == machine.picoseconds(cut(shape, (128, 128, 64, 0, 1), target=target)) / 1e12
        limits.add(found.limit)
    assert {"compute"} < limits <= {*ADVICE}


# -- what is illegal --------------------------------------------------------------------------------------------------


def test_the_compiler_refuses_what_registers_make_illegal():
    sizes = {M: 512, N: 512, K: 512}
    config = {BLOCK_M: 256, BLOCK_N: 256, BLOCK_K: 64}
    tiles = TunableKernel.of(gemm(), sizes, (), {}, "sm_90a")
    assert tiles.machine.refused(tiles.problem.cut(config)) == "registers"
    with pytest.raises(ConstraintError, match="sums to hold"):
        wave_compile(WaveCompileOptions(subs={**sizes, **config}, target="sm_90a"), gemm())


def test_illegal_configs_are_counted_by_what_there_is_too_little_of():
    tune = Tune(BLOCK_M=(64, 256), BLOCK_N=(64, 256), BLOCK_K=(64, 1024), num_stages=1)
    tiles = TunableKernel.of(gemm(), {M: 512, N: 512, K: 512}, (), {}, "sm_90a", tune)
    ranked = rank(tiles.problem, tiles.space, tiles.machine)
    assert ranked.considered == len([*tiles.space.configs()]) and {*ranked.illegal} == {"registers", "shared memory"}


def test_waves_that_make_up_no_tile_are_illegal():
    kernel = gemm(constraints=[WaveConstraint(M, 48), WaveConstraint(N, 64)])
    tiles = TunableKernel.of(kernel, {M: 512, N: 512, K: 512}, (), {}, "gfx942")
    assert tiles.machine.refused(tiles.problem.cut({BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32})) == "waves"
    assert not tiles.machine.refused(tiles.problem.cut({BLOCK_M: 96, BLOCK_N: 64, BLOCK_K: 32}))
