"""What several commands are asked of a Python file that defines kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewave.backend.names import CUDA_TARGET

LeftOpen = Annotated[
    str, typer.Option("--open", metavar="M,N,…", help="Sizes that stay dynamic although the file's subs fix them.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--sizes", "--set", "-s", metavar="M=…,N=…", help="Sizes for the kernels of a file: M=512,N=512."),
]
Target = Annotated[
    str, typer.Option("--target", metavar="NAME", help=f"Where a file's kernels run: cpu, or {CUDA_TARGET} with torch.")
]
Scalars = Annotated[
    list[str] | None,
    typer.Option("--scalar", metavar="NAME=…", help="Values of scalar arguments: alpha=0.5; default: 1."),
]
KernelOfFile = Annotated[str, typer.Option("--kernel", metavar="NAME", help="Only this kernel of the file.")]
