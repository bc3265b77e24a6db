"""Mistakes that authors make, in one golden file: each is answered as `mistakes.md` says, and its advice works."""

import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from messages import without_carets

from tilewave.cli.main import main
from tilewave.errors import TilewaveError

FILE = Path(__file__).with_name("mistakes.md")
MANY = 150
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Mistake:
    """One section: what is written, what follows the advice, and what is said."""

    title: str
    program: str
    lines: tuple[str, ...]
    said: str

    def source(self, sign):
        """The chapter's program with the lines of one sign, and those of both, in place of its `…`."""
        mine = [line[1:] for line in self.lines if line[0] in (sign, " ")]
        before, after = re.split(r"^ *…$", self.program, maxsplit=1, flags=re.MULTILINE)
        indent = re.search(r"^( *)…$", self.program, re.MULTILINE)[1]
        return before + "\n".join(indent + line for line in mine) + after

    @property
    def is_command(self):
        return self.source("-").startswith("tilewave ")


def blocks(text, info):
    return [m["text"] for m in FENCE.finditer(text) if m["info"] == info]


def mistakes():
    """Return every section of the file, with its chapter's program after the beginning that all programs share."""
    head, *chapters = re.split(r"^# ", FILE.read_text(), flags=re.MULTILINE)[1:]
    (begin,) = blocks(head, "python")
    for chapter in chapters:
        intro, *sections = re.split(r"^## ", chapter, flags=re.MULTILINE)
        commands = blocks(intro, "sh")
        program = commands[0] if commands else begin + blocks(intro, "python")[0]
        for section in sections:
            (lines,), (said,) = blocks(section, "diff"), blocks(section, "text")
            yield Mistake(section.partition("\n")[0], program, tuple(lines.splitlines()), said)


ALL = {mistake.title: mistake for mistake in mistakes()}
FILES = {name: blocks(FILE.read_text(), f"python {name}")[0] for name in ("kernel.py", "gemm.py")}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty directory with the files that commands are given."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def run(mistake, sign, place, monkeypatch):
    """Run the program, or the command, that a sign gives; which errors come is the caller's business."""
    source = mistake.source(sign)
    if mistake.is_command:
        monkeypatch.setattr(sys, "argv", shlex.split(source))
        main()
    else:
        (place / "gemm.py").write_text(source)
        runpy.run_path(str(place / "gemm.py"))


def answer(mistake, place, monkeypatch, capsys):
    """What the mistake is answered with, as a terminal shows it, under the name of its kind."""
    try:
        run(mistake, "-", place, monkeypatch)
    except TilewaveError as error:
        return f"{type(error).__name__}: {error}"
    except SystemExit as leave:
        assert leave.code == 2
        return capsys.readouterr().err.rstrip().removeprefix("error: ")
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("title", ALL)
def test_a_mistake_is_answered_with_advice(title, place, monkeypatch, capsys, request):
    mistake = ALL[title]
    found = answer(mistake, place, monkeypatch, capsys)
    if request.config.getoption("--update-golden") and not os.environ.get("CI"):
        keep(title, found)
        return
    wanted = mistake.said.rstrip()
    if sys.version_info < (3, 11):  # Python reports no columns, and gives a decorator the line of the function below it
        if re.search(r"^ +@", wanted, re.MULTILINE):
            pytest.skip("Python 3.10 gives a decorator's call the line of the function below it")
        found, wanted = without_carets(found), without_carets(wanted)
    assert found == wanted


@pytest.mark.parametrize("title", ALL)
def test_the_advice_works(title, place, monkeypatch):
    try:
        run(ALL[title], "+", place, monkeypatch)
    except SystemExit as leave:
        assert not leave.code


def test_there_are_many_and_no_two_are_called_the_same():
    assert len(list(mistakes())) == len(ALL) >= MANY


def test_the_authors_line_is_found_behind_a_cached_property():
    ours = {"__name__": "tilewave.made_up"}
    source = """
    from functools import cached_property
    from tilewave.errors import here
    class Lazy:
        @cached_property
        def loc(self):
            return here()
    """
    exec(textwrap.dedent(source), ours)
    assert ours["Lazy"]().loc.file == __file__


def test_frames_of_pythons_own_are_not_told_as_the_authors(tmp_path):
    program = """
    from dataclasses import dataclass
    from tilewave import *
    from tilewave.mapping import grouped

    @dataclass
    class Kept:
        size: int

        def __post_init__(self):
            WorkgroupConstraint(sym.M, self.size, 0)

    Kept(1.5)
    """
    (tmp_path / "kept.py").write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, "kept.py"], cwd=tmp_path, capture_output=True, text=True)
    told = [line.strip() for line in done.stderr.splitlines() if "called from" in line]
    assert told == ["called from kept.py:13, in <module>"]


def keep(title, found):
    """Put what was said into the file."""
    text = FILE.read_text()
    begin = text.index("```text\n", text.index(f"\n## {title}\n")) + len("```text\n")
    FILE.write_text(text[:begin] + found + "\n" + text[text.index("```", begin) :])
