"""The documents as a site, built once for those who look at it."""

import fcntl
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
    "dropout": "guide/random-numbers.html",
    "gather": "guide/indices.html",
    "debug": "guide/debugging.html",
    "install": "install.html",
}
"""Words that people search for, and the page that must come first."""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built with every warning an error: a broken link, a page that nothing leads to, something fetched.

    Processes that share the tests share the site: the first builds it, and others wait for that.
    """
    pytest.importorskip("mkdocs", reason="the site is built with mkdocs, which `make setup` installs")
    pytest.importorskip("material", reason="the site is built with mkdocs-material, which `make setup` installs")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    place = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _build(shared / "unfinished_site")
            (shared / "unfinished_site").rename(place)
    return place


def _build(place):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
