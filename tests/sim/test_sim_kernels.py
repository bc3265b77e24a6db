"""The accesses of kernels: a GEMM written in the language is the GEMM, and anything else can be simulated too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewave import *
from tilewave import kernels
from tilewave.ir.types import F16
from tilewave.machine import L2, find
from tilewave.mapping import Grid, balance
from tilewave.passes.grid.alternate_k_direction import alternate_k_direction
from tilewave.passes.grid.make_persistent import MakePersistent
from tilewave.sim import Gemm, SimError, sensitivity, simulate
from tilewave.sim.accesses import NO_STREAM, gemm_accesses
from tilewave.sim.calibration import timing_of
from tilewave.sim.kernel import kernel_accesses

M, N, K = sym.M, sym.N, sym.K
BLOCK_M, BLOCK_N, BLOCK_K = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K
GLOBAL = GLOBAL_ADDRESS_SPACE
FIGURES = ("l2_hit", "llc_hit", "hbm_read_bytes", "hbm_write_bytes", "l2_request_bytes", "asked_bytes", "launch_waves")


def compiled(kernel, sizes, **options):
    return wave_compile(WaveCompileOptions(subs=sizes, target="numpy", **options), kernel)


LAUNCHES = [
    ((1024, 2048, 512), (128, 256, 64), "xcd_contiguous(8) >> grouped(4)", None),
    ((1000, 1999, 512), (128, 256, 64), "hilbert()", 20),
    ((300, 500, 200), (64, 32, 16), 'snake(3, along="n")', None),
    ((129, 257, 65), (128, 256, 64), "linear()", 3),
]


@pytest.mark.parametrize("engine", ["closed", "trace"])
@pytest.mark.parametrize("machine", ["MI300X", "H200"])
@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
def test_a_gemm_kernel_is_the_gemm(launch, machine, engine):
    shape, tile, mapping, workgroups = launch
    written = kernels.gemm(shape, F16, F16, tile, mapping, workgroups)
    kernel = simulate(compiled(written.kernel, written.subs), machine, engine=engine)
    gemm = simulate(Gemm(*shape, tile, "f16", workgroups=workgroups), machine, mapping, engine=engine)
    for figure in FIGURES:
        assert getattr(kernel, figure) == pytest.approx(getattr(gemm, figure)), figure
    assert kernel.seconds == pytest.approx(gemm.seconds)


@pytest.mark.parametrize("engine", ["closed", "trace"])
@pytest.mark.parametrize("shape", [(1024, 2048, 512), (1000, 1999, 520)], ids=str)
def test_a_kernel_is_simulated_as_a_target_runs_it(shape, engine):
    """After the passes that make it persistent and alternate the direction of K: the same streams, backwards."""
    tile, mapping = (128, 256, 64), "grouped(4)"
    written = kernels.gemm(shape, F16, F16, tile, mapping)
    kernel = alternate_k_direction(MakePersistent(3)(compiled(written.kernel, written.subs).kernel))
    small = replace(
        find("H200"), l2=L2(1 << 20, partitions=2), dispatch_order=(), xcds=1, units_per_xcd=3, merging=None
    )
    run = simulate(kernel, small, engine=engine)
    gemm = Gemm(*shape, tile, "f16", workgroups=3, walk="to-and-fro")
    plain = simulate(gemm, small, mapping, engine=engine)
    for figure in FIGURES:
        assert getattr(run, figure) == pytest.approx(getattr(plain, figure)), figure
    forwards = simulate(replace(gemm, walk="forwards"), small, mapping, engine=engine)
    assert run.hbm_read_bytes < forwards.hbm_read_bytes


def test_the_accesses_themselves_are_those_of_the_gemm():
    shape, tile, mapping, _ = LAUNCHES[0]
    written = kernels.gemm(shape, F16, F16, tile, mapping)
    ours = kernel_accesses(compiled(written.kernel, written.subs).kernel, {})
    plain = gemm_accesses(Gemm(*shape, tile), mapping)
    assert ours.arrays == plain.arrays and ours.steps == plain.steps and ours.flops == plain.flops
    assert np.array_equal(ours.stream_bytes[ours.reads], plain.stream_bytes[plain.reads])
    assert np.array_equal(ours.workgroup, plain.workgroup) and np.array_equal(ours.turn, plain.turn)
    same = (ours.reads[:, None, 0] == ours.reads[None, :, 0]) == (plain.reads[:, None, 0] == plain.reads[None, :, 0])
    assert same.all()


@pytest.mark.parametrize("name", ["persistent_gemm", "persistent_gemm_l2", "reordered_gemm"])
def test_the_documents_kernels_can_be_simulated(name, request, monkeypatch):
    monkeypatch.syspath_prepend(str(request.config.rootpath / "examples"))
    module = __import__(name)
    kernel = next(x for x in vars(module).values() if type(x).__name__ == "WaveKernel")
    report = simulate(compiled(kernel, module.subs(1024, 2048, 512)), "MI300X")
    assert report.distinct_bytes == (1024 + 2048) * 512 * 2
    assert report.hbm_read_bytes == report.distinct_bytes
    assert report.hbm_write_bytes == 1024 * 2048 * 4
    assert report.flops == 2 * 1024 * 2048 * 512


@wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)])
def doubled(a: Memory[M, N, GLOBAL, f32], b: Memory[M, N, GLOBAL, f32]):
    write(read(a) + read(a), b)


def test_a_kernel_without_products_is_limited_by_its_bytes():
    sizes = {M: 8192, N: 8192, BLOCK_M: 64, BLOCK_N: 128}
    report = simulate(compiled(doubled, sizes), "H200")
    assert report.hbm_read_bytes == report.hbm_write_bytes == 8192 * 8192 * 4
    assert report.seconds >= 2 * 8192 * 8192 * 4 / 4.8e12
    assert report.flops == 0


def test_more_workgroups_than_are_run_at_a_time():
    """Index arithmetic runs in chunks of 65,536 workgroups; the second chunk's tasks are not the first's."""
    sizes = {M: 4096, N: 4096, BLOCK_M: 16, BLOCK_N: 8}
    report = simulate(compiled(doubled, sizes), "MI300X")
    assert report.tasks == report.workgroups == 256 * 512
    assert report.hbm_read_bytes == report.hbm_write_bytes == 4096 * 4096 * 4


@wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(K, BLOCK_K)])
def twice_over(a: Memory[M, K, GLOBAL, f16], b: Memory[N, K, GLOBAL, f16], c: Memory[M, N, GLOBAL, f32]):
    zero = Register[M, N, f32](0.0)

    @iterate(K, init_args=[zero])
    def once(acc):
        return mma(read(a), read(b), acc)

    @iterate(K, init_args=[once])
    def again(acc):
        return mma(read(a), read(b), acc)

    write(again, c)


def test_reading_twice_asks_twice_and_stores_once():
    sizes = {M: 256, N: 256, K: 256, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32}
    report = simulate(compiled(twice_over, sizes), "MI300X")
    assert report.asked_bytes == 2 * 16 * (64 + 64) * 256 * 2
    assert report.hbm_read_bytes == report.distinct_bytes == 2 * 256 * 256 * 2
    assert report.flops == 2 * 2 * 256**3


def test_tiles_that_overlap_share_what_they_share():
    """Each workgroup reads its own column tile of `a` and, shifted by half a tile, its neighbour's half."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    shifted = IndexMapping(num_iterators=2, inputs={M: i, N: j + 16}, outputs={M: i, N: j})

    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1)])
    def blur(a: Memory[M, N, GLOBAL, f32], b: Memory[M, N, GLOBAL, f32]):
        write(read(a) + read(a, mapping=shifted), b)

    report = simulate(compiled(blur, {M: 64, N: 128, BLOCK_M: 64, BLOCK_N: 32}), "H200")
    assert report.distinct_bytes == 64 * 128 * 4
    assert report.asked_bytes == 64 * (128 + 128 - 16) * 4  # the last one's shifted half is out of bounds


