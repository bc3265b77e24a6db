"""The pictures in docs/pictures are made by docs/make_pictures.py, and the charts by benchmarks/charts.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
LARGEST_BYTES = 300_000


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(DOCS / "make_pictures.py"))


@pytest.fixture(scope="module")
def figures(made):
    return made["_figures"]()


def test_figures_are_current(figures):
    kept = {name: (DOCS / "pictures" / name).read_text(encoding="utf-8") for name in figures}
    assert len(kept) > 5 and [name for name in kept if kept[name] != figures[name]] == [], "run docs/make_pictures.py"


def test_screenshots_are_there_and_small(made):
    pictures = [(DOCS / "pictures" / screenshot.name).read_bytes() for screenshot in made["SCREENSHOTS"]]
    assert pictures and all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert max(map(len, pictures)) < LARGEST_BYTES


def test_no_picture_is_left_over(made, figures):
    charts = runpy.run_path(str(DOCS.parent / "benchmarks" / "charts.py"))["CHARTS"]  # tests/test_charts.py draws them
    known = {*figures, *(drawn.name for drawn in (*made["SCREENSHOTS"], *charts))}
    assert {path.name for path in (DOCS / "pictures").iterdir()} == known
