"""A kernel is called like a function: sizes from the arrays, block sizes from subs, compiled at most once."""

import gc
import weakref

import numpy as np
import pytest
from kernels import BLOCK_K, BLOCK_M, BLOCK_N, B, G, K, M, N, check_product, poisoned, random_array, tiling

import tilewave.call
from tilewave import *
from tilewave.call import KEPT_KERNELS
from tilewave.errors import CallError, ConstraintError, SymbolError, TraceError

BLOCKS = {BLOCK_M: 32, BLOCK_N: 32, BLOCK_K: 16}


def made(subs=BLOCKS, constraints=()):
    @wave(tiling(*constraints), subs=subs)
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32], alpha: f32):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total * alpha, c)

    return gemm


def copy_kernel():
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a), c)

    return copy


def arrays(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    return random_array(rng, (m, k), f16), random_array(rng, (n, k), f16), poisoned((m, n), f32)


@pytest.fixture
def compiles(monkeypatch):
    """The targets and symbols of what calls compile."""
    seen = []

    def counted(kernel, target, subs, longest, sizes):
        seen.append((target, {s.name: str(value) for s, value in {**subs, **longest}.items()}))
        return compiled_for(kernel, target, subs, longest, sizes)

    compiled_for = tilewave.call.compiled_for
    monkeypatch.setattr(tilewave.call, "compiled_for", counted)
    return seen


@pytest.mark.parametrize("shape", [(64, 64, 64), (1, 1, 1), (33, 70, 17), (2, 129, 31)])
def test_sizes_come_from_the_arrays(shape):
    a, b, c = arrays(*shape)
    made()(a, b, c, alpha=-1.0)
    check_product(-c, a, b)


def test_arrays_and_numbers_are_given_by_place_or_by_name(compiles):
    gemm = made()
    a, b, c = arrays(20, 30, 40)
    for given, named in (
        ((a, b, c, 1.0), {}),
        ((a, b, c), {"alpha": 1.0}),
        ((a,), {"c": c, "alpha": np.float32(1), "b": b}),
        ((), {"alpha": 1.0, "c": c, "b": b, "a": a}),
    ):
        c.fill(np.nan)
        gemm(*given, **named)
        check_product(c, a, b)
    assert len(compiles) == 1


def test_a_compiled_kernel_takes_arrays_by_name_too():
    compiled = made().compile(target="gfx942", subs={M: 20, N: 30, K: 40})
    a, b, c = arrays(20, 30, 40)
    for run in (compiled.interpret, compiled.emulate):
        for given, named in (((a, b), {"c": c, "alpha": 1.0}), ((), {"alpha": 1.0, "c": c, "b": b, "a": a})):
            c.fill(np.nan)
            run(*given, **named)
            check_product(c, a, b)


def test_parameters_keep_their_names_whatever_the_launch_computes():
    """Numbers of tiles and of workgroups are computed at the launch, and have names too."""

    @wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 4, 1)])
    def named(c7: Memory[M, G, f32], M_tiles: Memory[M, N, G, f32], mul: Memory[M, N, G, f32], add: f32):
        write(read(M_tiles) + read(c7) * add, mul)

    for target in ("numpy", "cpu"):
        compiled = named.compile(target)
        row, a, out = np.arange(9, dtype=np.float32), np.ones((9, 5), np.float32), np.empty((9, 5), np.float32)
        compiled(mul=out, add=2.0, M_tiles=a, c7=row)
        np.testing.assert_array_equal(out, a + 2 * row[:, None])


def test_parameters_may_have_names_of_other_letters():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def scaled(länge: Memory[M, G, f32], größe: f32, c: Memory[M, G, f32]):
        write(read(länge) * größe, c)

    a, out = np.arange(9, dtype=np.float32), np.empty(9, np.float32)
    for call in (scaled, scaled.compile("numpy"), scaled.compile("cpu", {M: 9})):
        for given, named in (
            ((a, 2.0, out), {}),
            ((), {"c": out, "größe": 2.0, "länge": a}),
            ((a,), {"größe": 2.0, "c": out}),
        ):
            out.fill(np.nan)
            call(*given, **named)
            np.testing.assert_array_equal(out, 2 * a)


def test_nothing_is_compiled_twice(compiles):
    gemm = made()
    for alpha in (1.0, 2.0, 0.0):
        for shape in ((20, 30, 40), (40, 30, 20)):
            a, b, c = arrays(*shape)
            gemm(a, b, c, alpha=alpha)
    assert compiles == [("cpu", {})]


def test_block_sizes_come_from_the_call_before_those_of_the_decorator(compiles):
    gemm = made()
    a, b, c = arrays(40, 40, 40)
    for named in ({}, {"BLOCK_M": 16}, {"subs": {BLOCK_M: 16}}, {"subs": {BLOCK_M: 64}, "BLOCK_M": 16}):
        c.fill(np.nan)
        gemm(a, b, c, 1.0, **named)
        check_product(c, a, b)
    assert compiles == [("cpu", {}), ("cpu", {"BLOCK_M": "16"})]


