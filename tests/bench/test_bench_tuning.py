"""Decisions of the cost model ask for no card."""

from kernels import *

from tilewave.bench.tuning import tune


def test_the_model_decides_without_a_card_and_has_nothing_to_say_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewave.bench.tuning.device_of", None)
    sizes = {M: 512, N: 512, K: 512}
    found = tune(gemm(), sizes, "gfx942", "model", records=tmp_path)
    assert found.record.how == "model" and "by the model alone" not in found.record.notes
