"""Global memory that a kernel accesses again: barriers are placed where lanes conflict, and nowhere else."""

import re
from functools import cache

import numpy as np
import pytest
from kernels import BLOCK_M, BLOCK_N, G, K, M, N, gemm, sizes, tiling
from read_back import CASES, COLUMN_WISE, ROW_WISE, built, check
from sampled import some_of

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.ops import Barrier, Load, LoadEach, Meet, Store, StoreEach, TmaLoad, TmaStore, WriteThrough
from tilewave.ir.parse import parse
from tilewave.ir.rewrite import rewrite, walk
from tilewave.ir.verify import VerifyError, verify

NONE, PREFETCH = SchedulingType.NONE, SchedulingType.PREFETCH
ORDERS = [("in turn", 0), ("backwards", 0), ("random", 0), ("random", 1), ("random", 2)]
CHIPS = ("gfx942", "gfx950")
GPUS = (*CHIPS, "sm_90a")
FLIPS = [(COLUMN_WISE, 100), (ROW_WISE, 128)]
"""With the rows of an array that a flip allows: ragged, or whole tiles."""
PRODUCTS = [case for case in CASES if case.has_product]

cached = cache(built)


def barriers(kernel):
    return [op for op in walk(kernel.body) if isinstance(op, Barrier)]


def over_global(kernel):
    return [op for op in barriers(kernel) if op.over == "global"]


def check_lanes(compiled, case, flip, m, k, orders=ORDERS):
    for order, seed in some_of(orders, 2):
        check(case, flip, m, k, lambda *x, o=order, s=seed: compiled.interpret(*x, level="lane", order=o, seed=s), seed)


def check_emulated(compiled, case, flip, m, k, seeds=(1, 2, 3)):
    for seed in some_of(seeds):

        def run(*arrays, seed=seed):
            assert not compiled.emulate(*arrays, order="random", seed=seed).findings

        check(case, flip, m, k, run, seed)


# -- every target agrees with numpy


