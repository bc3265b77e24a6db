"""What `tilewave machines` is asked; what it does is in cli/machines.py."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(metavar="MACHINE", help="One of them, or a TOML file of your own.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything for machines.")]


def machines_command(machine: Name = None, as_json: Json = False) -> None:
    """List the machines that tilewave knows, with sources.

    Of one machine, every number and where it comes from.

    Examples:

      tilewave machines

      tilewave machines MI300X

      tilewave machines mychip.toml --json
    """
