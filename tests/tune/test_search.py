"""Searches: at most so many runs, wrong points are never chosen, and who is killed goes on where it stopped."""

import json

import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, K, M, N, gemm

from tilewave import *
from tilewave.bench import measured_on
from tilewave.bench.tuning import tune
from tilewave.cli.tune_report import reasons_for
from tilewave.errors import SymbolError, TargetError
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import merged
from tilewave.tune.search import UNFINISHED, ConfigTime, candidates, search
from tilewave.tune.store import FILE

SIZES = {M: 512, N: 512, K: 512}


def open_tiles(target="sm_90a", within=None, sizes=SIZES, kernel=None):
    return TunableKernel.of(kernel or gemm(), sizes, (), {}, target, within)


class Clock:
    """A timer that times configs by a rule; `seen` has those that it timed."""

    def __init__(self, rule, most=10**6):
        self.rule, self.seen, self.most = rule, [], most

    def __call__(self, configs):
        found = []
        for config in configs:
            if len(self.seen) >= self.most:
                raise KeyboardInterrupt
            self.seen.append(config.text)
            answer = self.rule(config)
            found.append(answer if isinstance(answer, ConfigTime) else ConfigTime(answer, 1e-9, 9))
        return found


def area(config):
    """Make the smallest tile the fastest; then the one with the smaller K and fewer rows and stages."""
    rows, cols, depth = (config.config[s] for s in (BLOCK_M, BLOCK_N, BLOCK_K))
    knobs = sum(n for s, n in config.config.items() if s not in (BLOCK_M, BLOCK_N, BLOCK_K))
    other_order = config.order not in ("", "grouped(8)")
    return 1e-9 * rows * cols * depth + 1e-7 * depth + 1e-8 * rows + 1e-6 * knobs + 1e-7 * other_order


def recorded(directory):
    return merged((directory / FILE).read_text().splitlines())[0]


def test_the_model_alone_runs_nothing(tmp_path):
    clock = Clock(area)
    found = search(open_tiles(), "model", clock, tmp_path)
    assert clock.seen == [] and found.tried == ()
    assert found.winner.text == open_tiles().predicted({})[0].text
    assert [r.how for r in recorded(tmp_path)] == ["model"]


def test_at_most_so_many_points_are_timed_and_the_fastest_is_kept(tmp_path):
    clock = Clock(area)
    found = search(open_tiles(), "measured", clock, tmp_path, runs=8)
    assert len(found.tried) == 8 == len({*clock.seen})
    best = min(candidates(open_tiles(), "measured", 8), key=area)
    assert found.winner.text == best.text and found.record.tried == 8
    assert recorded(tmp_path) == [found.record] and found.record.how == "measured"
    assert not (tmp_path / UNFINISHED).exists()
    assert found.record.measured == pytest.approx(area(best), rel=1e-9)


@pytest.mark.parametrize("target", ["cpu", "sm_90a", "gfx942"])
def test_the_best_predicted_are_timed(target):
    one = open_tiles(target)
    assert [c.text for c in candidates(one, "measured", 8)] == [c.text for c in one.predicted({})[:8]]


def test_exhaustive_is_every_legal_point(tmp_path):
    found = search(open_tiles(), "exhaustive", Clock(area), tmp_path)
    tiles = open_tiles()
    assert len(found.tried) == len(tiles.predicted({})) * len(tiles.machine.orders)
    assert found.winner.config == min(tiles.predicted({}), key=area).config


def test_a_point_without_a_time_is_reported_and_never_chosen(tmp_path):
    wrong = min(candidates(open_tiles(), "measured", 8), key=area).text

    def rule(config):
        return ConfigTime(None, why="its result is wrong") if config.text == wrong else area(config)

    found = search(open_tiles(), "measured", Clock(rule), tmp_path, runs=8)
    assert found.winner.text != wrong
    assert [(one.text, one.time.why) for one in found.tried if one.time.seconds is None] == [
        (wrong, "its result is wrong")
    ]


