"""`tilewave map`: a workgroup mapping drawn, measured and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tilewave.cli.asked import refuse_given
from tilewave.mapping import Causal
from tilewave.view import Picture, PicturedLaunch, Placement, parse_grid
from tilewave.view.extents import parse_extents
from tilewave.view.save import save
from tilewave.view.terminal import print_placements

MAPPING_HELP = """Renumberings, then an order, joined by >>. Renumberings: xcd_contiguous(xcds), xcd_chunked(xcds,
chunk), last_first(), folded(). Orders: linear(), paired(), grouped(size), snake(size), supertiles(rows, cols),
morton(), hilbert(); the first four take along="n"."""

GridText = Annotated[str, typer.Argument(metavar="GRID", help="Tiles along M and N, such as 8x8.")]
MappingText = Annotated[str, typer.Argument(metavar="MAPPING", help=MAPPING_HELP)]
Xcds = Annotated[int, typer.Option(metavar="N", help="XCDs that the hardware deals workgroups to.")]
KBlocks = Annotated[int, typer.Option(metavar="N", help="Blocks of A and B along K.")]
Workgroups = Annotated[int | None, typer.Option(metavar="N", help="A persistent launch of N workgroups, in rounds.")]
Concurrent = Annotated[int | None, typer.Option(metavar="N", help="Workgroups that run at a time; without it, all.")]
Compare = Annotated[list[str] | None, typer.Option(metavar="MAPPING", help="Another mapping beside it; repeatable.")]
SvgFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the three figures.")]
HtmlFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page: animated, self-contained.")]
Xcd = Annotated[int, typer.Option(metavar="N", help="The XCD whose reads the third figure of --svg shows.")]
CausalText = Annotated[
    str,
    typer.Option(
        "--causal", metavar="QxK", help="Rows are blocks of Q queries that walk keys, K at a time, up to their own."
    ),
]
Keys = Annotated[int | None, typer.Option(metavar="N", min=1, help="How many keys there are; else as many as queries.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything for machines.")]


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
    compare: Compare = None,
    svg: SvgFile = None,
    html: HtmlFile = None,
    xcd: Xcd = 0,
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

      tilewave map 8x8 "grouped(4)" --json
    """
    if svg is None:
        refuse_given(context, ("xcd",), "has no effect without --svg", "add --svg FILE, or leave it out")
    if causal:
        refuse_given(context, ("k_blocks", "xcd"), "has no effect beside --causal", "leave one of the two out")
    else:
        refuse_given(context, ("keys",), "has no effect without --causal", "add --causal 128x64, or leave it out")
    uneven = _causal(causal, keys) if causal else None
    launch = PicturedLaunch(parse_grid(grid), xcds, k_blocks, workgroups, concurrent, uneven)
    picture = Picture(tuple(Placement.of(text, launch) for text in (mapping, *(compare or ()))))
    written = _write(picture, svg, html, xcd)
    _print_json(picture) if as_json else _print(picture, written)


def _causal(text: str, keys: int | None) -> Causal:
    queries, block = parse_extents(text, "a block", ("queries", "keys"), "128x64")
    return Causal(queries.value, block.value, keys)


def _write(picture: Picture, svg: Path | None, html: Path | None, xcd: int) -> list[Path]:
    """Everything is drawn before anything is written: a grid that is too large leaves no file behind."""
    drawn = []
    if svg is not None:
        drawn.append((svg, picture.svg(xcd)))
    if html is not None:
        drawn.append((html, picture.html()))
    for path, text in drawn:
        save(path, text)
    return [path for path, _ in drawn]


def _print_json(picture: Picture) -> None:
    json.dump(picture.to_json(), sys.stdout)
    sys.stdout.write("\n")


def _print(picture: Picture, written: list[Path]) -> None:
    console = Console()
    print_placements(console, picture.placements)
    for path in written:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