def test_a_kernel_that_changes_pace_is_taken_step_by_step():
    """Workgroup w has w + 1 iterations of its loop: no common stream."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    turns, at = sym.TURNS, sym.AT
    moved = IndexMapping(num_iterators=2, inputs={M: i, N: j + at}, outputs={M: i, N: j})

    @wave([WorkgroupConstraint(M, BLOCK_M, 0), WorkgroupConstraint(N, BLOCK_N, 1), TilingConstraint(turns)])
    def ragged(a: Memory[M, N, GLOBAL, f32], b: Memory[M, N, GLOBAL, f32]):
        start = scalar(WORKGROUP_0, i32)

        @iterate(turns, start=start, condition=turns < 4, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            here = self_index(turns, i32)
            set_symbol(at, here * scalar(16, i32))
            set_symbol(turns, here + scalar(1, i32))
            return acc + read(a, mapping=moved)

        write(total, b)

    kernel = compiled(ragged, {M: 64, N: 64, BLOCK_M: 16, BLOCK_N: 64})
    accesses = kernel_accesses(kernel.kernel, {})
    turns_taken = np.bincount(accesses.workgroup[(accesses.reads != NO_STREAM).any(1)], minlength=4)
    assert turns_taken.tolist() == [4, 3, 2, 1]
    for engine in ("closed", "trace"):
        report = simulate(kernel, "H200", engine=engine)
        assert report.hbm_read_bytes == pytest.approx(report.distinct_bytes)


def test_workgroups_with_strides_of_their_own_are_followed():
    """Workgroup w reads column blocks 0, w + 1 and 2(w + 1): as many steps, another pace; block 4 is half outside."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    turns, at = sym.TURNS, sym.AT
    moved = IndexMapping(num_iterators=2, inputs={M: i, K: j + at}, outputs={M: i, N: j})

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(turns)])
    def strided(a: Memory[M, K, GLOBAL, f32], b: Memory[M, N, GLOBAL, f32]):
        @iterate(turns, start=0, condition=turns < 3, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            here = self_index(turns, i32)
            set_symbol(at, here * (scalar(WORKGROUP_0, i32) + 1) * 16)
            set_symbol(turns, here + 1)
            return acc + read(a, mapping=moved)

        write(total, b)

    report = simulate(compiled(strided, {M: 32, N: 16, K: 72}), "H200")
    assert report.workgroups == 2
    assert report.asked_bytes == (16 + 16 + 16 + 16 + 16 + 8) * 16 * 4


def test_streams_that_overlap_are_counted_once():
    """A loop through the four blocks of a row of `a`, and its third block again on its own."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    turns, at = sym.TURNS, sym.AT
    moved = IndexMapping(num_iterators=2, inputs={M: i, K: j + at}, outputs={M: i, N: j})
    third = IndexMapping(num_iterators=2, inputs={M: i, K: j + 32}, outputs={M: i, N: j})

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(turns)])
    def weighted(a: Memory[M, K, GLOBAL, f32], b: Memory[M, N, GLOBAL, f32]):
        @iterate(turns, start=0, condition=turns < 4, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            here = self_index(turns, i32)
            set_symbol(at, here * 16)
            set_symbol(turns, here + 1)
            return acc + read(a, mapping=moved)

        write(total + read(a, mapping=third), b)

    report = simulate(compiled(weighted, {M: 32, N: 16, K: 64}), "H200")
    assert report.asked_bytes == 2 * 5 * 16 * 16 * 4
    assert report.distinct_bytes == 32 * 64 * 4
    assert report.hbm_read_bytes == pytest.approx(report.distinct_bytes)


def test_single_elements_are_counted_by_their_lines():
    """Every second row, and columns in reverse: rows 0, 2, … 88 of 100 columns, four lines of 128 bytes each."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    source = IndexMapping(2, {M: 2 * i, N: 99 - j}, {M: i, N: j})

    @wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 32, 1)])
    def pick(a: Memory[M, N, GLOBAL, f32], c: Memory[M, N, GLOBAL, f32]):
        write(read(a, mapping=source), c)

    for engine in ("closed", "trace"):
        report = simulate(compiled(pick, {M: 90, N: 100}), "H200", engine=engine)
        assert report.distinct_bytes == 45 * 100 * 4
        assert report.hbm_read_bytes == pytest.approx(report.distinct_bytes)
        assert report.hbm_write_bytes == 90 * 100 * 4


