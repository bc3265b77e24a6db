"""The command line: `tilewave diff` and `tilewave doctor`, and how mistakes are answered."""

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from kernels import *
from typer.models import OptionInfo

import tilewave
from tilewave.backend.nvidia.ptxas import read_log
from tilewave.cli.commands import COMMANDS, function_of
from tilewave.cli.diff import parse_sizes
from tilewave.errors import TilewaveError

EXAMPLES = Path(__file__).parents[2] / "examples"
KERNEL = """
from tilewave import *
M, N, SPACE = sym.M, sym.N, sym.SPACE

@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
def double(a: Memory[M, N, SPACE, f32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a) * 2.0, c)

@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), WorkgroupMapping("grouped(2)")])
def copy(a: Memory[M, N, SPACE, f32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a), c)
"""
SIZES = "M=64,N=48,SPACE=shared"
PROGRAM = Path(sys.executable).parent / "tilewave"


# -- diff -----------------------------------------------------------------------------------------------------------


def test_diff_shows_every_pass_of_every_kernel(call):
    code, out, err = call("diff", "k.py", "--set", SIZES, k=KERNEL)
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert [line.strip("─ ") for line in lines if "──" in line] == ["double", "copy"]
    assert sum(line.startswith("fold_permutes  fold_permutes") for line in lines) == 2
    assert any(line.startswith("map_workgroups  MapWorkgroups(grouped(2))") for line in lines)
    assert "(unchanged)" in lines
    assert any(line.startswith("-  %tile_b, %tile_m, %tile_n = tile_of(%workgroup)") for line in lines)


def test_diff_can_show_one_pass_of_one_kernel(call):
    code, out, _ = call(
        "diff", "k.py", "-s", "M=64,N=48", "-s", "SPACE=global", "--kernel", "copy", "--only", "simplify", k=KERNEL
    )
    assert code == 0
    assert "double" not in out
    assert "map_workgroups" not in out
    assert "simplify" in out


def test_diff_for_machines(call):
    code, out, _ = call("diff", "k.py", "--set", SIZES, "--json", k=KERNEL)
    found = json.loads(out)
    assert code == 0
    assert list(found) == ["double", "copy"]
    assert [step["pass"] for step in found["copy"]][:3] == ["map_workgroups", "fold_permutes", "simplify"]
    mapped, oriented, *_ = found["copy"]
    assert mapped["decision"] == "MapWorkgroups(grouped(2))"
    assert mapped["changed"]
    assert mapped["diff"].startswith("@@ ")
    assert (oriented["changed"], oriented["diff"]) == (False, "")
    assert oriented["seconds"] >= 0


def test_diff_context_lines(call):
    _, wide, _ = call("diff", "k.py", "--set", SIZES, "--only", "map_workgroups", k=KERNEL)
    _, none, _ = call("diff", "k.py", "--set", SIZES, "--only", "map_workgroups", "--context", 0)
    assert "   %workgroup = workgroup() : index" not in none
    assert len(none.splitlines()) < len(wide.splitlines())


def test_diff_shows_kernels_that_the_file_compiles_as_they_are(call):
    more = (
        KERNEL
        + "\ncompiled = wave_compile(WaveCompileOptions(subs={M: 32, N: 32, SPACE: GLOBAL_ADDRESS_SPACE}), copy)\n"
    )
    code, out, _ = call("diff", "k.py", "--json", k=more)
    assert code == 0
    assert list(json.loads(out)) == ["copy"]


def test_diff_takes_sizes_from_the_files_own_subs_and_lets_set_change_them(call):
    _, plain, _ = call("diff", EXAMPLES / "gemm.py")
    _, changed, _ = call("diff", EXAMPLES / "gemm.py", "--set", "M=128,BLOCK_K=64")
    assert "%a: memory<512x512xf16, global>" in plain
    assert "%a: memory<128x512xf16, global>" in changed
    assert "tile<64x64xf16>" in changed


def test_diff_does_not_run_what_is_guarded_by_main(call):
    code, out, _ = call(
        "diff", "k.py", "--set", SIZES, k=KERNEL + "\nif __name__ == '__main__':\n    print('as a program')\n"
    )
    assert code == 0
    assert "as a program" not in out


