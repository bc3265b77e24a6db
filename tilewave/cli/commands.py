"""The list of commands: each in a file of its own, which is imported when the command is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewave.cli.main import print_version

COMMANDS = (
    "map",
    "explore",
    "run",
    "bench",
    "diff",
    "compile",
    "emulate",
    "sim",
    "tune",
    "records",
    "machines",
    "doctor",
)
"""`map` is the function map_command of cli/map.py, and so on; in the order in which --help lists them."""

APPEARANCE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
}


def function_of(command: str) -> Callable[..., None]:
    """What a command calls; its file is imported here."""
    function: Callable[..., None] = getattr(import_module(f"tilewave.cli.{command}"), f"{command}_command")
    return function


class OnDemand(TyperGroup):
    """The commands, known by name before their files are imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        alone = typer.Typer(**APPEARANCE)
        alone.command(cmd_name)(function_of(cmd_name))
        return typer.main.get_command(alone)


app = typer.Typer(cls=OnDemand, no_args_is_help=True, **APPEARANCE)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


@app.callback()
def tilewave(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tile kernels whose order of tiles is an object of its own: drawn, proved, compiled and run."""