@pytest.mark.share(12)
@pytest.mark.parametrize(("flip", "m"), FLIPS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_interpreter_and_the_cpu_agree_with_numpy(case, flip, m):
    check(case, flip, m, 96, cached(case, "numpy", flip, m, 96).interpret)
    check(case, flip, m, 96, cached(case, "cpu", flip, m, 96))


@pytest.mark.share(16)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(("flip", "m"), FLIPS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lanes_agree_with_numpy_in_any_order(case, flip, m, target):
    check_lanes(cached(case, target, flip, m, 96), case, flip, m, 96)


@pytest.mark.share(8)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_lanes_that_load_ahead_agree_with_numpy(case, target):
    check_lanes(cached(case, target, ROW_WISE, 128, 96, schedule=PREFETCH), case, ROW_WISE, 128, 96)


@pytest.mark.share(8)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_code_agrees_with_numpy_in_any_order(case, chip):
    check_emulated(cached(case, chip, ROW_WISE, 128, 96), case, ROW_WISE, 128, 96)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("waves", [(1, 1), (2, 2), (4, 1), (1, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("flip", "m"), FLIPS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_waves_and_steps_agree_with_numpy(case, flip, m, chip, steps, waves, schedule):
    compiled = built(case, chip, flip, m, 32 * steps, waves, schedule=schedule)
    check_lanes(compiled, case, flip, m, 32 * steps)
    check_emulated(compiled, case, flip, m, 32 * steps)


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("case", [case for case in CASES if str(case) in ("in_place", "a_product_read_back")], ids=str)
def test_workgroups_that_compute_several_tiles_agree_with_numpy(case, target):
    compiled = cached(case, target, ROW_WISE, 256, 64, more=(GridConstraint(2),))
    assert compiled.kernel.workgroups == 2
    check_lanes(compiled, case, ROW_WISE, 256, 64)
    if target in CHIPS:
        check_emulated(compiled, case, ROW_WISE, 256, 64, (1,))


@pytest.mark.share(8)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("case", [case for case in CASES if not case.has_product], ids=str)
def test_lanes_of_a_single_wave_are_ordered_without_a_barrier_of_the_workgroup(case, target):
    compiled = cached(case, target, ROW_WISE, 128, 64, waves=(1, 1))
    assert {(op.waves, op.over) for op in barriers(compiled.ir())} == {(1, "shared")}
    check_lanes(compiled, case, ROW_WISE, 128, 64)


# -- what is missing is found


@pytest.mark.share(8)
@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lanes_report_a_barrier_that_is_deleted_or_hands_over_too_little(case, target):
    kernel = cached(case, target, ROW_WISE, 128, 96).ir()
    needed = over_global(kernel)
    assert needed
    for barrier in needed:
        for less in ([], [Barrier(loc=barrier.loc)]):
            broken = rewrite(kernel, lambda op, less=less, barrier=barrier: less if op is barrier else None)
            for order, seed in some_of(ORDERS):
                arrays = case.arrays(np.random.default_rng(0), 128, 96)
                with pytest.raises(
                    InterpreterError,
                    match=r"a barrier( over global memory|, of one wave at least,) must be between them",
                ):
                    interpret_lanes(broken, arrays, {}, order=order, seed=seed)


# -- no barrier where no lanes meet


def _in_place(out, *constraints):
    """Return a kernel for c = a · b + c / 2: each lane of the sums reads and writes its own elements."""

    @wave(tiling(WaveConstraint(M, BLOCK_M / 2), WaveConstraint(N, BLOCK_N / 2), *constraints))
    def accumulate(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, out]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            return mma(read(a), read(b), x)

        write(cast(total + cast(read(c), f32) * 0.5, out), c)

    return accumulate


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), WaveConstraint(M, 32), WaveConstraint(N, 32)])
def doubled(c: Memory[M, N, G, f32]):
    write(read(c) * 2.0, c)


WITHOUT = {
    "a product": gemm(),
    "a persistent product": gemm(constraints=(GridConstraint(3),)),
    "a product in place": _in_place(f32),
    "a product in place, in f16": _in_place(f16),
    "a persistent product in place": _in_place(f32, GridConstraint(3)),
    "a persistent product in place, in f16": _in_place(f16, GridConstraint(3)),
    "elements in place": doubled,
}


@pytest.mark.share(12)
@pytest.mark.parametrize("schedule", [NONE, PREFETCH], ids=lambda s: s.name)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("name", WITHOUT)
def test_kernels_whose_lanes_keep_to_their_own_have_no_barrier_for_global_memory(name, target, schedule):
    options = WaveCompileOptions(subs=sizes(192, 256, 128), target=target, schedule=schedule)
    before = next(s for s in wave_compile(options, WITHOUT[name]).build.steps if s.name == "place_barriers")
    assert {(op.waves, op.over) for op in barriers(before.after)} <= {(0, "shared")}


# -- machine code: waits, and loads that see what was stored


@pytest.mark.parametrize("chip", CHIPS)
def test_what_a_wave_stores_and_loads_has_arrived_when_it_comes_to_the_barrier(chip):
    (case,) = (case for case in CASES if str(case) == "through_scratch")
    lines = [line.strip() for line in cached(case, chip, ROW_WISE, 128, 96).asm.splitlines()]
    barrier = lines.index("s_barrier")
    touching = [i for i, line in enumerate(lines) if re.match(r"(buffer|global)_(load|store)", line)]
    first, second = [i for i in touching if i < barrier], [i for i in touching if i > barrier]
    assert "store" in lines[first[-1]] and "load" in lines[second[0]]
    waits = [line for line in lines[first[-1] : barrier] if line.startswith("s_waitcnt")]
    assert any("vmcnt(0)" in line for line in waits)


def test_ptx_stores_meet_and_load_what_others_may_have_written():
    (case,) = (case for case in CASES if str(case) == "through_scratch")
    ptx = cached(case, "sm_90a", ROW_WISE, 128, 96).asm
    stored, met = ptx.index("st.global"), ptx.index("bar.sync")
    loaded = [at.start() for at in re.finditer(r"ld\.global", ptx) if at.start() > met]
    assert stored < met < loaded[0]
    assert ".nc" not in ptx[met:]


# -- passes that would move or copy accesses


def test_the_copy_engine_takes_no_part_where_memory_is_handed_over():
    """TMA copies are not ordered with the accesses of lanes, and the producer warp does not pass their barriers."""
    for case in PRODUCTS:
        kernel = cached(case, "sm_90a", ROW_WISE, 128, 96).ir()
        assert not [op for op in walk(kernel.body) if isinstance(op, (TmaLoad, TmaStore))], case


@wave(tiling())
def in_every_step(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    """What is written in a step replaces what was written in the one before."""

    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(x):
        y = mma(read(a), read(b), x)
        write(y, c)
        return y

    write(total + 1.0, c)


@pytest.mark.parametrize("target", GPUS)
def test_copies_out_do_not_overtake_each_other(target):
    """What is written twice is not copied out by the machine, whose copies arrive in any order."""
    compiled = wave_compile(WaveCompileOptions(subs=sizes(128, 64, 128), target=target), in_every_step)
    assert not [op for op in walk(compiled.ir().body) if isinstance(op, TmaStore)]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 128)).astype(np.float16) for rows in (128, 64))
    for order, seed in some_of(ORDERS, 2):
        c = np.full((128, 64), np.nan, np.float32)
        compiled.interpret(a, b, c, level="lane", order=order, seed=seed)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T + 1)


