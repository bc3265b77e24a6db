"""`tilewave run`: a GEMM checked and timed; what it prints, what it finds, how it answers mistakes."""

import json
import os
import re
import sys

import ml_dtypes
import numpy as np
import pytest

from tilewave import *
from tilewave.bench import baselines, measure, problem, trial
from tilewave.bench.contestant import Contestant, LeftOut
from tilewave.bench.measure import CallTimes
from tilewave.bench.problem import Problem, Reference, drawn_rows
from tilewave.bench.trial import TimedInTurn
from tilewave.cli import main, run
from tilewave.compiled import Compiled
from tilewave.errors import TilewaveError, here
from tilewave.kernels import accumulator, error_bound

SMALL = ["--shape", "40x50x30", "--tile", "16x16x16", "--repeats", "5"]
SWIZZLED = "xcd_contiguous(4) >> grouped(2)"


@pytest.fixture
def call(monkeypatch, capsys):
    """Run `tilewave run …`; its exit code, what it printed, and what it said on stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(measure, "SHORTEST_SECONDS", 0)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tilewave", "run", *words])
        try:
            main.main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
        return code, *capsys.readouterr()

    return run


def wrong(monkeypatch, change):
    """Change the kernels' outputs after each call."""
    right = Compiled.__call__

    def compute(self, *arrays, **symbols):
        right(self, *arrays, **symbols)
        change(arrays[-1])

    monkeypatch.setattr(Compiled, "__call__", compute)


def set_corner(value):
    def change(c):
        c[-1, -1] = value

    return change


# -- for people -----------------------------------------------------------------------------------------------------


def test_it_prints_what_the_document_of_the_experiment_shows(call):
    code, out, err = call("gemm", *SMALL, "--map", SWIZZLED)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(
        r"gemm 40x50x30, f32 → f32: 3×4 tiles of 16x16x16, 12 workgroups, [\w-]+, \d+ threads?", lines[0]
    )
    for mapping in ("linear()", SWIZZLED):
        at = lines.index(f"Testing {mapping}")
        assert re.fullmatch(r"  Max absolute difference: [\de.-]+", lines[at + 1])
        assert lines[at + 2 : at + 4] == ["  Errors: 0 / 2000 (0.00%)", f"  {mapping}: ✓ PASS"]
    assert "Test 2: performance, medians of 5 repeats, interleaved" in lines
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows[0] == ["Mapping", "Time (ms)", "± (ms)", "GFLOP/s", "Speed-up"]
    assert [row[0] for row in rows[1:]] == ["linear()", SWIZZLED, "numpy"]
    assert rows[1][-1] == "1.00x (baseline)"
    assert all(re.fullmatch(r"\d+\.\d\dx", row[-1]) for row in rows[2:])
    assert lines[-1].startswith(f"In this run, compared with linear(): {SWIZZLED} took ")


def test_linear_is_always_there_and_every_mapping_once(call):
    _, out, _ = call("gemm", *SMALL, "--map", "grouped(2)", "--map", "linear( )", "--map", "grouped(size=2)", "--json")
    assert [row["mapping"] for row in json.loads(out)["correctness"]] == ["linear()", "grouped(2)"]


def test_a_mapping_that_does_nothing_is_warned_about(call):
    _, out, _ = call("gemm", *SMALL, "--map", "grouped(8)")
    assert "warning: grouped(8) has no effect on a grid of 3×4" in out


def test_rows_are_drawn_where_the_product_is_large(call, monkeypatch):
    monkeypatch.setattr(problem, "MOST_PRODUCTS", 10 * 50 * 30)
    _, out, _ = call("gemm", *SMALL)
    assert "  10 of 40 rows, drawn at random" in out
    assert "  Errors: 0 / 500 (0.00%)" in out


