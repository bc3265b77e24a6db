"""Processes that tilewave starts: they find what this one found, end in time, and may print."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from kernels import gemm, sizes
from quick_code import compile_here

from tilewave import WaveCompileOptions, f32, wave_compile
from tilewave.backend import llvm_child
from tilewave.backend.assembler import AssemblyFailed, assemble
from tilewave.backend.cpu.instruction_sets import host_instruction_set
from tilewave.backend.nvidia.ptxas import PtxasFailed, assemble_ptx
from tilewave.children import run_child
from tilewave.emulator.disassembly import disassemble
from tilewave.emulator.findings import UnsupportedCode
from tilewave.errors import TargetError, TilewaveError

IR = "define i64 @f(i64 %x) {\n  %y = add i64 %x, 1\n  ret i64 %y\n}\n"
MACHINE = host_instruction_set().machine
REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.llvm_child


@pytest.fixture(autouse=True)
def _nothing_from_the_cache(monkeypatch):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", "off")


def script(folder, text, name="python"):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def compiled():
    return wave_compile(WaveCompileOptions(subs=sizes(8, 8, 8), target="cpu"), gemm(f32))


def refusal():
    with pytest.raises(TargetError) as caught:
        compiled()
    assert caught.value.loc.file == __file__
    return caught.value.what, caught.value.remedy


# What the child finds -----------------------------------------------------------------------------------------------

COMPILES = """
from tilewave import *
from tilewave.backend.assembler import assemble
from tilewave.backend.cpu.instruction_sets import host_instruction_set
import importlib.util, sys
print(len(assemble({ir!r}, host_instruction_set().machine).code) > 0)
"""


def test_llvmlite_may_lie_on_pythonpath_alone(tmp_path):
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    alone = subprocess.run([bare, "-I", "-c", "import llvmlite"], capture_output=True)
    assert alone.returncode, "this Python has llvmlite of its own, so nothing is tested"
    paths = os.pathsep.join([str(REPOSITORY), sysconfig.get_path("purelib")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([bare, "-c", COMPILES.format(ir=IR)], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_module_beside_the_child_does_not_stand_in_for_python_s_own(tmp_path, monkeypatch):
    (tmp_path / "ctypes.py").write_text("raise SystemExit('this is not the ctypes that was meant')")
    shutil.copy(llvm_child.__file__, tmp_path)
    monkeypatch.setattr("tilewave.backend.assembler._FOLDER", str(tmp_path))
    assert assemble(IR, MACHINE).code


def test_the_child_imports_what_is_fast_to_import():
    """`ctypes` takes 4 ms; with `re` or `typing` each kernel would take 6 ms longer, with llvmlite 60."""
    tree = ast.parse(Path(llvm_child.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {getattr(node, "module", None) or alias.name for node in imports for alias in node.names}
    assert found == {"__future__", "ctypes", "os", "sys"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("ret i64 %y", "ret i64 %z"), "use of undefined value '%z'"),
        ((") {", ") alwaysinline noinline {"), "ptr @f"),
    ],
)
def test_the_error_has_llvms_message_for_wrong_text(wrong, message):
    with pytest.raises(AssemblyFailed, match=re.escape(message)):
        assemble(IR.replace(*wrong), MACHINE)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        compile_here(IR.replace(*wrong), MACHINE)


# What else it prints ------------------------------------------------------------------------------------------------


def test_what_others_print_around_the_answer_is_not_the_answer(tmp_path, monkeypatch):
    quiet = assemble(IR, MACHINE)
    noise = f'echo "{{"; echo welcome; "{sys.executable}" "$@"; code=$?; echo bye; exit $code'
    monkeypatch.setattr(sys, "executable", script(tmp_path, noise))
    assert assemble(IR, MACHINE) == quiet


@pytest.mark.parametrize("says", ["true", "echo '{}'", "echo tilewave 0 {}"])
def test_a_program_that_is_no_python_is_told(tmp_path, monkeypatch, says):
    monkeypatch.setattr(sys, "executable", script(tmp_path, f"cat > /dev/null; {says}"))
    assert refusal() == (
        f"gemm: LLVM could not compile it for {host_instruction_set().name}: "
        f"'{tmp_path}/python' ended without an answer",
        "set sys.executable to the path of a Python interpreter: tilewave runs LLVM in a separate process",
    )


# Where there is no Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_process_that_does_not_know_its_python_is_told_what_to_set(monkeypatch, nothing):
    monkeypatch.setattr(sys, "executable", nothing)
    assert refusal() == (
        f"gemm: LLVM could not compile it for {host_instruction_set().name}: "
        f"sys.executable is {nothing!r}, so there is no Python to run it in",
        "set sys.executable to the path of a Python interpreter: tilewave runs LLVM in a separate process",
    )


@pytest.mark.parametrize("wrong", ["/nowhere/python", "/", "a\0b"])
def test_a_python_that_does_not_start_is_named(monkeypatch, wrong):
    monkeypatch.setattr(sys, "executable", wrong)
    what, remedy = refusal()
    assert f"{wrong!r} does not start: " in what
    assert remedy == "see whether it is there and executable"


# Limits -------------------------------------------------------------------------------------------------------------


def test_a_child_that_stops_is_killed_and_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_COMPILE_SECONDS", "1")
    monkeypatch.setattr(sys, "executable", script(tmp_path, f"echo $$ > {tmp_path}/pid; kill -STOP $$"))
    what, remedy = refusal()
    assert "it was not done within 1 s (" in what and what.endswith(" lines of LLVM IR)")
    assert remedy == "smaller tiles make less code to compile; TILEWAVE_COMPILE_SECONDS sets another limit"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_disassembler_that_stops_is_killed_and_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWAVE_COMPILE_SECONDS", "1")
    monkeypatch.setenv("LLVM_OBJDUMP", script(tmp_path, "kill -STOP $$", "objdump"))
    with pytest.raises(UnsupportedCode, match="objdump: it was not done within 1 s"):
        disassemble(b"", "gfx942")


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("kill -STOP $$", "ptxas: it was not done within 1 s"),
        (r"printf '\377' >&2; exit 3", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_an_assembler_that_stops_or_stammers_is_told(tmp_path, monkeypatch, does, told):
    script(tmp_path, does, "ptxas")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TILEWAVE_COMPILE_SECONDS", "1")
    with pytest.raises(PtxasFailed) as caught:
        assemble_ptx(f"// {does}", "sm_90a")
    assert caught.value.what == told


@pytest.mark.parametrize("wrong", ["", "0", "-1", "1.5", "ten", "²", "1000000", "9" * 5000])
def test_a_limit_that_is_none_is_refused(monkeypatch, wrong):
    monkeypatch.setenv("TILEWAVE_COMPILE_SECONDS", wrong)
    with pytest.raises(TilewaveError) as caught:
        run_child(["true"])
    assert str(caught.value) == (
        f"TILEWAVE_COMPILE_SECONDS is {wrong!r}, which is no number of seconds\n"
        "  set it to a whole number from 1 to 999999, or unset it for 600"
    )
