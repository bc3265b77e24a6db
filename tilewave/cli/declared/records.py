"""What `tilewave records` is asked; what it does is in cli/records.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.cli.declared import known


def records_command(
    action: Annotated[str, typer.Argument(help=f"{', '.join(known.RECORD_ACTIONS)}.")],
    files: Annotated[list[Path] | None, typer.Argument(help="Files or directories; the search path without.")] = None,
    into: Annotated[Path, typer.Option(help="Directory that merge writes to.")] = Path(known.RECORDS),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show, merge or check tuning records.

    Examples:

      tilewave records show

      tilewave records merge theirs.jsonl ours.jsonl --into tilewave.records

      tilewave records check
    """