def test_the_bar_is_drawn_on_a_terminal_and_leaves_nothing_behind(call, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, out, err = call("gemm", *SMALL)
    assert "measuring" in err
    assert "10/10" in err
    assert err.rstrip("\x1b[?25h").endswith("\x1b[2K")  # the line is cleared
    assert "measuring" not in out
    code, out, err = call("gemm", *SMALL, "--json")
    assert (code, err) == (0, "")
    json.loads(out)


# -- a wrong result -------------------------------------------------------------------------------------------------


def test_one_wrong_element_fails(call, monkeypatch):
    wrong(monkeypatch, set_corner(1000))
    code, out, err = call("gemm", *SMALL)
    assert (code, err) == (1, "")
    assert "  Errors: 1 / 2000 (0.05%)" in out
    assert "  linear(): ✗ FAIL" in out
    assert "Test 2" not in out
    assert out.endswith("\nNot timed, because the result is wrong.\n")


def test_an_element_that_nobody_wrote_fails_and_is_no_number_in_json(call, monkeypatch):
    wrong(monkeypatch, set_corner(np.nan))
    code, out, _ = call("gemm", *SMALL, "--json")
    found = json.loads(out)
    assert (code, found["passed"]) == (1, False)
    expected = {"mapping": "linear()", "max_difference": None, "errors": 1, "elements": 2000, "passed": False}
    assert found["correctness"] == [expected]
    assert (found["performance"], found["conclusion"]) == ([], None)


def test_a_whole_number_off_by_one_fails(call, monkeypatch):
    wrong(monkeypatch, lambda c: np.add(c, 1, out=c))
    code, out, _ = call("gemm", *SMALL, "--dtype", "i8")
    assert code == 1
    assert "  Max absolute difference: 1\n  Errors: 2000 / 2000 (100.00%)" in out


def test_a_tile_that_was_left_out_is_seen_though_rows_are_drawn(monkeypatch):
    monkeypatch.setattr(problem, "MOST_PRODUCTS", 64 * 20 * 30)
    given = Problem(1024, 20, 30, f32, f32)
    a, b = given.operands(0)
    reference = Reference.of(given, a, b, 0)
    for first in range(0, 1024, 32):
        c = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
        c[first : first + 32] = np.nan
        assert reference.check(c).errors >= 20


@pytest.mark.parametrize("rows, count", [(1, 1), (7, 3), (10, 10), (1000, 64)])
def test_drawn_rows_are_different_and_spread_out(rows, count):
    drawn = drawn_rows(rows, count, 0)
    assert len(set(drawn.tolist())) == count
    assert (np.diff(drawn) < 2 * -(-rows // count)).all()
    assert 0 <= drawn[0] <= drawn[-1] < rows


# -- the bound ------------------------------------------------------------------------------------------------------

OUTS = [(f16, f16), (bf16, bf16), (f32, f32), (f32, f16), (f64, f64), (f64, f32), (i8, i32), (i8, f32), (f8e5m2, bf16)]


@pytest.mark.parametrize("dtype, out", OUTS, ids=str)
def test_sums_in_any_order_keep_to_the_bound_and_little_more_does_not(dtype, out):
    rng, k = np.random.default_rng(0), 300
    given = Problem(20, 30, k, dtype, out)
    a, b = given.operands(3)
    reference = Reference.of(given, a, b, 0)
    acc = accumulator(dtype).numpy
    order = rng.permutation(k)
    sums = np.zeros((20, 30), acc)
    for at in order:
        sums += a[:, at, None].astype(acc) * b[None, :, at].astype(acc)
    assert reference.check(sums.astype(out.numpy)).errors == 0
    beyond = reference.want + 2 * reference.bound + (out.is_int or 0) + np.abs(reference.want) * epsilon(out)
    assert reference.check(beyond.astype(out.numpy)).errors == 600


def epsilon(dtype):
    return float(ml_dtypes.finfo(dtype.numpy).eps) if dtype.is_float else 0.0


BOUNDS = {
    (f32, f32): 2000 * (100 * 2**-24 / (1 - 100 * 2**-24)),
    (bf16, f32): 2000 * (100 * 2**-24 / (1 - 100 * 2**-24)),
    (f64, f64): 2000 * 2 * (100 * 2**-53),
    (f64, f32): 1000 * 2**-24,
    (i8, i32): 0,
    (i8, f32): 1000 * 2**-24,
    (f32, f16): 2000 * (100 * 2**-24) * (1 + 2**-11) + 1000 * 2**-11,
    (f16, bf16): 2000 * (100 * 2**-24) * (1 + 2**-8) + 1000 * 2**-8,
}


@pytest.mark.parametrize("dtypes", BOUNDS, ids=str)
def test_the_bound_is_what_99_products_may_err(dtypes):
    found = error_bound(np.array([-1000.0]), np.array([2000.0]), 99, *dtypes)
    assert found.item() == pytest.approx(BOUNDS[dtypes], rel=1e-4)


def test_bits_that_an_instruction_ignores_widen_the_bound():
    given = np.array([-1000.0]), np.array([2000.0]), 99, f32, f32
    less = error_bound(*given, MMAType.F32_64xNx8_TF32) - error_bound(*given)
    assert less.item() == pytest.approx(2000 * 2 * 2**-10)
    assert error_bound(*given, MMAType.F32_16x16x4_F32) == error_bound(*given)


def test_sums_of_more_products_than_f32_can_count_have_no_bound():
    one = np.ones((1, 1))
    assert error_bound(one, one, 1 << 25, f32, f32) == np.inf
    assert error_bound(one, one, 1 << 25, i8, i32) == 0


# -- for machines ---------------------------------------------------------------------------------------------------


def test_json_has_everything(call):
    words = ["--map", "grouped(2)", "--workgroups", "3", "--threads", "1", "--seed", "7", "--out", "f16"]
    code, out, err = call("gemm", *SMALL, *words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    wanted = {
        "kernel": "gemm",
        "shape": [40, 50, 30],
        "dtype": "f32",
        "out": "f16",
        "tile": [16, 16, 16],
        "workgroups": 3,
        "threads": 1,
        "repeats": 5,
        "seed": 7,
        "checked_rows": 40,
        "passed": True,
        "libraries": {"numpy": np.__version__},
    }
    assert {key: found[key] for key in wanted} == wanted
    assert "numpy writes f32, not f16" in found["notes"]
    linear, grouped, numpy = found["performance"]
    assert [x["kind"] for x in (linear, grouped, numpy)] == ["mapping", "mapping", "library"]
    assert linear["speedup"] == 1
    for row in found["performance"]:
        assert len(row["seconds"]) == len(row["cpu_seconds"]) == 5
        assert row["median_seconds"] == sorted(row["seconds"])[2]
        assert row["median_cpu_seconds"] == sorted(row["cpu_seconds"])[2]
        assert row["gflops"] == pytest.approx(2e-9 * 40 * 50 * 30 / row["median_seconds"])
        assert row["speedup"] == pytest.approx(linear["median_seconds"] / row["median_seconds"])


@pytest.mark.parametrize("dtype", [str(dtype) for dtype in run.INPUTS])
def test_every_dtype_runs_and_is_right(dtype, call):
    code, out, _ = call("gemm", *SMALL, "--dtype", dtype, "--against", "", "--json")
    found = json.loads(out)
    assert (code, found["passed"], found["dtype"]) == (0, True, dtype)


def test_threads_are_set_for_the_run_alone(call, monkeypatch):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", "2")
    assert json.loads(call("gemm", *SMALL, "--threads", "1", "--json")[1])["threads"] == 1
    assert json.loads(call("gemm", *SMALL, "--json")[1])["threads"] == 2
    monkeypatch.delenv("TILEWAVE_NUM_THREADS")
    call("gemm", *SMALL, "--threads", "1")
    assert "TILEWAVE_NUM_THREADS" not in os.environ


def test_a_busy_machine_is_noted(call, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (640.0, 0.0, 0.0))
    assert "Note: the load was 640.0 on " in call("gemm", *SMALL)[1]


# -- the libraries --------------------------------------------------------------------------------------------------

TORCH = """
import os, warnings
import numpy as np
__version__ = "9.9"
POLICY = os.environ["OMP_WAIT_POLICY"]
float32 = np.float32
threads = []
set_num_threads = threads.append
from_numpy = np.asarray
def empty(shape, dtype): return np.empty(shape, dtype)
def mm(x, y, out):
    warnings.warn("slow path\\nframe 1")
    np.matmul(x, y, out=out)
"""


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """A torch of our own, not yet imported."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield
    sys.modules.pop("torch", None)


def test_torch_is_imported_only_when_asked(call, torch):
    call("gemm", *SMALL)
    assert "torch" not in sys.modules


@pytest.mark.filterwarnings("ignore:slow path")
def test_torch_stands_beside_it_with_the_same_threads_and_no_spinning(call, torch, monkeypatch):
    found = json.loads(call("gemm", *SMALL, "--threads", "1", "--against", "torch", "--json")[1])
    assert found["performance"][-1]["name"] == "torch"
    assert found["libraries"] == {"torch": "9.9"}
    assert "torch says: slow path" in found["notes"]
    assert (sys.modules["torch"].POLICY, sys.modules["torch"].threads) == ("PASSIVE", [1])


def test_a_library_that_is_not_there_is_left_out(call, monkeypatch):
    monkeypatch.setattr(baselines.importlib.util, "find_spec", lambda name: None)
    code, out, _ = call("gemm", *SMALL, "--against", "torch")
    assert code == 0
    assert "Note: torch is left out: it is not installed." in out
    assert out.endswith("linear() ran alone: there is nothing to compare it with.\n")


def test_a_torch_that_breaks_is_left_out(call, torch, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('no libtorch\\nmore')")
    assert "Note: torch is left out: no libtorch.\n" in call("gemm", *SMALL, "--against", "torch")[1]


def test_numpy_takes_part_only_where_its_blas_does(call):
    _, out, _ = call("gemm", *SMALL, "--dtype", "bf16")
    assert "Note: numpy is left out: its BLAS has no product of bf16." in out
    assert "GFLOP/s" in out
    assert "GOP/s" in call("gemm", *SMALL, "--dtype", "i8")[1]


def test_a_library_that_takes_very_long_is_left_out(call, monkeypatch):
    seconds = iter([0.001, 3.0])
    monkeypatch.setattr(trial, "seconds_of", lambda run: next(seconds))
    assert "Note: numpy is left out: one call took 3.0 s, linear() 0.001 s." in call("gemm", *SMALL)[1]


def test_a_blas_that_is_not_openblas_is_noted(monkeypatch):
    monkeypatch.setattr(baselines, "_set_blas_threads", lambda threads: False)
    a = np.ones((2, 2), np.float32)
    found = baselines.numpy_baseline(a, a, f32, 1)
    assert isinstance(found, Contestant)
    assert found.note == "numpy's BLAS takes as many threads as it likes"
    assert baselines.torch_baseline(a, a, f8e5m2, 1) == LeftOut(
        "torch", "it has no product of f8e5m2 on the CPU", is_ours=False
    )


# -- what the spread allows to say ----------------------------------------------------------------------------------


def timing(*seconds):
    return CallTimes(1, seconds, seconds)


def test_the_spread_is_half_the_distance_between_the_quartiles():
    assert timing(1, 2, 3, 4, 5, 6, 7).spread == 2
    assert timing(3).spread == 0
    assert timing(5, 1, 9).median == 5


BASE = (10.0, 10.2, 10.1, 9.9, 9.8)
SENTENCES = {
    "within": ([10.1, 10.3, 10.2, 10.0, 9.9], "x took 1.0 % more time, within noise."),
    "beyond": ([9.0, 9.1, 9.2, 8.9, 8.8], "x took 10.0 % less time, more than noise."),
    "far": ([40.0, 40.0, 40.0, 40.0, 40.0], "x took 4.0 times as long, more than noise."),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_difference_is_called_one_only_beyond_the_spread(case):
    seconds, sentence = SENTENCES[case]
    comparison = TimedInTurn({"linear()": timing(*BASE), "x": timing(*seconds)}, 10)
    assert comparison.conclusion == f"In this run, compared with linear(): {sentence}"


def test_few_repeats_conclude_nothing():
    comparison = TimedInTurn({"linear()": timing(1.0, 1.1), "x": timing(5.0, 5.0)}, 10)
    assert comparison.conclusion == "Fewer than 5 repeats cannot separate a difference from noise."


def test_all_are_measured_once_a_repeat_in_an_order_of_their_own(monkeypatch):
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(measure, "SHORTEST_SECONDS", 0)
    seen, steps = [], []
    runs = {name: lambda name=name: seen.append(name) for name in "abc"}
    found = measure.measure(runs, 20, 0, lambda: steps.append(1))
    assert seen[:6] == ["a", "a", "b", "b", "c", "c"]  # warmed up, and looked at how long they take
    rounds = ["".join(seen[at : at + 3]) for at in range(6, len(seen), 3)]
    assert len(rounds) == 20
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 3
    assert (len(steps), len(found["a"].seconds)) == (60, 20)


def test_short_calls_are_repeated_within_a_sample(monkeypatch):
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    found = measure.measure({"a": lambda: None}, 2, 0, lambda: None)
    assert found["a"].calls > 100
    assert found["a"].median < 1e-4


# -- mistakes -------------------------------------------------------------------------------------------------------

DTYPES = "f16, bf16, f32, f64, f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, i8"
MISTAKES = {
    ("gem",): "error: unknown kernel 'gem'\n  there is gemm; or name a Python file\n",
    ("gemm", "--shape", "8x8"): """error: a shape is three numbers, M x N x K
      8x8
         ^
  write 2048x2048x2048
""",
    ("gemm", "--shape", "8x8x8x8"): """error: a shape is three numbers, M x N x K
      8x8x8x8
           ^^
  write 2048x2048x2048
""",
    ("gemm", "--shape", "8x8xK"): """error: a shape is three numbers, M x N x K
      8x8xK
          ^
  write 2048x2048x2048
""",
    ("gemm", "--shape", "8x0x8"): """error: N of a shape is from 1 to 2147483647, not 0
      8x0x8
        ^
""",
    ("gemm", "--shape", "8x8x2147483648"): """error: K of a shape is from 1 to 2147483647, not 2147483648
      8x8x2147483648
          ^^^^^^^^^^
""",
    ("gemm", "--shape", "9" * 70): "error: a shape is three numbers such as 2048x2048x2048, not 70 characters\n",
    ("gemm", "--tile", "1x8x8"): """error: M of a tile is from 2 to 2147483647, not 1
      1x8x8
      ^
""",
    ("gemm", "--tile", "128"): """error: a tile is three numbers, M x N x K
      128
         ^
  write 128x256x64
""",
    ("gemm", "--dtype", "f33"): f"""error: --dtype takes no `f33`
      f33
      ^^^
  it is one of {DTYPES}
""",
    ("gemm", "--dtype", "i8", "--out", "f16"): """error: --out takes no `f16`
      f16
      ^^^
  it is one of i32, f32, f64
""",
    ("gemm", "--against", "numpy, jax"): """error: --against: unknown library `jax`
      numpy, jax
             ^^^
  there are numpy, torch
""",
    ("gemm", "--map", "grouped(2"): """error: this ( is never closed
      grouped(2
             ^
""",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_answered_in_words(words, call):
    assert call(*words) == (2, "", MISTAKES[words])


def test_instruction_sets_are_those_of_this_machine(call):
    code, out, err = call("gemm", "--instruction-set", "sse9")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown instruction set `sse9`\n      sse9\n      ^^^^\n  this machine has ")
    known = err.rpartition("has ")[2].strip().split(", ")
    elsewhere = "neon" if "neon" not in known else "x86-64"
    assert call("gemm", "--instruction-set", elsewhere)[2] == (
        f"error: this machine does not have {elsewhere}\n  it has {', '.join(known)}\n"
    )
    found = json.loads(call("gemm", *SMALL, "--instruction-set", known[-1], "--json")[1])
    assert found["instruction_set"] == known[-1]


def test_what_does_not_fit_into_memory_is_told_before_it_is_tried(call, monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2000000 kB\n")
    monkeypatch.setattr(problem, "MEMINFO", tmp_path / "meminfo")
    assert call("gemm", "--shape", "100000x100000x1000") == (
        2,
        "",
        "error: a gemm of 100000x100000x1000 in f32 needs about 82.7 GB, but only 2.0 GB of memory are available\n"
        "  choose a smaller shape or a narrower dtype\n",
    )
    monkeypatch.setattr(problem, "MEMINFO", tmp_path / "nothing")
    assert problem.available_bytes() is None


def test_an_error_of_the_compiler_names_no_line_of_the_command_lines_own(call, monkeypatch):
    def fail(options, kernel):
        raise TilewaveError("no", loc=here(), remedy="do")

    monkeypatch.setattr(trial, "wave_compile", fail)
    assert call("gemm", *SMALL) == (2, "", "error: no\n  do\n")


def test_wrong_usage_exits_with_2(call):
    for words in (["gemm", "--threads", "0"], ["gemm", "--repeats", "0"], [], ["gemm", "--seed", "-1"]):
        code, _, err = call(*words)
        assert code == 2
        assert "Traceback" not in err


def test_help_teaches_with_examples(call):
    code, out, _ = call("--help")
    assert code == 0
    assert 'tilewave run gemm --shape 4096x1024x2048 --map "grouped(8)"' in out
