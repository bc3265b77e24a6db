"""What random kernels found once, each made small: they stay found."""

import runpy
from pathlib import Path

import pytest

FOUND = sorted((Path(__file__).parent / "found").glob("*.py"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_right_now(path):
    runpy.run_path(str(path))["check"]()
