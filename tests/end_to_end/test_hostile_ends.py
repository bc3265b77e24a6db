"""Groups that end anywhere: nothing outside the arrays is read or written, as an emulator or guard pages see it."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from guard_pages import after_a_guard, before_a_guard

from tilewave import f16, f32, i32, i64
from tilewave.errors import InterpreterError
from tilewave.interp.memory import Race
from tilewave.kernels.grouped import (
    GroupedForm,
    GroupedSumForm,
    GroupedTile,
    gated_product_kernel,
    grouped_product_kernel,
    grouped_sum_kernel,
)

ROWS, GROUPS, COLUMNS, DEPTH = 40, 6, 24, 32
FAR = 2**62
TESTS = str(Path(__file__).parents[1])
WITH_TESTS = {**os.environ, "PYTHONPATH": os.pathsep.join((TESTS, str(Path(TESTS).parent)))}
HOSTILE = {
    "unsorted": [30, 8, 40, 16, 39, 40],
    "negative": [-40, -3, 4, 36, 36, 40],
    "beyond the rows": [5, 600, 10_000, 2**31 - 1, 2**31 - 1, 2**31 - 1],
    "least": [-(2**31)] * 6,
    "between both": [-(2**31), 2**31 - 1, -(2**31), 2**31 - 1, 0, 40],
    "of 64 bits": [2**32 + 5, -(2**33), FAR, -FAR, 2**63 - 1, -(2**63)],
}


def arrays(ends, place):
    """Return x, w, ends, y and z, each as `place` lays out an array."""
    rng, dtype = np.random.default_rng(0), np.int64 if "64" in ends else np.int32
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((ROWS, DEPTH), (GROUPS, 2 * COLUMNS, DEPTH)))
    y, z = np.zeros((ROWS, COLUMNS), np.float32), np.zeros((GROUPS, DEPTH, COLUMNS), np.float32)
    return [place(a) for a in (x, w, np.array(HOSTILE[ends], dtype), y, z)]


@cache
def kernel_of(name, index):
    tile = GroupedTile(16, 64, 32)
    match name:
        case "grouped_product":
            return grouped_product_kernel(tile, GroupedForm(f16, f32, index))
        case "gated_product":
            return gated_product_kernel(tile, GroupedForm(f16, f32, index, activation="silu"))
        case _:
            return grouped_sum_kernel(tile, GroupedSumForm(f16, f32, index))


def call(name, ends, place):
    """Return a kernel over groups, with its arguments."""
    x, w, at, y, z = arrays(ends, place)
    kernel = kernel_of(name, i64 if at.dtype == np.int64 else i32)
    match name:
        case "grouped_product":
            return kernel, (x, place(w[:, :COLUMNS]), at, y)
        case "gated_product":
            return kernel, (x, place(w.reshape(GROUPS, 2, COLUMNS, DEPTH)), at, y)
        case _:
            return kernel, (x, place(np.ones((ROWS, COLUMNS), np.float16)), at, z)


KERNELS = ("grouped_product", "gated_product", "grouped_sum")


@pytest.mark.parametrize("ends", HOSTILE)
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.share(27)
def test_no_memory_outside_is_touched_on_gpus(name, target, ends, monkeypatch):
    """Without the check of contracts, as on a card. Where ends are not sorted, two groups may have one row."""
    monkeypatch.setattr("tilewave.interpreted.want_kept", lambda *_: None)
    kernel, given = call(name, ends, np.ascontiguousarray)
    compiled = kernel.compile(target=target)
    if target != "sm_90a":
        found = compiled.emulate(*given, check="warn").findings
        assert all("race" in str(one) for one in found), found
        return
    try:
        compiled.interpret(*given, level="lane")
    except InterpreterError as error:
        is_written_twice = isinstance(error, Race) or "the order decides the result" in str(error)
        is_too_large = "64" in ends and "does not fit into index" in str(error)  # on a card it wraps
        assert is_too_large or (ends == "unsorted" and is_written_twice)


def run_all():
    """Run every kernel on the CPU with arrays beside guard pages."""
    for place in (before_a_guard, after_a_guard):
        for ends in HOSTILE:
            for name in KERNELS if "64" not in ends else KERNELS[:1]:
                kernel, given = call(name, ends, place)
                kernel(*given)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does it")
def test_no_memory_outside_is_touched_on_the_cpu():
    """In a process of its own, which a wild access ends."""
    found = subprocess.run([sys.executable, __file__], env=WITH_TESTS, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does it")
def test_a_guard_ends_a_process():
    """The check above can fail."""
    code = (
        "import ctypes, guard_pages, numpy\n"
        "a = guard_pages.before_a_guard(numpy.zeros(3, numpy.float32))\n"
        "ctypes.c_float.from_address(a.ctypes.data + 12).value"
    )
    found = subprocess.run([sys.executable, "-c", code], env=WITH_TESTS, capture_output=True, check=False)
    assert found.returncode == -signal.SIGSEGV


if __name__ == "__main__":
    run_all()
