"""With a warm cache, first calls import neither LLVM nor lane-level passes, and launch what cold ones launch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILERS = (
    *("llvmlite.binding", "llvmlite.ir", "tilewave.pipeline.lists", "tilewave.backend.nvidia.compiler"),
    *("tilewave.backend.nvidia.spelling", "tilewave.backend.assembler"),
    *("tilewave.lower.gpu", "tilewave.lower.cpu", "tilewave.lower.numbers", "tilewave.backend.cpu.instruction_sets"),
    *("tilewave.passes.memory", "tilewave.passes.schedule", "tilewave.passes.lanes", "tilewave.runtime.pool"),
)
"""Modules that compile, or that load LLVM."""


def run(directory):
    """Return what a process with the cache in a directory has imported and launched."""
    folders = [str(HERE.parents[2]), str(HERE.parents[1]), str(HERE)]
    settings = {"TILEWAVE_CACHE_DIR": str(directory), "TILEWAVE_BACKGROUND": "", "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, HERE / "warm_process.py"],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a process with an empty cache, and one with the cache that the first has filled."""
    directory = tmp_path_factory.mktemp("cache")
    return run(directory), run(directory)


def test_first_calls_import_no_compiler(runs):
    cold, warm = runs
    assert [name for name in COMPILERS if name in warm["modules"]] == []
    missing = [name for name in COMPILERS if name not in cold["modules"]]
    assert missing == ["tilewave.lower.cpu", "tilewave.backend.cpu.instruction_sets", "tilewave.runtime.pool"]


def test_they_launch_what_a_process_with_an_empty_cache_launches(runs):
    settled = [one["launches"][-4:] for one in runs]
    assert settled[0] == settled[1] and len({*settled[0]}) == 4


def test_all_programs_have_code_of_their_own(runs):
    cold, warm = runs
    assert len(cold["compiled"]) > 3 and all(cold["compiled"]) and all(warm["compiled"])