def test_scattered_writes_are_counted_element_by_element():
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    spread = IndexMapping(2, {M: i, N: j}, {N: 99 - j, M: i})

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def turn(a: Memory[M, N, GLOBAL, f32], c: Memory[N, M, GLOBAL, f32]):
        write(read(a), c, mapping=spread)

    report = simulate(compiled(turn, {M: 90, N: 100}), "H200")
    assert report.hbm_read_bytes == report.hbm_write_bytes == 90 * 100 * 4


def test_a_mapping_beside_a_kernel_is_refused():
    written = kernels.gemm((256, 256, 64), F16, F16)
    with pytest.raises(SimError, match="a kernel has its order in itself"):
        simulate(compiled(written.kernel, written.subs), "H200", "grouped(4)")


def test_open_symbols_are_asked_for():
    group = sym.WGM

    @wave(
        [
            WorkgroupConstraint(M, BLOCK_M, 0),
            WorkgroupConstraint(N, BLOCK_N, 1),
            TilingConstraint(K, BLOCK_K),
            WorkgroupMapping(mapping.grouped(group)),
        ]
    )
    def gemm(a: Memory[M, K, GLOBAL, f16], b: Memory[N, K, GLOBAL, f16], c: Memory[M, N, GLOBAL, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    sizes = {M: 2048, N: 2048, K: 512, BLOCK_M: 128, BLOCK_N: 128, BLOCK_K: 64}
    kernel = compiled(gemm, sizes, dynamic_symbols=[group])
    with pytest.raises(SimError, match="needs a value for WGM"):
        simulate(kernel, "MI300X")
    plain = Gemm(2048, 2048, 512, (128, 128, 64), out="f32")
    for size in (2, 4):
        ours = simulate(kernel, "MI300X", symbols={"WGM": size})
        assert ours.l2_hit == pytest.approx(simulate(plain, "MI300X", f"grouped({size})").l2_hit)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(SimError, match="is no kernel"):
        simulate("gemm", "H200")


def test_sizes_that_stay_open_are_told_to_the_simulator():
    @wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 128, 1), TilingConstraint(K, 64)])
    def gemm(a: Memory[M, K, GLOBAL, f16], b: Memory[N, K, GLOBAL, f16], c: Memory[M, N, GLOBAL, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    left_open = compiled(gemm, {})
    with pytest.raises(SimError) as caught:
        simulate(left_open, "MI300X", symbols={"N": 512})
    assert caught.value.what == "gemm needs a value for M, K"
    assert caught.value.remedy == "write symbols={'M': …, 'K': …}"
    with pytest.raises(SimError, match="gemm has no symbol Q"):
        simulate(left_open, "MI300X", symbols={"M": 1, "N": 1, "K": 1, "Q": 1})
    for m, n, k in ((1024, 512, 256), (300, 129, 65)):
        ours = simulate(left_open, "MI300X", symbols={"M": m, "N": n, "K": k})
        assert ours == simulate(compiled(gemm, {M: m, N: n, K: k}), "MI300X")
    assert sensitivity(left_open, "MI300X", symbols={"M": 300, "N": 129, "K": 65})


def causal_sums(order):
    """Row m of a square, summed up to its own column: later rows take more steps."""

    @wave([
        WorkgroupConstraint(M, 32, 0),
        WorkgroupConstraint(N, 1, 1),
        TilingConstraint(K, 32),
        WorkgroupMapping(order),
    ])  # fmt: skip
    def sums(a: Memory[N, M, K, GLOBAL, f32], c: Memory[N, M, GLOBAL, f32]):
        @iterate(K, init_args=[Register[N, M, f32](0.0)])
        def total(acc):
            seen = select(self_index(K) <= self_index(M), read(a), 0.0)
            return acc + seen.sum(dim=K)

        write(total, c)

    return sums


def test_work_that_is_uneven_ends_sooner_in_an_order_that_begins_with_the_longest():
    """On four units: 16 rows of 1 to 16 steps for each of 3 heads, and a step for each write."""
    four = replace(find("H200"), dispatch_order=(), xcds=1, units_per_xcd=4, merging=None)
    reports = {}
    for order in ('linear(along="n")', 'last_first() >> linear(along="n")'):
        kernel = compiled(causal_sums(order), {M: 512, K: 512, N: 3})
        reports[order] = simulate(kernel, four)
        costs = np.broadcast_to(np.arange(16)[:, None] + 2, (16, 3))
        assert reports[order].launch_waves == balance(order, Grid(16, 3), costs, units=4).ends
        assert kernel_accesses(kernel.kernel, {}).tasks_a_tile == costs.mean()
    last, first = reports.values()
    assert first.seconds < last.seconds and first.launch_waves < last.launch_waves
    (start,) = (part for part in first.breakdown if part.name == "start and end")
    assert start.seconds == pytest.approx(48 / 4 * timing_of(four).start_seconds)  # twelve tiles a unit


T, V, D, E = sym.T, sym.V, sym.D, sym.E
ROWS = [WorkgroupConstraint(T, 16, 0), WorkgroupConstraint(D, 64, 1)]


@wave(ROWS)
def gathered(ids: Memory[T, GLOBAL, i32], table: Memory[V, D, GLOBAL, f16], out: Memory[T, D, GLOBAL, f16]):
    write(read(table, at={V: read(ids)}), out)


@wave(ROWS)
def added(ids: Memory[T, GLOBAL, i32], x: Memory[T, D, GLOBAL, i32], out: Memory[V, D, GLOBAL, i32]):
    atomic_add(read(x), out, at={V: read(ids)})


@wave(ROWS)
def of_one_expert(expert: Memory[E, GLOBAL, i32], table: Memory[V, T, D, GLOBAL, f16], out: Memory[T, D, GLOBAL, f16]):
    write(read(table, at={V: read(expert, at={E: 0})}), out)


@wave(ROWS)
def on_condition(flag: Memory[E, GLOBAL, i32], x: Memory[T, D, GLOBAL, f16], out: Memory[T, D, GLOBAL, f16]):
    @conditional(read(flag, at={E: 0}) > 0)
    def then():
        write(read(x), out)


DECIDED_BY_DATA = {
    gathered: "gathered reads table at indices from memory",
    added: "added writes out at indices from memory",
    of_one_expert: "of_one_expert reads table at indices from memory",
    on_condition: "on_condition has a loop or a condition that data decides",
}


@pytest.mark.parametrize("kernel", DECIDED_BY_DATA, ids=lambda k: k.name)
def test_traffic_that_data_decides_is_not_simulated(kernel):
    made = compiled(kernel, {T: 100, V: 50, D: 128, E: 1})
    with pytest.raises(
        SimError, match=f"{DECIDED_BY_DATA[kernel]}, so its traffic is known only at a launch"
    ) as raised:
        simulate(made, "MI300X")
    assert raised.value.loc.line


def test_the_remedy_for_indices_works():
    """The same rows one after the other."""

    @wave(ROWS)
    def copied(table: Memory[T, D, GLOBAL, f16], out: Memory[T, D, GLOBAL, f16]):
        write(read(table), out)

    report = simulate(compiled(copied, {T: 100, D: 128}), "MI300X")
    assert report.asked_bytes == 100 * 128 * 2
