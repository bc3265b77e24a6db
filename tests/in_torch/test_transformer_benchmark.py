"""`benchmarks/transformer_h200.py`: its arguments, the sizes of its model, and the ratios that it prints."""

import gc
import importlib.util
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the benchmark trains models of torch's; it is not installed")
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


def test_a_recorded_step_keeps_what_its_graph_uses(benchmark, monkeypatch):
    """A graph uses the optimizer's state by address; freed, it was unmapped when the next graph was recorded."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    for name in ("current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *given, **named: nullcontext())
    used = []

    class AdamW(torch.optim.AdamW):
        def __init__(self, parameters, lr, capturable=False):  # which torch refuses on CPUs
            super().__init__(parameters, lr=lr)
            used.append(weakref.ref(self))

        def step(self):
            super().step()
            used.extend(weakref.ref(x) for state in self.state.values() for x in state.values())

    monkeypatch.setattr(torch.optim, "AdamW", AdamW)
    with benchmark.sizes(WIDTH=16, HEADS=1, LAYERS=1, LENGTH=4, BATCH=1):
        model = benchmark.example.fresh("cpu")
        used.append(weakref.ref(model))
        used.extend(map(weakref.ref, model.parameters()))
        burst = benchmark.ready(model, "graph", nullcontext)
        del model
        gc.collect()
        assert len(used) > 3 * 13 and all(used_one() is not None for used_one in used)
        assert burst() >= 0
