"""The documents as a site, built once for those who look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built with every warning an error: a broken link, a page that nothing leads to, something fetched."""
    pytest.importorskip("mkdocs", reason="the site is built with mkdocs, which `make setup` installs")
    pytest.importorskip("material", reason="the site is built with mkdocs-material, which `make setup` installs")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place
