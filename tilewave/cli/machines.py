"""`tilewave machines`: the machines that can be simulated, and where their numbers come from."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from tilewave.machine import MACHINES, find_or_load
from tilewave.view.machine_terminal import print_machine, print_machines


def machines_command(
    *,
    machine: str | None,
    as_json: bool,
) -> None:
    chosen = (find_or_load(machine),) if machine else tuple(MACHINES.values())
    if as_json:
        print(json.dumps([asdict(one) for one in chosen], indent=2))
    elif machine:
        print_machine(Console(), chosen[0])
    else:
        print_machines(Console(), chosen)
