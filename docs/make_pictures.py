"""Makes the pictures of the documents: `python docs/make_pictures.py` writes docs/pictures/.

The SVG figures need nothing; the screenshots of the page (PNG) need chromium, and are left as they are without it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.explore.page import Page
from tilewave.view import Placement, show
from tilewave.view.figures import figures
from tilewave.view.save import save
from tilewave.view.svg import sheet

PICTURES = Path(__file__).parent / "pictures"
GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
GROUPED = "xcd_contiguous(8) >> grouped(2)"
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
    for name, text in _figures().items():
        save(PICTURES / name, text)
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
        **_gallery(),
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
