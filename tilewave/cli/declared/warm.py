"""What `tilewave warm` is asked; what it does is in cli/warm.py."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewave.backend.names import TARGET_NAMES
from tilewave.cli.declared import known


def warm_command(
    target: Annotated[str, typer.Option(help=f"Target: {', '.join(TARGET_NAMES[:-1])}; default: this machine's.")] = "",
    dtypes: Annotated[
        str, typer.Option(metavar="NAMES", help="Dtypes of the operands, separated by commas.")
    ] = known.WARM_DTYPES,
    workers: Annotated[int, typer.Option(min=0, help="Processes that compile; 0: one for each core.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile the kernel sets of matrix products into the cache.

    `ops.matmul` and `ops.linear` choose among a few kernels by the sizes of each call, and compile one when it is first
    chosen. After `tilewave warm`, a new process takes all of them from the disk: every config, in the four layouts of
    the operands, for aligned and unaligned rows. Nothing needs the target's device, so a cache can be made where an
    image is built: set TILEWAVE_CACHE_DIR to a directory of the image, there and where it runs.

    Examples:

      tilewave warm

      tilewave warm --dtypes f16,bf16

      TILEWAVE_CACHE_DIR=/opt/tilewave tilewave warm --workers 16
    """
