"""`benchmarks/transformer_h200.py`: its arguments, the sizes of its model, and the ratios that it prints."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the benchmark trains models of torch's; it is not installed")
PATH = Path(__file__).parents[2] / "benchmarks" / "transformer_h200.py"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(PATH.parents[1] / "examples"))
    monkeypatch.setenv("TILEWAVE_BACKGROUND", "0")
    spec = importlib.util.spec_from_file_location("transformer_h200", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_heads_must_divide_the_width(benchmark, capsys):
    assert benchmark.parsed(["--heads-of", "64", "--width", "128"]).heads_of == [64]
    with pytest.raises(SystemExit):
        benchmark.parsed(["--heads-of", "100"])
    assert "--heads-of 100: does not divide the width, 768" in capsys.readouterr().err


def test_the_model_has_other_sizes_for_a_while(benchmark):
    before = benchmark.example.WIDTH
    with benchmark.sizes(WIDTH=2 * before, HEADS=2, LAYERS=1):
        model = benchmark.example.fresh("cpu")
        assert len(model.layers) == 1 and model.norm.weight.shape == (2 * before,)
    assert before == benchmark.example.WIDTH


def test_ratios_are_of_rounds_and_parts_end_with_the_time(benchmark, capsys):
    clock = benchmark.Clock(5.0)
    benchmark.report({"tilewave, eager": [2.0, 4.0, 2.0], "torch, eager": [3.0, 6.0, 3.0]}, clock)
    assert not clock.allows("more", 9.0)
    ours, theirs, left = capsys.readouterr().out.splitlines()
    assert "2.00 ms" in ours and "1.500 ± 0.000 of its time to ours" in theirs and left.endswith("left out: more")
