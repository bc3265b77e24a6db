"""The model of launches: what it is fitted on, what it calls illegal, and how it agrees with the compiler."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm
from tilewave.tune.fitted import HOST
from tilewave.tune.gpu_room import Loading, WholeRounds
from tilewave.tune.host import HostTiles
from tilewave.tune.measured import BATCH_INVARIANT, EVEN, H200, IN_PLACE, SMALL, measured_launches
from tilewave.tune.neighbours import AT_ONCE, COUNT, neighbours_in, neighbours_of

from tilewave import *
from tilewave.errors import ConstraintError
from tilewave.ir.ops import WaitPriorLaunch
from tilewave.ir.rewrite import walk
from tilewave.runtime.arrays import view
from tilewave.tune.choose import rank
from tilewave.tune.default import TunableKernel, machine_of
from tilewave.tune.space import KNOBS, NO_COVERING, NUM_STAGES, SPLIT, Covering

BLOCKS = (BLOCK_M, BLOCK_N, BLOCK_K)
OPERANDS = {"N": ((M, K), (K, N)), "T": ((K, M), (N, K))}


def undecided(shape, target="sm_90a", kernel=None):
    return TunableKernel.of(kernel or product(), sized(shape), (), {}, target)


def product(layout="NT"):
    a, b = OPERANDS[layout[0]][0], OPERANDS[layout[1]][1]
    return gemm(out=f16, epilogue=lambda x: cast(x, f16), a_dims=a, b_dims=b)


def sized(shape):
    return dict(zip((M, N, K), shape, strict=True))


def cut(shape, tile, target="sm_90a", layout="NT", in_fixed_order=False, **knobs):
    config = dict(zip(BLOCKS, tile, strict=True)) | {s: knobs[s.name] for s in KNOBS if s.name in knobs}
    return replace(problem(shape, target, layout), in_fixed_order=in_fixed_order).cut(config)


@cache
def problem(shape, target, layout):
    return undecided(shape, target, product(layout)).problem


ALL = pytest.param(1, marks=pytest.mark.slow, id="all")


def one_in(every):
    """Evaluate the model on one measured launch, or product, in so many; `make test-slow` evaluates it on all."""
    return pytest.mark.parametrize("every", [pytest.param(every, id="sample"), ALL])


@cache
def launches():
    """Return the launches that the model is fitted on."""
    return tuple(measured_launches(H200))


@cache
def rows(every):
    """One in so many of these launches, and what the model sees of them."""
    return [(x, work_of(x)) for x in launches()[::every]]


def work_of(launch):
    knobs = {"split": launch.split} | ({"num_stages": launch.num_stages} if launch.num_stages else {})
    return cut(launch.shape, launch.tile, layout=launch.layout, in_fixed_order=launch.in_fixed_order, **knobs)


@one_in(29)
def test_the_error_that_is_said_is_the_one_that_is_left(every):
    machine = machine_of("sm_90a")
    best = {}
    for launch in launches():
        best[launch.product] = min(launch.seconds, best.get(launch.product, math.inf))
    near = [(x, work) for x, work in rows(every) if x.seconds < 2 * best[x.product]]
    logs = [math.log(machine.predict(work).seconds / launch.seconds) for launch, work in near]
    assert len(logs) > 800
    assert math.sqrt(sum(x * x for x in logs) / len(logs)) <= machine.timing.error


def shares(rows):
    """Return for each shape with several tiles the speed of the one predicted best, relative to the best."""
    machine, by_shape = machine_of("sm_90a"), {}
    for launch, work in rows:
        found = machine.predict(work).seconds, launch.seconds
        by_shape.setdefault(launch.product, []).append(found)
    return [min(s for _, s in tiles) / min(tiles)[1] for tiles in by_shape.values() if len(tiles) > 2]


def mean(found):
    return math.exp(sum(map(math.log, found)) / len(found))


def shares_of(every, *files):
    measured = list(measured_launches(files))
    kept = set(list(dict.fromkeys(x.product for x in measured))[::every])
    return shares([(x, work_of(x)) for x in measured if x.product in kept])


@one_in(6)
def test_the_tile_predicted_best_loses_little(every):
    found = shares_of(every, *(file for file in H200 if file not in (*SMALL, *EVEN, *IN_PLACE, *BATCH_INVARIANT)))
    assert len(found) >= 264 // every
    assert mean(found) >= 0.965 and min(found) >= 0.82


@one_in(4)
def test_the_tile_predicted_best_of_small_products_loses_little(every):
    found = shares_of(every, *SMALL)
    assert len(found) >= 40 // every
    assert mean(found) >= 0.96 and min(found) >= 0.8


@one_in(16)
def test_among_tiles_that_cut_dims_evenly_the_one_predicted_best_loses_little(every):
    """Most of these shapes were measured because the choice was bad before."""
    found = shares_of(every, *EVEN)
    assert len(found) >= 200 // every
    assert mean(found) >= 0.955 and sum(x < 0.8 for x in found) <= 0.03 * len(found)


@one_in(4)
def test_of_odd_operands_that_lanes_load_where_they_lie_the_tile_predicted_best_loses_little(every):
    """A unit has registers for few such workgroups, and one more may be a round more."""
    found = shares_of(every, *IN_PLACE)
    assert len(found) >= 170 // every
    assert mean(found) >= 0.95 and sum(x < 0.8 for x in found) <= 0.05 * len(found)


@one_in(4)
def test_in_one_order_the_tile_predicted_best_loses_little(every):
    found = shares_of(every, *BATCH_INVARIANT)
    assert len(found) >= 60 // every
    assert mean(found) >= 0.965 and min(found) >= 0.82


def without_neighbours():
    machine = machine_of("sm_90a")
    return replace(machine, timing=replace(machine.timing, neighbours=""))


def left_unexplained(machine, rows, beyond=lambda traits: [0.0] * len(traits)):
    """The deviation of the logarithm of predicted times, and what else is known of them, from measured ones."""
    told = zip(rows, beyond([machine.traits(work) for _, work in rows]), strict=True)
    logs = [math.log(launch.seconds / machine.predict(work).seconds) - more for (launch, work), more in told]
    return math.sqrt(sum(x * x for x in logs) / len(logs))


@pytest.mark.slow
def test_what_launches_took_beyond_the_formulas_is_written_down_as_the_rows_say():
    """After a change of either: python benchmarks/fit_tiles.py --neighbours."""
    machine = machine_of("sm_90a")
    made, written = neighbours_of(without_neighbours(), rows(1)), neighbours_in(machine.timing.neighbours)
    traits = [machine.traits(work) for _, work in rows(97)]
    np.testing.assert_allclose(made.beyond(traits), written.beyond(traits), rtol=0, atol=1e-4)


@one_in(29)
def test_what_is_written_down_of_launches_explains_them(every):
    machine = machine_of("sm_90a")
    assert neighbours_in(machine.timing.neighbours).weights.shape == (COUNT,)
    assert left_unexplained(machine, rows(every)) < 0.8 * left_unexplained(without_neighbours(), rows(every))


@one_in(29)
def test_launches_tell_of_others_that_nobody_measured(every):
    plain = without_neighbours()
    known, unknown = (
        [one for one in rows(every) if (one[0].shape[2] % 3 == 0) is is_known] for is_known in (False, True)
    )
    assert min(len(known), len(unknown)) > 2000 // every
    beyond = neighbours_of(plain, known).beyond
    assert left_unexplained(plain, unknown, beyond) < 0.9 * left_unexplained(plain, unknown)


def test_of_launches_unlike_all_that_were_measured_nothing_is_told():
    known = neighbours_in(machine_of("sm_90a").timing.neighbours)
    far = tuple(known.places.max(0) + 50.0)
    assert known.beyond([far]) == known.beyond([far[1:]]) == [0.0] and known.beyond([]) == []


def test_launches_are_predicted_together_as_they_are_alone():
    machine, some = machine_of("sm_90a"), [work for _, work in rows(29)]
    assert len(some) > 2 * AT_ONCE
    together = [one.seconds for one in machine.predict_all(some)]
    np.testing.assert_allclose(together, [machine.predict(work).seconds for work in some], rtol=1e-12)


@pytest.mark.parametrize("dtype", [f8e4m3fn, i8])
def test_of_other_dtypes_nothing_was_measured(dtype):
    acc = i32 if dtype is i8 else f32
    kernel = gemm(dtype, acc=acc, out=acc)
    work = undecided((512, 512, 512), kernel=kernel).problem.cut(dict(zip(BLOCKS, (128, 128, 128), strict=True)))
    assert machine_of("sm_90a").predict(work) == without_neighbours().predict(work)


def test_shared_memory_and_stages_are_those_that_the_compiler_takes():
    machine = machine_of("sm_90a")
    for tile in [(128, 256, 64), (64, 64, 128), (128, 64, 128), (256, 128, 64), (64, 16, 128), (128, 256, 128)]:
        subs = {**sized((4096, 4096, 4096)), **dict(zip(BLOCKS, tile, strict=True))}
        made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), product())
        work = cut((4096, 4096, 4096), tile)
        assert machine.shared_bytes(work, machine.stages(work)) == made.resources.shared_bytes, tile


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((216, 5760, 704), (16, 192, 64)),
        ((216, 5760, 704), (32, 128, 64)),
        ((216, 5763, 705), (32, 64, 64)),
        ((216, 5763, 705), (64, 64, 64)),
        ((216, 5762, 704), (128, 192, 64)),
        ((216, 5764, 704), (64, 32, 64)),
        ((1216, 5764, 704), (256, 16, 64)),
        ((1216, 5763, 704), (256, 192, 64)),
    ],
)
def test_what_results_take_of_shared_memory_where_lanes_store_them(shape, tile):
    """Nothing if they are transposed, or too many; otherwise waves rearrange them into rows."""
    machine, work = machine_of("sm_90a"), cut(shape, tile)
    made = wave_compile(
        WaveCompileOptions(subs={**sized(shape), **dict(zip(BLOCKS, tile, strict=True))}, target="sm_90a"), product()
    )
    assert machine.shared_bytes(work, machine.stages(work)) == made.resources.shared_bytes


@pytest.mark.parametrize("tile", [(64, 128, 32), (64, 192, 32), (128, 80, 32), (128, 128, 32)])
def test_lanes_that_load_store_results_too(tile):
    """Into rows where they hold few sums, and chunks of whole rows divide the tile; else as they hold them, slowly."""
    shape, machine = (2163, 2440, 2), machine_of("sm_90a")
    work = cut(shape, tile, layout="TN")
    subs = {**sized(shape), **dict(zip(BLOCKS, tile, strict=True))}
    made = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), product("TN"))
    in_rows = "st.global.v4" in made.asm
    assert machine.loading(work) is Loading.BY_LANES and bool(machine._staged_writes(work)) == in_rows
    rows, held = (machine.predict(cut(shape, (64, n, 32), layout="TN")).seconds for n in (128, 192))
    assert held > 2 * rows  # measured, when lanes loaded 3163×3440×1 too: 7.5 and 22 µs


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((128, 8192, 8192), (64, 128, 64)),
        ((1120, 1888, 6152), (96, 192, 64)),
        ((1120, 1888, 6152), (96, 256, 64)),
        ((1120, 1888, 1096), (96, 192, 64)),
        ((1280, 1888, 6152), (128, 144, 64)),
    ],
)
def test_copies_that_the_model_leaves_out_are_those_that_others_bring(shape, tile):
    options = WaveCompileOptions(subs={**sized(shape), **dict(zip(BLOCKS, tile, strict=True))}, target="sm_90a")
    cluster = wave_compile(options, product().ordered("grouped(4)")).build.lanes.cluster
    work = cut(shape, tile)
    spared, inside = (
        machine_of("sm_90a").spared_step_bytes(work),
        work.operands[1].inside_bytes * work.operands[1].times,
    )
    assert spared == pytest.approx({1: 0.0, 2: 0.5, 4: 0.75}[cluster] * inside / work.steps)


@pytest.mark.parametrize(
    ("shape", "tile", "streams"),
    [
        ((128, 8192, 8192), (64, 128, 64), True),
        ((128, 8192, 8192), (128, 64, 64), False),
        ((512, 4096, 3840), (128, 128, 64), False),
        ((512, 4104, 8200), (128, 128, 64), False),
        ((192, 8192, 8192), (64, 128, 64), False),
    ],
)
def test_the_model_knows_which_launches_start_when_others_have_ended(shape, tile, streams):
    """For the last, two fit on an SM, and there are more than SMs: they start early (PDL) as they find room."""
    options = WaveCompileOptions(subs={**sized(shape), **dict(zip(BLOCKS, tile, strict=True))}, target="sm_90a")
    lanes, work = wave_compile(options, product()).build.lanes, cut(shape, tile)
    is_early = any(isinstance(op, WaitPriorLaunch) for op in walk(lanes.body))
    assert machine_of("sm_90a").streams_to_neighbours(work) == streams == (not is_early)


def test_parts_that_come_one_by_one_are_waited_for():
    """Measured: 4.0 µs in 16 parts, 15.7 in 32, of which more workgroups are than run at once."""
    machine = machine_of("sm_90a")
    few, many = (machine.predict(cut((300, 2, 2000), (64, 8, 64), layout="NN", split=n)).seconds for n in (16, 32))
    assert many > 1.5 * few


def test_registers_leave_room_for_one_workgroup_of_several_groups():
    machine = machine_of("sm_90a")
    assert machine.resident(cut((3, 12160, 1728), (8, 128, 64), num_stages=3)) == 1
    assert machine.resident(cut((3, 12160, 1728), (8, 64, 64), num_stages=6)) == 4
    assert machine.resident(cut((216, 5760, 704), (64, 192, 64), num_stages=3)) == 2
    assert machine.resident(cut((216, 5760, 704), (64, 256, 64), num_stages=3)) == 1


def test_where_the_next_launch_finds_room_arrays_are_still_in_l2():
    """Measured: 7.3 µs with 6 stages, of which four workgroups fit on a unit, and 13.2 µs with 12."""
    machine = machine_of("sm_90a")
    few, many = (
        machine.predict(cut((3, 12160, 1728), (8, 64, 64), layout="NN", num_stages=n)).seconds for n in (6, 12)
    )
    assert few < 0.75 * many


def test_few_places_in_shared_memory_wait_for_copies():
    machine = machine_of("sm_90a")
    two, three, six = (
        machine.predict(cut((4096, 4096, 4096), (128, 128, 64), num_stages=n)).seconds for n in (2, 3, 6)
    )
    assert two > three > six


@pytest.mark.parametrize("target", ["sm_90a", "gfx942", "gfx950"])
def test_the_compiler_takes_what_is_legal(target):
    open_tiles = undecided((512, 512, 512), target)
    ranked = rank(open_tiles.problem, open_tiles.space, open_tiles.machine)
    corners = [*ranked.legal[:2], *sorted(ranked.legal, key=lambda p: -math.prod(p.config.values()))[:3]]
    for one in corners:
        options = WaveCompileOptions(subs={**sized((512, 512, 512)), **one.config}, target=target)
        assert wave_compile(options, open_tiles.kernel).resources.shared_bytes > 0


def test_the_compiler_refuses_what_registers_make_illegal():
    open_tiles = undecided((512, 512, 512))
    refused = 0
    for config in open_tiles.space.configs():
        if open_tiles.machine.refused(open_tiles.problem.cut(config)) == "registers":
            refused += 1
            options = WaveCompileOptions(subs={**sized((512, 512, 512)), **config}, target="sm_90a")
            with pytest.raises(ConstraintError, match="sums to hold"):
                wave_compile(options, open_tiles.kernel)
    assert refused


def test_illegal_points_are_counted_by_what_there_is_too_little_of():
    open_tiles = undecided((4096, 4096, 4096))
    tiles = open_tiles.space.without(*KNOBS)
    ranked = rank(open_tiles.problem, tiles, open_tiles.machine)
    assert ranked.considered == len(tiles)
    assert set(ranked.illegal) == {"registers", "shared memory"}
    assert set(rank(open_tiles.problem, open_tiles.space, open_tiles.machine).illegal) == {*ranked.illegal, "split-K"}


# -- what no constraint names -----------------------------------------------------------------------------------------


def test_stages_and_parts_are_decisions_too():
    values = {d.symbol: d.values for d in undecided((512, 512, 4096)).space.decisions}
    assert values[NUM_STAGES] == (0, 3, 6, 8, 12) and values[SPLIT] == (0, 2, 4, 8, 16, 32)
    for target in ("gfx942", "cpu"):
        assert undecided((512, 512, 4096), target).space.without(*BLOCKS, *KNOBS).decisions == ()
        assert SPLIT not in undecided((512, 512, 4096), target).space.symbols


def test_what_the_author_cuts_is_no_decision_unless_its_number_is_open():
    kernel = gemm(constraints=[SplitConstraint(K, 4)])
    assert SPLIT not in undecided((64, 64, 4096), kernel=kernel).space.symbols
    open_parts = undecided((64, 64, 4096), kernel=gemm(constraints=[SplitConstraint(K, sym.PARTS)])).space
    assert {d.symbol: d.values for d in open_parts.decisions}[sym.PARTS] == (1, 2, 4, 8, 16, 32)


def test_the_compiler_takes_stages_and_parts_as_chosen():
    tune = Tune(BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, num_stages=3, split=4)
    one = wave_compile(WaveCompileOptions(subs=sized((16, 512, 4096)), target="sm_90a", tune=tune), product())
    assert one.choice.config == {BLOCK_M: 16, BLOCK_N: 64, BLOCK_K: 64, NUM_STAGES: 3, SPLIT: 4}
    kernel = gemm(out=f16, epilogue=lambda x: cast(x, f16), constraints=[SplitConstraint(K, 4)])
    subs = sized((16, 512, 4096)) | {BLOCK_M: 16, BLOCK_N: 64, BLOCK_K: 64}
    assert one.asm == wave_compile(WaveCompileOptions(subs=subs, target="sm_90a", num_stages=3), kernel).asm
    assert "num_stages=3, split=4 to keep it" in str(one.why())


def test_stages_that_the_options_say_are_kept():
    options = WaveCompileOptions(subs=sized((512, 512, 512)), target="sm_90a", num_stages=3)
    assert wave_compile(options, product()).choice.num_stages == 3


def test_a_long_sum_of_few_tiles_is_predicted_faster_in_parts():
    machine = machine_of("sm_90a")
    whole, parts = (machine.predict(cut((16, 256, 16384), (16, 64, 64), split=n)).seconds for n in (1, 8))
    assert parts < whole * 1.05  # the compiler splits such a sum by default
    many = machine.predict(cut((16, 8192, 64 * 16), (16, 64, 64), split=8)).seconds
    assert many > machine.predict(cut((16, 8192, 64 * 16), (16, 64, 64))).seconds


def test_points_that_say_what_is_done_anyway_are_not_tried_again():
    open_tiles = undecided((4096, 4096, 4096))
    machine = open_tiles.machine
    same = machine.stages(cut((4096, 4096, 4096), (64, 64, 64)))
    assert machine.is_repeated(cut((4096, 4096, 4096), (64, 64, 64), num_stages=same))
    assert not machine.is_repeated(cut((4096, 4096, 4096), (64, 64, 64), num_stages=same - 1))


# -- how operands come there ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NT", "NN", "TT", "TN"])
@pytest.mark.parametrize("shape", [(2056, 2056, 1032), (2057, 2056, 1032), (2056, 2057, 1032), (2056, 2056, 1033)])
def test_who_brings_operands_is_who_the_compiler_lets_bring_them(shape, layout):
    one = wave_compile(
        WaveCompileOptions(subs=sized(shape) | dict(zip(BLOCKS, (128, 128, 64), strict=True)), target="sm_90a"),
        product(layout),
    )
    copied = [row for row in one.why() if row.step == "pack_unaligned"]
    found = machine_of("sm_90a").loading(cut(shape, (128, 128, 64), layout=layout))
    assert found is (Loading.REPACKED if copied else Loading.IN_PLACE)


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("tile", [(8, 32), (8, 64), (16, 64), (32, 32), (64, 16), (128, 192), (152, 64), (160, 64)])
def test_tiles_that_the_engine_does_not_bring_are_those_that_the_compiler_lets_lanes_load(tile, layout):
    subs = sized((512, 512, 512)) | dict(zip(BLOCKS, (*tile, 64), strict=True))
    one = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), product(layout))
    by_lanes = machine_of("sm_90a").loading(cut((512, 512, 512), (*tile, 64), layout=layout)) is Loading.BY_LANES
    assert by_lanes == ("cp.async.bulk.tensor" not in one.asm)


@pytest.mark.parametrize("layout", ["NT", "NN", "TT", "TN"])
@pytest.mark.parametrize(
    "shape", [(2001, 4, 3003), (57, 3001, 3003), (58, 3001, 3003), (70, 2001, 3008), (56, 2002, 99)]
)
def test_odd_operands_are_left_where_they_lie_as_calls_leave_them(shape, layout):
    tile = (64, 16, 64) if shape[1] < 8 else (64, 64, 64)
    subs = sized(shape) | dict(zip(BLOCKS, tile, strict=True))
    one = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), product(layout))
    planned = one.build.program.plans.plan_for([view(np.empty(p.shape, np.float16)) for p in one.parameters])
    copied = Loading.REPACKED if planned.packed_copies else Loading.IN_PLACE
    expected = Loading.BY_LANES if planned.key.is_by_lanes else copied
    assert machine_of("sm_90a").loading(cut(shape, tile, layout=layout)) is expected


def test_small_products_of_odd_rows_are_loaded_by_lanes():
    machine = machine_of("sm_90a")
    assert machine.loading(cut((64, 65, 333), (64, 64, 64))) is Loading.BY_LANES
    assert machine.loading(cut((64, 64, 336), (64, 64, 64))) is Loading.IN_PLACE
    assert not machine.refused(cut((64, 65, 333), (64, 64, 64), split=2))  # lanes load parts as well


def test_copies_of_odd_rows_are_counted():
    machine = machine_of("sm_90a")
    well, odd = (machine.predict(cut((4096, 4096, k), (128, 256, 64))).seconds for k in (4096, 4095))
    assert odd - well > 2 * 4096 * 4095 * 2 / machine.card.hbm.bytes_per_second


def test_tiles_longer_than_a_dim_are_left_out():
    open_tiles = undecided((40, 5000, 64))
    values = {d.symbol: d.values for d in open_tiles.space.within(open_tiles.problem.values).decisions}
    assert values[BLOCK_M] == (8, 16, 24, 32, 40, 48, 64) and max(values[BLOCK_N]) == 256
    values = {d.symbol: d.values for d in open_tiles.space.within({M: 130, N: 2, K: 5000}).decisions}
    assert max(values[BLOCK_M]) == 192 and max(values[BLOCK_N]) == 64  # as many are multiplied at once


@pytest.mark.parametrize(("shape", "deepest"), [((64, 512, 4096), 256), ((512, 1, 4096), 256), ((65, 512, 4096), 128)])
def test_steps_of_narrow_products_may_be_deeper(shape, deepest):
    open_tiles = undecided(shape)
    values = {d.symbol: d.values for d in open_tiles.space.within(open_tiles.problem.values).decisions}
    assert max(values[BLOCK_K]) == deepest
    asked = open_tiles.space.with_only(BLOCK_K, 64).within(open_tiles.problem.values)
    assert {d.symbol: d.values for d in asked.decisions}[BLOCK_K] == (64,)


def test_short_dims_are_cut_evenly():
    """As few tiles as are enough, or one more: multiples of eight, and of sixteen for a transposed operand."""
    tiles = Covering(256, (8, 16), parts=4).tiles
    assert [tiles(n) for n in (1, 24, 152, 536)] == [{8, 16}, {24, 32, 16}, {152, 160, 80}, {184, 192, 136, 144}]
    assert not tiles(1025)
    short = Covering(128, (4,), least=4).tiles
    fills = Covering(256, (16,), filling=(132, 66), shortest=32).tiles
    assert [fills(n) for n in (13568, 5888, 4000)] == [{112, 208}, {48, 96}, {64}]
    assert [short(n) for n in (3, 5, 128, 129)] == [{3}, {8}, {128}, set()]
    assert not NO_COVERING.tiles(1)


def test_tiles_that_make_up_whole_rounds_are_tried():
    """5000 by 5000 are 33 tiles of 152 rows by 20 of 256 columns, five waves of 132; 128 by 224 are 6.97."""
    rows = Covering(256, (8, 16), parts=4, fitted=WholeRounds(132, 8))
    assert not rows.tiles(5000), "of the other side nothing is known"
    assert [rows.tiles(n, n) for n in (5000, 8192)] == [{152, 216}, set()]
    assert WholeRounds(132, 16).lengths(1920, 1120) == [144, 96]
    one = undecided((5000, 5000, 5000))
    chosen = one.predicted({})[0]
    assert [*chosen.tiles.values()] == [152, 256, 64]
    assert one.machine.stages(one.problem.cut(chosen.config)) == 4


def test_few_rows_that_lie_across_the_depth_take_a_tile_that_the_engine_brings():
    """The tile is as wide as one warpgroup, since a tile of eight has too short rows for TMA; it took half the time
    on an H200. Split-K configs are left out, because loads by lanes may be as fast there."""
    one = undecided((4, 3776, 3136), kernel=product("TN"))
    one = replace(one, space=one.space.without(SPLIT))
    assert one.machine.loading(one.problem.cut(one.choices()[0].config)) is not Loading.BY_LANES


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
        return open_tiles.problem.cut(best.config).tasks

    assert tiles(64) > tiles(1)


def test_one_row_takes_a_tile_of_one_row():
    open_tiles = undecided((1, 4096, 4096), "cpu")
    assert open_tiles.choices()[0].config[BLOCK_M] == 1
