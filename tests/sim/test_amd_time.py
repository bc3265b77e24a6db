"""Predicted times on AMD cards, held to published launches; the full comparison is benchmarks/fit_amd.py."""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tilewave.cost.parameters import CDNA4_CLOCKED
from tilewave.machine import find
from tilewave.sim import Gemm, SimError, explain, simulate
from tilewave.sim.clocked import CODE_ERROR, OTHER_CARD_ERROR
from tilewave.sim.simulate import run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ORDER = "xcd_contiguous(8) >> grouped(8)"
AMD_GEMM = Gemm(4096, 4864, 32896, (256, 256, 64))


@pytest.fixture(scope="module")
def fit_amd():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import fit_amd

        return fit_amd
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_streamed_products_that_were_not_fitted_are_met(fit_amd):
    """A sample; `benchmarks/fit_amd.py` has all 1,936."""
    every, long = fit_amd.formula_errors(29)
    assert len(every) > 60 and abs(median(every)) < 0.08
    assert np.median(np.abs(every)) < 0.15 and np.median(np.abs(long)) < 0.15


def test_launches_of_amds_kernels_are_met_by_their_machine_code(fit_amd):
    """With the shipped parameters and clocks; fits that leave kernels out are the benchmark's."""
    model = fit_amd.Model(find("MI355X"), CDNA4_CLOCKED, {"bf16": 1.5, "f8": 1.54, "f4": 1.24})
    rows = [row for row in fit_amd.launches("gfx950") if row.us > fit_amd.LONG][::5]
    errors = np.abs(fit_amd.errors_of(model, rows))
    assert len(rows) > 80 and np.median(errors) < 0.08 and np.quantile(errors, 0.9) < 0.2
    alone = np.abs(fit_amd.errors_of(replace(model, matrix_alone=True), rows))
    assert not np.array_equal(alone, errors)


@pytest.mark.slow
def test_kernels_left_out_of_a_fit_are_met(fit_amd):
    errors = np.abs(fit_amd.kernels_left_out("gfx950", ("f8",)))
    assert np.median(errors) < 0.06 and np.quantile(errors, 0.9) < 0.15
    places = fit_amd.f4_choices()
    assert sum(place < 3 for place in places) / len(places) > 0.75


def test_a_fit_does_not_see_what_it_is_judged_on(fit_amd):
    rows = fit_amd.launches("gfx950")
    seen = fit_amd.some(rows, 1)
    assert len(seen) == 3 * fit_amd.SEEN
    assert not set(map(id, seen)) & set(map(id, fit_amd.without(rows, seen)))
    judged = [one for one in fit_amd.tuned_products() if not fit_amd.is_seen(one)]
    assert 0.4 < len(judged) / len(fit_amd.tuned_products()) < 0.6


def test_the_simplex_finds_a_minimum(fit_amd):
    found = fit_amd.minimum(lambda x: (x[0] - 3) ** 2 + (x[1] - 0.5) ** 4, (1.0, 1.0), 200)
    assert found == pytest.approx([3.0, 0.5], abs=0.1)


def test_zeros_run_at_a_higher_clock():
    random, zeros = (simulate(AMD_GEMM, "MI300X", ORDER, data=data) for data in ("random", "zeros"))
    assert 1.0e9 < random.clock_hz < zeros.clock_hz <= find("MI300X").clock_hz
    assert zeros.seconds < random.seconds and (random.data, zeros.data) == ("random", "zeros")
    assert f"The clock is {zeros.clock_hz / 1e9:.2f} GHz, as power limits it with operands of zeros." in explain(zeros)
    with pytest.raises(SimError, match="unknown data 'ones'"):
        simulate(AMD_GEMM, "MI300X", data="ones")


def test_at_the_clock_and_utilization_that_amd_names_its_speed_is_met():
    """654 TFLOP/s of f16 at 1115 MHz; bytes and the ends of tiles are the model's own."""
    report = run(AMD_GEMM, "MI300X", ORDER, utilization=0.99).report
    assert report.tflops == pytest.approx(654, rel=0.06) and report.clock_hz == pytest.approx(1.115e9, rel=0.05)


def test_stream_k_is_faster_where_the_last_wave_is_short():
    whole = Gemm(4096, 4096, 4096, (256, 256, 64), workgroups=304)
    wide = replace(whole, n=5120)  # 320 tiles
    whole, shared = (simulate(replace(wide, last_wave=how), "MI300X", ORDER) for how in ("whole tiles", "stream-K"))
    assert shared.seconds < 0.75 * whole.seconds
    tails = [{p.name: p.share for p in report.breakdown}["tail"] for report in (whole, shared)]
    assert tails[0] > 0.3 > tails[1]
    with pytest.raises(SimError, match="unknown last wave: 'half'"):
        Gemm(64, 64, 64, last_wave="half")


def test_error_bars_name_what_they_rest_on():
    assert simulate(AMD_GEMM, "MI300X").seconds_error == 0.18
    assert simulate(AMD_GEMM, "MI325X").seconds_error == OTHER_CARD_ERROR
    assert simulate(AMD_GEMM, "MI325X").fitted_on.endswith("not on MI325X")
    coded = run(AMD_GEMM, "MI325X", utilization=0.95).report
    assert coded.seconds_error == CODE_ERROR and "machine code" in coded.fitted_on
    mine = replace(find("MI300X"), name="mine")
    assert simulate(AMD_GEMM, mine).seconds_error == 0.5


def test_the_clock_of_cards_without_a_power_limit_is_theirs():
    card = find("MI308X")
    assert card.power is None and card.sustained_hz("f16") == card.clock_hz
    assert simulate(AMD_GEMM, card).clock_hz == pytest.approx(card.clock_hz, rel=1e-3)
    assert simulate(AMD_GEMM, "H200").clock_hz is None
