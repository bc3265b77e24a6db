"""`tilewave machines`: the machines that can be simulated, and where their numbers come from."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from tilewave.machine import MACHINES, find_or_load
from tilewave.view.machine_terminal import print_machine, print_machines

Name = Annotated[str | None, typer.Argument(metavar="MACHINE", help="One of them, or a TOML file of your own.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything for machines.")]


def machines_command(machine: Name = None, as_json: Json = False) -> None:
    """List the machines that tilewave knows, with sources.

    List the machines that tilewave knows; of one, every number with its source.

    Examples:

      tilewave machines

      tilewave machines MI300X

      tilewave machines mychip.toml --json
    """
    chosen = (find_or_load(machine),) if machine else tuple(MACHINES.values())
    if as_json:
        print(json.dumps([asdict(one) for one in chosen], indent=2))
    elif machine:
        print_machine(Console(), chosen[0])
    else:
        print_machines(Console(), chosen)
