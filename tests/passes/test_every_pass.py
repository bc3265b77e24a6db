"""No pass is forgotten by the check tests: each has one, or it is said here why it has none."""

import pkgutil
from pathlib import Path

import pytest
from checked import PASSES

import tilewave.passes

CHECKED = Path(__file__).parents[1] / "check"
FOUND = pkgutil.walk_packages(tilewave.passes.__path__, "tilewave.passes.")
NAMES = [m.name.rpartition(".")[2] for m in FOUND if not m.ispkg]
UNCHECKED = {
    "distribute_lanes": "it makes a page of a line: test_lanes.py looks at it, and the lane interpreter judges it",
    "interleave_mma": "it orders a whole loop: test_interleave_mma.py looks at the order, and runs it",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_has_a_check_test_or_a_reason_for_having_none(name):
    checked = (CHECKED / f"{name}.ir").exists()
    assert checked == (name in PASSES), f"PASSES of tests/checked.py and tests/check disagree about {name}"
    assert checked != (name in UNCHECKED), f"write tests/check/{name}.ir, or say in UNCHECKED why there is none"


def test_only_passes_are_listed():
    assert PASSES.keys() | UNCHECKED.keys() == set(NAMES)
