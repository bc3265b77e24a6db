"""The pictures in docs/pictures are made by docs/make_pictures.py, and the charts by benchmarks/charts.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MADE = runpy.run_path(str(DOCS / "make_pictures.py"))
FIGURES = MADE["_figures"]()
CHARTS = runpy.run_path(str(DOCS.parent / "benchmarks" / "charts.py"))["CHARTS"]  # tests/test_charts.py draws them
LARGEST_BYTES = 300_000


@pytest.mark.parametrize("name", FIGURES)
def test_figure_is_current(name):
    assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == FIGURES[name], "run python docs/make_pictures.py"


@pytest.mark.parametrize("screenshot", MADE["SCREENSHOTS"], ids=lambda screenshot: screenshot.name)
def test_screenshot_is_there_and_small(screenshot):
    picture = (DOCS / "pictures" / screenshot.name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < LARGEST_BYTES


def test_no_picture_is_left_over():
    made = {*FIGURES, *(drawn.name for drawn in (*MADE["SCREENSHOTS"], *CHARTS))}
    assert {path.name for path in (DOCS / "pictures").iterdir()} == made
