"""`tilewave … --help` answers at once: it knows the commands and what they are asked, and imports nothing that runs."""

import os
import subprocess
import sys

import pytest

from tilewave.cli.commands import COMMANDS, function_of

MOST_SECONDS = 0.4
"""Seconds of one core, user and system: about 0.2 on a quiet machine, where importing what runs takes over 1."""
HEAVY = ("numpy", "llvmlite", "rich", "pydantic", "tilewave.compile", *(f"tilewave.cli.{name}" for name in COMMANDS))
LINES = {"tilewave": [], **{name: [name] for name in COMMANDS}}
lines = pytest.mark.parametrize("line", LINES)


@lines
def test_help_takes_little_processor_time(line):
    words = [sys.executable, "-c", "from tilewave.cli.main import main; main()", *LINES[line], "--help"]
    taken = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        after = os.times()
        assert done.returncode == 0, done.stderr
        assert all(name in done.stdout for name in (LINES[line] or COMMANDS))
        taken.append(after.children_user - before.children_user + after.children_system - before.children_system)
        if taken[-1] < MOST_SECONDS:
            return
    assert min(taken) < MOST_SECONDS


@lines
def test_help_imports_none_of_what_is_heavy(line):
    asked = f"""
import sys
from tilewave.cli.main import main
sys.argv = ["tilewave", *{LINES[line]!r}, "--help"]
try:
    main()
except SystemExit as done:
    assert not done.code
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name):
    first = (function_of(name).__doc__ or "").partition("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[name]
