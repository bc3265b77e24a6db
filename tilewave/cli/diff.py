"""`tilewave diff`: what every pass did to a kernel."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.syntax import Syntax

from tilewave.compile import Compiled, WaveCompileOptions, wave_compile
from tilewave.errors import TilewaveError
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.symbols import sym
from tilewave.lang.types import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
from tilewave.passes.runner import Step

SPACES = {"shared": SHARED_ADDRESS_SPACE, "global": GLOBAL_ADDRESS_SPACE}


def diff_command(
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels, compiled or not.", exists=True)],
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Sizes for kernels that the file leaves uncompiled: M=512,N=512,…")
    ] = [],  # noqa: B006  typer reads the default
    only: Annotated[str, typer.Option(help="Show this pass alone.")] = "",
    kernel: Annotated[str, typer.Option(help="Show this kernel alone.")] = "",
    context: Annotated[int, typer.Option(help="Lines of context around a change.", min=0)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what each pass did to the kernels of a Python file.

    The file is run. Kernels that it compiles itself are shown as they are; the others are compiled with the sizes
    given by --set, or by the file's own function `subs(m, n, k)` for 512 x 512 x 512.

    [bold]tilewave diff examples/reordered_gemm.py[/bold]

    [bold]tilewave diff kernel.py --set M=2048,N=2048,K=512,BLOCK_M=128,ADDRESS_SPACE=shared --only simplify[/bold]
    """
    found = {c.name: c for c in compiled_in(file, parse_sizes(set_)) if not kernel or c.name == kernel}
    if not found:
        raise TilewaveError(f"{file} defines no kernel" + (f" {kernel!r}" if kernel else ""))
    steps = {name: [s for s in c.steps if not only or s.name == only] for name, c in found.items()}
    for name, chosen in steps.items():
        if not chosen:
            known = ", ".join(s.name for s in found[name].steps)
            raise TilewaveError(f"no pass is called {only!r}", remedy=f"the passes of {name} are {known}")
    if as_json:
        print(json.dumps({name: [_record(s, context) for s in chosen] for name, chosen in steps.items()}, indent=2))
        return
    console = Console()
    for name, chosen in steps.items():
        console.rule(f"[bold]{name}[/bold]")
        for step in chosen:
            console.print(f"[bold]{step.name}[/bold]  {step.decision}  [dim]{step.seconds * 1e3:.1f} ms[/dim]")
            console.print(Syntax(step.diff(context), "diff", background_color="default", word_wrap=True))
            console.print()


def _record(step: Step, context: int) -> dict[str, Any]:
    return {
        "pass": step.name,
        "decision": step.decision,
        "seconds": step.seconds,
        "changed": step.changed,
        "diff": step.diff(context) if step.changed else "",
    }


def compiled_in(file: Path, sizes: dict[Any, Any]) -> list[Compiled]:
    """The compiled kernels of a file, or else its kernels compiled with `sizes` or with the file's own `subs`."""
    names = runpy.run_path(str(file), run_name="tilewave_diff")
    compiled = [x for x in names.values() if isinstance(x, Compiled)]
    if compiled:
        return compiled
    subs = names["subs"](512, 512, 512) if callable(names.get("subs")) else {}
    options = WaveCompileOptions(subs={**subs, **sizes})
    return [wave_compile(options, x) for x in names.values() if isinstance(x, WaveKernel)]


def parse_sizes(texts: list[str]) -> dict[Any, Any]:
    """`M=512,SPACE=shared` as symbols and their values."""
    sizes: dict[Any, Any] = {}
    for part in ",".join(texts).split(","):
        if not part.strip():
            continue
        name, equals, value = (x.strip() for x in part.partition("="))
        if not equals or not name.isidentifier() or not (value.isdecimal() or value in SPACES):
            raise TilewaveError(f"--set: {part.strip()!r} is no size", remedy="write M=512 or ADDRESS_SPACE=shared")
        sizes[getattr(sym, name)] = SPACES[value] if value in SPACES else int(value)
    return sizes
