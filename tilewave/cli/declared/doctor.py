"""What `tilewave doctor` is asked; what it does is in cli/doctor.py."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Report the environment.

    Say what this machine has, which versions are here, what they are for, and what is missing for what.
    """
