"""Tests for an NVIDIA GPU: without one they are not collected, or, where they are named, skipped with the reason."""

from functools import cache
from pathlib import Path

import pytest

from tilewave.errors import TargetError
from tilewave.runtime.cuda_driver import cuda_driver

HERE = Path(__file__).parent


@cache
def _missing():
    """Why nothing can run here; nothing where it can."""
    try:
        device = cuda_driver().device(0)
    except TargetError as error:
        return error.what
    if not device.runs("sm_90a"):
        return f"{device.name} is {device.arch}, and these kernels are for sm_90a"
    return ""


def pytest_ignore_collect(collection_path, config):
    """Ignore these files in runs of all tests on machines without a GPU."""
    named = (Path(config.invocation_params.dir, arg.partition("::")[0]) for arg in config.args)
    return True if _missing() and not any(path.resolve().is_relative_to(HERE) for path in named) else None


def pytest_collection_modifyitems(items):
    here = [item for item in items if "gpu" in item.keywords]
    missing = _missing() if here else ""
    for item in here:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch holds the arrays on the GPU; it is not installed")
