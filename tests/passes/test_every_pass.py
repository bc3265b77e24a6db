"""No pass is forgotten: each stands in a list, has a check test or a reason for having none, and a section."""

import pkgutil
import re
from pathlib import Path

import pytest
from conftest import PASSES

import tilewave.passes
from tilewave.ir.places import Places
from tilewave.machine.lanes import GFX942, SM_90A
from tilewave.pipeline import lists
from tilewave.pipeline.runner import pass_name
from tilewave.pipeline.tile_level import tile_level

ROOT = Path(__file__).parents[2]
NAMES = [m.name for m in pkgutil.iter_modules(tilewave.passes.__path__)]
LISTS = (
    *tile_level(None),
    *lists.cpu_with_matrix_unit(1, 1, 1, {}),
    *lists.lanes(GFX942, Places(), lists.prefetch(1)),
    *lists.hopper_plain(SM_90A, Places(), ()),
    *lists.hopper(SM_90A, Places(), None, 132),
)
UNCHECKED = {
    "distribute_lanes": "it makes a page of a line: test_lanes.py looks at it, and the lane interpreter judges it",
    "interleave_products": "it orders a whole loop: test_interleave_products.py looks at the order, and runs it",
}
"""Passes without a check test, and why; what they do is tested all the same."""


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_stands_in_a_list(name):
    assert name in {pass_name(p) for p in LISTS}


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_has_a_check_test_or_a_reason_for_having_none(name):
    checked = (ROOT / "tests" / "check" / f"{name}.ir").exists()
    assert checked == (name in PASSES), f"PASSES of tests/conftest.py and tests/check disagree about {name}"
    assert checked != (name in UNCHECKED), f"write tests/check/{name}.ir, or say in UNCHECKED why there is none"


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_has_a_section_in_the_documents(name):
    assert re.search(rf"^#+ `?{name}`?$", (ROOT / "docs" / "passes.md").read_text(), re.MULTILINE)


def test_only_passes_are_listed():
    assert PASSES.keys() | UNCHECKED.keys() == set(NAMES)
