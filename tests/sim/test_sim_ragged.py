"""Kernels over ragged grids, simulated with example counts of rows."""

import numpy as np
import pytest

from tilewave import *
from tilewave.cli.counts import parse_counts
from tilewave.errors import TilewaveError
from tilewave.sim import Gemm, SimError, simulate

T, N, K, X = sym.T, sym.N, sym.K, sym.X
G = GLOBAL_ADDRESS_SPACE
COLUMNS, DEPTH, TILE = 512, 256, (64, 128, 64)
FIGURES = ("l2_hit", "hbm_read_bytes", "hbm_write_bytes", "asked_bytes", "flops", "launch_waves", "seconds")


def experts(counts, order="grouped(4)", rows=None):
    """Return a compiled product of groups with these counts of rows, and where the groups end."""

    @wave(
        [
            WorkgroupConstraint(T, TILE[0], 0, ragged=Ragged(X, "ends")),
            WorkgroupConstraint(N, TILE[1], 1),
            TilingConstraint(K, TILE[2]),
            WorkgroupMapping(order),
        ]
    )
    def product(x: Memory[T, K, G, f16], w: Memory[X, N, K, G, f16], ends: Memory[X, G, i32], y: Memory[T, N, G, f16]):
        @iterate(K, init_args=[Register[T, N, f32](0)])
        def total(acc):
            return mma(read(x), read(w), acc)

        write(cast(total, f16), y)

    ends = np.cumsum(counts)
    sizes = {T: rows or int(ends[-1]), N: COLUMNS, K: DEPTH, X: len(counts)}
    return product.compile(target="numpy", subs=sizes), ends


@pytest.mark.parametrize("engine", ["closed", "trace"])
@pytest.mark.parametrize("rows", [1024, 1000])
def test_one_group_is_a_gemm(rows, engine):
    kernel, ends = experts([rows])
    found = simulate(kernel, "MI300X", engine=engine, ends=ends)
    want = simulate(Gemm(rows, COLUMNS, DEPTH, TILE, "f16"), "MI300X", "grouped(4)", engine=engine)
    for figure in FIGURES:
        assert getattr(found, figure) == pytest.approx(getattr(want, figure), rel=1e-6), figure


@pytest.mark.parametrize("counts", [[300, 0, 1, 64, 0, 211], [0, 0, 5], [1] * 70, [130]], ids=str)
def test_each_group_reads_its_matrix_and_writes_its_rows(counts):
    kernel, ends = experts(counts, rows=int(sum(counts)) + 40)
    found = simulate(kernel, "MI300X", ends=ends)
    assert found.flops == pytest.approx(2 * sum(counts) * COLUMNS * DEPTH)
    assert found.hbm_write_bytes == sum(counts) * COLUMNS * 2
    of_arrays = {array.name: array for array in found.arrays}
    assert of_arrays["w"].distinct_bytes == np.count_nonzero(counts) * COLUMNS * DEPTH * 2
    assert sum(counts) <= of_arrays["x"].distinct_bytes / (DEPTH * 2) < sum(counts) + TILE[0]
    assert found.tasks == sum(-(-count // TILE[0]) for count in counts) * COLUMNS // TILE[1]


def test_no_rows_at_all_touch_nothing():
    kernel, ends = experts([0, 0], rows=64)
    with pytest.raises(SimError, match="touches no memory"):
        simulate(kernel, "MI300X", ends=ends)


def test_an_order_decides_what_xcds_read():
    missed = {}
    for order in ("linear()", "xcd_contiguous(8) >> grouped(4)"):
        kernel, ends = experts([700, 0, 1300, 2096], order)
        missed[order] = simulate(kernel, "MI300X", ends=ends).levels[0].missed_bytes
    assert missed["xcd_contiguous(8) >> grouped(4)"] < 0.7 * missed["linear()"]


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        (None, "no example of it is given"),
        ([3, 3], "has 3 groups, and 2 counts are given"),
        ([3, 2, 64], "group 1 has -1 rows"),
        ([0, 2, 2**31], "add up to 2,147,483,648 rows"),
        ([0, 2, 65], "the groups end at 65, and the kernel has 64 rows"),
    ],
)
def test_ends_that_are_refused(ends, what):
    kernel, _ = experts([1, 2, 61])
    with pytest.raises(SimError) as error:
        simulate(kernel, "MI300X", ends=ends)
    assert what in error.value.what


def test_problems_without_groups():
    with pytest.raises(SimError, match="no groups"):
        simulate(Gemm(64, 64, 64), "MI300X", ends=[64])

    @wave([WorkgroupConstraint(T, 64, 0)])
    def doubled(x: Memory[T, G, f32], y: Memory[T, G, f32]):
        write(read(x) * 2.0, y)

    with pytest.raises(SimError, match="no ragged grid"):
        simulate(doubled.compile(target="numpy", subs={T: 128}), "MI300X", ends=[128])


def test_counts_as_they_are_typed():
    assert parse_counts("300,0, 2x512") == (300, 300, 812, 1324)
    for text in ("", "300,,1", "1x", "-1", "3;4", "9999999999999"):
        with pytest.raises(TilewaveError, match="these are no counts of rows"):
            parse_counts(text)
    with pytest.raises(TilewaveError, match="more than 2,147,483,647 rows"):
        parse_counts("2x2000000000")
    with pytest.raises(TilewaveError, match="more than 65,536 groups"):
        parse_counts("65537x0")
