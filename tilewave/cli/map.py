"""`tilewave map`: a workgroup mapping drawn, measured and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from tilewave.backend.names import INTERPRETER
from tilewave.cli.asked import given, refuse_given
from tilewave.errors import TilewaveError
from tilewave.mapping import Causal
from tilewave.view import Picture, PicturedLaunch, Placement, parse_grid, show
from tilewave.view.extents import parse_extents
from tilewave.view.save import save
from tilewave.view.terminal import print_placements

if TYPE_CHECKING:
    from tilewave.compiled import Compiled

ITS_OWN = "its GridConstraint decides it; leave it out"


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
    sizes: list[str] | None,
    kernel: str,
    as_json: bool,
) -> None:
    file = _file(grid, mapping)
    if svg is None:
        refuse_given(context, ("xcd",), "has no effect without --svg", "add --svg FILE, or leave it out")
    if causal:
        refuse_given(context, ("k_blocks", "xcd"), "has no effect with --causal", "leave one of the two out")
    else:
        refuse_given(context, ("keys",), "has no effect without --causal", "add --causal 128x64, or leave it out")
    uneven = _causal(causal, keys) if causal else None
    if file is None:
        refuse_given(context, ("sizes", "kernel"), "has no effect without a file", "write tilewave map FILE --set …")
        launch = PicturedLaunch(parse_grid(grid), xcds, k_blocks, workgroups, concurrent, uneven)
        picture = Picture(tuple(Placement.of(text, launch) for text in (mapping, *(compare or ()))))
    else:
        if given(context, "mapping"):
            raise TilewaveError(f"{file} is drawn in its own order", remedy=f'write --compare "{mapping}"')
        refuse_given(context, ("workgroups",), "has no effect on a kernel from a file", ITS_OWN)
        others = tuple(compare or ())
        picture = show(
            _kernel_of(file, sizes or [], kernel),
            xcds=xcds,
            k_blocks=k_blocks,
            concurrent=concurrent,
            causal=uneven,
            compare=others,
        )
    written = _write(picture, svg, html, xcd)
    _print_json(picture) if as_json else _print(picture, written)


def _file(grid: str, mapping: str) -> Path | None:
    """Return the file of a kernel that is to be drawn; an error where the file is given for the mapping."""
    if _names_file(mapping):
        what = f"{mapping} is a file, and a mapping is a text such as grouped(4)"
        raise TilewaveError(what, remedy=f"write tilewave map {mapping} --set M=…,N=…: its sizes give the grid")
    if not _names_file(grid):
        return None
    if not Path(grid).is_file():
        raise TilewaveError(f"there is no file {grid}", remedy="name a Python file that defines a kernel")
    return Path(grid)


def _names_file(text: str) -> bool:
    return text.endswith(".py") or Path(text).is_file()


def _kernel_of(file: Path, sizes: list[str], wanted: str) -> Compiled:
    """Return a file's kernel with all sizes fixed."""
    from tilewave.cli.diff import fixed_in, named_kernels, parse_sizes  # noqa: PLC0415  a mapping needs no compiler

    compiled = named_kernels(fixed_in(file, parse_sizes(sizes), "--set", INTERPRETER), wanted)
    if len(compiled) != 1:
        known = ", ".join(compiled) or "none"
        what = f"{file} has no kernel {wanted!r}" if wanted else f"{file} has {len(compiled)} kernels, not one: {known}"
        raise TilewaveError(what, remedy="pass --kernel NAME" if compiled else "name a kernel that the file defines")
    (found,) = compiled.values()
    if found.choice is not None:
        tiles = ",".join(f"{symbol}=…" for symbol in found.choice.tiles)
        raise TilewaveError(f"{found.name} leaves tile sizes open, which decide the grid", remedy=f"pass --set {tiles}")
    return found


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
