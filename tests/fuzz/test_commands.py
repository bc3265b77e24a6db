"""The net of random command lines: a share of it in every test run, and what its judge sees."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tilewave.cli.commands import COMMANDS

from . import commands
from .command_words import NO_TARGETS, CommandLine, command_line, kernel_file
from .commands import Ended, judged

SHARE = range(24)


def test_random_commands_succeed_or_say_why_not():
    found = [text for seed in SHARE if (text := commands.case(seed))]
    assert not found, "\n\n".join(found)


def test_command_lines_cover_every_command():
    lines = [command_line(seed) for seed in range(600)]
    assert {line.words[0] for line in lines} == {*COMMANDS} - {"warm"}  # which compiles for minutes
    assert sum(bool(line.wrong) for line in lines) > 100 and sum(line.is_json for line in lines) > 100
    assert any(line.kernel and line.kernel.is_open for line in lines)
    for command in ("compile", "diff", "run", "bench", "tune"):
        told = [line.wrong for line in lines if line.words[0] == command]
        assert any(f"no target is called {name}" in wrong for wrong in told for name in NO_TARGETS), command


RIGHT = Ended(0, "fine\n", "")


@pytest.mark.parametrize(
    ("line", "ended", "found"),
    [
        (CommandLine(["map"]), RIGHT, None),
        (CommandLine(["map"]), Ended(0, "", ""), "exit code 0 and nothing printed"),
        (CommandLine(["map", "--json"]), Ended(0, "[1, NaN]", ""), "printed no JSON: NaN is no JSON"),
        (CommandLine(["map", "--json"]), Ended(0, "[1]", ""), None),
        (CommandLine(["tune"], wrong=["no target is called foo"]), RIGHT, "exit code 0, though no target is called so"),
        (CommandLine(["map"], outputs=["page"]), RIGHT, "exit code 0, and page was not written"),
        (CommandLine(["map"]), Ended(0, "fine", "error: but"), "exit code 0 and an error: error: but"),
        (CommandLine(["map"]), Ended(0, "", "", "KeyError: 3\n…"), "raised KeyError: 3"),
        (CommandLine(["map"]), Ended(0, "x", "", "", "divide by zero"), "warned: divide by zero"),
        (CommandLine(["map"], odd=True), Ended(2, "", "error: no such order"), None),
        (
            CommandLine(["map"]),
            Ended(2, "", "error: no such order"),
            "refused, though all is right: error: no such order",
        ),
        (CommandLine(["map"], odd=True), Ended(2, "", "oh"), "ended with 2 without an error of ours: oh"),
        (CommandLine(["map"], odd=True), Ended(3, "", "error: x"), "ended with 3: error: x"),
        (CommandLine(["map"], odd=True), Ended(1, "", ""), "ended with 1 and said nothing"),
        (
            CommandLine(["map"], odd=True),
            Ended(1, "", "Traceback\nValueError: x"),
            "printed a traceback: ValueError: x",
        ),
    ],
)
def test_what_is_wrong_with_an_end_is_seen(line, ended, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = judged(line, ended)
    assert (said or "").split("\n")[0] == (found or "")


def test_a_file_that_a_failing_command_wrote_is_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = CommandLine(["sim"], odd=True, outputs=["page"])
    failed = Ended(2, "", "error: no such machine")
    assert judged(line, failed) is None
    Path("page").write_text("")
    assert (judged(line, failed) or "").startswith("failed, and yet wrote a file")


def test_commands_are_held_to_what_others_say(tmp_path, monkeypatch):
    """A tuner whose choice cannot be compiled, and a simulator that takes another tile."""
    kernel = next(k for k in (kernel_file(random.Random(n)) for n in range(99)) if k.is_open)
    tuned = CommandLine(["tune", "kernel.py", "--target", "sm_90a"], kernel=kernel)
    monkeypatch.setattr(commands, "run", lambda words: Ended(2, "", "error: no f64"))
    assert (judged(tuned, RIGHT) or "").startswith("tuned for sm_90a what cannot be compiled for it")

    def run(words):
        if words[0] == "compile":
            return Ended(0, '{"product": {"chosen": "BLOCK_M=128, BLOCK_N=256, grouped(16)"}}', "")
        said = any("BLOCK_M=128,BLOCK_N=256" in word for word in words)
        return Ended(0, json.dumps([{"tasks": 7 if said else tiles}]), "")

    monkeypatch.setattr(commands, "run", run)
    simulated = CommandLine(["sim", "kernel.py", "--machine", "H200"], kernel=kernel)
    tiles = 7
    assert judged(simulated, RIGHT) is None
    tiles = 9
    assert (judged(simulated, RIGHT) or "").startswith("simulates another tile than sm_90a takes")


def test_a_command_runs_in_this_process_and_its_end_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert commands.run(["--version"]).out.startswith("tilewave ")
    ended = commands.run(["map", "8x8", "nothing()"])
    assert ended.code == 2 and ended.err.startswith("error: ") and not ended.raised
    monkeypatch.setattr(commands, "main", lambda: {}["x"])
    assert commands.run(["map"]).raised.startswith("KeyError: 'x'")
