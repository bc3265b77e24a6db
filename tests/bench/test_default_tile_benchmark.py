"""benchmarks/default_tile_h200.py: what it draws, measures and reports, played on a CPU instead of the card."""

import importlib.util
import random
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the benchmark compares with torch")

PATH = Path(__file__).parents[2] / "benchmarks" / "default_tile_h200.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("default_tile_h200", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def card(benchmark, monkeypatch):
    """A card whose graphs are plain calls."""

    class Played(benchmark.Card):
        def synchronize(self):
            pass

        def seconds(self, run):
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin

        def graph(self, calls, each):
            return lambda: [call() for call in calls], len(calls)

    monkeypatch.setattr(benchmark, "BUFFER_BYTES", 1 << 16)
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    return Played(torch, "cpu")


def test_shapes_are_drawn_in_all_layouts_and_dtypes(benchmark):
    drawn = list(benchmark.cases(5, 48))
    assert drawn == list(benchmark.cases(5, 48)) != list(benchmark.cases(6, 48))
    assert {(one.layout, one.dtype) for one in drawn} == {(x, y) for x in benchmark.LAYOUTS for y in benchmark.DTYPES}
    assert all(n % 64 == 0 for one in drawn[::3] for n in (one.m, one.n, one.k))
    assert any(n % 8 for one in drawn[1::3] for n in (one.m, one.n, one.k)) and max(one.m for one in drawn) > 2000


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_a_shape_is_timed_beside_torch(benchmark, card, layout):
    row = benchmark.measure(card, benchmark.Case(40, 24, 64, layout, "float16"), random.Random(0))
    assert row["microseconds"] > 0 and row["ratio"] == round(row["torch_microseconds"] / row["microseconds"], 4)


def test_a_wrong_result_is_never_timed(benchmark, card, monkeypatch):
    right = benchmark.ops.matmul
    monkeypatch.setattr(benchmark.ops, "matmul", lambda a, b: right(a, b) * 1.01)
    row = benchmark.measure(card, benchmark.Case(40, 24, 64, "NN", "float16"), random.Random(0))
    assert row["wrong"] and "ratio" not in row
    assert benchmark.report([row]) == "no shape was timed, 1 wrong"


def test_the_report_counts_what_is_slow(benchmark):
    rows = [{"ratio": ratio} for ratio in (0.5, 0.8, 2.0, 1.25)]
    said = "4 shapes: geometric mean 1.000, worst 0.500, 2 below 0.9, 1 below 0.75, 0 wrong"
    assert benchmark.report(rows) == said


def test_stalls_are_what_first_calls_take_longer(benchmark, card, monkeypatch):
    calls, right = [], benchmark.ops.matmul

    def slow_once(a, b):
        if len(calls) == 1:
            time.sleep(0.2)
        calls.append(a.shape)
        return right(a, b)

    monkeypatch.setattr(benchmark.ops, "matmul", slow_once)
    monkeypatch.setattr(benchmark, "BATCHES", (1, 2, 3))
    monkeypatch.setattr(benchmark, "NEW_SIZES", 2)
    monkeypatch.setattr(benchmark, "REPEATS", 2)
    found = benchmark.batches_here(card, (16, 32))
    assert found["stall_seconds"] >= 0.2 and 2 in [one["m"] for one in found["stalls"]]
    assert found["host_seen"]["torch"] > 0 and found["host_new"]["ours"] > 0
    assert (19, 32) in calls and len(benchmark.BATCHES) == 3
