"""`why()`, `tilewave compile` and `tilewave diff` report the remarks of passes, at the author's line."""

import json
import sys

import pytest
from kernels import compiled, gemm, sizes

from tilewave import *
from tilewave.cli.main import main
from tilewave.errors import SavedKernelError
from tilewave.pipeline.runner import run

SUBS = sizes(100, 200, 300, 128, 256, 64)
FILE = """
from tilewave import *
M, N, K, G = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE

@wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 256, 1), TilingConstraint(K, 64)])
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0)])
    def total(sum):
        x = read(a)
        y = read(b)
        return mma(x, y, sum)

    write(total, c)
"""
SIZES = "M=100,N=200,K=300"
WHAT = "the row stride of a is 600 bytes, and TMA needs a multiple of 16, so lanes load all tiles"
REMEDY = "give it rows of a multiple of 8 elements"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "k.py").write_text(FILE)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tilewave", *words])
        try:
            main()
        except SystemExit as leave:
            assert not leave.code
        return capsys.readouterr().out

    return run


def test_why_is_a_table_for_people_and_rows_for_programs():
    why = compiled(gemm(), target="sm_90a", subs=SUBS).why()
    (row,) = why
    assert (row.step, row.what, row.remedy) == ("use_tma", WHAT, REMEDY)
    assert row.loc.file.endswith("kernels.py")
    front = f"use_tma  {row.line}  "
    assert str(why) == repr(why) == f"{front}{WHAT}\n{' ' * len(front)}{REMEDY}"


def test_a_kernel_with_which_all_went_well_says_so():
    made = compiled(gemm(), target="gfx942", subs=sizes(512, 512, 512, 128, 128, 64), schedule=SchedulingType.PREFETCH)
    assert not made.why()
    assert str(made.why()) == "no remarks"
    assert not compiled(gemm(), target="numpy", subs=SUBS).why()


def test_each_step_keeps_its_own_reasons_and_no_kernel_keeps_any():
    made = compiled(gemm(), target="gfx950", subs=SUBS, schedule=SchedulingType.NONE)
    assert {s.name for s in made.steps if s.remarks} == {"direct_to_shared", "interleave_mma"}
    assert not any(s.before.remarks or s.after.remarks for s in made.steps)
    assert [(row.step, row.remarks) for row in made.why()] == [(s.name, d) for s in made.steps for d in s.remarks]


def test_what_a_pass_said_is_no_part_of_a_kernels_text():
    made = compiled(gemm(), target="gfx950", subs=SUBS)
    step = next(s for s in made.steps if s.remarks)
    said = step.before.with_remarks(*step.remarks)
    assert said == step.before and str(said) == str(step.before) and said.remarks == step.remarks
    assert said.with_remarks(*step.remarks).remarks == step.remarks  # each is said once
    assert run(said, [])[0].remarks == said.remarks


@pytest.mark.parametrize("target", ["cpu", "gfx950", "sm_90a"])
def test_a_kernel_from_the_cache_says_the_same(target):
    first, second = (compiled(gemm(), target=target, subs=SUBS) for _ in range(2))
    assert first.asm == second.asm
    assert first.why() == second.why()


def test_a_loaded_kernel_has_no_such_record(tmp_path):
    compiled(gemm(), target="cpu", subs=SUBS).save(tmp_path / "gemm.tilewave")
    with pytest.raises(SavedKernelError, match="which has no steps"):
        load(tmp_path / "gemm.tilewave").why()


def test_compile_prints_the_reasons(call):
    out = call("compile", "k.py", "--target", "sm_90a", "--set", SIZES)
    assert f"use_tma  k.py:9  {WHAT}" in out and REMEDY in out
    record = json.loads(call("compile", "k.py", "--target", "gfx950", "--set", SIZES, "--json"))["gemm"]
    assert [(d["pass"], d["line"]) for d in record["remarks"]] == [("direct_to_shared", "k.py:9")]
    good = call("compile", "k.py", "--target", "sm_90a", "--set", "M=1024,N=1024,K=512")
    assert "use_tma" not in good


def test_diff_prints_the_reasons_below_the_pass(call):
    out = call("diff", "k.py", "--target", "sm_90a", "--only", "use_tma", "--set", SIZES)
    assert [line.split()[0] for line in out.splitlines() if line.strip()][1:] == [
        "use_tma",
        "(unchanged)",
        "remark",
    ]
    assert f"k.py:9: {WHAT}; {REMEDY}" in out
    steps = json.loads(call("diff", "k.py", "--target", "sm_90a", "--set", SIZES, "--json"))["gemm"]
    told = [d for step in steps for d in step["remarks"]]
    assert told[0] == {"pass": "use_tma", "line": "k.py:9", "what": WHAT, "remedy": REMEDY}
