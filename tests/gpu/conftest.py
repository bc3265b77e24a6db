"""Tests for an NVIDIA GPU: without one they are not collected, or, where they are named, skipped with the reason."""

from pathlib import Path

import pytest
from gpu_here import why_no_gpu

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path, config):
    """Ignore these files in runs of all tests on machines without a GPU."""
    named = (Path(config.invocation_params.dir, arg.partition("::")[0]) for arg in config.args)
    return True if why_no_gpu() and not any(path.resolve().is_relative_to(HERE) for path in named) else None


def pytest_collection_modifyitems(items):
    here = [item for item in items if "gpu" in item.keywords]
    missing = why_no_gpu() if here else ""
    for item in here:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="torch holds the arrays on the GPU; it is not installed")
