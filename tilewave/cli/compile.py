"""`tilewave compile`: the kernels of a Python file as code, and what they take of the machine."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SQUARE
from rich.console import Console
from rich.table import Table

from tilewave.cli.asked import given
from tilewave.cli.diff import compiled_in, named_kernels, parse_sizes
from tilewave.cli.emulate import statistics_table
from tilewave.compile import Compiled, SchedulingType
from tilewave.errors import TilewaveError

SUFFIX = {"cpu": ("s", "o"), "gfx942": ("s", "hsaco"), "gfx950": ("s", "hsaco"), "sm_90a": ("ptx", "ptx")}
"""How the files with assembly and with object code end."""


def compile_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels, compiled or not.", exists=True)],
    target: Annotated[str, typer.Option(help="cpu, gfx942, gfx950 or sm_90a.")] = "cpu",
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Sizes for kernels that the file leaves uncompiled: M=512,N=512,…")
    ] = [],  # noqa: B006  typer reads the default
    kernel: Annotated[str, typer.Option(help="This kernel alone.")] = "",
    schedule: Annotated[str, typer.Option(help="none, or prefetch: load ahead while multiplying.")] = "prefetch",
    out: Annotated[
        Path | None, typer.Option(help="Write assembly, code object and LLVM IR into this directory.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Count what stands in the K loop (gfx942, gfx950).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Compile the kernels of a Python file, for this machine or for a chip that is not here.

    [bold]tilewave compile examples/reordered_gemm.py --target gfx942 --stats[/bold]

    [bold]tilewave compile kernel.py --target gfx950 --set M=4096,N=4096,K=4096 --out build[/bold]
    """
    asked = given(context, "target", "schedule")
    found = named_kernels(compiled_in(file, parse_sizes(set_), target, _schedule(schedule), asked), kernel)
    if not found:
        raise TilewaveError(f"{file} defines no kernel" + (f" {kernel!r}" if kernel else ""))
    records = {name: _record(c, stats) for name, c in found.items()}
    for name, c in found.items():
        if out is not None:
            records[name]["files"] = _write(c, name, out)
    if as_json:
        print(json.dumps(records, indent=2))
        return
    for name, c in found.items():
        _print(name, records[name])
        if why := c.why():
            print(f"{why}\n")
        if stats:
            Console().print(statistics_table(c.loop_statistics))


def _schedule(text: str) -> SchedulingType:
    known = {s.value: s for s in SchedulingType}
    if text not in known:
        raise TilewaveError(f"--schedule: no schedule is called {text!r}", remedy=f"there are {', '.join(known)}")
    return known[text]


def _record(c: Compiled, stats: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"target": c.target, "workgroups": c.kernel.workgroups, "code_bytes": len(c.code_object)}
    if c.target != "cpu":
        resources = c.resources
        told = [f.name for f in fields(resources) if f.repr and not f.name.startswith("loads")]
        found |= {name: getattr(resources, name) for name in told}
        found["loads"] = [str(x) for x in resources.loads]
    found["declined"] = [row.record for row in c.why()]
    if stats:
        statistics = c.loop_statistics
        found["loop"] = {**asdict(statistics), "instructions_per_matrix": statistics.instructions_per_matrix}
    return found


def _write(c: Compiled, name: str, folder: Path) -> list[str]:
    """Assembly, object code and LLVM IR, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    text, code = SUFFIX[c.target]
    contents = {f"{name}.{text}": c.asm.encode(), f"{name}.{code}": c.code_object, f"{name}.ll": c.llvm_ir.encode()}
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    return [str(folder / file) for file in contents]


def _print(name: str, record: dict[str, Any]) -> None:
    table = Table(box=SQUARE, title=name, show_header=False)
    for key, value in record.items():
        if key not in ("loop", "machine", "declined") and (key != "not_as_asked" or value):
            table.add_row(key.replace("_", " "), "\n".join(value) if key == "not_as_asked" else _text(value))
    Console().print(table)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