MISTAKES = {
    "a file without a kernel": (["diff", "empty.py"], "error: empty.py defines no kernel\n"),
    "a kernel that is not there": (
        ["diff", "k.py", "--set", SIZES, "--kernel", "tripel"],
        "error: k.py defines no kernel 'tripel'\n",
    ),
    "a size that is none": (
        ["diff", "k.py", "--set", "M=many"],
        "error: --set: 'M=many' is no size\n  write M=512 or ADDRESS_SPACE=shared\n",
    ),
    "a size that no kernel has": (
        ["diff", "k.py", "--set", SIZES + ",BLOCK=3"],
        "error: --set: no kernel of k.py has a symbol BLOCK\n  its symbols are M, N, SPACE\n",
    ),
    "sizes for a file that has its own": (
        ["diff", "compiled.py", "--set", SIZES],
        "error: compiled.py compiles its kernels itself\n  leave --set out: it would change nothing\n",
    ),
    "a size that is never evaluated": (
        ["diff", "k.py", "--set", "M=__import__('os')"],
        "error: --set: \"M=__import__('os')\" is no size\n  write M=512 or ADDRESS_SPACE=shared\n",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_in_words(case, call):
    words, text = MISTAKES[case]
    compiled = KERNEL + "k = wave_compile(WaveCompileOptions(subs={M: 8, N: 8, SPACE: SHARED_ADDRESS_SPACE}), copy)\n"
    assert call(*words, k=KERNEL, empty="x = 1", compiled=compiled) == (2, "", text)


def test_a_pass_that_is_not_there_is_told_with_those_that_are(call):
    code, out, err = call("diff", "k.py", "--set", SIZES, "--only", "simplfy", k=KERNEL)
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown pass 'simplfy'\n  the passes of double are map_workgroups, fold_permutes,")


def test_a_kernel_that_does_not_compile_says_why(call):
    code, out, err = call("diff", "k.py", "--set", "M=64,N=48", k=KERNEL)
    assert (code, out) == (2, "")
    assert err.startswith("error: a: SPACE is in the place of the address space, and has no value\n  k.py:6\n")
    assert err.endswith("  give it a value: --set SPACE=shared, or --set SPACE=global\n")


def test_sizes_are_read_with_blanks_and_several_times():
    assert parse_sizes(["M=512, N = 64", "K=3,"]) == {M: 512, N: 64, K: 3}
    assert parse_sizes(["SPACE=global"]) == {sym.SPACE: GLOBAL_ADDRESS_SPACE}
    assert parse_sizes([]) == {}
    for wrong in ("M", "M=", "=3", "M=-1", "M=1.5", "M N=3"):
        with pytest.raises(TilewaveError, match="is no size"):
            parse_sizes([wrong])


# -- doctor ---------------------------------------------------------------------------------------------------------


def test_doctor_says_what_is_here(call):
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    assert out.startswith(f"tilewave {tilewave.__version__}, Python {sys.version.split()[0]}")
    assert f"numpy       {importlib.metadata.version('numpy')}" in out
    rows = {line.split("  ")[1]: line for line in out.splitlines() if line.startswith("  ")}
    assert {"processor", "instruction set", "threads", "kernels run on", "cache", "llvm-objdump", "ptxas"} <= {*rows}
    assert os.environ["TILEWAVE_CACHE_DIR"] in rows["cache"]
    for vendor in ("rocm", "cuda"):
        assert any(name.startswith(vendor) for name in rows)


def test_doctor_says_how_large_the_cache_is_or_that_it_is_off(call, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "x.entry").write_bytes(bytes(123_000))
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWAVE_CACHE_BYTES", "1000000")
    found = {one["what"]: one for one in json.loads(call("doctor", "--json")[1])["findings"]}
    assert found["cache"]["found"] == f"{tmp_path / 'cache'}: 123 kB of 1 MB"
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")
    found = {one["what"]: one for one in json.loads(call("doctor", "--json")[1])["findings"]}
    assert (found["cache"]["found"], found["cache"]["is_here"]) == ("off", False)


def test_doctor_for_machines_knows_what_is_missing(call, monkeypatch):
    def version(package):
        if package == "torch":
            raise importlib.metadata.PackageNotFoundError
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, out, _ = call("doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["tilewave"] == tilewave.__version__
    assert report["packages"]["torch"] is None
    assert report["packages"]["numpy"] == "1.2.3"
    assert report["cores"] >= 1
    assert "not found" in call("doctor")[1]


# -- the program ----------------------------------------------------------------------------------------------------


def test_help_lists_the_commands(call):
    code, out, _ = call("--help")
    assert code == 0
    for command in ("map", "diff", "doctor"):
        assert command in out


def test_the_installed_program_fails_without_a_traceback(tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    done = subprocess.run([PROGRAM, "diff", "empty.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: empty.py defines no kernel\n")


def test_the_package_is_a_program_as_well(tmp_path):
    """Where scripts are not on the path."""
    program = [sys.executable, "-m", "tilewave"]
    done = subprocess.run([*program, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tilewave ")
    (tmp_path / "empty.py").write_text("x = 1\n")
    done = subprocess.run([*program, "diff", "empty.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: empty.py defines no kernel\n")


USAGE = {
    "a file that is not there": ["diff", "nowhere.py"],
    "a missing argument": ["diff"],
    "an unknown command": ["dif", "k.py"],
    "an unknown option": ["diff", "k.py", "--onli", "simplify"],
    "a negative context": ["diff", "k.py", "--context", "-1"],
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_is_told_and_exits_with_2(case, call):
    code, _, err = call(*USAGE[case], k=KERNEL)
    assert code == 2
    assert "Usage: tilewave" in err
    assert "Traceback" not in err


def test_a_file_may_import_its_neighbours(call):
    code, out, _ = call("diff", "k.py", "--set", SIZES, "--json", k="from other import *\n" + KERNEL, other="x = 1")
    assert code == 0
    assert list(json.loads(out)) == ["double", "copy"]


def test_two_kernels_of_one_name_are_both_shown(call):
    twice = "".join(
        f"k{m} = wave_compile(WaveCompileOptions(subs={{M: {m}, N: 32, SPACE: GLOBAL_ADDRESS_SPACE}}), copy)\n"
        for m in (32, 64)
    )
    _, out, _ = call("diff", "k.py", "--json", k=KERNEL + twice + "again = k32\n")
    assert list(json.loads(out)) == ["copy", "copy_2"]
    _, out, _ = call("diff", "k.py", "--context", 99)
    assert "memory<32x32xf32, global>" in out
    assert "memory<64x32xf32, global>" in out
    _, out, _ = call("diff", "k.py", "--kernel", "copy_2", "--context", 99)
    assert "memory<32x32xf32, global>" not in out
    assert "memory<64x32xf32, global>" in out


BROKEN = {
    "an import that fails": (
        "import nowhere_to_be_found",
        """
        Traceback (most recent call last):
          File "k.py", line 1, in <module>
            import nowhere_to_be_found
        ModuleNotFoundError: No module named 'nowhere_to_be_found'
        """,
    ),
    "no Python": (
        "x = = 1",
        """
          File "k.py", line 1
            x = = 1
                ^
        SyntaxError: invalid syntax
        """,
    ),
    "a mistake inside a kernel": (
        KERNEL.replace("read(a) * 2.0", "read(a) * nothing"),
        """
        Traceback (most recent call last):
          File "k.py", line 7, in double
            write(read(a) * nothing, c)
                            ^^^^^^^
        NameError: name 'nothing' is not defined
        """,
    ),
    "an error behind an error": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('no') from None\n",
        """
        Traceback (most recent call last):
          File "k.py", line 4, in <module>
            raise ValueError('no') from None
        ValueError: no
        """,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_breaks_is_told_with_its_own_frames_alone(case, call):
    source, wanted = BROKEN[case]
    code, out, err = call("diff", "k.py", "--set", SIZES, k=source)
    assert (code, out) == (1, "")
    told = [line for line in err.replace(str(Path.cwd()) + "/", "").splitlines() if set(line.strip()) != {"^"}]
    assert told == [line for line in textwrap.dedent(wanted).strip("\n").splitlines() if set(line.strip()) != {"^"}]


def test_the_programs_path_and_arguments_come_back(call):
    before = list(sys.path)
    call("diff", "k.py", "--set", SIZES, k="import sys\nassert sys.argv == ['k.py']\n" + KERNEL)
    assert sys.path == before
    assert sys.argv[:2] == ["tilewave", "diff"]


def test_version(call):
    assert call("--version") == (0, f"tilewave {tilewave.__version__}\n", "")


def test_exit_codes_are_kept(call, monkeypatch):
    def leave(error):
        def drawn(*args, **more):
            raise error

        return drawn

    for error, code in [(typer.Exit(7), 7), (KeyboardInterrupt(), 130)]:
        monkeypatch.setattr("tilewave.cli.map.show", leave(error))
        assert call("map", "2x2") == (code, "", "")


def test_a_terminal_without_our_characters_gets_question_marks(tmp_path):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([PROGRAM, "map", "2x2"], capture_output=True, text=True, timeout=60, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


@pytest.mark.parametrize(
    "words", [["--version"], ["map", "60x60", "--json"], ["doctor"], ["diff", EXAMPLES / "gemm.py"]], ids=str
)
def test_a_reader_who_leaves_is_not_complained_to(words):
    """Messages go to the first pipe, and output goes to one that is not read."""
    line = ["bash", "-c", 'exec 3>&1; "$@" 2>&3 | true', "-", PROGRAM, *map(str, words)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=buffered)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_option_is_named_by_what_it_takes():
    """Some versions of click take a metavar that spells the parameter for its name, and --dtype becomes --DTYPE."""
    for command in COMMANDS:
        for name, hint in get_type_hints(function_of(command), include_extras=True).items():
            for option in (m for m in getattr(hint, "__metadata__", ()) if isinstance(m, OptionInfo)):
                spells_it = option.metavar and option.metavar.lower() == name.strip("_")
                named = str(option.default).startswith("--")  # where Annotated has it, until the command is built
                assert named or not spells_it, f"tilewave {command}: write Option('--{name}', …)"


# -- sizes that stay open -------------------------------------------------------------------------------------------


def test_compile_leaves_sizes_open_that_nobody_says_and_tells_what_is_known_of_them(call):
    code, out, err = call("compile", "k.py", "--target", "numpy", "--set", "N=48,SPACE=global", "--json", k=KERNEL)
    assert (code, err) == (0, "")
    found = json.loads(out)["copy"]
    assert found["open_sizes"] == ["M"] and found["workgroups"] == found["tiles"] == "ceil(M / 16) * 3"
    assert found["proof"].startswith("right for every size, because grouped(2) is right on every grid")
    code, out, err = call("compile", "k.py", "--target", "numpy", "--set", "SPACE=global")
    assert (code, err) == (0, "")
    lines = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    assert ["", "open sizes", "M, N", ""] in lines


PRODUCT = """
from tilewave import *
M, N, K, G = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE

@wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 256, 1), TilingConstraint(K, 64)])
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f16]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)
    write(cast(total, f16), c)
"""
LARGE = ("--set", "M=4096,N=4096,K=4096")


def rows_of(out):
    """The rows of a table of two columns, with continued cells joined."""
    rows = {}
    for line in out.splitlines():
        if line.startswith("│"):
            name, value = (cell.strip() for cell in line.strip("│").split("│"))
            last = name or last
            rows[last] = f"{rows.get(last, '')} {value}".strip()
    return rows


def test_compile_says_how_many_ctas_a_persistent_kernel_launches(call):
    words = ("compile", "k.py", "--target", "sm_90a")
    rows = rows_of(call(*words, *LARGE, k=PRODUCT)[1])
    assert rows["tiles"] == "512" and rows["CTAs launched"] == "132 (persistent, 1 per SM)"
    record = json.loads(call(*words, *LARGE, "--json")[1])["gemm"]
    assert (record["tiles"], record["workgroups"], record["persistent"]) == (512, 132, True)
    rows = rows_of(call(*words)[1])
    assert rows["tiles"] == "ceil(M / 128) * ceil(N / 256)"
    assert rows["CTAs launched"] == "at most 132, computed at each launch from M, K, N (persistent)"
    amd = rows_of(call("compile", "k.py", "--target", "gfx942", *LARGE)[1])
    assert amd["tiles"] == amd["workgroups launched"] == "512"


def test_compile_says_what_the_roles_of_warps_have(call, monkeypatch):
    words = ("compile", "k.py", "--target", "sm_90a", *LARGE)
    log = "ptxas info    : Used 168 registers\n0 bytes stack frame, 0 bytes spill stores"
    monkeypatch.setattr("tilewave.backend.nvidia.program.ptxas", lambda: "ptxas")
    monkeypatch.setattr("tilewave.backend.nvidia.program.assemble_ptx", lambda *given: read_log(log))
    rows = rows_of(call(*words, k=PRODUCT)[1])
    assert rows["warps"] == "8 consumer + 4 producer"
    assert rows["registers"] == "168 at the launch; consumer 232, producer 40"
    assert rows["occupancy"] == "0.1875 (12 of 64 warps per SM)" and rows["CTAs per SM"] == "1"
    assert json.loads(call(*words, "--json")[1])["gemm"]["roles"] == [
        {"role": "consumer", "warps": 8, "registers": 232},
        {"role": "producer", "warps": 4, "registers": 40},
    ]
    monkeypatch.setattr("tilewave.backend.nvidia.program.ptxas", lambda: "")
    unknown = rows_of(call(*words)[1])["registers, spilled bytes, occupancy, CTAs per SM"]
    assert unknown == "unknown: ptxas (CUDA toolkit) is not on the PATH"


def test_compile_tells_of_fixed_sizes_that_they_were_checked(call):
    code, out, _ = call("compile", "k.py", "--target", "numpy", "--set", SIZES, "--json", k=KERNEL)
    found = json.loads(out)["copy"]
    assert code == 0 and found["workgroups"] == 12 and "open_sizes" not in found
    assert found["tiles"] == 12 and not found["persistent"]
    assert found["proof"] == "checked when it was compiled, because its sizes are fixed"


def test_diff_shows_what_the_launch_computes(call):
    words = ("diff", "k.py", "--set", "SPACE=global,N=48", "--target", "numpy", "--only", "hoist_to_launch")
    code, out, err = call(*words, "--kernel", "copy", k=KERNEL)
    assert (code, err) == (0, "")
    assert "{M}x48xf32" in out and "launch()" in out


SUBS = "\ndef subs(m, n, k):\n    return {M: m, N: n, SPACE: GLOBAL_ADDRESS_SPACE}\n"


@pytest.mark.parametrize("command", ["compile", "diff"])
def test_open_frees_sizes_that_the_files_own_subs_fix(command, call):
    words = (command, "k.py", "--target", "numpy", "--kernel", "copy")
    code, out, err = call(*words, "--open", "M, N", k=KERNEL + SUBS)
    assert (code, err) == (0, "")
    assert ("open sizes" in out) if command == "compile" else ("{M}x{N}xf32" in out)
    code, out, _ = call(*words)
    assert code == 0 and "{M}" not in out and "open sizes" not in out


OPEN_MISTAKES = {
    ("--open", "Q"): "error: --open: no kernel of k.py has a symbol Q\n  its symbols are M, N, SPACE\n",
    ("--open", "M+1"): "error: --open: 'M+1' is no name of a size\n  write --open M,N,K\n",
    ("--open", "M", "--set", "M=4"): "error: M is in --set and in --open\n  leave it out of one of them\n",
}


@pytest.mark.parametrize("words", OPEN_MISTAKES, ids=" ".join)
def test_open_is_given_what_can_stay_open(words, call):
    assert call("compile", "k.py", "--target", "numpy", *words, k=KERNEL + SUBS) == (2, "", OPEN_MISTAKES[words])


@pytest.mark.parametrize("command", ["run", "bench", "sim"])
def test_what_makes_arrays_asks_for_sizes(command, call):
    option = "--set" if command == "sim" else "--sizes"
    code, out, err = call(command, "k.py", option, "SPACE=global,N=8", k=KERNEL)
    assert (code, out) == (2, "")
    assert err == f"error: double: size M is missing\n  pass {option} M=…\n"
    own = "\nmine = wave_compile(WaveCompileOptions(subs={SPACE: GLOBAL_ADDRESS_SPACE}, target='numpy'), double)\n"
    code, out, err = call(command, "k.py", k=KERNEL + own)
    assert (code, out) == (2, "")
    told = "  k.py compiles it itself: fix them there, in subs\n"
    assert err == f"error: double: sizes M, N are missing\n{told}"
