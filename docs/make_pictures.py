"""Makes the pictures of the documents: `python docs/make_pictures.py` writes docs/pictures/.

The SVG figures need nothing; the screenshots of the page (PNG) need chromium, and are left as they are without it.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from tilewave.errors import TilewaveError
from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.explore.page import Page
from tilewave.mapping import Grid, PersistentFormula, as_mapping, grouped
from tilewave.mapping.coverage import Coverage
from tilewave.view import Placement, palette, show
from tilewave.view.figures import figures
from tilewave.view.save import save
from tilewave.view.svg import Figure, rect, sheet, text

PICTURES = Path(__file__).parent / "pictures"
GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
LOST_TILES = [Path(__file__).parent / "guide" / name for name in ("lost-tiles.md", "lost-tiles-persistent.md")]
GROUPED = "xcd_contiguous(8) >> grouped(2)"
TURNS = "last_first() >> grouped(4)"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@dataclass(frozen=True)
class Screenshot:
    """The page of some mappings in some state (`turn=24&xcd=2&theme=dark`), in a window of some size."""

    name: str
    grid: str
    mappings: tuple[str, ...]
    state: str
    width: int
    height: int
    workgroups: int | None = None
    scale: float = 1.0

    def save(self, path: Path) -> None:
        first, *others = self.mappings
        show(first, self.grid, compare=others, workgroups=self.workgroups).save(path)


@dataclass(frozen=True)
class ExplorerScreenshot:
    """The explorer's page of some choice, in some state."""

    name: str
    choice: ExplorerChoice
    state: str
    width: int
    height: int
    scale: float = 0.8

    def save(self, path: Path) -> None:
        save(path, Page.alone(Explorer(ExploredGemm(), self.choice)).html)


EXPLORED = ExplorerChoice(
    machine="H200", shape="8192x8192x8192", workgroups="132", map="linear()", beside="grouped(16)"
)
SCREENSHOTS = (
    Screenshot("page.png", "8x8", (GROUPED,), "turn=29&xcd=2&theme=light", 1640, 1130),
    Screenshot("page-compared.png", "8x8", (GROUPED, "linear()"), "xcd=2&theme=dark", 1240, 2310, scale=0.8),
    Screenshot(
        "page-persistent.png",
        "16x16",
        ("xcd_contiguous(8) >> hilbert()",),
        "turn=200&theme=light",
        1240,
        930,
        workgroups=132,
    ),
    ExplorerScreenshot("explorer.png", EXPLORED, "mode=hbm&theme=light", 1280, 1140),
    ExplorerScreenshot("explorer-traffic.png", EXPLORED, "tab=traffic&theme=dark", 1280, 1000),
    ExplorerScreenshot("explorer-code.png", EXPLORED, "tab=code&line=45&theme=light", 1280, 760),
)


def main() -> None:
    """Write every picture and say so."""
    PICTURES.mkdir(exist_ok=True)
    for name, drawn in _figures().items():
        save(PICTURES / name, drawn)
        print(f"wrote {PICTURES / name}")
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("no chromium here, so the screenshots were left as they are: apt install chromium")
    for screenshot in SCREENSHOTS:
        _take(screenshot, chromium)
        print(f"wrote {PICTURES / screenshot.name}")


def _figures() -> dict[str, str]:
    """Launch order and XCD map, and the reads of XCD 0 in both orders: the figures of Wave's document."""
    linear, grouped = (_placement(mapping) for mapping in ("linear()", GROUPED))
    order, xcds, reads = figures(linear)
    grouped_order, grouped_xcds, grouped_reads = figures(grouped)
    return {
        "launch-order.svg": sheet([[order, grouped_order]]),
        "xcd-map.svg": sheet([[xcds, grouped_xcds]]),
        "reads.svg": sheet([[reads, grouped_reads]]),
        "turn-order.svg": sheet([[order, figures(_placement(TURNS))[0]]]),
        **_gallery(),
        **_lost_tiles(),
    }


def _gallery() -> dict[str, str]:
    """The launch order of every kernel of the gallery."""
    sys.path.insert(0, str(GALLERY))
    try:
        presented = import_module("presented")
        cases = presented.cases()
    finally:
        sys.path.remove(str(GALLERY))
    drawn = {name: figures(*presented.picture_of(case).placements)[0] for name, case in cases.items()}
    return {f"gallery-{name}.svg": sheet([[replace(figure, title=name)]]) for name, figure in drawn.items()}


@dataclass(frozen=True)
class LostTiles:
    """A formula of the gallery of lost tiles on some grid, compared with a mapping that is right."""

    name: str
    formula: str
    right: str
    grid: Grid
    cell: float
    workgroups: int | None = None
    stacked: bool = False


