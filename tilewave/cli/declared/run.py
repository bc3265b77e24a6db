"""What `tilewave run` is asked; what it does is in cli/run.py."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewave.backend.names import DEFAULT_TARGET
from tilewave.cli.declared import known
from tilewave.cli.declared.of_files import KernelOfFile, Scalars, Sizes, Target

KernelName = Annotated[
    str, typer.Argument(metavar="KERNEL", help="What to run: gemm, or a Python file that defines kernels.")
]
ShapeText = Annotated[str, typer.Option(metavar="MxNxK", help="C is M x N, and every sum has K products.")]
DTypeText = Annotated[
    str, typer.Option("--dtype", metavar="DTYPE", help=f"Dtype of A and B: {', '.join(known.RUN_INPUTS)}.")
]
OutText = Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of C; default: the accumulator's.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="Tile of a workgroup.")]
Maps = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="MAPPING", help="Order of tiles, next to linear(); repeatable. See tilewave map."),
]
Workgroups = Annotated[int | None, typer.Option(metavar="N", min=1, help="Persistent launch of N workgroups.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=1024, help="Threads of every contestant; default: all cores.")
]
InstructionSetName = Annotated[str | None, typer.Option(metavar="NAME", help="Such as avx2; default: the best.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="Rounds of timing.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the inputs and of the order of measurements.")]
Against = Annotated[
    str, typer.Option(metavar="NAMES", help='For gemm: numpy,torch, or none with ""; for a file: other files.')
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run_command(
    context: typer.Context,
    what: KernelName,
    set_: Sizes = None,
    target: Target = DEFAULT_TARGET,
    kernel: KernelOfFile = "",
    scalars: Scalars = None,
    shape: ShapeText = "2048x2048x2048",
    dtype: DTypeText = "f32",
    out: OutText = "",
    tile: TileText = "128x256x64",
    maps: Maps = None,
    workgroups: Workgroups = None,
    threads: Threads = None,
    instruction_set: InstructionSetName = None,
    repeats: Repeats = 15,
    seed: Seed = 0,
    against: Against = "numpy",
    as_json: Json = False,
) -> None:
    """Run a kernel here: is it right, and how fast is it?

    KERNEL is gemm, which comes with tilewave, or a Python file.

    Every result is compared with float64, within the error bound of rounding; a
    wrong one makes the exit code 1. For a kernel of a file, the reference is the
    same program in float64, on random inputs.

    Then all orders of tiles and all libraries, or all kernels that take the
    same arguments, are timed interleaved, each repeat in a new random order.

    Examples:

      tilewave run kernel.py --sizes M=512,N=512,K=256

      tilewave run mine.py --sizes M=512,N=512,K=256 --against other.py

      tilewave run gemm

      tilewave run gemm --shape 4096x1024x2048 --map "grouped(8)"

      tilewave run gemm --dtype bf16 --out bf16 --against torch --threads 1

      tilewave run gemm --shape 500x500x500 --workgroups 8 --instruction-set avx2

      tilewave run gemm --shape 512x512x512 --map "hilbert()" --json
    """