def test_symbols_may_be_expressions_of_each_other_and_of_sizes(compiles):
    gemm = made({BLOCK_M: 2 * BLOCK_N, BLOCK_K: 16})
    for shape in ((40, 40, 8), (200, 90, 20)):
        a, b, c = arrays(*shape)
        gemm(a, b, c, 1.0, BLOCK_N=16)
        check_product(c, a, b)
    assert compiles == [("cpu", {"BLOCK_N": "16"})]


def test_an_order_is_told_sizes_and_not_what_subs_makes_of_them():
    width = sym.WIDTH
    gemm = made({**BLOCKS, width: Min(M, 3)}, [WorkgroupMapping(tilewave.mapping.grouped(width))])
    a, b, c = arrays(200, 90, 20)
    what, remedy = refused(ConstraintError, lambda: gemm(a, b, c, 1.0), c)
    assert what == "the order of tiles depends on WIDTH, which subs gives as an expression of dynamic sizes"
    assert remedy == "write that expression in the place of WIDTH"
    made(BLOCKS, [WorkgroupMapping(tilewave.mapping.grouped(Min(M, 3)))])(a, b, c, 1.0)
    check_product(c, a, b)


def test_a_tile_is_fixed_though_sizes_are_open():
    gemm = made({**BLOCKS, BLOCK_K: Min(K, 16)})
    a, b, c = arrays(40, 40, 8)
    what, remedy = refused(ConstraintError, lambda: gemm(a, b, c, 1.0), c)
    assert what == "BLOCK_K is a tile, and fixed when a kernel is compiled, but BLOCK_K is known only at the launch"
    assert remedy == "give it a number: subs={BLOCK_K: …}"
    gemm(a, b, c, 1.0, BLOCK_K=8)
    check_product(c, a, b)


def test_the_decorators_subs_are_defaults_for_compile_too():
    gemm = made()
    assert gemm.compile(target="numpy", subs={M: 64, N: 64, K: 64}).kernel.workgroups == 4
    assert gemm.compile(target="numpy", subs={M: 64, N: 64, K: 64, BLOCK_M: 16}).kernel.workgroups == 8
    options = WaveCompileOptions(target="numpy", subs={M: 64, N: 64, K: 64})
    assert wave_compile(options, gemm).kernel.workgroups == 4


def test_what_stays_open_needs_no_default():
    width = sym.WIDTH
    gemm = made({**BLOCKS, width: 4}, [WorkgroupMapping(tilewave.mapping.grouped(width))])
    compiled = gemm.compile(target="numpy", subs={M: 128, N: 128, K: 16}, dynamic_symbols=[width])
    assert compiled.dynamic_symbols == ("WIDTH",)
    a, b, c = arrays(128, 128, 16)
    compiled(a, b, c, 1.0, WIDTH=2)
    check_product(c, a, b)
    gemm(a, b, c, 1.0, WIDTH=3)
    check_product(c, a, b)


def test_symbols_that_only_the_function_knows_are_given_by_name():
    offset = sym.OFFSET
    there = IndexMapping(1, inputs={M: IndexMapping.iterator(0) + offset}, outputs={M: IndexMapping.iterator(0)})

    @wave([WorkgroupConstraint(M, 8, 0)])
    def shifted(a: Memory[N, G, f32], c: Memory[M, G, f32]):
        write(read(a, mapping=IndexMapping(1, inputs={N: IndexMapping.iterator(0) + offset}, outputs=there.outputs)), c)

    a, c = np.arange(30, dtype=np.float32), np.empty(20, np.float32)
    shifted(a, c, OFFSET=7)
    np.testing.assert_array_equal(c, a[7:27])