def test_where_nothing_has_a_time_the_model_decides_and_the_record_says_so(tmp_path):
    found = search(open_tiles(), "measured", Clock(lambda p: ConfigTime(None, why="refused")), tmp_path, runs=3)
    assert (found.record.how, found.record.tried, found.record.measured) == ("model", 0, None)


def test_a_difference_within_the_spread_changes_nothing(tmp_path):
    first = open_tiles().predicted({})[0].text

    def rule(config):
        return ConfigTime(1.00e-5 if config.text == first else 0.95e-5, 1e-6, 9)

    found = search(open_tiles(), "measured", Clock(rule), tmp_path, runs=4)
    assert found.winner.text == first
    assert any("within noise of the winner" in line for line in reasons_for(found))


def test_a_search_that_was_killed_goes_on_where_it_stopped(tmp_path):
    first = Clock(area, most=7)
    with pytest.raises(KeyboardInterrupt):
        search(open_tiles(), "exhaustive", first, tmp_path)
    assert len((tmp_path / UNFINISHED).read_text().splitlines()) == 5  # one batch: the first point and four more
    with (tmp_path / UNFINISHED).open("a") as file:
        file.write('{"search": half a line')
    second = Clock(area)
    found = search(open_tiles(), "exhaustive", second, tmp_path)
    again = {*first.seen[:5]} & {*second.seen}
    assert found.resumed == 5 and again == {first.seen[0]}  # which every batch is compared with
    assert found.record == search(open_tiles(), "exhaustive", Clock(area), tmp_path / "whole").record
    assert (tmp_path / UNFINISHED).read_text().splitlines() == ['{"search": half a line']


def test_batches_are_compared_by_the_point_that_is_in_all_of_them(tmp_path):
    """A machine that gets twice as slow on its way makes no point slower than it is."""
    clock = Clock(area)

    def measure(configs):
        slow = 1 + len(clock.seen) // 5
        return [ConfigTime(one.seconds * slow, one.spread, one.rounds) for one in clock(configs)]

    found = search(open_tiles(), "exhaustive", measure, tmp_path)
    for one in found.tried:
        assert one.time.seconds == pytest.approx(area(one.choice), rel=1e-9)


def test_other_orders_are_tried_where_they_matter_and_somebody_asks_for_them():
    sizes = {M: 8192, N: 8192, K: 512}
    asked = Tune(mapping=["grouped(4)", "grouped(8)", "grouped(16)"])
    assert len({one.order for one in candidates(open_tiles(within=asked, sizes=sizes), "measured", 8)}) == 3
    assert len({one.order for one in candidates(open_tiles(sizes=sizes), "measured", 8)}) == 1
    assert len({one.order for one in candidates(open_tiles(sizes=sizes), "exhaustive", 8)}) == 3
    assert {one.order for one in candidates(open_tiles(), "measured", 8)} == {"grouped(8)"}


def test_an_unknown_strength_is_told_with_those_that_there_are(tmp_path):
    with pytest.raises(TilewaveError, match="unknown strength 'quick'"):
        search(open_tiles(), "quick", Clock(area), tmp_path)


# -- what may be tried


def test_tune_narrows_and_widens_the_space():
    space = open_tiles(within=Tune(BLOCK_M=(64, 128), BLOCK_N=24)).space
    values = {d.symbol: d.values for d in space.decisions}
    assert values[BLOCK_M] == (64, 128) and values[BLOCK_N] == (24,) and len(values[BLOCK_K]) > 1


def test_the_choice_is_among_what_tune_names():
    options = WaveCompileOptions(subs=SIZES, target="sm_90a", tune=Tune(BLOCK_M=(128,), BLOCK_N=(32, 64)))
    config = wave_compile(options, gemm()).choice.config
    assert config[BLOCK_M] == 128 and config[BLOCK_N] in (32, 64)


