"""The list of commands: each in a file of its own, which is imported when the command is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tilewave.cli.main import print_version

COMMANDS = {
    "map": "Draw, measure and verify an order of tiles.",
    "explore": "Explore a kernel on a page: tiles, traffic, passes, assembly.",
    "run": "Run a kernel here: is it right, and how fast is it?",
    "bench": "Benchmark a GEMM or your own kernels.",
    "diff": "Show what each pass did to the kernels of a file.",
    "compile": "Compile the kernels of a file, for this machine or a chip.",
    "emulate": "Run AMD machine code here without the card, and check it.",
    "sim": "Simulate a GEMM or a kernel: traffic, time, bottleneck.",
    "tune": "Autotune tile sizes; explain and save.",
    "records": "Show, merge or check tuning records.",
    "machines": "List the machines that tilewave knows, with sources.",
    "doctor": "Report the environment.",
}
"""What --help lists, in this order, without importing any: `map` is the function map_command of cli/map.py, and so on,
whose docstring begins with the same sentence."""

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
    """The commands, known by name and sentence before their files are imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command as --help lists it."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, with its options; its file is imported here."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None or name is None else _whole(name), rest


def _whole(name: str) -> Any:
    alone = typer.Typer(**APPEARANCE)
    alone.command(name)(function_of(name))
    return typer.main.get_command(alone)


app = typer.Typer(cls=OnDemand, no_args_is_help=True, **{**APPEARANCE, "rich_markup_mode": None})
"""Its own help is plain text: to import what draws boxes takes as long as all the rest."""


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
