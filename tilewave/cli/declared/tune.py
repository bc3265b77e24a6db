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
        list[str], typer.Option("--sizes", "-s", metavar="M=…,N=…", help="Sizes to decide for; may be given again.")
    ],
    target: Annotated[str, typer.Option(help=f"What to tune for: {', '.join(TARGET_NAMES)}.")] = DEFAULT_TARGET,
    strength: Annotated[
        str, typer.Option(help=f"{', '.join(known.STRENGTHS)}: nothing runs, the model's best few, every legal point.")
    ] = known.STRENGTHS[1],
    runs: Annotated[int, typer.Option(min=1, help="Points that run at most, where not all do.")] = known.TUNE_RUNS,
    rounds: Annotated[int, typer.Option(min=1, help="How often each point is timed.")] = known.TUNE_ROUNDS,
    values: Annotated[
        list[str], typer.Option("--try", metavar="BLOCK_M=64:128", help="Values for a symbol; may be given again.")
    ] = [],  # noqa: B006  typer reads the default
    mapping: Annotated[list[str], typer.Option("--map", help="An order of tiles to try; may be given again.")] = [],  # noqa: B006
    kernel: Annotated[str, typer.Option(help="This kernel alone.")] = "",
    records: Annotated[Path, typer.Option(help="The directory that decisions are written to.")] = Path(known.RECORDS),
    workers: Annotated[int, typer.Option(min=0, help="Processes that compile points, before they are measured.")] = 0,
    ray: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="A Ray cluster that compiles, and measures on its GPUs; local: one of this machine."
        ),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page: predicted against measured, every point.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Autotune tile sizes; explain and save.

    A search that was ended goes on where it stopped.

    Examples:

      tilewave tune kernel.py --sizes M=1024,N=1024,K=1024

      tilewave tune kernel.py --sizes M=64,N=8192,K=8192 --target CHIP --strength model
    """
