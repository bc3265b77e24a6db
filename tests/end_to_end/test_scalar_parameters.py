"""A parameter of a dtype is a number of the call, at every level and on every target."""

import builtins
import math

import numpy as np
import pytest
from kernels import G, K, M, N, check_product, compiled, poisoned, random_array, sizes, tiling

from tilewave import *
from tilewave.errors import CallError, TraceError
from tilewave.ir.parse import parse
from tilewave.sim import simulate

CUT = [WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)]
DTYPES = [f32, f64, f16, bf16, f8e4m3fn, f8e5m2, i8, i32, i64]
TARGETS = ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"]
SHAPE = (19, 35)


def ways(kernel):
    """All in which a compiled kernel can be run here."""
    yield kernel.interpret
    if kernel.target in ("numpy", "cpu"):
        yield kernel
    if kernel.build.lanes:
        yield lambda *arrays, **named: kernel.interpret(*arrays, level="lane", **named)
    if kernel.build.emulated:
        yield kernel.emulate


def scaled(dtype):
    @wave(CUT)
    def scaled(x: dtype, a: Memory[M, N, G, dtype], c: Memory[M, N, G, dtype]):
        write(read(a) * x, c)

    return scaled


@pytest.mark.share(10)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tile_is_multiplied_by_a_number(dtype, target):
    kernel = compiled(scaled(dtype), target=target, subs={M: SHAPE[0], N: SHAPE[1]})
    a = (np.arange(np.prod(SHAPE)).reshape(SHAPE) % 5 - 2).astype(dtype.numpy)
    for x in (0, -1, 3):
        given = float(x) if dtype.is_float else x
        for run in ways(kernel):
            c = poisoned(SHAPE, dtype)
            run(given, a, c)
            np.testing.assert_array_equal(c.astype(np.float64), a.astype(np.float64) * x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("x", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 0.1])
def test_floats_keep_every_bit(x, target):
    @wave(CUT)
    def filled(x: f64, c: Memory[M, N, G, f64]):
        write(select(self_index(M) < M, Register[M, N, f64](1.0), 0.0) * x, c)

    kernel = compiled(filled, target=target, subs={M: 3, N: 5})
    for run in ways(kernel):
        c = np.zeros((3, 5))
        run(x, c)
        want = np.full((3, 5), x)
        assert np.array_equal(c, want, equal_nan=True) and (np.signbit(c) == np.signbit(want)).all()


@wave(CUT)
def masked(causal: builtins.bool, first: i32, a: Memory[M, N, G, f32], last: index, c: Memory[M, N, G, f32]):
    row = Register[M, N, i32](0) + self_index(M, i32)
    column = Register[M, N, index](0) + self_index(N)
    kept = (row >= first) & (column < last)
    write(select(causal, select(kept, read(a), 0.0), read(a)), c)


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_compared_and_chosen_by_wherever_they_stand_among_the_arrays(target):
    kernel = compiled(masked, target=target, subs={M: SHAPE[0], N: SHAPE[1]})
    a = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    rows, columns = np.indices(SHAPE)
    for causal, first, last in ((True, 4, 30), (True, -5, 0), (False, 4, 30), (True, -(1 << 31), 1 << 40)):
        want = np.where((rows >= first) & (columns < last) | (not causal), a, 0)
        for run in ways(kernel):
            c = poisoned(SHAPE, f32)
            run(causal, first, a, last, c)
            np.testing.assert_array_equal(c, want)
            c = poisoned(SHAPE, f32)
            run(np.bool_(causal), c=c, last=np.int64(last), first=np.array(first), a=a)
            np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_a_gemm_is_scaled_in_its_epilogue(target):
    @wave(tiling())
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], alpha: f32, beta: f32):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total * alpha + beta * 0.0, c)

    kernel = compiled(gemm, target=target, subs=sizes(70, 50, 40))
    rng = np.random.default_rng(1)
    a, b = random_array(rng, (70, 40), f16), random_array(rng, (50, 40), f16)
    for run in ways(kernel):
        c = poisoned((70, 50), f32)
        run(a, b, c, alpha=-2.0, beta=1.0)  # a power of two rounds nothing
        check_product(c / -2, a, b)


