"""The list of commands: each is declared in one file and implemented in another, which is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tilewave.cli.version import PROGRAM, print_version

COMMANDS = {
    "map": "Draw, measure and verify an order of tiles.",
    "explore": "Explore a kernel on a page: tiles, traffic, passes, assembly.",
    "run": "Run a kernel here: is it right, and how fast is it?",
    "bench": "Benchmark a GEMM or your own kernels.",
    "diff": "Show what each pass did to the kernels of a file.",
    "compile": "Compile the kernels of a file, for this machine or a chip.",
    "emulate": "Run AMD machine code here without the card, and check it.",
    "cycles": "Model the cycles of a K loop from AMD machine code, without the card.",
    "sim": "Simulate a GEMM or a kernel: traffic, time, bottleneck.",
    "tune": "Autotune tile sizes; explain and save.",
    "records": "Show, merge or check tuning records.",
    "warm": "Compile the kernel sets of matrix products into the cache.",
    "machines": "List the machines that tilewave knows, with sources.",
    "doctor": "Report the environment.",
}
"""What --help lists, in this order, without importing any: `map` is declared by the function map_command of
cli/declared/map.py, whose docstring begins with the same sentence, and done by the map_command of cli/map.py."""

APPEARANCE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
"""Help is plain text: to import what draws boxes takes as long as all the rest."""
WIDEST = 120
"""Columns of help, where the terminal has them: examples stay on one line."""


def function_of(command: str) -> Callable[..., None]:
    """A command as it is declared; what does it is imported when it is called."""
    declared = _named(f"tilewave.cli.declared.{command}", command)

    @wraps(declared)
    def done(**words: Any) -> None:
        _named(f"tilewave.cli.{command}", command)(**words)

    return done


def _named(module: str, command: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(module), f"{command}_command")
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
        """The command that is called, with its options."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None or name is None else _whole(name), rest


def _whole(name: str) -> Any:
    alone = typer.Typer(**APPEARANCE)
    alone.command(name, context_settings={"max_content_width": WIDEST})(function_of(name))
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
    """Tile kernels whose order of tiles is an object: drawn, proved, compiled and run."""


def run(words: list[str]) -> None:
    """Run a command line. One that begins with a command is that command's alone: the list of all of them would read
    its own options first, for which typer loads as much as the help of a command needs in all.
    """
    if words and words[0] in COMMANDS:
        _whole(words[0])(words[1:], prog_name=f"{PROGRAM} {words[0]}")
    else:
        app(words, prog_name=PROGRAM)