def test_loads_do_not_go_ahead_of_stores_to_the_same_memory():
    """Loading a step ahead would read a factor before this step writes it."""
    (case,) = (case for case in CASES if str(case) == "a_factor_read_back")
    for target in GPUS:
        kernel = cached(case, target, ROW_WISE, 128, 96, schedule=PREFETCH).ir()
        touching = [op for op in walk(kernel.body) if isinstance(op, (Load, LoadEach, Store, StoreEach))]
        names = [type(op).__name__ for op in touching if op.memory.name == "s"]
        assert names == ["StoreEach", "Load"], target


def test_widened_writes_in_place_need_nothing_more():
    """A wave's lanes synchronize before the rows are stored, after all their earlier reads."""
    options = WaveCompileOptions(subs=sizes(128, 128, 64), target="gfx942")
    compiled = wave_compile(options, WITHOUT["a product in place, in f16"])
    assert any(isinstance(op, WriteThrough) for s in compiled.build.steps for op in walk(s.after.body))
    assert not over_global(compiled.ir())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (128, 64)).astype(np.float16) for _ in range(2))
    start = rng.integers(-9, 10, (128, 128)).astype(np.float16)
    for seed in (1, 2):
        c = start.copy()
        assert not compiled.emulate(a, b, c, order="random", seed=seed).findings
        np.testing.assert_array_equal(
            c, (a.astype(np.float32) @ b.astype(np.float32).T + start * 0.5).astype(np.float16)
        )


