"""What `tilewave map` is asked; what it does is in cli/map.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MAPPING_HELP = """Renumberings, then an order, joined by >>. Renumberings: xcd_contiguous(xcds), xcd_chunked(xcds,
chunk), last_first(), folded(). Orders: linear(), paired(), grouped(size), snake(size), supertiles(rows, cols),
morton(), hilbert(); the first four take along="n"."""

GridText = Annotated[
    str,
    typer.Argument(
        metavar="GRID",
        help="Tiles along M and N, such as 8x8; or a Python file with a kernel, which is drawn in its own order.",
    ),
]
MappingText = Annotated[str, typer.Argument(metavar="MAPPING", help=MAPPING_HELP)]
Xcds = Annotated[int, typer.Option(metavar="N", help="XCDs that the hardware deals workgroups to.")]
KBlocks = Annotated[int, typer.Option(metavar="N", help="Blocks of A and B along K.")]
Workgroups = Annotated[int | None, typer.Option(metavar="N", help="Persistent launch of N workgroups.")]
Concurrent = Annotated[int | None, typer.Option(metavar="N", help="Concurrent workgroups; default: all.")]
Compare = Annotated[list[str] | None, typer.Option(metavar="MAPPING", help="Mapping to compare with; repeatable.")]
SvgFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write three figures as SVG.")]
HtmlFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write an animated, self-contained page.")]
Xcd = Annotated[int, typer.Option(metavar="N", help="The XCD whose reads the third figure of --svg shows.")]
CausalText = Annotated[
    str,
    typer.Option(
        "--causal",
        metavar="QxK",
        help="Causal attention: rows are blocks of Q queries, which iterate over blocks of K keys.",
    ),
]
Keys = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of keys; default: as many as queries.")]
Counts = Annotated[
    str,
    typer.Option(metavar="ROWS", help="Example rows of each group of a ragged grid: 300,0,6x512 (six groups of 512)."),
]
Block = Annotated[int | None, typer.Option(metavar="N", min=1, help="With --counts and a GRID: the rows of a tile.")]
Sizes = Annotated[list[str] | None, typer.Option("--set", "-s", help="Sizes for a file's kernel: M=512,N=512,…")]
Kernel = Annotated[str, typer.Option("--kernel", metavar="NAME", help="This kernel of the file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def map_command(
    context: typer.Context,
    grid: GridText,
    mapping: MappingText = "linear()",
    xcds: Xcds = 8,
    k_blocks: KBlocks = 8,
    workgroups: Workgroups = None,
    concurrent: Concurrent = None,
    causal: CausalText = "",
    keys: Keys = None,
    counts: Counts = "",
    block: Block = None,
    compare: Compare = None,
    svg: SvgFile = None,
    html: HtmlFile = None,
    xcd: Xcd = 0,
    sizes: Sizes = None,
    kernel: Kernel = "",
    as_json: Json = False,
) -> None:
    """Draw, measure and verify an order of tiles.

    Draw which workgroup computes which tile, count what each XCD reads, and verify that no tile is lost.

    Examples:

      tilewave map 8x8 "xcd_contiguous(8) >> grouped(2)"

      tilewave map 8x8 "grouped(4)" --compare "hilbert()" --compare "snake(4)"

      tilewave map 40x40 "xcd_contiguous(8) >> grouped(8)" --workgroups 304

      tilewave map 16x16 "xcd_contiguous(8) >> hilbert()" --html map.html

      tilewave map 32x8 "xcd_contiguous(8) >> paired()" --causal 128x64 --concurrent 64

      tilewave map 15x4 "xcd_contiguous(8) >> grouped(4)" --counts 300,0,700,90,190 --block 128

      tilewave map 8x8 "grouped(4)" --json

      tilewave map kernel.py --set M=512,N=512,K=64 --compare "grouped(4)"
    """
