"""What `tilewave compile` is asked; what it does is in cli/compile.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.backend.names import COUNTED_TARGETS, DEFAULT_TARGET, MODELLED_TARGETS, TARGET_NAMES
from tilewave.cli.declared.of_files import LeftOpen

STATS_HELP = f"""Count the instructions of the K loop ({", ".join(COUNTED_TARGETS)}), and model its cycles
({", ".join(MODELLED_TARGETS)})."""


def compile_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels, compiled or not.", exists=True)],
    target: Annotated[str, typer.Option(help=f"Target: {', '.join(TARGET_NAMES)}.")] = DEFAULT_TARGET,
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Sizes for kernels that the file leaves uncompiled: M=512,N=512,…")
    ] = [],  # noqa: B006  typer reads the default
    left_open: LeftOpen = "",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    schedule: Annotated[str, typer.Option(help="none, or prefetch; by default what a call compiles.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write assembly, code object and LLVM IR into this directory.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help=STATS_HELP)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile the kernels of a file, for this machine or a chip.

    The chip need not be present.

    Sizes of arrays that neither --set nor the file's function `subs(m, n, k)` gives stay dynamic.

    Examples:

      tilewave compile examples/reordered_gemm.py --target CHIP --stats

      tilewave compile kernel.py --target CHIP --set M=4096,N=4096,K=4096 --out build
    """
