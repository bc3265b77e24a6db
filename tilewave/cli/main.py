"""`tilewave`: where the program begins; nothing is imported before it is needed."""

from __future__ import annotations

import io
import os
import sys

from tilewave.cli.version import print_version
from tilewave.errors import TilewaveError


def main() -> None:
    """Run a command; what an author can mend is said in its own words, with exit code 2 and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no × gets a ?
    try:
        _run(sys.argv[1:])
    except TilewaveError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        _flush()


def _run(words: list[str]) -> None:
    if words == ["--version"]:
        print_version()
        return
    from tilewave.cli.commands import run  # noqa: PLC0415  --version does not need typer

    run(words)


def _flush() -> None:
    """Print what is left, before Python does it without asking whether anybody still reads: `tilewave … | head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
