"""`tilewave cycles` as a person and as a program use it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from emulated_code import DATA, LARGE, kernel_text
from timed_loops import LOAD, PRODUCTS, loop_text

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "examples" / "gemm.py"
BOUND = loop_text([LOAD, "s_waitcnt vmcnt(0)", PRODUCTS[0]], lanes=64)
"""A loop of 16 cycles of L1, a latency and 8 slots, in one wave."""


@pytest.fixture
def answered(call, tmp_path):
    """Run the command beside the files of this test; what it printed, where it went well."""
    (tmp_path / "pingpong.s").write_text(LARGE.text)
    (tmp_path / "bound.s").write_text(BOUND)

    def run(*words):
        code, out, err = call("cycles", *words)
        assert (code, err) == (0, "")
        return out

    return run


def test_cycles_and_stalls_are_printed_with_what_is_not_known(answered):
    out = answered("pingpong.s")
    assert "K loop of gemm, gfx942\n" in out and "A compute unit with 1 workgroup of 8 waves" in out
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in out.splitlines() if line.startswith("│")}
    assert [cell.strip() for cell in rows["cycles per iteration"]] == ["2,232", "2,232", "2,668"]
    assert [cell.strip() for cell in rows["utilization"]] == ["91.8 %", "91.8 %", "76.8 %"]
    assert "s_waitcnt" in out and "line 227" in out
    assert "within ±15 % at a known clock" in out and "no kernel that does so is among the published times" in out


def test_json_has_every_number(answered):
    found = json.loads(answered("bound.s", "--latency", "500,700", "--workgroups", "1", "--json"))["k"]
    assert (found["chip"], found["waves"], found["workgroups"]) == ("gfx942", 1, 1)
    assert [each["cycles"] for each in found["by_latency"]] == [548, 748]
    first = found["by_latency"][0]
    assert first["utilization"] == 4 / 548
    assert first["stall_cycles"] == {"vmcnt": 512, "branch": 12}
    assert first["stalls"][0]["instruction"] == "s_waitcnt vmcnt(0)"
    assert found["notes"]


def test_as_many_workgroups_as_fit_run_where_none_are_said(answered):
    found = json.loads(answered("bound.s", "--json"))["k"]
    assert found["workgroups"] == 4  # 128 of 512 registers
    assert "K loop of k, gfx942 (4 would fit)" in answered("bound.s", "--workgroups", "1")


def test_a_kernel_of_a_python_file_is_compiled_and_its_lines_named(answered):
    out = answered(GEMM, "--latency", "1000", "--json")
    (found,) = json.loads(out).values()
    stalls = found["by_latency"][0]["stalls"]
    assert (found["kernel"], found["chip"]) == ("gemm", "gfx942")
    assert all("gemm.py:" in stall["place"] for stall in stalls) and stalls[0]["line"] > 0


def test_the_timeline_stands_alone_and_has_a_row_for_each_wave(answered, tmp_path):
    out = answered("pingpong.s", "--latency", "1500", "--timeline", "iteration.svg")
    assert out.endswith("drawn: iteration.svg\n")
    root = ElementTree.fromstring((tmp_path / "iteration.svg").read_text())
    svg = "{http://www.w3.org/2000/svg}"
    assert len([g for g in root.iter(f"{svg}g") if g.get("class") == "wave"]) == 8
    words = " ".join("".join(text.itertext()) for text in root.iter(f"{svg}text"))
    assert "K loop of gemm: one iteration" in words and "cycles of the compute unit" in words
    assert "global loads with a latency of 1500 cycles" in words and "A model, not a measurement" in words


def test_bank_conflicts_count_where_they_are_asked_for(answered):
    path = DATA / "gemm_gfx942.s"
    words = (path, "--latency", "500", "--workgroups", "1", "--json")
    usual, counted = (json.loads(answered(*words, *more))["gemm"] for more in ((), ("--conflicts",)))
    assert usual["by_latency"][0]["cycles"] == 828 < counted["by_latency"][0]["cycles"]


def test_kernels_without_a_k_loop_are_left_out(answered, tmp_path):
    other = kernel_text("\ts_nop 0").replace("\nk:", "\nk2:").replace("kernel k\n", "kernel k2\n")
    (tmp_path / "two.s").write_text(BOUND + other)
    assert [*json.loads(answered("two.s", "--json"))] == ["k"]


NO_LOOP = "error: k has no loop with matrix instructions\n"
UNROLLED = "  a K loop multiplies by v_mfma instructions; one of few steps may have been unrolled\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plain.s",), NO_LOOP + UNROLLED),
        (("nowhere.s",), "error: there is no file nowhere.s\n  name LLVM's assembly (.s) or a code object (.hsaco)\n"),
        (
            ("nowhere.py",),
            "error: there is no file nowhere.py\n  name machine code, or a Python file that defines kernels\n",
        ),
        (("bound.s", "--kernel", "gemm"), "error: no kernel is called 'gemm'\n  there are: k\n"),
        (
            ("bound.s", "--latency", "fast"),
            "error: --latency: these are no cycles\n      fast\n      ^^^^\n  write one to ten numbers of cycles: 500,",
        ),
        (
            ("bound.s", "--latency", "100001"),
            "error: --latency: 100,001 cycles\n      100001\n      ^^^^^^\n  at most 100,000 are modelled\n",
        ),
        (
            ("bound.s", "--target", "gfx950"),
            "error: --target has no effect on bound.s\n  it is compiled already: leave it out\n",
        ),
        (
            ("copy.py", "--conflicts"),
            "error: --conflicts has no effect on a Python file\n  they always count there: leave it out\n",
        ),
        (
            ("two.s", "--timeline", "x.svg"),
            "error: --timeline: a figure shows one kernel\n  name it: --kernel, of k, k2\n",
        ),
        (("bound.s", "--timeline", "no/x.svg"), "error: there is no directory no\n  make it first\n"),
        (("empty.s",), "error: the assembly does not say which chip it is for\n"),
        (("damaged.co",), "error: the code object is damaged"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_a_mistake_is_told_with_a_remedy(words, said, call, tmp_path):
    two = BOUND + BOUND.replace("\nk:", "\nk2:").replace("kernel k\n", "kernel k2\n").replace(".L1", ".L2")
    files = {"plain.s": kernel_text("\ts_nop 0"), "bound.s": BOUND, "two.s": two, "empty.s": "", "copy.py": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "damaged.co").write_bytes((DATA / "kernels_gfx942.hsaco").read_bytes()[:3000])
    code, out, err = call("cycles", *words)
    assert (code, out) == (2, "") and err.startswith(said)
    assert not (tmp_path / "x.svg").exists()


def test_a_kernel_that_its_file_compiled_for_another_target_is_refused(call):
    kernel = """
        import tilewave as tw
        from tilewave.kernels import gemm
        made = gemm((64, 64, 64), tw.f16, tile=(32, 32, 32))
        compiled = tw.wave_compile(tw.WaveCompileOptions(subs=made.subs, target="numpy"), made.kernel)
    """
    message = "error: gemm was compiled for numpy, which has no model of a compute unit\n"
    message += "  write --target gfx942 or --target gfx950, or let the file compile for one of these\n"
    assert call("cycles", "own.py", own=kernel) == (2, "", message)