def test_a_kernel_brings_its_own_tune_and_options_go_before_it():
    @wave([WorkgroupConstraint(M, BLOCK_M, 0)], tune=Tune(BLOCK_M=3))
    def double(x: Memory[M, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x) * 2.0, y)

    assert wave_compile(WaveCompileOptions(subs={M: 9}, target="cpu"), double).choice.config == {BLOCK_M: 3}
    options = WaveCompileOptions(subs={M: 9}, target="cpu", tune=Tune(BLOCK_M=2))
    assert wave_compile(options, double).choice.config == {BLOCK_M: 2}


def test_orders_that_tune_names_are_the_ones_tried():
    options = WaveCompileOptions(subs=SIZES, target="sm_90a", tune=Tune(mapping=["hilbert()"]))
    assert wave_compile(options, gemm()).choice.order == "hilbert()"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Tune(BLOCK_M=()), "Tune: BLOCK_M is (), which leaves nothing to try"),
        (lambda: Tune(BLOCK_M=0), "Tune: BLOCK_M is 0, which leaves nothing to try"),
        (lambda: Tune(BLOCK_M=(True,)), "Tune: BLOCK_M is (True,), which leaves nothing to try"),
        (lambda: Tune(mapping=[]), "Tune: mapping is [], no list of orders"),
        (lambda: Tune(mapping="hilbert()"), "Tune: mapping is 'hilbert()', no list of orders"),
        (lambda: open_tiles(within=Tune(BLOK_M=64)), "Tune: BLOK_M cannot be tuned here"),
    ],
)
def test_spaces_without_a_point_are_refused(made, told):
    with pytest.raises(SymbolError) as error:
        made()
    assert error.value.what == told and error.value.remedy


def test_a_space_of_illegal_points_alone_says_what_there_is_too_little_of():
    options = WaveCompileOptions(subs=SIZES, target="sm_90a", tune=Tune(BLOCK_M=256, BLOCK_N=256))
    with pytest.raises(TilewaveError, match=r"of 32 configs 32 are illegal \(32 by registers\), so no tile is left"):
        wave_compile(options, gemm())


def test_what_is_no_tune_is_refused():
    with pytest.raises(TilewaveError, match="tune is 'fast', no Tune"):
        wave_compile(WaveCompileOptions(subs=SIZES, target="cpu", tune="fast"), gemm())


# -- here


def test_points_are_timed_on_this_machine(tmp_path):
    sizes = {M: 40, N: 30, K: 20}
    found = tune(gemm(), sizes, "cpu", "measured", records=tmp_path, runs=2, rounds=2)
    assert found.record.how == "measured" and found.record.measured > 0 and found.record.tried == 2
    (line,) = (tmp_path / FILE).read_text().splitlines()
    assert json.loads(line)["at"].endswith(" K=20,M=40,N=30")


def test_a_card_that_is_not_here_leaves_the_model_and_counts(tmp_path):
    found = tune(gemm(), SIZES, "gfx942", "measured", records=tmp_path)
    assert found.record.how == "model" and "by the model alone" in found.record.notes
    assert "instructions for each matrix instruction" in found.record.notes


def test_a_missing_gpu_is_reported_in_the_name_of_the_command(tmp_path, monkeypatch):
    def no_driver():
        raise TargetError("no card")

    monkeypatch.setattr(measured_on, "cuda_driver", no_driver)
    found = tune(gemm(), SIZES, "sm_90a", "measured", records=tmp_path)
    assert found.record.notes == "by the model alone: tilewave tune measures on an NVIDIA GPU, but no card"