LOST = (
    LostTiles("flydsl", "fixed_group_width", "grouped(8)", Grid(9, 9), 20),
    LostTiles("tilelang", "rounded_down", 'grouped(8, along="n")', Grid(4, 9), 24),
    LostTiles("aiter-gemm", "row_major_rest", "xcd_chunked(8, 32) >> grouped(8)", Grid(37, 9), 14, stacked=True),
    LostTiles("aiter-attention", "heads_to_xcds", "xcd_contiguous(8)", Grid(64, 12), 10, stacked=True),
    LostTiles("moe", "no_remainder", 'xcd_contiguous(8) >> linear(along="n")', Grid(5, 6), 28),
    LostTiles("wave", "xcd_start", "xcd_chunked(8, 2) >> grouped(4)", Grid(16, 16), 16, workgroups=132),
)
TWICE, NEVER = "#f6b04c", "#a3172f"


def _lost_tiles() -> dict[str, str]:
    """Return a picture of each wrong order of the gallery of lost tiles, compared with a right one."""
    formulas = {name: value for page in LOST_TILES for name, value in _run(page).items()}
    made = {}
    for lost in LOST:
        wrong = formulas[lost.formula]
        shipped = PersistentFormula(wrong, grouped(4)) if lost.workgroups else as_mapping(wrong)
        pair = [_counted(lost, shipped, lost.formula), _counted(lost, as_mapping(lost.right), lost.right)]
        made[f"lost-{lost.name}.svg"] = sheet([[one] for one in pair] if lost.stacked else [pair])
    return made


def _run(page: Path) -> dict[str, object]:
    """The names that a page's blocks define; blocks that end in an error are shown for it."""
    names: dict[str, object] = {"__name__": "document"}
    for at, code in enumerate(re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)):
        file = f"<{page.name} {at}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        with contextlib.suppress(TilewaveError):
            exec(compile(code, file, "exec", dont_inherit=True), names)
    return names


def _counted(lost: LostTiles, coverage: Coverage, title: str) -> Figure:
    """How often each tile is computed; workgroups outside the grid are drawn outside it."""
    grid, cell = lost.grid, lost.cell
    places = [(v.row, v.col) for v in coverage.visits(grid, lost.workgroups)]
    tiles = list(zip(*(np.concatenate(part).tolist() for part in zip(*places, strict=True)), strict=True))
    turns: dict[tuple[int, int], list[int]] = {(r, c): [] for r in range(grid.rows) for c in range(grid.cols)}
    for turn, tile in enumerate(tiles):
        turns.setdefault(tile, []).append(turn)
    parts = [_cell(lost, tile, given) for tile, given in turns.items()]
    rows, cols = (1 + max(tile[side] for tile in turns) for side in (0, 1))
    across, down = (rows, cols) if lost.stacked else (cols, rows)
    width = max(2 * 16 + across * cell, 32 + 10.5 * len(title), 330.0)
    return Figure("lost", title, _said(lost, turns), width, down * cell + 12, "\n".join(parts))


def _said(lost: LostTiles, turns: dict[tuple[int, int], list[int]]) -> str:
    """The caption: what is wrong, and which way the picture goes."""
    grid = lost.grid
    inside = [len(turns[r, c]) for r in range(grid.rows) for c in range(grid.cols)]
    never, twice, outside = inside.count(0), sum(count > 1 for count in inside), len(turns) - len(inside)
    wrong = [f"{never} of {grid.size} tiles are never computed (×)"] if never else []
    wrong += [f"{twice} are computed twice (2)"] if twice else []
    wrong += [f"{outside} workgroups are outside the grid (dashed)"] if outside else []
    said = ", ".join(wrong) if wrong else f"Each of {grid.size} tiles is computed exactly once"
    way = "M goes to the right, N down" if lost.stacked else "M goes down, N to the right"
    return f"{said}. {way}; darker tiles are launched later."


def _cell(lost: LostTiles, tile: tuple[int, int], turns: list[int]) -> str:
    """One tile: × where it is never computed, its count where more than once, dashed where it is outside."""
    side, grid, count = lost.cell, lost.grid, len(turns)
    col, row = tile if lost.stacked else tile[::-1]
    x, y = 16 + col * side, row * side
    if tile[0] >= grid.rows or tile[1] >= grid.cols:
        return rect(x + 1, y + 1, side - 2, side - 2, palette.PAPER, stroke=NEVER, stroke_dasharray="2 2")
    if count == 1:
        return rect(x + 0.5, y + 0.5, side - 1, side - 1, palette.between(turns[0] / grid.size))
    square = rect(x + 0.5, y + 0.5, side - 1, side - 1, TWICE if count else NEVER)
    mark = {"text_anchor": "middle", "fill": palette.LABEL if count else palette.PAPER, "class_": "mark"}
    return square + text(x + side / 2, y + side * 0.72, str(count) if count else "×", side * 0.66, **mark)


def _placement(mapping: str) -> Placement:
    (placement,) = show(mapping, "8x8").placements
    return placement


def _take(screenshot: Screenshot | ExplorerScreenshot, chromium: str) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        screenshot.save(page)
        size = f"--window-size={screenshot.width},{screenshot.height}"
        scale = f"--force-device-scale-factor={screenshot.scale}"
        where = (f"--user-data-dir={folder}/profile", size, scale, f"--screenshot={shot}")
        command = [chromium, *FLAGS, *where, f"{page.as_uri()}#{screenshot.state}"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        shutil.copyfile(shot, PICTURES / screenshot.name)


if __name__ == "__main__":
    main()
