"""`tilewave run FILE` and `tilewave bench FILE`: a user's own kernels, what is printed, how mistakes are answered."""

import json
import re
import sys
import textwrap

import numpy as np
import pytest

from tilewave.bench import measure, measured_on, reference
from tilewave.cli.main import main
from tilewave.compiled import Compiled
from tilewave.errors import TargetError

SCALE = """
from tilewave import *
M, N, SPACE = sym.M, sym.N, sym.SPACE

@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def double(a: Memory[M, N, SPACE, f32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a) * 2.0, c)
"""
MORE = """
@wave([WorkgroupConstraint(M, 16, 0)])
def negate(a: Memory[M, SPACE, f16], c: Memory[M, GLOBAL_ADDRESS_SPACE, f16]):
    write(-read(a), c)
"""
OTHER = SCALE.replace("read(a) * 2.0", "read(a) + read(a)").replace("M, 16, 0", "M, 32, 0")
ITSELF = SCALE + "\nmine = wave_compile(WaveCompileOptions(subs={M: 40, N: 20, SPACE: SHARED_ADDRESS_SPACE}), double)\n"
SIZES = ["--sizes", "M=40,N=20,SPACE=global"]
COMMANDS = ("run", "bench")


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command in an empty directory with these files; its exit code, what it printed, and said on stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(measure, "SHORTEST_SECONDS", 0)
    monkeypatch.setattr(measured_on, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(measured_on, "commit", lambda: "c0ffee")
    monkeypatch.setattr(measured_on.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(reference, "CHECK_SECONDS", 600.0)
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Slow  CPU\n")

    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setattr(sys, "argv", ["tilewave", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
        return code, *capsys.readouterr()

    return run


def rows_of(text):
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_kernel_of_ones_own_is_checked_and_timed(command, call):
    code, out, err = call(command, "k.py", *SIZES, k=SCALE)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"k\.py, cpu, on Slow CPU \(\w+ \w+\), \d+ threads?", lines[0])
    assert lines[1] == "a 40x20 f32 → c 40x20 f32; random numbers, seed 0"
    assert lines[3:7] == [
        "Test 1: correctness, against the kernel's own program in float64",
        "  double: ✓ PASS",
        "    Max absolute difference: 0",
        "    Errors: 0 / 800 (0.00%)",
    ]
    assert "Test 2: performance, medians of 15 rounds, interleaved;" in out
    header, row = rows_of(out)
    assert header == ["Kernel", "Time (ms)", "± (ms)", "Times as fast"]
    assert (row[0], row[3]) == ("double", "1 (baseline)")
    assert lines[-1] == "double ran alone: there is nothing to compare it with."
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_other_files_stand_beside_it(command, call):
    code, out, _ = call(command, "k.py", *SIZES, "--against", "other.py", k=SCALE, other=OTHER)
    assert code == 0
    assert [row[0] for row in rows_of(out)] == ["Kernel", "double", "other.py:double"]
    assert re.fullmatch(r"\d+\.\d{3} ± \d+\.\d{3}", rows_of(out)[2][3])
    assert "In this run, compared with double: other.py:double is " in out
    assert "something else" not in out
    wrong = OTHER.replace("read(a) + read(a)", "read(a)")
    assert "Note: other.py:double computes a different result than double." in call(
        command, "k.py", *SIZES, "--against", "other.py", k=SCALE, other=wrong
    )[1].replace("\n", " ").replace("  ", " ")


def test_kernels_with_other_arguments_are_measured_apart_and_one_can_be_named(call):
    code, out, _ = call("run", "k.py", *SIZES, k=SCALE + MORE)
    assert code == 0 and out.count("Test 1") == 2 and "a 40 f16 → c 40 f16" in out
    code, out, _ = call("run", "k.py", *SIZES, "--kernel", "negate", k=SCALE + MORE)
    assert code == 0 and out.count("Test 1") == 1 and [row[0] for row in rows_of(out)] == ["Kernel", "negate"]


def test_a_file_that_compiles_its_kernels_itself_needs_no_sizes(call):
    code, out, _ = call("run", "k.py", "--repeats", "2", k=ITSELF)
    assert code == 0 and "a 40x20 f32 → c 40x20 f32" in out and "medians of 2 rounds" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_json_has_everything(command, call, tmp_path):
    counted = {"run": "--repeats", "bench": "--rounds"}[command]
    words = [command, "k.py", *SIZES, counted, "3", "--seed", "7"]
    code, out, err = call(*words, "--json", k=SCALE)
    assert (code, err) == (0, "")
    found = json.loads(out)
    (report,) = found["reports"]
    assert (found["file"], report["commit"], report["rounds"], report["seed"]) == ("k.py", "c0ffee", 3, 7)
    assert report["device"].startswith("Slow CPU (")
    assert report["correctness"][0]["passed"] and report["passed"]
    (kernel,) = report["modes"][0]["contestants"]
    assert kernel["name"] == "double" and kernel["seconds"]["median"] > 0
    assert len(report["modes"][0]["rounds"]) == 3


def test_a_record_that_cannot_be_saved_is_told_before_anything_is_measured(call):
    code, out, err = call("bench", "k.py", *SIZES, "--rounds", "2", "--save", "nowhere/record.json", k=SCALE)
    assert (code, out) == (2, "") and err.startswith("error: there is no directory nowhere")


def test_what_json_prints_can_be_saved(call, tmp_path):
    code, out, _ = call("bench", "k.py", *SIZES, "--rounds", "2", "--save", "record.json", k=SCALE)
    assert code == 0 and "Test 2" in out
    assert json.loads((tmp_path / "record.json").read_text())["reports"][0]["arguments"][0]["name"] == "a"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_result_is_said_not_timed_and_exits_with_1(command, call, monkeypatch):
    right = Compiled.__call__

    def wrong(self, *arrays):
        right(self, *arrays)
        arrays[-1][3, 4] = np.nan

    monkeypatch.setattr(Compiled, "__call__", wrong)
    code, out, err = call(command, "k.py", *SIZES, k=SCALE)
    assert (code, err) == (1, "")
    assert "  double: ✗ FAIL\n    Max absolute difference: nan\n    Errors: 1 / 800 (0.12%)" in out
    assert "Not timed, because the result is wrong." in out and "Test 2" not in out
    code, out, _ = call(command, "k.py", *SIZES, "--json", k=SCALE)
    assert code == 1 and json.loads(out)["reports"][0]["correctness"][0]["max_difference"] is None


def test_some_of_the_workgroups_are_said_to_be_so_many(call, monkeypatch):
    monkeypatch.setattr(reference, "CHECK_SECONDS", 0.0)
    assert "    checked: 1 of 6 workgroups, drawn at random" in call("run", "k.py", *SIZES, k=SCALE)[1]


def test_a_busy_machine_is_noted(call, monkeypatch):
    monkeypatch.setattr(measured_on.os, "getloadavg", lambda: (640.0, 0.0, 0.0))
    assert "Note: the load was 640.0 on " in call("run", "k.py", *SIZES, k=SCALE)[1]


def test_the_bar_is_drawn_on_a_terminal_and_leaves_nothing_behind(call, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, out, err = call("run", "k.py", *SIZES, "--repeats", "4", k=SCALE)
    assert "measuring" in err and "5/5" in err and err.rstrip("\x1b[?25h").endswith("\x1b[2K")
    assert "measuring" not in out


ITS_OWN = "has no effect on a kernel from a file\n  the kernel's file decides it; leave it out\n"
NO_GPU = """error: tilewave {} measures on an NVIDIA GPU, but no card
  run it where nvidia-smi shows an H100 or H200; `tilewave sim --machine H200` needs no GPU
"""
MISTAKES = {
    ("nothing.py",): "error: there is no file nothing.py\n  name a Python file that defines kernels\n",
    ("gem",): "error: unknown kernel 'gem'\n  there is gemm; or name a Python file\n",
    ("k.py", *SIZES, "--kernel", "treble"): "error: k.py defines no kernel 'treble'\n  it defines double\n",
    ("empty.py",): "error: empty.py defines no kernel\n  decorate a function with @wave([…])\n",
    ("k.py", *SIZES, "--dtype", "f16"): f"error: --dtype {ITS_OWN}",
    ("k.py", *SIZES, "--tile", "8x8x8"): f"error: --tile {ITS_OWN}",
    ("k.py", *SIZES, "--map", "linear()"): f"error: --map {ITS_OWN}",
    ("k.py", *SIZES, "--against", "numpy"): (
        "error: --against: numpy is compared with the built-in gemm only\n"
        "  the kernels of a file are compared with those of other files: --against other.py,\n"
        "  and with functions of a library by tilewave.bench.measure (docs/benchmarks/measuring.md)\n"
    ),
    ("k.py", *SIZES, "--against", "more.py,gone.py"): (
        "error: --against: there is no file gone.py\n"
        "  the kernels of a file are compared with those of other files: --against other.py\n"
    ),
    ("k.py", "--sizes", "M=4,Q=3"): "error: --set: no kernel of k.py has a symbol Q\n  its symbols are M, N, SPACE\n",
    ("k.py", "--sizes", "M=__import__('os')"): (
        "error: --set: \"M=__import__('os')\" is no size\n  write M=512 or ADDRESS_SPACE=shared\n"
    ),
    ("itself.py", *SIZES): (
        "error: itself.py compiles its kernels itself\n  leave --set out: it would change nothing\n"
    ),
    ("k.py", *SIZES, "--against", "more.py"): (
        "error: more.py:negate takes a 40 f16 → c 40 f16, but double takes a 40x20 f32 → c 40x20 f32\n"
        "  kernels are compared on the same arguments: give both the same sizes and dtypes\n"
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_answered_in_words(command, words, call):
    files = {"k": SCALE, "empty": "x = 1\n", "itself": ITSELF, "more": SCALE.partition("@wave")[0] + MORE}
    assert call(command, *words, **files) == (2, "", MISTAKES[words])


@pytest.mark.parametrize("command, shape", [("run", "--shape"), ("bench", "--shapes")])
def test_what_only_a_file_takes_is_refused_for_gemm(command, shape, call):
    for option, value in [("--sizes", "M=3"), ("--set", "M=3"), ("--target", "cpu"), ("--kernel", "x")]:
        shown = "--sizes" if option == "--set" else option
        assert call(command, "gemm", option, value) == (
            2,
            "",
            f"error: {shown} has no effect on gemm\n  write {shape} MxNxK, --tile MxNxK and --map\n",
        )


def test_a_value_that_is_missing_is_asked_for_at_its_line(call):
    code, _, err = call("run", "k.py", "--sizes", "M=40,N=20", k=SCALE)
    assert code == 2 and err.startswith("error: a: SPACE is in the place of the address space, and has no value\n  ")
    assert err.endswith("give it a value: --set SPACE=shared, or --set SPACE=global\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_chips_that_are_not_here_are_refused_with_what_can_be_done(command, call, monkeypatch):
    code, out, err = call(command, "k.py", *SIZES, "--target", "gfx942", k=SCALE)
    assert (code, out) == (2, "")
    assert err.startswith("error: double was compiled for gfx942, and kernels are measured on this machine's CPU or on")
    assert "`tilewave emulate` runs its code here without the card" in err

    def no_driver():
        raise TargetError("no card")

    monkeypatch.setattr(measured_on, "cuda_driver", no_driver)
    assert call(command, "k.py", *SIZES, "--target", "sm_90a", k=SCALE) == (2, "", NO_GPU.format(command))


def test_a_file_that_breaks_is_told_with_its_own_frames_alone(call):
    code, out, err = call("run", "k.py", k="1 / 0\n")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n  File ") and err.endswith("division by zero\n")
    assert "tilewave/" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples(command, call):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert f"tilewave {command} kernel.py --sizes M=" in out
    assert "--against other.py" in out