def test_numbers_decide_how_often_a_loop_runs():
    steps, limit = sym.STEPS, sym.LIMIT

    @wave([*CUT, TilingConstraint(steps)])
    def powers(a: Memory[M, N, G, i32], c: Memory[M, N, G, i32], n: i32):
        set_symbol(limit, n)

        @iterate(steps, init_args=[read(a)], start=scalar(0), condition=steps < limit)
        def product(x):
            set_symbol(steps, self_index(steps) + 1)
            return x * 2

        write(product, c)

    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    for target in ("numpy", "cpu", "gfx942"):
        kernel = compiled(powers, target=target, subs={M: 3, N: 4})
        for n in (0, -3, 1, 5):
            for run in ways(kernel):
                c = np.full((3, 4), 77, np.int32)
                run(a, c, n)
                np.testing.assert_array_equal(c, a << max(0, n))


def test_a_number_that_decides_nothing_is_judged_once():
    kernel = compiled(scaled(f32), subs={M: 19, N: 35}, target="cpu")
    before = kernel.verdicts.looked_at
    a, c = np.ones(SHAPE, np.float32), np.empty(SHAPE, np.float32)
    for x in (1.0, math.nan, math.nan, 2.0):
        kernel(x, a, c)
    assert kernel.verdicts.looked_at <= before + 1


def test_a_number_may_move_what_is_read_as_far_as_it_likes():
    column = sym.COLUMN
    shifted = IndexMapping(
        2,
        inputs={M: IndexMapping.iterator(0), N: IndexMapping.iterator(1) + column},
        outputs={M: IndexMapping.iterator(0), N: IndexMapping.iterator(1)},
    )

    @wave(CUT)
    def copied(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], by: i32):
        set_symbol(column, by)
        write(read(a, mapping=shifted), c)

    kernel = compiled(copied, target="cpu", subs={M: 16, N: 32})
    a, c = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32), np.empty((16, 32), np.float32)
    for by in (3, 20, 100):
        c.fill(np.nan)
        kernel(a, c, by)
        np.testing.assert_array_equal(c, np.pad(a, ((0, 0), (0, by)))[:, by:][:, :32])


def test_the_order_is_known_without_numbers_that_do_not_decide_it():
    kernel = compiled(scaled(f32), subs={M: 19, N: 35})
    assert kernel.schedule.table().tolist() == [[0, 2, 4], [1, 3, 5]]
    assert kernel.schedule_for() == kernel.schedule_for(x=1.0) == kernel.schedule
    assert simulate(kernel, "H200").hbm_write_bytes > 0
    with pytest.raises(CallError, match=r"scaled: x is 1 \(int\), but the kernel takes a float"):
        kernel.schedule_for(x=1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_saved_kernel_takes_its_numbers(target, tmp_path):
    kernel = compiled(masked, target=target, subs={M: SHAPE[0], N: SHAPE[1]})
    kernel.save(tmp_path / "kernel.tilewave")
    again = load(tmp_path / "kernel.tilewave")
    assert again.signature == kernel.signature
    a = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    want = poisoned(SHAPE, f32)
    kernel.interpret(True, 4, a, 30, want)
    for run in ways(again):
        c = poisoned(SHAPE, f32)
        run(True, 4, a, last=30, c=c)
        np.testing.assert_array_equal(c, want)


def test_texts_name_the_numbers_with_their_dtypes():
    kernel = compiled(masked, subs={M: 19, N: 35})
    head = str(kernel.kernel).partition(")")[0]
    assert "%causal: bool, %first: i32, %a: memory<19x35xf32, global>, %last: i64" in head
    assert parse(str(kernel.kernel)) == kernel.kernel


def test_a_number_is_no_python_number_while_the_kernel_is_traced():
    @wave(CUT)
    def chosen(causal: builtins.bool, a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) if causal else read(a) * 2.0, c)

    with pytest.raises(TraceError, match=r"a number \(bool\) has no truth value while the kernel is being traced"):
        compiled(chosen, subs={M: 16, N: 16})


def test_annotations_that_say_no_width_are_refused():
    @wave(CUT)
    def vague(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], alpha: float):
        write(read(a) * alpha, c)

    with pytest.raises(TraceError, match="vague: alpha is not annotated as a memory or a number"):
        compiled(vague, subs={M: 16, N: 16})
