"""`tilewave`: the commands, each in a file of its own."""

from __future__ import annotations

import sys

import click
import typer

from tilewave.cli.diff import diff_command
from tilewave.cli.doctor import doctor_command
from tilewave.cli.map import map_command
from tilewave.errors import TilewaveError

app = typer.Typer(
    name="tilewave",
    help="Tile kernels whose order of tiles is an object of its own: drawn, proved, compiled and run.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("map")(map_command)
app.command("diff")(diff_command)
app.command("doctor")(doctor_command)


def main() -> None:
    """Run a command; what an author can mend is said in its own words, with exit code 2 and no traceback."""
    try:
        app(standalone_mode=False)
    except TilewaveError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `tilewave … | head`
        sys.stderr.close()
        sys.exit(141)
