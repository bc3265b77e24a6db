"""The `golden` fixture: compare a text with the file kept for this test; `--update-golden` rewrites the file."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="accept the new texts; read the diff before you commit"
    )


@pytest.fixture
def golden(request):
    path = Path(request.path).parent / "golden" / f"{request.path.stem}.{request.node.name}.txt"
    update = request.config.getoption("--update-golden")
    if update and os.environ.get("CI"):
        pytest.fail("--update-golden is refused in CI: a golden text is accepted by a person")

    def check(text):
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.name} does not exist yet; run pytest --update-golden and read it"
        assert text == path.read_text(), f"{path.name} differs; if that is what you meant, run pytest --update-golden"

    return check
