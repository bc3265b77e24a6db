"""The gallery: every kernel against float64, its grid drawn, and compiled for cards that are not here."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"


@pytest.fixture(scope="module")
def gallery():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(GALLERY))
        import presented

        yield presented
    sys.modules.pop("presented", None)


NAMES = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "presented")


@pytest.fixture(scope="module")
def cases(gallery):
    return gallery.cases()


def test_the_gallery_lists_every_kernel_and_there_are_fifteen(gallery):
    assert sorted(gallery.TIMED) == NAMES
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_the_gallery_is_as_exact_as_it_says(name, gallery, cases):
    assert gallery.check(cases[name]) <= 1


def test_a_wrong_result_is_seen(gallery, cases):
    case = cases["vector_add"]
    wrong = lambda a, b: a + b * (1 + 2**-20)  # noqa: E731
    with pytest.raises(AssertionError, match="times what is allowed"):
        gallery.check(type(case)(case.kernel, case.inputs, case.outputs, wrong, np.add))


@pytest.mark.parametrize("name", NAMES)
def test_the_tiles_of_a_kernel_are_drawn_in_the_order_of_its_code(name, gallery, cases):
    (drawn,) = gallery.picture_of(cases[name]).placements
    schedule = cases[name].compiled("numpy").schedule
    assert drawn.launch.grid.size == schedule.table().size
    if drawn.launch.grid.cols == schedule.grid[-1]:  # a single row or column is drawn as a square
        own = schedule.rounds() * schedule.workgroups + schedule.table()
        assert np.array_equal(drawn.turns.ravel(), own.ravel())


def test_one_is_presented_in_a_line(gallery, cases, capsys, monkeypatch):
    monkeypatch.setattr(gallery, "SECONDS", 0.01)
    gallery.present(cases["transpose"], "transpose")
    line = capsys.readouterr().out
    assert "700×500 in" in line and "0.0% of the allowed error" in line and "times as fast as numpy" in line


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_the_gallery_compiles_for_a_card(name, target, gallery, cases):
    assert len(cases[name].compiled(target).asm) > 100
