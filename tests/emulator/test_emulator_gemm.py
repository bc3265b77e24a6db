"""Whole kernels as LLVM emitted them: right, without findings, in every order; and wrong when something is deleted."""

import re
import time

import numpy as np
import pytest
from emulated_code import DATA, LARGE, SMALL

from tilewave.emulator import EmulationError, Emulator

kernels = pytest.mark.parametrize("gemm", SMALL, ids=repr)
NEEDED = re.compile(r"\s+(s_waitcnt|s_barrier|s_nop)\b")


@kernels
@pytest.mark.parametrize("order, seed", [("barrier", 0), ("random", 1), ("random", 2)])
def test_the_product_is_right_and_nothing_is_found(gemm, order, seed):
    report, right = gemm.run(128, 192, 192, order=order, seed=seed)
    assert right and report.findings == ()
    assert (report.workgroups, report.waves, report.order) == (6, 6 * gemm.lanes // 64, order)


def test_every_order_executes_the_same_instructions():
    gemm = SMALL[0]
    counts = {gemm.run(64, 64, 64, order=order, seed=3)[0].instructions for order in ("barrier", "random")}
    assert len(counts) == 1


def test_an_input_that_changes_changes_the_product():
    """The test above can fail: one element of A is another."""
    gemm = SMALL[0]
    a, b, c, exact, bound = gemm.problem(64, 64, 64)
    a[5, 7] += np.float16(0.5)
    Emulator.from_assembly(gemm.text).launch("gemm", (1, 1), (256,), [a, b, c, 64, 64, 64])
    wrong = np.abs(c - exact) > bound
    assert wrong[5].any() and not np.delete(wrong, 5, axis=0).any()


def test_the_second_workgroup_reads_behind_a_short_array():
    """A kernel whose loads are not guarded by a buffer descriptor's size, given too little of B."""
    gemm = SMALL[0]
    a, b, c, _, _ = gemm.problem(64, 128, 64)
    short = b[:100].copy()
    with pytest.raises(EmulationError) as error:
        Emulator.from_assembly(gemm.text).launch("gemm", (2, 1), (256,), [a, short, c, 64, 128, 64])
    found = error.value.finding
    assert (found.kind, found.workgroup, str(found.loc)) == ("out of bounds", (1, 0, 0), "gemm.py:9")
    assert found.what == "reads 16 bytes that begin 0 bytes after the end of argument B, which has 12800"


# -- deletions ---------------------------------------------------------------------------------------------------------


def deletions(gemm):
    """The text without each wait, barrier and nop, in turn."""
    lines = gemm.text.splitlines()
    for at, line in enumerate(lines):
        if NEEDED.match(line):
            yield line.strip(), "\n".join(lines[:at] + lines[at + 1 :])


def found_in(gemm, text, **options):
    try:
        return gemm.run(64, 64, 128, text, check="warn", **options)[0].findings
    except EmulationError as error:
        return (error.finding,)


@kernels
@pytest.mark.parametrize("order", ["barrier", pytest.param("random", marks=pytest.mark.slow)])
def test_every_deletion_is_found_and_names_the_authors_line(gemm, order):
    kinds = {"s_waitcnt": 0, "s_barrier": 0, "s_nop": 0}
    for deleted, text in deletions(gemm):
        found = found_in(gemm, text, order=order, seed=1)
        assert found, f"{deleted} can be deleted unnoticed"
        assert all(f.loc.file.endswith("gemm.py") and 8 <= f.loc.line <= 13 for f in found), deleted
        kinds[deleted.split()[0]] += 1
    assert kinds["s_waitcnt"] >= 8 and kinds["s_barrier"] >= 3
    assert kinds["s_nop"] == (1 if "pingpong" in gemm.name else 0)


@pytest.mark.slow
def test_every_deletion_from_a_large_kernel_is_found():
    for deleted, text in deletions(LARGE):
        try:
            found = LARGE.run(128, 256, 128, text, check="warn")[0].findings
        except EmulationError as error:
            found = (error.finding,)
        assert found, f"{deleted} can be deleted unnoticed"


def test_without_a_barrier_a_random_order_gives_wrong_numbers():
    """What the checks find is real: the numbers are wrong where the order is unlucky."""
    gemm = SMALL[0]
    text = gemm.text.replace("\ts_barrier\n", "")
    assert not gemm.run(64, 64, 128, text, check="off", order="random", seed=1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["barrier", "random"])
def test_512_cubed_takes_seconds(order):
    """The promise is 4 s; the bound here, of the processor's time, leaves room for a slower one."""
    start = time.process_time()
    report, right = LARGE.run(512, 512, 512, order=order)
    assert right and not report.findings
    assert time.process_time() - start < 12


def test_the_fixtures_are_small():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 72_000
