"""Mappings in a terminal: the tile grid coloured by XCD, the reads, the proof; all of it legible without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tilewave.mapping import Balance, Locality, XcdReads
from tilewave.view import palette
from tilewave.view.placement import Array, Placement, Work, counted, most

TALLEST = 48
"""Rows of tiles beyond which a grid is cut: about one screen."""

MOST_LINES = 16
"""Lines of the table of XCDs."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""XCDs as one character each, where the grid is wide."""


Painter = Callable[[int], Style]
"""How a tile of an XCD looks."""


def print_placements(console: Console, placements: tuple[Placement, ...]) -> None:
    """Grids side by side where they fit, then the reads of all, then what there is to warn about."""
    console.print(Text(str(placements[0].launch), style="bold"))
    shares = [_panel(console, placement, _share(console, len(placements))) for placement in placements]
    console.print(Columns(shares, padding=(1, 4)) if len(shares) > 1 else shares[0])
    if _tells_by_colour(console, placements[0]):
        console.print()
        console.print(_legend(placements[0]))
    console.print()
    console.print(_comparison(placements) if placements[0].work is None else _work_comparison(placements))
    console.print()
    for placement in placements:
        console.print(_xcd_table(placement))
    for line in _sentences(placements):
        console.print(line, highlight=False)


def _share(console: Console, panels: int) -> int:
    """The width that each of several grids may take; a share too narrow for anything is not worth having."""
    share = (console.width - 4 * (panels - 1)) // panels
    return share if share >= 36 else console.width


def _tells_by_colour(console: Console, placement: Placement) -> bool:
    """Return whether every XCD has a distinct colour that this terminal can show."""
    able = console.color_system in ("256", "truecolor") and not console.no_color
    return able and placement.launch.xcds <= len(palette.FILLS)


def _panel(console: Console, placement: Placement, width: int) -> RenderableType:
    """Return a heading and the tables, as many of them side by side as fit."""
    heading = Text(str(placement.mapping), style="bold cyan")
    return Group(heading, *_tables(console, placement, width))


def _tables(console: Console, placement: Placement, width: int) -> Iterator[RenderableType]:
    wanted = [("workgroup", placement.workgroups)]
    painter: Painter = _style
    if not _tells_by_colour(console, placement):
        painter = _plain
        wanted.append(("XCD", placement.xcds))
    if placement.launch.rounds > 1:
        wanted.append(("round", placement.rounds))
    if placement.work is not None:
        wanted.append(("cost: blocks of keys", placement.work.costs))
    grid, groups = placement.launch.grid, placement.launch.groups
    if groups is not None:
        wanted.append(("group", np.repeat(groups.of_rows()[:, None], grid.cols, 1)))
    widths = [_width(values) for _, values in wanted]
    if grid.rows > TALLEST or max(widths) > width:
        yield _compact(placement, width, painter)
        return
    drawn = [_numbers(name, values, placement.xcds, painter) for name, values in wanted]
    if sum(widths) + 4 * (len(widths) - 1) > width:
        yield from drawn
        return
    line = Table.grid(padding=(0, 4, 0, 0))
    line.add_row(*drawn)
    yield line


def _width(values: Array) -> int:
    _, cols = values.shape
    return _margin(values) + int(cols) * (_digits(values) + 1)


def _digits(values: Array) -> int:
    return len(str(max(int(values.max()), values.shape[1] - 1)))


def _margin(values: Array) -> int:
    """The row's number and the space after it, or the names of the axes above them."""
    return max(len(str(values.shape[0] - 1)) + 2, 4)


def _numbers(name: str, values: Array, xcds: Array, painter: Painter) -> Text:
    """A table of numbers, M down and N across, each tile in its XCD's colour."""
    rows, cols = values.shape
    wide, margin = _digits(values), _margin(values)
    text = Text(no_wrap=True)
    text.append(f"{name}\n", style="dim")
    text.append("M\\N".ljust(margin), style="dim")
    text.append("".join(f"{col:>{wide}} " for col in range(cols)), style="dim")
    for row in range(rows):
        text.append(f"\n{str(row).ljust(margin)}", style="dim")
        for col in range(cols):
            value = values[row, col]
            text.append(f"{value if value >= 0 else '–':>{wide}} ", style=painter(int(xcds[row, col])))
    return text


def _style(xcd: int) -> Style:
    return Style(color=palette.LABEL, bgcolor=palette.fill(xcd))


def _plain(xcd: int) -> Style:
    return Style()


def _compact(placement: Placement, width: int, painter: Painter) -> Text:
    """One character per tile, its XCD; as much of the grid as fits, and how much that is."""
    grid = placement.launch.grid
    margin = len(str(grid.rows - 1)) + 2
    rows, cols = min(grid.rows, TALLEST), min(grid.cols, width - margin - 1)
    text = Text(no_wrap=True, overflow="fold")
    text.append("XCD of each tile\n", style="dim")
    corner = placement.xcds[:rows, :cols]
    for row in range(rows):
        text.append(f"{row:>{margin - 2}}  ", style="dim")
        for xcd in corner[row].tolist():
            text.append(DIGITS[xcd] if xcd < len(DIGITS) else "*", style=painter(xcd))
        text.append("…\n" if cols < grid.cols else "\n")
    shown = "" if (rows, cols) == (grid.rows, grid.cols) else f"; the first {rows}×{cols} of {grid} tiles"
    text.append(f"too large for numbers{shown}:\n--html, --svg or --json show the rest", style="dim")
    return text


