"""`tilewave compile` and `tilewave diff` for every target of the table, and for one that is added to it."""

import json
import os
from pathlib import Path

import pytest
from fake_target import ToyBackend

from tilewave import WaveCompileOptions, f16, wave_compile
from tilewave import kernels as shipped
from tilewave.backend.names import DEFAULT_TARGET
from tilewave.backend.targets import TARGETS
from tilewave.emulator import LoopStatistics
from tilewave.pipeline.runner import pass_name

SHIPPED = [*TARGETS]
EVERY = [*SHIPPED, "toy_1"]
SUFFIXES = {
    "cpu": ["s", "o", "ll"],
    "gfx942": ["s", "hsaco", "ll"],
    "gfx950": ["s", "hsaco", "ll"],
    "sm_90a": ["ptx", "ll"],
    "numpy": ["ir"],
    "toy_1": ["toy"],
}
FACTS = {"cpu": "instruction_set", "gfx942": "registers", "gfx950": "registers", "sm_90a": "waves", "toy_1": "bricks"}
OWN_PASS = {
    "cpu": "prepack_operands",
    "gfx942": "interleave_mma",
    "sm_90a": "specialize_waves",
    "toy_1": "fold_toys",
}
"""Passes that one vendor alone has."""
GEMM = Path(__file__).parents[2] / "examples" / "gemm.py"


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(TARGETS, "toy_1", ToyBackend())


def answered(call, *words):
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("target", EVERY)
def test_compile_says_what_a_kernel_takes_and_writes_its_files(target, call):
    words = ["compile", GEMM, "--target", target, "--out", "build"]
    record = json.loads(answered(call, *words, "--json"))["gemm"]
    files = [f"build/gemm.{suffix}" for suffix in SUFFIXES[target]]
    assert (record["target"], record["workgroups"], record["files"]) == (target, 64, files)
    assert FACTS.get(target, "files") in record
    assert sorted(os.listdir("build")) == sorted(Path(file).name for file in files)
    assert all(Path(file).stat().st_size for file in files)
    assert ("code_bytes" in record) == (target != "numpy")
    table = answered(call, *words)
    assert all(text in table for text in (target, *files))
    assert "lambda" not in table and "object at" not in table


@pytest.mark.parametrize("target", EVERY)
def test_compile_counts_the_loop_where_the_target_can(target, call):
    words = ["compile", GEMM, "--target", target, "--stats"]
    if TARGETS[target].counts_loops:
        record = json.loads(answered(call, *words, "--json"))["gemm"]
        counted, is_modelled = record["loop"], TARGETS[target].models_cycles
        latencies = [each["latency_cycles"] for each in record.get("cycles", {"by_latency": []})["by_latency"]]
        assert latencies == ([500, 1000, 1500] if is_modelled else [])
        assert {"kernel", "chip", "instructions", "matrix_instructions", "instructions_per_matrix"} < counted.keys()
        assert TARGETS[target].is_emulated == ({*LoopStatistics.__dataclass_fields__} < counted.keys())
        out = answered(call, *words)
        assert "instructions per matrix instruction" in out
        assert ("cycles per iteration" in out, "A model, not a measurement" in out) == (is_modelled, is_modelled)
        return
    told = f"error: --stats: gemm was compiled for {target}, for which the K loop is not counted\n"
    told += "  write --target gfx942 or --target gfx950 or --target sm_90a or --target toy_1,\n"
    told += f"  or leave --stats out: --out DIRECTORY writes what was made for {target}\n"
    assert call(*words) == (2, "", told)
    assert call(*words, "--json") == (2, "", told)


@pytest.mark.parametrize("target", EVERY)
def test_diff_shows_the_passes_of_a_target(target, call):
    words = ["diff", GEMM, "--target", target]
    steps = [step["pass"] for step in json.loads(answered(call, *words, "--json"))["gemm"]]
    own = [pass_name(p) for p in TARGETS[target].passes()]
    assert steps[:3] == ["map_workgroups", "fold_permutes", "simplify"]
    assert {name for name in steps[3:] if name in own} or not own
    for only in {steps[0], steps[-1]}:
        (step,) = json.loads(answered(call, *words, "--only", only, "--json"))["gemm"]
        assert step["pass"] == only
        assert only in answered(call, *words, "--only", only)


@pytest.mark.parametrize("target", OWN_PASS)
def test_diff_finds_the_target_that_has_a_pass(target, call):
    only = OWN_PASS[target]
    assert next(name for name in EVERY if only in map(pass_name, TARGETS[name].passes())) == target
    found = json.loads(answered(call, "diff", GEMM, "--only", only, "--json"))["gemm"]
    told = json.loads(answered(call, "diff", GEMM, "--only", only, "--target", target, "--json"))["gemm"]
    (step,), (wanted,) = found, told
    assert (step["pass"], step["decision"], step["diff"]) == (only, wanted["decision"], wanted["diff"])


def test_diff_counts_passes_of_one_name_as_it_shows_them(call):
    """The second simplify is in every list of passes, the third in AMD's."""
    for only, target in (("simplify_2", DEFAULT_TARGET), ("simplify_3", "gfx942")):
        (step,) = json.loads(answered(call, "diff", GEMM, "--only", only, "--json"))["gemm"]
        (wanted,) = json.loads(answered(call, "diff", GEMM, "--only", only, "--target", target, "--json"))["gemm"]
        assert (step["pass"], step["diff"]) == (only, wanted["diff"])


@pytest.mark.parametrize("command", ["compile", "diff"])
def test_a_target_that_is_not_there_is_told_without_a_line_of_nobody_s(command, call):
    told = "error: unknown target 'gfx94'; did you mean 'gfx942'?\n"
    remedy = "  The targets are cpu, gfx942, gfx950, sm_90a, numpy, toy_1.\n"
    assert call(command, GEMM, "--target", "gfx94") == (2, "", told + remedy)


LOADS = "import tilewave\nkernel = tilewave.load('gemm.tilewave')\n"
HELD = {"cpu": ["o"], "gfx942": ["s", "hsaco"], "gfx950": ["s", "hsaco"], "sm_90a": ["ptx"]}
"""Files of machine code hold no LLVM IR, and those of a CPU no text of it."""


@pytest.mark.parametrize("target", EVERY)
def test_a_kernel_that_was_loaded_shows_what_its_file_holds(target, call):
    made = shipped.gemm((128, 128, 64), f16, tile=(64, 64, 32))
    call("doctor")  # which leads into an empty directory
    kernel = wave_compile(WaveCompileOptions(subs=made.subs, target=target), made.kernel)
    kernel.save("gemm.tilewave")
    code, out, err = call("compile", "k.py", "--out", "build", "--json", k=LOADS)
    assert (code, err) == (0, "")
    record = json.loads(out)["gemm"]
    assert record["files"] == [f"build/gemm.{suffix}" for suffix in HELD.get(target, SUFFIXES[target])]
    assert {name: record[name] for name in kernel.build.metrics} == json.loads(json.dumps(dict(kernel.build.metrics)))
    assert call("diff", "k.py") == (
        2,
        "",
        "error: gemm was loaded from gemm.tilewave, which has no steps\n"
        "  what wave_compile(…) returns has every step\n",
    )


@pytest.mark.parametrize("command", ["compile", "diff", "tune"])
def test_help_lists_what_the_table_holds(command, call):
    """A target that is new in the table is red here until `TARGET_NAMES`, which --help reads, has it."""
    code, out, _ = call(command, "--help")
    assert code == 0
    assert ", ".join(SHIPPED) in " ".join(out.split())
