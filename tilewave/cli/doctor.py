"""`tilewave doctor`: what is here, and what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tilewave._version import __version__

PACKAGES = {
    "numpy": "needed: arrays and the interpreter",
    "ml_dtypes": "needed: bf16 and f8",
    "llvmlite": "needed: machine code for the CPU",
    "rich": "needed: tables in the terminal",
    "typer": "needed: this command line",
    "sympy": "optional: its ceiling, floor, Min, Max over our symbols",
    "torch": "optional: its tensors as arguments",
    "numba": "optional: the simulator's trace engine",
}


def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Say which versions are here, what they are for, and what is missing."""
    report = {
        "tilewave": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
    }
    if as_json:
        print(json.dumps(report, indent=2))
        return
    console = Console()
    console.print(f"tilewave {__version__}, Python {report['python']}, {report['machine']}, {report['cores']} cores")
    table = Table("package", "version", "for")
    for name, purpose in PACKAGES.items():
        found = _version(name)
        missing = "[red]missing[/red]" if purpose.startswith("needed") else "[dim]not here[/dim]"
        table.add_row(name, found or missing, purpose)
    console.print(table)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
