"""What `tilewave doctor` is asked; what it does is in cli/doctor.py."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Report the environment.

    Processors, drivers, packages and cache; what each is for, and what is missing.
    """
