"""What `tilewave emulate` is asked; what it does is in cli/emulate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ARGUMENT_HELP = """In the order of the kernel's arguments; repeatable. in:A.npy reads an array, inout:A.npy reads and
writes it, out:C.npy:float32:256x256 makes one (filled with ones in every bit: NaN) and writes it; i32:256, f32:0.5 and
the like are scalar arguments."""

FileName = Annotated[Path, typer.Argument(metavar="FILE", help="Assembly of LLVM's (.s), or a code object (.hsaco).")]
KernelName = Annotated[
    str, typer.Argument(metavar="KERNEL", help="Kernel to run; default: list the kernels of the file.")
]
GridText = Annotated[str, typer.Option(metavar="X,Y,Z", help="Workgroups.")]
BlockText = Annotated[str, typer.Option(metavar="X,Y,Z", help="Lanes of a workgroup; default: as compiled.")]
Arguments = Annotated[list[str] | None, typer.Option("--arg", metavar="ARG", help=ARGUMENT_HELP)]
OrderText = Annotated[
    str, typer.Option("--order", metavar="ORDER", help="barrier: a wave runs to its barrier; or random.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the random order.")]
CheckText = Annotated[
    str, typer.Option("--check", metavar="CHECK", help="strict: stop at a finding; warn: go on; off.")
]
Shared = Annotated[int, typer.Option("--shared", metavar="BYTES", min=0, help="Dynamic shared memory.")]
Limit = Annotated[
    int, typer.Option(metavar="N", min=0, help="Instructions of a wave before its run counts as endless; 0: by sizes.")
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Count the instructions of the K loop instead of running the kernel.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def emulate_command(
    context: typer.Context,
    file: FileName,
    kernel: KernelName = "",
    grid: GridText = "1",
    block: BlockText = "",
    arguments: Arguments = None,
    order: OrderText = "barrier",
    seed: Seed = 0,
    check: CheckText = "strict",
    shared: Shared = 0,
    limit: Limit = 0,
    stats: Stats = False,
    as_json: Json = False,
) -> None:
    """Run AMD machine code here without the card, and check it.

    Finds missing waits, barriers and nops, races, out-of-bounds accesses.

    A finding names the instruction, the wave and the author's line, and makes the exit code 1 (strict: 2).

    Code objects are decoded by llvm-objdump, LLVM 20 or later; assembly needs nothing.

    Examples:

      tilewave emulate gemm.s

      tilewave compile gemm.py --set M=512,N=512,K=64 --target CHIP --out .

      tilewave emulate gemm.s gemm --grid 64 --arg in:A.npy --arg in:B.npy --arg out:C.npy:float32:512x512

      tilewave emulate other.hsaco saxpy --grid 4 --block 256 --arg in:X.npy --arg inout:Y.npy --arg f32:2

      tilewave emulate gemm.s gemm --grid 64 --order random --seed 7 --check warn --arg in:A.npy --json

      tilewave emulate gemm.s gemm --stats
    """
