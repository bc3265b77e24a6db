"""The documents as a site, built once for those who look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SEARCHED = {
    "TMA": "targets/nvidia.html",
    "multicast": "targets/nvidia.html",
    "mbarrier": "targets/nvidia.html",
    "warp specialization": "targets/nvidia.html",
    "ping-pong": "targets/nvidia.html",
    "software pipeline": "targets/nvidia.html",
    "split-K": "guide/split-k.html",
    "stream-K": "guide/split-k.html",
    "predicate": "guide/boundary-tiles.html",
    "coalescing": "guide/performance.html",
    "rematerialize": "internals/passes-lanes.html",
    "register pressure": "guide/performance.html",
    "occupancy": "guide/performance.html",
    "bank conflict": "guide/performance.html",
    "LICM": "internals/passes-lanes.html",
    "DCE": "internals/passes.html",
    "cost model": "guide/autotuning.html",
    "autotune": "guide/autotuning.html",
    "autotuning": "guide/autotuning.html",
    "dynamic shapes": "guide/dynamic-shapes.html",
    "batch-invariant": "guide/batch-invariant.html",
    "stencil": "guide/stencils.html",
    "convolution": "guide/stencils.html",
    "dropout": "guide/faq.html",
    "gather": "guide/index-mapping.html",
    "debug": "guide/debugging.html",
    "install": "install.html",
}
"""Words that people search for, and the page that must come first."""


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
