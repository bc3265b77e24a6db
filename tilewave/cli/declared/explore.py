"""What `tilewave explore` is asked; what it does is in cli/explore.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.cli.declared import known

KernelFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A Python file with kernels, in place of a GEMM.", exists=True)
]
Sizes = Annotated[list[str] | None, typer.Option("--set", "-s", help="Sizes for a file's kernels: M=512,N=512,…")]
KernelName = Annotated[str, typer.Option("--kernel", metavar="NAME", help="Kernel of the file to show first.")]
ShapeText = Annotated[str, typer.Option(metavar="MxNxK", help="Shape of the GEMM to show first.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="Tile of a workgroup.")]
DTypeText = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Dtype of A and B.")]
Workgroups = Annotated[int | None, typer.Option(metavar="N", min=1, help="Persistent launch of N workgroups.")]
MapText = Annotated[str, typer.Option("--map", metavar="MAPPING", help="Order of tiles; see tilewave map.")]
Compare = Annotated[str, typer.Option("--compare", metavar="MAPPING", help="Order to compare with.")]
MachineText = Annotated[str, typer.Option(metavar="NAME", help="Machine of `tilewave machines`, or a TOML file.")]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0: a free one.")]
OpenBrowser = Annotated[bool, typer.Option("--browser", help="Open the browser.")]
HtmlFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the page of this choice instead of serving it.")
]


def explore_command(
    context: typer.Context,
    file: KernelFile = None,
    sizes: Sizes = None,
    kernel: KernelName = "",
    shape: ShapeText = known.EXPLORED_SHAPE,
    tile: TileText = known.EXPLORED_TILE,
    dtype: DTypeText = known.EXPLORED_DTYPE,
    workgroups: Workgroups = None,
    mapping: MapText = "",
    compare: Compare = "",
    machine: MachineText = known.EXPLORED_MACHINE,
    port: Port = 8765,
    browser: OpenBrowser = False,
    html: HtmlFile = None,
) -> None:
    """Explore a kernel on a page: tiles, traffic, passes, assembly.

    Serve a page on this machine: an animation of the grid, traffic, time, passes and assembly of the chosen kernel.

    Other machines cannot reach the page. Its address contains the choices and can be shared. Ctrl-C stops the server.

    Examples:

      tilewave explore

      tilewave explore kernel.py --set M=4096,N=4096,K=4096 --browser

      tilewave explore --shape 8192x8192x8192 --map "xcd_contiguous(8) >> grouped(8)" --compare "linear()"

      tilewave explore --machine H200 --workgroups 132 --html explorer.html
    """
