"""What `tilewave diff` is asked; what it does is in cli/diff.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.backend.names import TARGET_NAMES
from tilewave.cli.declared.of_files import LeftOpen


def diff_command(
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels, compiled or not.", exists=True)],
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Sizes for kernels that the file leaves uncompiled: M=512,N=512,…")
    ] = [],  # noqa: B006  typer reads the default
    only: Annotated[str, typer.Option(help="Show only this pass.")] = "",
    kernel: Annotated[str, typer.Option(help="Show only this kernel.")] = "",
    target: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(TARGET_NAMES)}; default: the first that has the pass of --only."),
    ] = None,
    left_open: LeftOpen = "",
    context: Annotated[int, typer.Option(help="Lines of context around a change.", min=0)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what each pass did to the kernels of a file.

    The file is run. Kernels that it compiles itself are shown as they are; the others are compiled with the sizes
    given by --set, or by the file's function `subs(m, n, k)` for 512 x 512 x 512, and prefetch for a GPU.
    Sizes of arrays that neither gives stay dynamic, as do those of --open.

    Examples:

      tilewave diff examples/reordered_gemm.py

      tilewave diff examples/reordered_gemm.py --only coalesce_loads

      tilewave diff kernel.py --set M=2048,N=2048,K=512,BLOCK_M=128,ADDRESS_SPACE=shared --target CHIP
    """
