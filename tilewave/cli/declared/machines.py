"""What `tilewave machines` is asked; what it does is in cli/machines.py."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(metavar="MACHINE", help="Name of a machine, or a TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def machines_command(machine: Name = None, as_json: Json = False) -> None:
    """List the machines that tilewave knows, with sources.

    With MACHINE, every number with its source.

    Examples:

      tilewave machines

      tilewave machines MI300X

      tilewave machines mychip.toml --json
    """
