"""`tilewave map`: a workgroup mapping drawn, measured and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from tilewave.backend.names import INTERPRETER
from tilewave.cli.asked import given, refuse_given
from tilewave.cli.counts import parse_counts
from tilewave.errors import TilewaveError
from tilewave.mapping import Causal
from tilewave.view import Picture, show
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
    counts: str,
    block: int | None,
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
    ends = parse_counts(counts) if counts else None
    if not counts:
        refuse_given(context, ("block",), "has no effect without --counts", "add --counts 300,0,6x512, or leave it out")
    else:
        refuse_given(context, ("causal", "xcd"), "has no effect with --counts", "leave one of the two out")
    if causal:
        refuse_given(context, ("k_blocks", "xcd"), "has no effect with --causal", "leave one of the two out")
    else:
        refuse_given(context, ("keys",), "has no effect without --causal", "add --causal 128x64, or leave it out")
    uneven = _causal(causal, keys) if causal else None
    if file is None:
        refuse_given(context, ("sizes", "kernel"), "has no effect without a file", "write tilewave map FILE --set …")
        more: dict[str, Any] = {"causal": uneven, "ends": ends, "block": block, "compare": compare or ()}
        picture = show(mapping, grid, xcds, k_blocks=k_blocks, workgroups=workgroups, concurrent=concurrent, **more)
    else:
        if given(context, "mapping"):
            raise TilewaveError(f"{file} is drawn in its own order", remedy=f'write --compare "{mapping}"')
        refuse_given(context, ("workgroups", "block"), "has no effect on a kernel from a file", ITS_OWN)
        others = tuple(compare or ())
        picture = show(
            _kernel_of(file, sizes or [], kernel),
            xcds=xcds,
            k_blocks=k_blocks,
            concurrent=concurrent,
            causal=uneven,
            ends=ends,
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
