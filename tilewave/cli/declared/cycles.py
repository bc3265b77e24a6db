"""What `tilewave cycles` is asked; what it does is in cli/cycles.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.backend.names import MODELLED_TARGETS
from tilewave.cli.declared.known import CYCLES_LATENCIES
from tilewave.cli.declared.of_files import LeftOpen

FileName = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="Assembly of LLVM's (.s), a code object (.co, .hsaco), or a Python file."),
]
LatencyText = Annotated[
    str, typer.Option(metavar="CYCLES,…", help="Latencies of global loads; the figure shows the first.")
]
Workgroups = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=32, help="Workgroups on a compute unit; default: as many as fit.")
]
TimelineFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw one iteration, a row for each wave, as SVG.")
]
Conflicts = Annotated[
    bool, typer.Option("--conflicts", help="Count bank conflicts: run an iteration of the loop in the emulator.")
]
TargetName = Annotated[
    str, typer.Option(metavar="NAME", help=f"Target of a Python file's kernels: {', '.join(MODELLED_TARGETS)}.")
]


def cycles_command(
    context: typer.Context,
    file: FileName,
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    latency: LatencyText = CYCLES_LATENCIES,
    workgroups: Workgroups = None,
    timeline: TimelineFile = None,
    conflicts: Conflicts = False,
    target: TargetName = MODELLED_TARGETS[0],
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Sizes for kernels of a Python file: M=512,N=512,…")
    ] = [],  # noqa: B006  typer reads the default
    left_open: LeftOpen = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Model the cycles of a K loop from AMD machine code, without the card.

    Prints cycles per iteration, how busy the matrix units are, and where waves stall, by line.

    Any compiler's code will do; code objects are decoded by llvm-objdump, LLVM 20 or later. Nothing of it is run
    without --conflicts. Python files are run as programs.

    Examples:

      tilewave cycles gemm.s

      tilewave cycles other.co --latency 500,1000,2000 --workgroups 2

      tilewave cycles kernel.py --target CHIP --set M=4096,N=4096,K=4096

      tilewave cycles gemm.s --kernel gemm --latency 1000 --timeline iteration.svg
    """
