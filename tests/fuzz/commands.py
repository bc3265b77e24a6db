"""Random command lines: exit code 0 and sane output, or an error of ours and nothing written; never a traceback.

Commands also hold each other to their words: what `tune` decides for a target can be compiled for it, and `sim` takes
the tile that the machine's target takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tilewave.cli.main import main
from tilewave.errors import SlowCodeWarning

from .command_options import MACHINES
from .command_words import CommandLine, command_line

ERROR = re.compile(r"^(error: \S|Usage: |.*Error.*─)", re.MULTILINE)
"""An error of ours, or of the command line's grammar."""
CHOSEN = re.compile(r"(BLOCK\w*)=(\d+)")
MOST_SAID = 100


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    raised: str = ""
    warned: str = ""


def case(seed: int) -> str | None:
    """Run one command line in a temporary directory."""
    line = command_line(seed)
    with _directory(line.files):
        found = judged(line, run(line.words))
    if found is None:
        return None
    return f"{line.words[0]}: {found}\n$ tilewave {' '.join(map(repr, line.words))}\n" + _files_told(line)


def _files_told(line: CommandLine) -> str:
    return "".join(f"--- {name}\n{text}\n" for name, text in line.files.items())


@contextlib.contextmanager
def _directory(files: dict[str, str]) -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            Path(directory, name).write_text(text)
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


def run(words: list[str]) -> Ended:
    """A command in this process."""
    out, err, raised = io.StringIO(), io.StringIO(), ""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    with (
        mock.patch.object(sys, "argv", ["tilewave", *words]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        code = 0
        try:
            main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}"
    foreign = [str(w.message) for w in warned if not issubclass(w.category, (SlowCodeWarning, DeprecationWarning))]
    return Ended(code, out.getvalue(), err.getvalue(), raised, foreign[0] if foreign else "")


def judged(line: CommandLine, ended: Ended) -> str | None:
    """What is wrong with how a command ended, or None."""
    if ended.raised:
        return f"raised {ended.raised}"
    if ended.warned:
        return f"warned: {ended.warned}"
    is_authors = line.kernel is not None and not line.kernel.is_right
    if "Traceback" in ended.err and not is_authors:
        return f"printed a traceback: {ended.err.strip().splitlines()[-1][:MOST_SAID]}\n{ended.err}"
    if ended.code:
        return _of_failure(line, ended, is_authors)
    return _of_success(line, ended)


def _of_failure(line: CommandLine, ended: Ended, is_authors: bool) -> str | None:
    if not ended.err.strip() and not (ended.code == 1 and ended.out.strip()):
        return f"ended with {ended.code} and said nothing"
    if ended.code == 2 and not ERROR.search(ended.err):
        return f"ended with {ended.code} without an error of ours: {ended.err.strip()[:MOST_SAID]}"
    if ended.code not in (1, 2):
        return f"ended with {ended.code}: {ended.err.strip()[:MOST_SAID]}"
    if ended.code == 1 and line.words[0] in ("run", "bench", "emulate", "records") and not is_authors:
        return None if "Traceback" not in ended.err else "printed a traceback"
    if written := [name for name in line.outputs if Path(name).exists()]:
        return f"failed, and yet wrote a file\n{written[0]}: {ended.err.strip()[:MOST_SAID]}"
    if not line.wrong and not line.odd:
        return f"refused, though all is right: {ended.err.strip().splitlines()[0][:MOST_SAID]}"
    return None


def _of_success(line: CommandLine, ended: Ended) -> str | None:
    if line.wrong:
        return f"exit code 0, though {_plain(line.wrong[0])}\n{line.wrong}"
    if "error:" in ended.err:
        return f"exit code 0 and an error: {ended.err.strip()[:MOST_SAID]}"
    if not ended.out.strip():
        return "exit code 0 and nothing printed"
    if line.is_json:
        try:
            json.loads(ended.out, parse_constant=_no_number)
        except ValueError as error:
            return f"printed no JSON: {error}"
    if missing := [name for name in line.outputs if name != "kept" and not Path(name).exists()]:
        return f"exit code 0, and {missing[0]} was not written"
    return _of_others(line)


def _plain(what: str) -> str:
    return re.sub(r"called .*", "called so", what)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


# -- what other commands say of it -----------------------------------------------------------------------------------


def _of_others(line: CommandLine) -> str | None:
    if line.kernel is None or not line.kernel.is_open:
        return None
    if line.words[0] == "tune":
        return _of_compile(line)
    return _of_tile(line) if line.words[0] == "sim" else None


def _value(words: list[str], option: str, default: str = "") -> str:
    return words[len(words) - words[::-1].index(option)] if option in words else default


def _sizes(line: CommandLine, *more: str) -> list[str]:
    assert line.kernel is not None
    return ["--set", ",".join([*(f"{name}={value}" for name, value in line.kernel.sizes), *more])]


def _of_compile(line: CommandLine) -> str | None:
    """What was tuned can be compiled."""
    target = _value(line.words, "--target", "cpu")
    ended = run(["compile", "kernel.py", *_sizes(line), "--target", target])
    if ended.code:
        return f"tuned for {target} what cannot be compiled for it\n{ended.err}"
    return None


def _of_tile(line: CommandLine) -> str | None:
    """A file that leaves its tile open is simulated with the tile that it is compiled with for that machine."""
    machine = _value(line.words, "--machine", "MI300X")
    if machine not in MACHINES:
        return None
    compiled = run(["compile", "kernel.py", *_sizes(line), "--target", MACHINES[machine], "--json"])
    if compiled.code:
        return None
    chosen = dict(CHOSEN.findall(next(iter(json.loads(compiled.out).values()))["chosen"]))
    asked = ["--machine", machine, "--json"]
    tasks = []
    for sizes in (_sizes(line), _sizes(line, *(f"{name}={value}" for name, value in chosen.items()))):
        ended = run(["sim", "kernel.py", *sizes, *asked])
        if ended.code:
            return None
        tasks.append(json.loads(ended.out)[0]["tasks"])
    if tasks[0] != tasks[1]:
        return f"simulates another tile than {MACHINES[machine]} takes\n{chosen}: {tasks[1]} tiles, not {tasks[0]}"
    return None