def around_a_product(rows):
    """Return the kernel of a product with eight waves for a tile of `rows` x `rows`."""

    @wave(
        [
            WorkgroupConstraint(M, rows, 0),
            WorkgroupConstraint(N, rows, 1),
            TilingConstraint(K, 64),
            WaveConstraint(M, rows // 4),
            WaveConstraint(N, rows // 2),
        ]
    )
    def around(
        a: Memory[M, K, G, f16],
        b: Memory[N, K, G, f16],
        d: Memory[M, N, G, f32],
        s: Memory[M, N, G, f32],
        c: Memory[M, N, G, f32],
    ):
        write(read(d), s)

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(x):
            return mma(read(a), read(b), x)

        write(total + read(s), c)

    return around


@pytest.mark.parametrize(("chip", "rows"), [("gfx942", 128), ("gfx950", 256)])
def test_a_barrier_behind_waves_that_take_turns_stays_where_it_hands_global_memory_over(chip, rows):
    """Eight waves synchronize in every turn, but none of them waits there for the stores before the loop."""
    subs = {M: rows, N: rows, K: 256}
    compiled = wave_compile(WaveCompileOptions(subs=subs, target=chip, schedule=PREFETCH), around_a_product(rows))
    assert any(isinstance(op, Meet) for op in walk(compiled.ir().body))
    assert over_global(compiled.ir())
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 256)).astype(np.float16) for _ in range(2))
    d = rng.integers(-9, 10, (rows, rows)).astype(np.float32)
    for order, seed in some_of(ORDERS, 2):
        s, c = (np.full_like(d, np.nan) for _ in range(2))
        compiled.interpret(a, b, d, s, c, level="lane", order=order, seed=seed)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T + d)


def test_a_barrier_hands_over_shared_or_global_memory_and_nothing_else():
    text = "kernel @k {workgroups = 1, waves = [2, 2]} () {\n  barrier() {over = OVER}\n}\n"
    for over in ("shared", "global"):
        verify(parse(text.replace("OVER", over), "k.ir"))
    with pytest.raises(VerifyError, match="barrier: hands over shared or global memory, not 'packed'"):
        verify(parse(text.replace("OVER", "packed"), "k.ir"))


@wave([WorkgroupConstraint(M, 32, 0)])
def turned_twice(s: Memory[M, GLOBAL_ADDRESS_SPACE, f32], o: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
    backwards = IndexMapping(1, inputs={M: 31 - IndexMapping.iterator(0)}, outputs={M: IndexMapping.iterator(0)})
    write(read(s, mapping=backwards), s)
    write(read(s, mapping=backwards), o)


@pytest.mark.parametrize("target", GPUS)
def test_what_was_loaded_is_loaded_again_behind_a_barrier(target):
    """One lane alone would find what it loaded before: it stores that very number in between."""
    compiled = wave_compile(WaveCompileOptions(subs={M: 32}, target=target), turned_twice)
    if target == "sm_90a":
        assert compiled.asm.count("ld.global") == 2
        return
    s, o = np.arange(32, dtype=np.float32), np.full(32, np.nan, np.float32)
    compiled.emulate(s, o, order="random", seed=1)
    assert (s == np.arange(32)[::-1]).all() and (o == np.arange(32)).all()


@pytest.mark.share(12)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("to", [f32, f16, i32, i64, f64], ids=str)
@pytest.mark.parametrize(("kind", "n"), [(i8, 1), (i8, 2), (i8, 12), (f8e5m2, 1), (f16, 2), (bf16, 1)], ids=str)
def test_a_load_whose_sign_is_widened_later_stays_in_front_of_the_write(chip, kind, n, to):
    @wave([WorkgroupConstraint(N, 8, 1), WorkgroupConstraint(M, 16, 0), WaveConstraint(M, 4)])
    def replaced(a: Memory[M, N, G, f32], s: Memory[N, M, G, kind], c: Memory[N, M, G, to]):
        given = read(a)
        before = read(s)
        write(cast(given, kind), s)
        write(cast(before, to), c)

    m = 9 if n == 1 else 10
    compiled = wave_compile(WaveCompileOptions(subs={M: m, N: n}, target=chip), replaced)
    rng = np.random.default_rng(n)
    a, before = rng.integers(-9, 9, (m, n)).astype(np.float32), rng.integers(-9, 9, (n, m))
    for order in some_of(("in turn", "backwards", "random")):
        s, c = before.astype(kind.numpy), np.zeros((n, m), to.numpy)
        assert not compiled.emulate(a, s, c, order=order).findings
        np.testing.assert_array_equal(c.astype(np.float64), before.astype(kind.numpy).astype(np.float64))
        np.testing.assert_array_equal(s.astype(np.float64), a.T.astype(kind.numpy).astype(np.float64))
