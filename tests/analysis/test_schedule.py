"""The schedule of a kernel is what its code does, for every workgroup; and no tile is lost unnoticed."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *
from sampled import examples
from seeds import SEEDS

from tilewave.analysis.coverage import checked_schedule
from tilewave.analysis.index_trace import visits
from tilewave.errors import CoverageError
from tilewave.ir.ops import Read, Write
from tilewave.ir.parse import parse


def test_the_documents_ten_tiles_over_four_workgroups():
    """Persistent, row by row: workgroup 0 gets tiles 0, 4, 8; workgroup 1 gets 1, 5, 9; …"""
    (seed,) = (s for s in SEEDS if repr(s) == "persistent_gemm")
    schedule = seed.compile(2 * 64, 5 * 64, 32, block_m=64, block_n=64, num_ctas=4).schedule
    assert schedule.workgroups == 4
    assert schedule.grid == (2, 5)
    numbers = [[row * 5 + col for row, col in schedule.tiles_of(w)] for w in range(4)]
    assert numbers == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert schedule.rounds().tolist() == [[0, 0, 0, 0, 1], [1, 1, 1, 2, 2]]


def test_dimension_0_of_the_grid_is_the_fastest():
    schedule = compiled(gemm(), subs=sizes(3 * 64, 2 * 64, 32)).schedule
    assert schedule.table().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_interpreter_writes_what_the_schedule_says():
    """Each element of c holds the workgroup that the schedule names for its tile."""

    @wave(
        [
            WorkgroupConstraint(M, 4, 0),
            WorkgroupConstraint(N, 8, 1),
            WorkgroupMapping("xcd_contiguous(3) >> grouped(2)"),
        ]
    )
    def who(c: Memory[M, N, G, i32]):
        grid_rows = ceiling(M / 4)
        write(Register[M, N, i32](0) + scalar(WORKGROUP_1 * grid_rows + WORKGROUP_0, i32), c)

    kernel = compiled(who, subs={M: 21, N: 43})
    c = poisoned((21, 43), i32)
    kernel.interpret(c)
    np.testing.assert_array_equal(c, np.kron(kernel.schedule.table(), np.ones((4, 8)))[:21, :43])


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=examples(40))
def test_persistent_workgroups_share_all_tiles_evenly(workgroups, rows, cols):
    kernel = compiled(gemm(constraints=[GridConstraint(workgroups)]), subs=sizes(rows * 64, cols * 64, 32))
    counts = np.bincount(kernel.schedule.workgroup, minlength=workgroups)
    assert counts.sum() == rows * cols
    assert counts.max() - counts.min() <= 1


def test_reads_are_visited_step_by_step():
    """What a simulator sees: every read of every workgroup, in program order."""
    kernel = compiled(gemm(), subs=sizes(128, 64, 70)).kernel
    found = visits(kernel, {}, (Read, Write))
    seen = [(v.op.memory.name, v.workgroups.tolist(), [p.tolist() for p in v.at]) for v in found]
    assert seen == [
        *[step for k in (0, 32, 64) for step in (("a", [0, 1], [[0, 64], [k, k]]), ("b", [0, 1], [[0, 0], [k, k]]))],
        ("c", [0, 1], [[0, 64], [0, 0]]),
    ]


def test_tiles_that_overlap_are_found_element_by_element():
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    closer = IndexMapping(2, {M: i, N: j}, {M: i - WORKGROUP_0, N: j})

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1)])
    def overlap(c: Memory[M, N, G, f32]):
        write(Register[M, N, f32](1.0), c, mapping=closer)

    with pytest.raises(CoverageError) as raised:
        compiled(overlap, subs={M: 8, N: 8})
    text = "workgroups 0 and 1 both compute element (3, 0); element (7, 0) is computed by none"
    assert str(raised.value).startswith(text)
    assert "c has 64 elements: 8 lost, 8 computed more than once." in str(raised.value)


def test_every_output_is_checked():
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    first = IndexMapping(2, {M: i, N: j}, {M: i - WORKGROUP_0 * 4, N: j})

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1)])
    def two(c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
        tile = Register[M, N, f32](1.0)
        write(tile, c)
        write(tile, d, mapping=first)

    with pytest.raises(CoverageError, match=r"workgroups 0 and 1 both compute tile \(0, 0\); tile \(1, 0\)"):
        compiled(two, subs={M: 8, N: 8})


def test_a_kernel_that_writes_nothing_is_refused():
    @wave([WorkgroupConstraint(M, 4, 0)])
    def nothing(a: Memory[M, G, f32]):
        read(a)

    with pytest.raises(CoverageError, match="nothing writes nothing"):
        compiled(nothing, subs={M: 8})


def test_sixteen_million_workgroups_in_seconds():
    """4096 x 4096 tiles, reordered and verified; the bound is three times what is asked of a quiet machine."""
    (seed,) = (s for s in SEEDS if repr(s) == "reordered_gemm")
    start = time.process_time()
    kernel = seed.compile(4096 * 16, 4096 * 16, 64, block_m=16, block_n=16)
    assert kernel.schedule.grid == (4096, 4096)
    assert time.process_time() - start < 9


def test_the_check_holds_few_bytes_of_each_workgroup():
    """Two numbers of 4 bytes, and two truth values on the way; it held 35 bytes."""
    side = 1500
    text = f"""kernel @k {{workgroups = {side * side}}} (%c: memory<{side}x{side}xf32, global>) {{
      %w = workgroup() : index
      %n = const() {{value = {side}}} : index
      %i = floor_div(%w, %n) : index
      %j = mod(%w, %n) : index
      %x = const() {{value = 1.0}} : tile<1x1xf32>
      write(%x, %c, [%i, %j]) {{axes = [0, 1]}}
    }}"""
    kernel = parse(text)
    tracemalloc.start()
    try:
        assert checked_schedule(kernel, {}).workgroups == side * side
        assert tracemalloc.get_traced_memory()[1] < 16 * side * side
    finally:
        tracemalloc.stop()
