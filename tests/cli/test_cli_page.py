"""docs/ref/cli.md names every command, every option and every environment variable."""

import re
from pathlib import Path

import pytest
import typer

from tilewave.cli.commands import COMMANDS, function_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ref/cli.md").read_text(encoding="utf-8")


def options_of(command):
    app = typer.Typer(add_completion=False)
    app.command()(function_of(command))
    params = typer.main.get_command(app).params
    return sorted(name for p in params for name in p.opts if name.startswith("--") and name != "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_on_the_page(command):
    assert f"[`{command}`](#" in PAGE
    named = set(re.findall(r"--[a-z-]+", PAGE))
    assert not [name for name in options_of(command) if name not in named]


def test_every_environment_variable_is_on_the_page():
    sources = [*ROOT.glob("tilewave/**/*.py"), ROOT / "hatch_build.py"]
    used = set(re.findall(r"\bTILEWAVE_[A-Z_]+\b", "".join(p.read_text(encoding="utf-8") for p in sources)))
    assert not sorted(name for name in used if f"`{name}`" not in PAGE)