def _legend(placement: Placement) -> Text:
    text = Text("XCD ")
    for xcd in range(placement.launch.xcds):
        text.append(f" {xcd} ", style=_style(xcd))
        text.append(" ")
    return text


def _comparison(placements: tuple[Placement, ...]) -> Table:
    """The reads of each mapping, and those of linear()."""
    k_blocks = counted(placements[0].launch.k_blocks, "k-block")
    table = Table(
        title=f"reads, in blocks of A and B ({k_blocks})", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    table.add_column("mapping", overflow="fold")
    for name in ("A", "B", "A + B", "all XCDs", "× compulsory"):
        table.add_column(name, justify="right")
    for report in _reports(placements):
        one = most(report)
        numbers = (one.a_blocks, one.b_blocks, one.blocks, report.reads)
        table.add_row(report.mapping, *map(str, numbers), f"{report.reads / report.compulsory:.2f}")
    compulsory = placements[0].locality.compulsory
    table.caption = f"A, B, A + B: of the XCD that reads most; compulsory: {compulsory}, each block once"
    table.caption_justify = "left"
    return table


def _reports(placements: tuple[Placement, ...]) -> list[Locality]:
    reports = [placement.locality for placement in placements]
    linear = placements[0].linear
    return reports if any(report.mapping == linear.mapping for report in reports) else [*reports, linear]


def _work_comparison(placements: tuple[Placement, ...]) -> Table:
    """When the units of each mapping are done, and those of linear()."""
    found = [placement.work for placement in placements if placement.work]
    reports = [work.balance for work in found]
    if all(report.mapping != found[0].linear.mapping for report in reports):
        reports.append(found[0].linear)
    table = Table(title="work, in blocks of keys", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("mapping", overflow="fold")
    for name in ("least of an XCD", "most", "done after", "at best", "busy"):
        table.add_column(name, justify="right")
    for report in reports:
        work = [xcd.work for xcd in report.xcds]
        numbers = (min(work), max(work), report.ends, report.soonest)
        table.add_row(report.mapping, *map(str, numbers), f"{report.busy:.0%}")
    table.caption = f"{counted(reports[0].units, 'unit')}; at best: evenly shared, or the longest tile alone"
    table.caption_justify = "left"
    return table


def _xcd_table(placement: Placement) -> Table:
    """What each XCD computes and reads, or what it costs where tiles differ; equal ones share a line."""
    table = Table(title=str(placement.mapping), title_justify="left", title_style="bold cyan", box=SIMPLE_HEAD)
    names = ["XCD", "tiles", "rows", "columns", "A", "B", "A + B"]
    if placement.work is not None:
        names = ["XCD", "tiles", "work", "done after"]
        lines = list(_work_lines(placement.work.balance))
    else:
        if placement.launch.rounds > 1:
            names.append("read in waves")
        lines = list(_lines(placement.locality.xcds))
    for name in names:
        table.add_column(name, justify="right")
    for line in lines[:MOST_LINES]:
        table.add_row(*line[: len(names)])
    if len(lines) > MOST_LINES:
        table.caption = f"the first {MOST_LINES} of {len(lines)} lines; --json shows all"
    return table


def _lines(xcds: tuple[XcdReads, ...]) -> Iterator[list[str]]:
    def numbers(one: XcdReads) -> tuple[int, ...]:
        whole = one.whole
        return whole.tiles, whole.rows, whole.cols, one.a_blocks, one.b_blocks, one.blocks, one.reads

    return _grouped_by_numbers([(one.xcd, numbers(one)) for one in xcds])


def _work_lines(balance: Balance) -> Iterator[list[str]]:
    return _grouped_by_numbers([(one.xcd, (one.tiles, one.work, one.ends)) for one in balance.xcds])


def _grouped_by_numbers(xcds: list[tuple[int, tuple[int, ...]]]) -> Iterator[list[str]]:
    """A line for XCDs that follow each other and have the same numbers."""
    for same, group in groupby(xcds, key=lambda one: one[1]):
        members = [xcd for xcd, _ in group]
        name = str(members[0]) if len(members) == 1 else f"{members[0]}–{members[-1]}"
        yield [name, *map(str, same)]


def _sentences(placements: tuple[Placement, ...]) -> Iterator[Text]:
    """What the tables say, the proof, the warnings."""
    for placement in placements:
        name = f"{placement.mapping}: " if len(placements) > 1 else ""
        if placement.locality.mapping != placement.linear.mapping:
            work = placement.work
            yield Text(f"{name}{_against_linear(placement) if work is None else _sooner(work)}")
        yield Text(f"{name}{placement.proof}", style="green")
        for warning in placement.warnings:
            yield Text(f"warning: {warning}", style="yellow")


def _against_linear(placement: Placement) -> str:
    """The documents' comparison: the blocks that one XCD reads, and all of them, from linear() to this."""
    old, new = placement.linear, placement.locality
    change = round(100 * (new.reads - old.reads) / old.reads)
    verdict = f"{abs(change)} % {'fewer' if change < 0 else 'more'}" if change else "the same"
    one = f"one XCD {most(old).blocks} → {most(new).blocks}, " if new.rounds == 1 else ""
    return f"blocks read, linear() → this: {one}all {old.reads} → {new.reads} ({verdict})"


def _sooner(work: Work) -> str:
    old, new = work.linear.ends, work.balance.ends
    change = round(100 * (new - old) / old)
    verdict = f"{abs(change)} % {'sooner' if change < 0 else 'later'}" if change else "the same"
    return f"done, linear() → this: after {old} → {new} blocks of keys ({verdict})"
