"""`@autotune` and TILEWAVE_AUTOTUNE: calls time configs once for each class of sizes, and a record is kept."""

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, G, K, M, N, check_product, gemm, poisoned, random_array

from tilewave import *
from tilewave.bench import tuning
from tilewave.bench.tuning import ConfigTimer
from tilewave.errors import SymbolError
from tilewave.tune.default import TunableKernel
from tilewave.tune.records import merged
from tilewave.tune.search import ConfigTime
from tilewave.tune.store import FILE

SMALL, LARGE = {BLOCK_M: 8, BLOCK_N: 16, BLOCK_K: 16}, {BLOCK_M: 24, BLOCK_N: 32, BLOCK_K: 64}


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """A clock by which the smallest tile is the fastest; the list of what it timed."""
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    monkeypatch.setenv("TILEWAVE_BACKGROUND", "0")
    seen = []

    def clock(self, configs):
        seen.append([one.text for one in configs])
        return [ConfigTime(1e-6 * one.config[BLOCK_M] * one.config[BLOCK_N], 1e-9, 3) for one in configs]

    monkeypatch.setattr(ConfigTimer, "__call__", clock)
    return seen


def call(kernel, m=20, n=30, k=40):
    rng = np.random.default_rng(m)
    a, b, c = random_array(rng, (m, k), f32), random_array(rng, (n, k), f32), poisoned((m, n), f32)
    kernel(a, b, c)
    check_product(c, a, b)


def served(kernel, m=20, n=30, k=40):
    (one,) = kernel.kept["call"]._kernels.values()
    return one.by_size.of([(m, k), (n, k), (m, n)]).choice


def test_calls_time_the_given_configs_once_for_each_class_of_sizes(timed, tmp_path):
    kernel = autotune(configs=[LARGE, SMALL])(gemm(f32))
    for m in (20, 32, 17):
        call(kernel, m)
    assert len(timed) == 1 and len(timed[0]) == 2
    assert served(kernel).tiles == SMALL and "a record in" in served(kernel).reason
    call(kernel, 33)
    assert len(timed) == 2
    keys = [one.key.sizes for one in merged((tmp_path / FILE).read_text().splitlines())[0]]
    assert sorted(keys) == ["K=33..64,M=17..32,N=17..32", "K=33..64,M=33..64,N=17..32"]


def test_another_process_times_nothing_again(timed):
    call(autotune(configs=[LARGE, SMALL])(gemm(f32)))
    kernel = autotune(configs=[LARGE, SMALL])(gemm(f32))
    call(kernel)
    assert len(timed) == 1 and served(kernel).tiles == SMALL


def test_without_records_a_process_remembers(timed, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", "off")
    kernel = autotune(configs=[LARGE, SMALL])(gemm(f32))
    for m in (20, 21):
        call(kernel, m)
    assert len(timed) == 1 and served(kernel).tiles == SMALL


def test_default_configs_are_timed_where_the_environment_asks(timed, monkeypatch):
    kernel = gemm(f32)
    call(kernel)
    assert not timed and not served(kernel).record
    monkeypatch.setenv("TILEWAVE_AUTOTUNE", "1")
    kernel = gemm(f32)
    call(kernel)
    texts = {text for batch in timed for text in batch}
    assert 1 < len(texts) <= 8 and served(kernel).text in texts and served(kernel).record


def test_a_batch_invariant_kernel_is_not_timed(timed, monkeypatch):
    monkeypatch.setenv("TILEWAVE_AUTOTUNE", "1")
    call(wave_compile(WaveCompileOptions(target="cpu", batch_invariant=True), gemm(f32)))
    assert not timed


def test_configs_are_really_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_RECORDS", str(tmp_path))
    kernel = autotune(configs=[SMALL, LARGE])(gemm(f32))
    monkeypatch.setitem(tuning.tune.__kwdefaults__, "rounds", 1)
    call(kernel)
    (record,) = merged((tmp_path / FILE).read_text().splitlines())[0]
    assert record.how == "measured" and record.tried == 2 and record.measured > 0


def test_classes_of_sizes_go_from_one_power_of_two_to_the_next():
    tiles = TunableKernel.of(gemm(), {K: 64}, (), {}, "cpu")
    found = {n: tiles.class_key({M: n, N: 1}).sizes.split(",")[1] for n in (0, 1, 2, 3, 4, 5, 64, 65)}
    ends = {0: "0..1", 1: "0..1", 2: "2..2", 3: "3..4", 4: "3..4", 5: "5..8", 64: "33..64", 65: "65..128"}
    assert found == {n: f"M={text}" for n, text in ends.items()}
    assert tiles.class_key({M: 3, N: 1}).sizes == "K=64,M=3..4,N=0..1"


def test_a_config_is_kept_as_it_is_given():
    configs = [{**SMALL, "num_stages": 3}, LARGE]
    space = TunableKernel.of(gemm(), {}, (), {}, "sm_90a", Tune(configs=configs)).space
    assert [{s.name: n for s, n in one.items()} for one in space.configs()] == [
        {"BLOCK_M": 8, "BLOCK_N": 16, "BLOCK_K": 16, "num_stages": 3},
        {"BLOCK_M": 24, "BLOCK_N": 32, "BLOCK_K": 64},
    ]


def kernel_of(configs):
    return lambda: TunableKernel.of(autotune(configs)(gemm()), {}, (), {}, "cpu", Tune(configs=configs))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: autotune(configs=[]), "autotune: configs is empty"),
        (lambda: autotune(configs={BLOCK_M: 3}), "autotune: configs is no list of configs"),
        (kernel_of([{BLOCK_M: 3, BLOCK_N: 3}]), "autotune: a config gives no BLOCK_K: {'BLOCK_M': 3, 'BLOCK_N': 3}"),
        (kernel_of([{**SMALL, "BLOK": 3}]), "autotune: BLOK cannot be tuned here"),
        (lambda: autotune(configs=[{BLOCK_M: 0}]), "Tune: BLOCK_M is 0, which leaves nothing to try"),
    ],
)
def test_configs_that_cannot_be_are_refused(made, said):
    with pytest.raises(SymbolError) as error:
        made()
    assert error.value.what == said and error.value.remedy


def test_only_kernels_are_decorated():
    with pytest.raises(TilewaveError, match="autotune: this is no kernel"):
        autotune(configs=[SMALL])(lambda x: x)


def test_tuning_leaves_the_kernel_as_it_is():
    kernel = gemm()
    assert autotune(configs=[SMALL])(kernel) is not kernel and kernel.tune is None and G
