"""`tilewave emulate` as a person and as a program use it."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from emulated_code import DATA, LARGE, SMALL
from typer.testing import CliRunner

from tilewave.cli.commands import function_of
from tilewave.compile import wave_compile
from tilewave.errors import TilewaveError
from tilewave.ir.types import F16, F32
from tilewave.kernels import gemm as gemm_kernel
from tilewave.options import WaveCompileOptions

app = typer.Typer()
app.command()(function_of("emulate"))


def run(*words):
    """What is printed; errors of ours are raised as they are."""
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "120", "TERM": "dumb"})
    if isinstance(done.exception, TilewaveError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def gemm(tmp_path, monkeypatch):
    """A and B on disk, the words that run the kernel, and what C must be."""
    monkeypatch.chdir(tmp_path)
    a, b, _, exact, bound = SMALL[0].problem(64, 128, 64)
    np.save("A.npy", a)
    np.save("B.npy", b)
    (tmp_path / "gemm.s").write_text(SMALL[0].text)
    words = ["gemm.s", "gemm", "--grid", "2,1", "--block", "256", "--arg", "in:A.npy", "--arg", "in:B.npy"]
    words += ["--arg", "out:C.npy:float32:64x128", "--arg", "i32:64", "--arg", "i32:128", "--arg", "i32:64"]
    return words, exact, bound


def test_a_kernel_is_run_and_its_result_saved(gemm):
    words, exact, bound = gemm
    code, output = run(*words)
    assert code == 0 and "gemm on gfx942: 2 workgroups, 8 waves, barrier order" in output and "no findings" in output
    assert (np.abs(np.load("C.npy") - exact) <= bound).all()


@pytest.fixture(scope="module")
def of_tilewave(tmp_path_factory):
    """A tilewave kernel as `compile --out` writes it, with A and B in the same folder."""
    folder = tmp_path_factory.mktemp("compiled")
    made = gemm_kernel((64, 64, 32), F16, F32, (32, 32, 32))
    compiled = wave_compile(WaveCompileOptions(subs=made.subs, target="gfx942"), made.kernel)
    (folder / "gemm.s").write_text(compiled.asm)
    for name in "AB":
        np.save(folder / f"{name}.npy", np.eye(64, 32, dtype=np.float16) + (name == "B"))
    return folder


ARRAYS = ("--arg", "in:A.npy", "--arg", "in:B.npy", "--arg", "out:C.npy:float32:64x64")


def test_the_example_of_the_help_runs(of_tilewave, monkeypatch):
    """A tilewave kernel also takes the strides of its arrays, which the caller need not write."""
    monkeypatch.chdir(of_tilewave)
    code, output = run("gemm.s", "gemm", "--grid", "4", *ARRAYS)
    assert code == 0 and "no findings" in output
    a, b = (np.load(f"{name}.npy").astype(np.float64) for name in "AB")
    assert np.array_equal(np.load("C.npy"), a @ b.T)


def test_a_transposed_array_has_its_own_strides(of_tilewave, monkeypatch):
    monkeypatch.chdir(of_tilewave)
    np.save("wide.npy", np.zeros((64, 40), np.float16))
    code, _ = run("gemm.s", "gemm", "--grid", "4", "--arg", "in:wide.npy", *ARRAYS[2:])
    assert code == 0 and not np.load("C.npy").any()


def test_a_workgroup_that_does_not_fit_the_kernel_is_said(of_tilewave, monkeypatch, capfd):
    monkeypatch.chdir(of_tilewave)
    with pytest.raises(TilewaveError) as error:
        run("gemm.s", "gemm", "--grid", "4", "--block", "1024", *ARRAYS)
    assert str(error.value) == (
        "--block: gemm was compiled for workgroups of up to 256 lanes, not 1024\n      1024\n      ^^^^\n"
        "  leave --block out, or write --block 256"
    )
    _, output = run("gemm.s", "gemm", "--grid", "4", "--block", "64", "--check", "off", *ARRAYS)
    assert "warning: --block: gemm was compiled for workgroups of up to 256 lanes, not 64" in output


def test_a_program_reads_json(gemm):
    words, _, _ = gemm
    code, output = run(*words, "--order", "random", "--seed", "5", "--json")
    report = json.loads(output)
    assert code == 0 and (report["order"], report["seed"], report["findings"]) == ("random", 5, [])
    assert report["workgroups"] == 2 and report["instructions"] > 1000


def test_findings_are_told_and_make_the_exit_code(gemm, tmp_path):
    words, _, _ = gemm
    (tmp_path / "gemm.s").write_text(SMALL[0].text.replace("\ts_barrier\n", "", 1))
    code, output = run(*words, "--check", "warn")
    assert code == 1 and "shared-memory race: " in output and "gemm.py:11" in output
    code, output = run(*words, "--check", "warn", "--json")
    finding = json.loads(output)["findings"][0]
    assert code == 1 and finding["kind"] == "shared-memory race" and finding["loc"]["line"] == 11
    with pytest.raises(TilewaveError, match="shared-memory race"):
        run(*words)


def test_without_a_kernel_the_kernels_are_listed(gemm):
    code, output = run("gemm.s")
    assert code == 0 and "A, B, C, M, N, K" in output and "10240" in output
    assert json.loads(run("gemm.s", "--json")[1])["kernels"][0]["name"] == "gemm"


def test_the_loop_is_counted():
    file = DATA / f"{LARGE.name}.s"
    code, output = run(file, "gemm", "--stats")
    assert code == 0 and "1.73" in output and "16 of 16 B" in output and "1.45" in output
    assert json.loads(run(file, "gemm", "--stats", "--json")[1])["longest_gap"] == 28


KINDS = "there are in, inout, out, i8, u8, i16, u16, i32, u32, i64, u64, f16, f32, f64"
RESULT = "--arg: a result has a file, a dtype and a shape"
NAMES = "numpy's names: float32, float16, bfloat16, int8"


@pytest.mark.parametrize(
    "option, text, what, caret, remedy",
    [
        ("--arg", "x:1", "--arg: `x` is no kind", "^", KINDS),
        ("--arg", "i32:x", "--arg: `x` is no i32", "    ^", "write i32:1"),
        ("--arg", "in:D.npy", "--arg: there is no file D.npy", "   ^^^^^", "numpy.save writes such files"),
        ("--arg", "out:C.npy", RESULT, "    ^^^^^", "write out:C.npy:float32:256x256"),
        ("--arg", "out:C.npy:float99:2", "--arg: unknown dtype float99", "          ^^^^^^^", NAMES),
        ("--grid", "2x2", "--grid: one to three numbers", "^^^", "write 4,8 or 4,8,1"),
        ("--order", "fast", "--order: `fast` is none", "^^^^", "there are barrier, random"),
    ],
)
def test_what_cannot_be_understood_is_pointed_at(gemm, option, text, what, caret, remedy):
    with pytest.raises(TilewaveError) as error:
        run("gemm.s", "gemm", option, text)
    assert str(error.value) == f"{what}\n      {text}\n      {caret}\n  {remedy}"


@pytest.mark.parametrize(
    "text, said",
    [
        ("out:C.npy:float32:" + "9" * 5000, RESULT),
        ("out:C.npy:float32:99999x99999", "--arg: a result of 39,999,200,004 bytes"),
        ("in:D.npy", "--arg: D.npy is no array: "),
    ],
)
def test_sizes_and_files_that_nothing_fits_are_refused(gemm, text, said):
    Path("D.npy").write_bytes(b"no array")
    with pytest.raises(TilewaveError) as error:
        run("gemm.s", "gemm", "--arg", text)
    assert str(error.value).startswith(said)


def test_a_missing_file_is_named():
    with pytest.raises(TilewaveError, match=r"there is no file nothing\.s"):
        run("nothing.s")


def test_the_number_of_instructions_can_be_limited(gemm):
    words, _, _ = gemm
    with pytest.raises(TilewaveError, match="endless run: a wave has run more than 50 instructions"):
        run(*words, "--limit", "50")
    assert run(*words, "--limit", "5000")[0] == 0


def test_a_file_that_is_no_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.s").write_bytes(bytes(range(256)))
    with pytest.raises(TilewaveError, match="the assembly does not say which chip it is for"):
        run("noise.s")
