"""Every command as it is met: in a terminal, in a pipe, at 80 columns, without colours, and read by a program."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emulated_code import SMALL

from tilewave.bench import measure
from tilewave.cli.commands import COMMANDS
from tilewave.cli.main import main
from tilewave.mapping import as_mapping

KERNEL = """
from tilewave import *
M, N = sym.M, sym.N

@wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), WorkgroupMapping("grouped(2)")])
def copy(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(a) + 1.0, c)
"""
UNTILED = KERNEL.replace("16", "sym.BLOCK").replace(', WorkgroupMapping("grouped(2)")', "")
GEMM = ("--shape", "64x64x64", "--tile", "32x32x32")
SIZES = ("--set", "M=64,N=48")
SAMPLES: dict[str, tuple[str, ...]] = {
    "map": ("map", "8x8", "xcd_contiguous(8) >> grouped(2)", "--compare", "hilbert()"),
    "run": ("run", "gemm", *GEMM, "--repeats", "2", "--threads", "1", "--map", "grouped(2)"),
    "run a file": ("run", "copy.py", *SIZES, "--repeats", "2"),
    "bench": ("bench", "copy.py", *SIZES, "--rounds", "2", "--mode", "short"),
    "diff": ("diff", "copy.py", *SIZES, "--target", "gfx942", "--only", "map_workgroups"),
    "compile": ("compile", "copy.py", *SIZES, "--target", "gfx942"),
    "emulate": ("emulate", "gemm.s"),
    "emulate --stats": ("emulate", "gemm.s", "gemm", "--stats"),
    "cycles": ("cycles", "gemm.s"),
    "sim": ("sim", "--shape", "2048x1024x512"),
    "sim --compare": ("sim", "--shape", "2048x1024x512", "--compare", "xcd_contiguous(8) >> supertiles(4, 8)"),
    "sim --best": ("sim", "--shape", "1024x1024x256", "--best"),
    "sim a file": ("sim", "copy.py", *SIZES),
    "tune": ("tune", "untiled.py", "--sizes", "M=256,N=256", "--strength", "model"),
    "records": ("records", "show", "records.jsonl"),
    "warm": ("warm", "--target", "cpu", "--dtypes", "f32"),
    "machines": ("machines",),
    "machines H200": ("machines", "H200"),
    "doctor": ("doctor",),
}
WITHOUT_JSON = {"explore"}
"""What it serves is JSON; `--html` writes a page."""
COLOUR = re.compile(r"\x1b\[[\d;]*(?:3\d|4\d|9\d|10\d|38;|48;)[\d;]*m")
ESCAPE = re.compile(r"\x1b\[[\d;]*m")
WIDTHS = (80, 400)
FIRST_TITLES = {"mapping", "machine", "here"}
"""Titles of a table's first column, which are left out when rows are printed one below the other."""
samples = pytest.mark.parametrize("sample", SAMPLES)


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def words(self) -> set[str]:
        """What was printed, without the frames of tables; numbers differ from run to run."""
        plain = re.sub(r"[─│┌┐└┘├┤┬┴┼·]", " ", ESCAPE.sub("", self.out))
        return {re.sub(r"\d+", "0", word).rstrip(",.;:") for word in plain.split()}


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A command in a directory that has what the samples name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    orders = [as_mapping(text) for text in ("linear()", "xcd_contiguous(8) >> supertiles(4, 8)", "hilbert()")]
    monkeypatch.setattr("tilewave.sim.search.mappings_for", lambda machine: orders)
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0)
    monkeypatch.setattr("tilewave.cli.warm._warmed", lambda tasks, workers: [])  # tests of warm compile some
    (tmp_path / "copy.py").write_text(KERNEL)
    (tmp_path / "untiled.py").write_text(UNTILED)
    (tmp_path / "gemm.s").write_text(SMALL[0].text)
    (tmp_path / "records.jsonl").write_text("")

    def run(*words: str, **environment: str) -> Said:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["tilewave", *words])
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = int(leave.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def test_every_command_has_a_sample() -> None:
    assert {words[0] for words in SAMPLES.values()} | WITHOUT_JSON == {*COMMANDS}


@samples
def test_a_pipe_at_80_columns_has_every_word_whole_and_no_escapes(said: Any, sample: str) -> None:
    narrow, wide = (said(*SAMPLES[sample], COLUMNS=str(width)) for width in WIDTHS)
    assert (narrow.code, narrow.err) == (wide.code, wide.err) == (0, "")
    assert "\x1b" not in narrow.out + wide.out
    assert wide.words - narrow.words <= FIRST_TITLES
    terminal = said(*SAMPLES[sample], COLUMNS=str(WIDTHS[1]), FORCE_COLOR="1")
    assert terminal.code == 0
    assert sample in ("records", "warm") or "\x1b[" in terminal.out, "nothing is set off for a person"
    if sample != "map":  # which distinguishes XCDs by colour where it can
        assert terminal.words == wide.words


@pytest.mark.parametrize("path", ["", "/usr/local/cuda/bin/ptxas"])
def test_doctor_has_every_word_at_80_columns_with_and_without_the_tools(
    said: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Where all are there, no row says `not here`, and the title of the first column is all that has the word."""
    monkeypatch.setattr("tilewave.cli.doctor.ptxas", lambda: path)
    monkeypatch.setattr("tilewave.cli.doctor.find_objdump", lambda: path)
    monkeypatch.setattr("tilewave.cli.doctor.shutil.which", lambda name: path or None)
    narrow, wide = (said("doctor", COLUMNS=str(width)) for width in WIDTHS)
    assert ("llvm-objdump" in narrow.out, narrow.out.count(path or "not found") >= 3) == (True, True)
    assert wide.words - narrow.words <= FIRST_TITLES


@samples
def test_no_color_is_heeded(said: Any, sample: str) -> None:
    found = said(*SAMPLES[sample], COLUMNS="120", FORCE_COLOR="1", NO_COLOR="1")
    assert found.code == 0
    assert not COLOUR.findall(found.out)


@samples
def test_json_is_all_that_a_program_gets(said: Any, sample: str) -> None:
    found = said(*SAMPLES[sample], "--json")
    assert (found.code, found.err) == (0, "")
    assert json.loads(found.out) is not None
    assert "\x1b" not in found.out


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_words_end_with_2_and_without_a_traceback(said: Any, command: str) -> None:
    found = said(command, "--no-such-option")
    assert found.code == 2
    assert "No such option" in found.err and "Traceback" not in found.err
    assert found.out == ""


def test_explore_writes_a_page_and_says_so(said: Any) -> None:
    found = said("explore", "--shape", "512x512x64", "--html", "explorer.html")
    assert (found.code, found.out, found.err) == (0, "wrote explorer.html\n", "")
    assert Path("explorer.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@samples
def test_a_pipe_that_is_read_no_further_ends_a_command_quietly(said: Any, sample: str) -> None:
    """`tilewave … | head`: what is left is not printed, and nothing is said of it."""
    with nobody_reading():
        found = said(*SAMPLES[sample])
    assert (found.out, found.err) == ("", "")
    assert found.code in (0, 1)  # 0 where all of it had been written before


@contextmanager
def nobody_reading() -> Iterator[None]:
    """Standard output is a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.MonkeyPatch.context() as patch, suppress(BrokenPipeError), open(writer, "w", encoding="utf-8") as pipe:
        patch.setattr(sys, "stdout", pipe)
        yield
