"""`tilewave --help` answers at once: it knows the commands without importing them."""

import os
import subprocess
import sys

import pytest

from tilewave.cli.commands import COMMANDS, function_of

MOST_SECONDS = 0.4
"""Of one core, user and system: some 0.2 on a quiet machine, where importing all commands takes over 1."""


def test_help_takes_little_processor_time():
    words = [sys.executable, "-c", "from tilewave.cli.main import main; main()", "--help"]
    taken = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        after = os.times()
        assert done.returncode == 0, done.stderr
        assert all(name in done.stdout for name in COMMANDS)
        taken.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(taken) < MOST_SECONDS


def test_help_imports_none_of_what_is_heavy():
    asked = "import sys; from tilewave.cli.commands import app; app(['--help'], standalone_mode=False); "
    heavy = (
        "print([m for m in ('numpy', 'llvmlite', 'rich', 'tilewave.compile', 'tilewave.cli.sim') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", asked + heavy], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name):
    first = (function_of(name).__doc__ or "").partition("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[name]