def test_what_was_tuned_is_what_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    sizes, kernel = {M: 64, N: 64, K: 64}, gemm()
    within = Tune(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    tune(kernel, sizes, "cpu", "model", within=within, records=tmp_path)
    one = wave_compile(WaveCompileOptions(subs=sizes, target="cpu"), kernel)
    assert {*one.choice.config.values()} == {16} and "a record in" in one.choice.reason


def test_a_record_serves_calls_of_its_sizes_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    kernel, within = gemm(), Tune(BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    tune(kernel, {M: 64, N: 64, K: 64}, "cpu", "model", within=within, records=tmp_path)
    one = open_tiles("cpu", sizes={}, kernel=kernel)
    assert {*one.choices({M: 64, N: 64, K: 64})[0].config.values()} == {16}
    assert "the model" in one.choices({M: 65, N: 64, K: 64})[0].reason


def fixed(**given):
    tiles = [WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)]

    @wave(tiles, **given)
    def double(x: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x) * 2.0, y)

    return double


def test_tiles_that_a_kernel_fixes_are_not_tuned(tmp_path):
    """A record of them would never be used, as the kernel's values go before it."""
    whole = fixed(subs={BLOCK_M: 7, BLOCK_N: 3})
    with pytest.raises(TilewaveError) as error:
        tune(whole, {M: 16, N: 16}, "cpu", "model", records=tmp_path)
    assert error.value.what == "nothing to tune: double fixes BLOCK_M=7, BLOCK_N=3"
    assert error.value.remedy == "remove BLOCK_M, BLOCK_N from subs" and not [*tmp_path.iterdir()]
    partly = fixed(subs={BLOCK_M: 7})
    found = tune(partly, {M: 16, N: 16}, "cpu", "model", records=tmp_path)
    assert {*found.winner.config} == {BLOCK_N}


def test_a_record_of_the_tiles_that_are_left_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    partly, sizes = fixed(subs={BLOCK_M: 7}), {M: 16, N: 16}
    tune(partly, sizes, "cpu", "model", within=Tune(BLOCK_N=5), records=tmp_path)
    one = wave_compile(WaveCompileOptions(subs=sizes, target="cpu"), partly)
    assert one.choice.config == {BLOCK_N: 5} and "a record in" in one.choice.reason


@pytest.mark.parametrize(
    ("kernel", "subs", "given"),
    [
        ({"subs": {BLOCK_M: 7}}, {}, Tune(BLOCK_M=(4, 8))),
        ({}, {BLOCK_M: 7}, Tune(BLOCK_M=(4, 8), BLOCK_N=2)),
        ({"subs": {BLOCK_M: 7}, "tune": Tune(BLOCK_M=(4, 8))}, {}, None),
        ({"subs": {BLOCK_M: 7, BLOCK_N: 4}}, {}, Tune(BLOCK_M=8)),
    ],
)
def test_a_tune_that_names_a_symbol_with_a_value_is_refused(kernel, subs, given):
    options = WaveCompileOptions(subs={M: 16, N: 16, **subs}, target="cpu", tune=given)
    with pytest.raises(TilewaveError) as error:
        wave_compile(options, fixed(**kernel))
    assert error.value.what == "Tune: nothing to tune: double fixes BLOCK_M=7"
    assert error.value.remedy == "remove BLOCK_M from subs, or from Tune"


def test_options_may_fix_what_a_kernel_tunes():
    given = WaveCompileOptions(subs={M: 16, N: 16, BLOCK_M: 7, BLOCK_N: 4}, target="cpu")
    assert wave_compile(given, fixed(tune=Tune(BLOCK_M=(4, 8)))).choice is None


def test_a_kernel_that_leaves_nothing_to_decide_is_told(tmp_path):
    @wave([WorkgroupConstraint(M, 16, 0)])
    def double(x: Memory[M, GLOBAL_ADDRESS_SPACE, f32], y: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        write(read(x) * 2.0, y)

    with pytest.raises(TilewaveError, match="nothing to tune: double gives all of its tiles"):
        tune(double, {M: 16}, "cpu", records=tmp_path)
    with pytest.raises(TilewaveError, match="size M is missing"):
        tune(double, {}, "cpu", records=tmp_path)
