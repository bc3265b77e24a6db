"""What `tilewave tune` is asked; what it does is in cli/tune.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.backend.names import DEFAULT_TARGET, TARGET_NAMES
from tilewave.cli.declared import known


def tune_command(
    file: Annotated[Path, typer.Argument(help="A Python file that defines kernels.", exists=True)],
    sizes: Annotated[
        list[str], typer.Option("--sizes", "-s", metavar="M=…,N=…", help="Sizes to tune for; repeatable.")
    ],
    target: Annotated[str, typer.Option(help=f"Target: {', '.join(TARGET_NAMES)}.")] = DEFAULT_TARGET,
    strength: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(known.STRENGTHS)}: the cost model alone, its best few timed, every legal config timed."
        ),
    ] = known.STRENGTHS[1],
    runs: Annotated[int, typer.Option(min=1, help="Most configs that are timed, unless all are.")] = known.TUNE_RUNS,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of timing.")] = known.TUNE_ROUNDS,
    values: Annotated[
        list[str], typer.Option("--try", metavar="BLOCK_M=64:128", help="Values for a symbol; repeatable.")
    ] = [],  # noqa: B006  typer reads the default
    mapping: Annotated[list[str], typer.Option("--map", help="Order of tiles to try; repeatable.")] = [],  # noqa: B006
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    records: Annotated[Path, typer.Option(help="Directory of the tuning records.")] = Path(known.RECORDS),
    workers: Annotated[int, typer.Option(min=0, help="Processes that compile configs before they are timed.")] = 0,
    ray: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Ray cluster that compiles and times; local: one on this machine."),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page: predicted and measured time of every config.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only say which config calls take, why, and what would be faster.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Autotune tile sizes; explain and save.

    A search that was interrupted resumes.

    Examples:

      tilewave tune kernel.py --sizes M=1024,N=1024,K=1024

      tilewave tune kernel.py --sizes M=1024,N=1024,K=1024 --explain

      tilewave tune kernel.py --sizes M=64,N=8192,K=8192 --target CHIP --strength model
    """
