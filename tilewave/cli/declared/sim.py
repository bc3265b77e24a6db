"""What `tilewave sim` is asked; what it does is in cli/sim.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewave.cli.declared import known

KernelFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A Python file with one kernel, in place of a GEMM.", exists=True)
]
ShapeText = Annotated[str, typer.Option(metavar="MxNxK", help="C is M x N, and every sum has K products.")]
TileText = Annotated[str, typer.Option(metavar="MxNxK", help="Tile of a workgroup. With --best also 64..256x128x64.")]
MapText = Annotated[
    str,
    typer.Option(
        "--map", metavar="MAPPING", help="Order of tiles, see tilewave map; default: linear(), or the kernel's."
    ),
]
MachineText = Annotated[str, typer.Option(metavar="NAME", help="Machine of `tilewave machines`, or a TOML file.")]
DTypeText = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Dtype of A and B.")]
OutText = Annotated[str, typer.Option(metavar="DTYPE", help="Dtype of C; default: that of A and B.")]
Workgroups = Annotated[int | None, typer.Option(metavar="N", min=1, help="Persistent launch of N workgroups.")]
WalkName = Annotated[
    str, typer.Option(metavar="NAME", help="Direction of K: forwards, or to-and-fro (alternates from tile to tile).")
]
Occupancy = Annotated[int, typer.Option(metavar="N", min=1, help="Workgroups per CU or SM.")]
Skew = Annotated[float, typer.Option(metavar="STEPS", min=0, help="Steps between resident workgroups.")]
EngineName = Annotated[
    str, typer.Option(metavar="NAME", help="closed (closed form, milliseconds) or trace (LRU lists).")
]
Compare = Annotated[list[str] | None, typer.Option(metavar="MAPPING", help="Order to compare with; repeatable.")]
Best = Annotated[bool, typer.Option("--best", help="Search orders, and tiles where a range is given.")]
Top = Annotated[int, typer.Option(metavar="N", min=1, help="How many of the best to show.")]
Sizes = Annotated[list[str] | None, typer.Option("--set", "-s", help="Sizes for a kernel: M=512,N=512,…")]
Counts = Annotated[
    str,
    typer.Option(metavar="ROWS", help="Example rows of each group of a ragged grid: 300,0,6x512 (six groups of 512)."),
]
HtmlFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with figures and tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def sim_command(
    context: typer.Context,
    file: KernelFile = None,
    shape: ShapeText = "4096x4096x4096",
    tile: TileText = "128x256x64",
    mapping: MapText = "",
    machine: MachineText = "MI300X",
    dtype: DTypeText = "f16",
    out: OutText = "",
    workgroups: Workgroups = None,
    walk: WalkName = known.WALK,
    occupancy: Occupancy = 1,
    skew: Skew = 0.0,
    engine: EngineName = "closed",
    compare: Compare = None,
    best_of: Best = False,
    top: Top = 10,
    sizes: Sizes = None,
    counts: Counts = "",
    html: HtmlFile = None,
    as_json: Json = False,
) -> None:
    """Simulate a GEMM or a kernel: traffic, time, bottleneck.

    The machine need not be present. Prints bytes per cache, hit rates, time and the bottleneck.

    Examples:

      tilewave sim --shape 8192x8192x8192 --machine MI300X --map "xcd_contiguous(8) >> grouped(8)"

      tilewave sim --shape 8192x8192x8192 --machine H200 --workgroups 132 --compare "grouped(16)"

      tilewave sim --shape 4864x4096x4160 --machine MI355X --best --tile 128..256x128..256x64

      tilewave sim kernel.py --set M=2048,N=2048,K=2048 --machine MI300X --html traffic.html

      tilewave sim kernel.py --set M=2048,N=2048,K=2048 --compare "grouped(8)" --compare "hilbert()"

      tilewave sim experts.py --set T=4096,X=8,N=2048,K=2048 --counts 100,0,1500,2x700,0,90,1006
    """
