"""`tilewave`: the commands, each in a file of its own."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from tilewave._version import __version__
from tilewave.cli.bench import bench_command
from tilewave.cli.compile import compile_command
from tilewave.cli.diff import diff_command
from tilewave.cli.doctor import doctor_command
from tilewave.cli.emulate import emulate_command
from tilewave.cli.machines import machines_command
from tilewave.cli.map import map_command
from tilewave.cli.run import run_command
from tilewave.cli.sim import sim_command
from tilewave.errors import TilewaveError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("map")(map_command)
app.command("run")(run_command)
app.command("bench")(bench_command)
app.command("diff")(diff_command)
app.command("compile")(compile_command)
app.command("emulate")(emulate_command)
app.command("sim")(sim_command)
app.command("machines")(machines_command)
app.command("doctor")(doctor_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tilewave {__version__}")
        raise typer.Exit


@app.callback()
def tilewave(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tile kernels whose order of tiles is an object of its own: drawn, proved, compiled and run."""


def main() -> None:
    """Run a command; what an author can mend is said in its own words, with exit code 2 and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no × gets a ?
    try:
        app(prog_name="tilewave")
    except TilewaveError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        _flush()


def _flush() -> None:
    """Print what is left, before Python does it without asking whether anybody still reads: `tilewave … | head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
