"""`tilewave map`: a workgroup mapping drawn, measured and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from rich.console import Console

from tilewave.cli.asked import refuse_given
from tilewave.mapping import Causal
from tilewave.view import Picture, PicturedLaunch, Placement, parse_grid
from tilewave.view.extents import parse_extents
from tilewave.view.save import save
from tilewave.view.terminal import print_placements


def map_command(
    *,
    context: typer.Context,
    grid: str,
    mapping: str,
    xcds: int,
    k_blocks: int,
    workgroups: int | None,
    concurrent: int | None,
    causal: str,
    keys: int | None,
    compare: list[str] | None,
    svg: Path | None,
    html: Path | None,
    xcd: int,
    as_json: bool,
) -> None:
    if svg is None:
        refuse_given(context, ("xcd",), "has no effect without --svg", "add --svg FILE, or leave it out")
    if causal:
        refuse_given(context, ("k_blocks", "xcd"), "has no effect with --causal", "leave one of the two out")
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
    """Draw everything before writing anything, so that a grid that is too large leaves no file."""
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