def test_extents_that_are_expressions_are_checked():
    @wave([WorkgroupConstraint(M, 8, 0)])
    def halves(a: Memory[M, G, f32], b: Memory[M // 2, G, f32], c: Memory[M, G, f32]):
        write(read(a), c)

    a, b, c = (np.zeros(n, np.float32) for n in (20, 10, 20))
    halves(a, b, c)
    with pytest.raises(CallError) as caught:
        halves(a, np.zeros(11, np.float32), c)
    assert caught.value.what == "halves: b is 11, but its axis 0 is 10 where M is 20"


def test_batches_strides_and_other_libraries_arrays_run_as_they_are():
    @wave([*tiling(), WorkgroupConstraint(B, 1, 2)], subs=BLOCKS)
    def batched(a: Memory[B, M, K, G, f32], b: Memory[B, N, K, G, f32], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    class Exported:
        """Somebody's array: it speaks DLPack and nothing else."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    rng = np.random.default_rng(0)
    a, b = random_array(rng, (2, 33, 40), f32)[:, ::-1, ::2], random_array(rng, (2, 20, 17), f32)
    c = poisoned((2, 20, 33), f32).swapaxes(1, 2)
    batched(a[..., :17], Exported(b), c)
    check_product(c, a[..., :17], b)


# -- nothing to do ---------------------------------------------------------------------------------------------------


def test_no_tiles_are_no_launch_but_arrays_are_checked(compiles):
    gemm = made()
    for m, n in ((0, 30), (30, 0), (0, 0)):
        a, b, c = arrays(m, n, 20)
        for _ in range(2):
            gemm(a, b, c, alpha=1.0)
            with pytest.raises(CallError, match="gemm: b is f32, but the kernel reads f16"):
                gemm(a, b.astype(np.float32), c, alpha=1.0)
    assert compiles == [("cpu", {})]


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "gfx950", "sm_90a"])
def test_a_loop_over_nothing_runs_not_once(target):
    @wave(tiling(), subs={BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32})
    def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](3.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total + 1.0, c)

    a, b, c = arrays(70, 80, 0)
    gemm(a, b, c)
    assert (c == 4).all()
    compiled = gemm.compile(target=target, subs={M: 70, N: 80, K: 0})
    runs = [compiled.interpret, *([compiled] if target in ("numpy", "cpu") else [])]
    runs += [lambda *given: compiled.interpret(*given, level="lane")] if compiled.build.lanes else []
    for run in (*runs, *([compiled.emulate] if compiled.build.emulated else [])):
        c.fill(np.nan)
        run(a, b, c)
        assert (c == 4).all()


# -- what is refused, before any array is touched --------------------------------------------------------------------


def refused(kind, call, c):
    before = c.copy()
    with pytest.raises(kind) as caught:
        call()
    np.testing.assert_array_equal(c, before)
    return caught.value.what, caught.value.remedy


def test_sizes_that_do_not_agree_are_told_with_both_arrays(compiles):
    a, b, c = arrays(20, 30, 40)
    gemm = made()
    assert refused(CallError, lambda: gemm(a, b[:, :39], c, 1.0), c) == (
        "gemm: K is 40 by a, but 39 by b; a is 20x40, b is 30x39",
        "K is axis 1 of a and axis 1 of b; they must be equal",
    )
    assert refused(CallError, lambda: gemm(a, b, c, 1.0, M=16), c) == (
        "gemm: M is 16, but a is 20x40, which makes it 20",
        "M is axis 0 of a: pass an array that fits, or another M",
    )
    assert refused(CallError, lambda: gemm(a, b, c, 1.0, M=N), c)[0] == (
        "gemm: N is 20 by a, but 30 by b; a is 20x40, b is 30x40"
    )
    assert refused(CallError, lambda: gemm(a, b, c[0], 1.0), c) == (
        "gemm: c has 1 axis (shape (30,)), but the kernel takes [M, N]",
        "pass an array with 2 axes",
    )
    assert compiles == [("cpu", {}), ("cpu", {"M": "N"})]


def test_a_symbol_that_nobody_gives_is_asked_for():
    a, b, c = arrays(20, 30, 40)
    assert refused(SymbolError, lambda: made(BLOCKS, [GridConstraint(sym.COUNT)])(a, b, c, 1.0), c) == (
        "gemm: COUNT has no value, and no array gives it",
        "write gemm(…, COUNT=…), or @wave(constraints, subs={COUNT: …})",
    )
    assert refused(SymbolError, lambda: made({**BLOCKS, BLOCK_M: BLOCK_N * sym.TIMES})(a, b, c, 1.0), c)[0] == (
        "gemm: TIMES has no value, and no array gives it"
    )


@pytest.mark.parametrize(
    ("given", "named", "what", "remedy"),
    [
        ("ab", {"alpha": 1.0}, "gemm needs an array for c", "Call gemm(a, b, c, alpha)"),
        ("abc", {}, "gemm needs a number for alpha (f32)", "Call gemm(…, alpha=0.5)"),
        ("abcc", {}, "gemm: alpha is an array of float32, but the kernel takes a float (f32)", "declare alpha as"),
        ("abcccc", {}, "gemm: takes 4 arguments (a, b, c, alpha), but got 6", "call gemm(a, b, c, alpha)"),
        ("abc", {"alpha": 1.0, "b": 3}, "gemm: b is given twice, as argument 2 and by its name", "leave one of"),
        (
            "abc",
            {"alpha": 1.0, "BLOK_M": 3},
            "gemm has neither a parameter nor a symbol BLOK_M",
            "did you mean BLOCK_M",
        ),
        ("abc", {"alhpa": 1.0}, "gemm needs a number for alpha (f32)", "did you mean alpha by alhpa? Call"),
        (
            "abc",
            {"alpha": 1.0, "BLOCK_M": 1.5},
            "subs: BLOCK_M is 1.5, no whole number and no expression of symbols",
            "write a",
        ),
        ("abc", {"alpha": 1.0, "subs": [1]}, "subs is [1]", "write subs={M: 512, …}"),
    ],
)
def test_arguments_that_are_not_the_kernels_are_refused(given, named, what, remedy, compiles):
    a, b, c = arrays(20, 30, 40)
    arguments = [{"a": a, "b": b, "c": c}[name] for name in given]
    found = refused(TilewaveError, lambda: made()(*arguments, **named), c)
    assert found[0] == what and found[1].startswith(remedy)
    assert compiles == []


def test_kernels_without_numbers_count_their_arrays_too():
    copy = copy_kernel()
    a, c = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    assert refused(CallError, lambda: copy(a), c)[0] == "copy: takes 2 arrays (a, c), but got 1"
    assert refused(CallError, lambda: copy(a, c, c), c)[0] == "copy: takes 2 arrays (a, c), but got 3"
    assert refused(CallError, lambda: copy(a, 3.0), c)[0] == "copy: c is a float, not an array"
    assert refused(CallError, lambda: copy(a, a), a)[0] == "copy: c overlaps a, but the kernel writes c"
    frozen = c.copy()
    frozen.flags.writeable = False
    assert refused(CallError, lambda: copy(a, frozen), frozen)[0] == "copy: c is read-only, but the kernel writes it"


def test_a_parameter_and_a_symbol_of_one_name_are_refused():
    alpha = sym.alpha

    @wave([WorkgroupConstraint(M, alpha, 0)], subs={alpha: 8})
    def scaled(a: Memory[M, G, f32], alpha: f32):
        write(read(a) * alpha, a)

    a = np.ones(20, np.float32)
    assert refused(SymbolError, lambda: scaled(a, alpha=2.0), a) == (
        "scaled: alpha is a parameter and a symbol",
        "rename one of them",
    )


def test_more_workgroups_than_a_launch_has_are_refused():
    @wave([WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, 1, 1)])
    def copy(a: Memory[M, N, G, i8], c: Memory[M, N, G, i8]):
        write(read(a), c)

    wide = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (1 << 20, 1 << 20), (0, 0))
    with pytest.raises(CallError, match="a launch numbers at most 2147483647"):
        copy(wide, wide)


def test_a_kernel_is_not_called_inside_another():
    copy = copy_kernel()

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def outer(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        copy(a, c)

    a, c = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    what, _ = refused(TraceError, lambda: outer(a, c), c)
    assert what == "copy is a kernel, and is called while another is being traced"


@pytest.mark.parametrize("subs", [3, {"M": 3}, {M: "x"}])
def test_the_decorators_subs_are_checked_where_they_stand(subs):
    with pytest.raises(SymbolError):
        wave(tiling(), subs=subs)


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_what_calls_leave_behind_is_bounded(monkeypatch):
    copy = copy_kernel()
    monkeypatch.setattr(tilewave.call, "compiled_for", lambda *facts: Fake())

    class Fake:
        def launch(self, arrays, values):
            pass

    for n in range(KEPT_KERNELS + 10):
        copy(np.empty((1, 4), np.float32), np.empty((1, 4), np.float32), subs={sym.UNUSED: n})
    assert len(copy.kept["call"]._kernels) == KEPT_KERNELS


def test_sizes_seen_before_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(tilewave.runtime.sizes, "KEPT_CALLS", 16)
    copy = copy_kernel()
    for n in range(100):
        copy(np.empty((1, n + 1), np.float32), np.empty((1, n + 1), np.float32))
    (compiled,) = copy.kept["call"]._kernels.values()
    assert 0 < len(compiled.sizes._kept) <= 16


def test_a_kernel_that_was_called_goes_when_nobody_has_it():
    copy = copy_kernel()
    copy(np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32))
    gone = weakref.ref(copy)
    del copy
    gc.collect()
    assert gone() is None


def test_unsigned_bytes_for_signed_ones_are_taken_by_a_view_that_keeps_their_bits():
    @wave([WorkgroupConstraint(sym.M, 16, 0)])
    def copy(x: Memory[sym.M, GLOBAL_ADDRESS_SPACE, i8], y: Memory[sym.M, GLOBAL_ADDRESS_SPACE, i8]):
        write(read(x), y)

    bytes_, y = np.arange(256, dtype=np.uint8), np.zeros(256, np.int8)
    with pytest.raises(TilewaveError, match=r"pass x\.view\(np\.int8\), which keeps the bits"):
        copy(bytes_, y)
    copy(bytes_.view(np.int8), y)
    np.testing.assert_array_equal(y.view(np.uint8), bytes_)
