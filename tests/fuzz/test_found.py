"""What random kernels found once, each made small: they stay found."""

import runpy
from pathlib import Path

import pytest

from tilewave.errors import TargetError

LACKS = ("this machine does not have", "this machine has no NVIDIA")
"""An instruction set, a driver."""
FOUND = sorted((Path(__file__).parent / "found").glob("*.py"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_right_now(path):
    check = runpy.run_path(str(path))["check"]
    try:
        check()
    except TargetError as error:
        if not any(said in error.what for said in LACKS):
            raise
        pytest.skip(error.what)
