"""What the language can say, each against float64 numpy: dtypes, orientations, strides, epilogues, batches, loops."""

import math
import sys

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *
from sampled import examples

import tilewave as tw
from tilewave.errors import SymbolError
from tilewave.lang.symbols import Symbol
from tilewave.pipeline.runner import numbered_apart

pytestmark = on("numpy", "cpu")

DTYPES = [(f16, f32), (bf16, f32), (f32, f32), (f64, f64), (f8e4m3fn, f32), (f8e5m2, f32), (f8e4m3fnuz, f32)]
DTYPES += [(f8e5m2fnuz, f32), (i8, i32)]


def run_gemm(kernel, subs, m, n, k, dtype=f16, out=f32, order=lambda x: x, **how):
    rng = np.random.default_rng(m * n * k)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    c = poisoned((m, n), out)
    compiled(kernel, subs=subs)(*order((a, b, c)), **how)
    return a, b, c


@pytest.mark.share(12)
@pytest.mark.parametrize("shape", [(1, 1, 1), (129, 257, 65), (64, 64, 32), (7, 130, 31)], ids=str)
@pytest.mark.parametrize(("dtype", "acc"), DTYPES, ids=str)
def test_every_dtype(dtype, acc, shape):
    a, b, c = run_gemm(gemm(dtype, acc), sizes(*shape), *shape, dtype, acc)
    check_product(c, a, b, acc)


@pytest.mark.parametrize("a_dims", [(M, K), (K, M)], ids=str)
@pytest.mark.parametrize("b_dims", [(N, K), (K, N)], ids=str)
def test_both_orientations(a_dims, b_dims):
    def turned(arrays):
        a, b, c = arrays
        return a if a_dims[0] == M else np.ascontiguousarray(a.T), b if b_dims[0] == N else b.T.copy(), c

    a, b, c = run_gemm(gemm(a_dims=a_dims, b_dims=b_dims), sizes(70, 90, 50), 70, 90, 50, order=turned)
    check_product(c, a, b)


def test_an_accumulator_whose_dims_are_turned():
    @wave(tiling())
    def turned(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[N, M, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    a, b, c = run_gemm(turned, sizes(70, 90, 50), 70, 90, 50)
    check_product(c, a, b)


def test_any_strides():
    rng = np.random.default_rng(0)
    a = random_array(rng, (140, 200), f16)[::2, 3:103:2]
    b = random_array(rng, (100, 50), f16)[::-1]
    whole = poisoned((90, 300), f32)
    c = whole[5:75, ::3]
    compiled(gemm(), subs=sizes(70, 100, 50))(a, b, c)
    check_product(c, a, b)
    touched = np.zeros(whole.shape, bool)
    touched[5:75, ::3] = True
    assert np.isnan(whole[~touched]).all()


def gelu(x):
    return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


EPILOGUES = {
    "numpy's numbers": (
        lambda x: select(np.float32(0) < x, np.float32(0.5) * x, x),
        lambda x: np.where(x > 0, x / 2, x),
    ),
    "powers": (lambda x: (x * 0.1) ** 3 + (x * 0.1) ** 1, lambda x: (x * 0.1) ** 3 + x * 0.1),
    "abs": (lambda x: abs(x), lambda x: np.abs(x)),
    "scale": (lambda x: x * 0.5, lambda x: x * 0.5),
    "relu": (lambda x: maximum(x, 0.0), lambda x: np.maximum(x, 0)),
    "select": (lambda x: select(x < 0.0, x * 0.1, x), lambda x: np.where(x < 0, x * 0.1, x)),
    "gelu": (gelu, lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))),
    "exact gelu": (
        lambda x: 0.5 * x * (1.0 + erf(x * (1 / math.sqrt(2)))),
        lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    ),
    "the rest": (
        lambda x: exp2(-tw.abs(x)) + log2(1.0 + x * x) - sqrt(x * x) / (2.0 + cos(x)) + sin(x) + rsqrt(1.0 + x * x),
        lambda x: (
            np.exp2(-np.abs(x)) + np.log2(1 + x * x) - np.abs(x) / (2 + np.cos(x)) + np.sin(x) + 1 / np.sqrt(1 + x * x)
        ),
    ),
}


@pytest.mark.share(6)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name):
    of_tiles, of_numbers = EPILOGUES[name]
    a, b, c = run_gemm(gemm(epilogue=of_tiles), sizes(70, 90, 20), 70, 90, 20)
    want, magnitude = product(a, b)
    # Each of these functions has a slope of at most 2; its own arithmetic adds a few roundings of its value.
    bound = 2 * error_bound(magnitude, 20, f32) + 16 * np.finfo(np.float32).eps * (1 + np.abs(want) ** 1.0)
    np.testing.assert_array_less(np.abs(c - of_numbers(want)), bound)


@pytest.mark.parametrize("out", [f16, bf16, f8e4m3fn], ids=str)
def test_a_cast_rounds_once(out):
    a, b, c = run_gemm(gemm(epilogue=lambda x: cast(x, out), out=out), sizes(70, 90, 20), 70, 90, 20, out=out)
    _, _, wide = run_gemm(gemm(), sizes(70, 90, 20), 70, 90, 20)
    np.testing.assert_array_equal(c.view(np.uint8), wide.astype(out.numpy).view(np.uint8))
    check_product(c, a, b, out)


@pytest.mark.parametrize("along", [N, M], ids=str)
def test_a_bias_along_one_dimension(along):
    @wave(tiling())
    def biased(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], bias: Memory[along, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(read(bias) + total, c)

    bias = np.arange(90 if along == N else 70, dtype=np.float32)
    a, b, c = run_gemm(biased, sizes(70, 90, 20), 70, 90, 20, order=lambda t: (*t[:2], bias, t[2]))
    want, magnitude = product(a, b)
    shift = bias if along == N else bias[:, None]
    assert (np.abs(c - (want + shift)) <= error_bound(magnitude + np.abs(shift), 21, f32)).all()


@pytest.mark.parametrize("batches", [1, 3])
def test_batches(batches):
    rows = [WorkgroupConstraint(B, BLOCK_B, 2)]

    @wave(tiling(*rows))
    def batched(a: Memory[B, M, K, G, f16], b: Memory[B, N, K, G, f16], c: Memory[B, M, N, G, f32]):
        @iterate(K, init_args=[Register[B, M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(total, c)

    rng = np.random.default_rng(1)
    a, b = random_array(rng, (5, 70, 50), f16), random_array(rng, (5, 90, 50), f16)
    c = poisoned((5, 70, 90), f32)
    kernel = compiled(batched, subs={**sizes(70, 90, 50), B: 5, BLOCK_B: batches})
    kernel(a, b, c)
    check_product(c, a, b)
    assert kernel.schedule.grid == (-(-5 // batches), 2, 2)


def test_several_values_carried_and_nested_loops():
    """A product over L, and in each of its steps a whole product over K."""
    L = sym.L

    @wave(tiling(TilingConstraint(L, 16)))
    def nested(
        a: Memory[M, K, G, f32],
        b: Memory[N, K, G, f32],
        x: Memory[M, L, G, f32],
        y: Memory[N, L, G, f32],
        c: Memory[M, N, G, f32],
        d: Memory[M, N, G, f32],
    ):
        zero = Register[M, N, f32](0.0)

        @iterate(L, init_args=[zero, zero])
        def outer(total, steps):
            @iterate(K, init_args=[total])
            def inner(acc):
                return mma(read(a), read(b), acc)

            return mma(read(x), read(y), inner), steps + 1.0

        total, steps = outer
        write(total, c)
        write(steps, d)

    rng = np.random.default_rng(2)
    a, b = random_array(rng, (40, 50), f32), random_array(rng, (30, 50), f32)
    x, y = random_array(rng, (40, 35), f32), random_array(rng, (30, 35), f32)
    c, d = poisoned((40, 30), f32), poisoned((40, 30), f32)
    compiled(nested, subs={**sizes(40, 30, 50, 16, 16, 16), L: 35})(a, b, x, y, c, d)
    check_product(c, np.concatenate([x, a, a, a], axis=1), np.concatenate([y, b, b, b], axis=1))
    assert (d == 3).all()


def test_a_symbol_set_before_a_loop_and_changed_in_it_is_carried():
    """The window slides by 1, 2, 3, … rows: the symbol's value comes from the round before."""
    T, ROW = sym.T, sym.ROW
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    there = IndexMapping(2, {M: i, N: j}, {M: i + ROW, N: j})

    @wave([GridConstraint(1), WorkgroupConstraint(M, 1, 0), WorkgroupConstraint(N, 8, 1), TilingConstraint(T)])
    def slide(c: Memory[M, N, G, f32]):
        set_symbol(ROW, 0)

        @iterate(T, start=0, condition=T < 4, init_args=[Register[M, N, f32](1.0)])
        def rows(value):
            write(value, c, mapping=there)
            set_symbol(ROW, scalar(ROW) + 1)
            set_symbol(T, self_index(T) + 1)
            return value * 2.0

    c = poisoned((4, 8), f32)
    compiled(slide, subs={M: 4, N: 8})(c)
    np.testing.assert_array_equal(c, np.repeat([[1.0], [2.0], [4.0], [8.0]], 8, axis=1))


def test_index_mappings_that_are_no_plain_windows():
    """Every second row, where there is one, and columns in reverse."""
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    source = IndexMapping(2, {M: 2 * i, N: 99 - j}, {M: i, N: j})

    @wave([WorkgroupConstraint(M, 128, 0), WorkgroupConstraint(N, 32, 1)])
    def pick(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a, mapping=source), c)

    a, c = np.arange(9000, dtype=np.float32).reshape(90, 100), poisoned((90, 100), f32)
    compiled(pick, subs={M: 90, N: 100})(a, c)
    want = np.zeros((90, 100), np.float32)
    want[:45] = a[::2, ::-1]
    np.testing.assert_array_equal(c, want)


def test_a_transposing_write_and_a_scattering_one():
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    turned = IndexMapping(2, {M: i, N: j}, {N: j, M: i})
    spread = IndexMapping(2, {M: i, N: j}, {N: 99 - j, M: i})

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def turn(a: Memory[M, N, G, f32], c: Memory[N, M, G, f32], d: Memory[N, M, G, f32]):
        tile = read(a)
        write(tile, c, mapping=turned)
        write(tile, d, mapping=spread)

    a = np.arange(9000, dtype=np.float32).reshape(90, 100)
    c, d = poisoned((100, 90), f32), poisoned((100, 90), f32)
    compiled(turn, subs={M: 90, N: 100})(a, c, d)
    np.testing.assert_array_equal(c, a.T)
    np.testing.assert_array_equal(d, a.T[::-1])


def test_self_index_masks_a_triangle():
    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def lower(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        row, column = self_index(M, i32), self_index(N, i32)
        tile = read(a)
        rows = tile * 0.0 + cast(row, f32)
        write(select(rows < cast(column, f32), 0.0, tile), c)

    a, c = np.random.default_rng(0).standard_normal((50, 70)).astype(np.float32), poisoned((50, 70), f32)
    compiled(lower, subs={M: 50, N: 70})(a, c)
    np.testing.assert_array_equal(c, np.tril(a))


def test_operands_changed_before_a_product_are_zero_beyond_the_edge_of_k():
    @wave(tiling())
    def shifted(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a) + 1.0, exp2(read(b)), acc)

        write(total, c)

    rng = np.random.default_rng(3)
    a, b, c = random_array(rng, (40, 37), f32), random_array(rng, (30, 37), f32), poisoned((40, 30), f32)
    compiled(shifted, subs=sizes(40, 30, 37))(a, b, c)
    check_product(c, a + np.float32(1), np.exp2(b))


# -- symbols --------------------------------------------------------------------------------------------------------

small = st.integers(0, 50)


@given(small, small, st.integers(1, 9), st.integers(1, 9))
def test_expressions_mean_what_python_means(m, n, p, q):
    m_, n_, p_, q_ = sym.m, sym.n, sym.p, sym.q
    values = {m_: m, n_: n, p_: p, q_: q}
    for e, want in [
        (m_ + 2 * n_ - q_, m + 2 * n - q),
        ((m_ - n_) // p_, (m - n) // p),
        ((m_ - n_) % p_, (m - n) % p),
        (ceiling(m_ / p_), -(-m // p)),
        (ceiling((m_ + n_) / p_ + 1), -(-(m + n) // p) + 1),
        (floor(m_ / p_ / q_), m // (p * q)),
        (math.ceil(m_ / p_), -(-m // p)),
        (Min(m_, n_, 7), min(m, n, 7)),
        (Max(m_, n_), max(m, n)),
        (3 - m_ % p_, 3 - m % p),
    ]:
        assert e.evaluate(values) == want, str(e)
    assert (m_ < n_).evaluate(values) == (m < n)
    assert (m_ >= n_).evaluate(values) == (m >= n)
    assert Eq(m_, n_).evaluate(values) == (m == n)


@given(small, small, st.integers(1, 9))
@settings(max_examples=examples(50))
def test_sympys_functions_over_our_symbols_keep_their_meaning(m, n, p):
    m_, n_, p_ = sym.m, sym.n, sym.p
    values = {m_: m, n_: n, p_: p}
    for e, want in [
        (sympy.ceiling(m_ / p_), -(-m // p)),
        (sympy.floor((m_ + n_) / p_), (m + n) // p),
        (sympy.Min(m_ % p_, n_), min(m % p, n)),
        (sympy.Max(m_, n_ + 1) * p_, max(m, n + 1) * p),
        (p_ * sympy.ceiling(m_ / p_) - sympy.Min(m_, n_), p * -(-m // p) - min(m, n)),
        (sympy.ceiling(m_ / p_) // 2 + sympy.ceiling(m_ / p_) % 3, -(-m // p) // 2 + -(-m // p) % 3),
    ]:
        assert tw.lang.symbols.expression(e).evaluate(values) == want, str(e)


def test_powers_are_products():
    m = sym.m
    assert (m**3).evaluate({m: 5}) == 125
    assert str(m**2) == "m * m"
    assert (np.int64(3) * m**1).evaluate({m: 5}) == 15


def test_subs_may_be_made_of_each_other_in_any_order():
    for order in ([M, N, K], [K, N, M], [N, M, K]):
        values = {M: N * 2, N: K * np.int64(2), K: np.int32(32)}
        kernel = compiled(gemm(), subs={**sizes(0, 0, 0), **{s: values[s] for s in order}})
        assert [p.shape for p in kernel.parameters] == [(128, 32), (64, 32), (128, 64)]


def test_an_address_space_may_be_that_of_another():
    @wave([WorkgroupConstraint(M, 16, 0)])
    def copy(a: Memory[M, sym.HERE, f32], c: Memory[M, G, f32]):
        write(read(a), c)

    subs = {M: 64, sym.HERE: sym.THERE, sym.THERE: SHARED_ADDRESS_SPACE}
    assert "through = shared" in str(compiled(copy, subs=subs).kernel)


def test_a_kernel_with_sympys_functions_compiles():
    wide = sympy.ceiling(M / BLOCK_M)
    order = [ReorderingConstraint((WORKGROUP_0 + 1) % wide, 0)]
    a, b, c = run_gemm(gemm(constraints=order), sizes(300, 90, 20), 300, 90, 20)
    check_product(c, a, b)


def test_symbols_are_keys_and_equal_by_name():
    assert sym.M == sym.M
    assert hash(sym.M) == hash(Symbol("M"))
    assert {sym.M: 1}[sym.M] == 1
    assert sym.M != sym.N
    assert str(ceiling(sym.M / sym.BLOCK_M) * 2) == "ceiling(M / BLOCK_M) * 2"


def test_a_size_that_is_no_number_is_refused():
    with pytest.raises(SymbolError, match="M is 'many', no whole number and no expression"):
        compiled(gemm(), subs={**sizes(1, 1, 1), M: "many"})
    with pytest.raises(SymbolError, match="M is -1; symbols are not negative"):
        compiled(gemm(), subs={**sizes(1, 1, 1), M: -1})


# -- orders ---------------------------------------------------------------------------------------------------------

WGM, HALF = sym.WGM, sym.HALF


@pytest.mark.parametrize("parameter", [WGM, 2 * HALF, sympy.Max(HALF, WGM)], ids=str)
def test_an_orders_parameter_is_given_in_subs_or_at_the_call(parameter):
    kernel = gemm(constraints=[WorkgroupMapping(tw.mapping.grouped(parameter))])
    want = compiled(gemm(constraints=[WorkgroupMapping("grouped(4)")]), subs=sizes(512, 384, 32))
    given = {s: {WGM: 4, HALF: 2}[s] for s in tw.lang.symbols.expression(parameter).symbols()}
    assert compiled(kernel, subs={**sizes(512, 384, 32), **given}).kernel == want.kernel
    at_call = compiled(kernel, subs=sizes(512, 384, 32), dynamic_symbols=given)
    assert at_call.schedule_for(**{s.name: value for s, value in given.items()}) == want.schedule


def test_an_orders_parameter_is_half_known():
    kernel = gemm(constraints=[WorkgroupMapping(tw.mapping.grouped(HALF * WGM))])
    found = compiled(kernel, subs=sizes(512, 384, 32, HALF=2), dynamic_symbols=[WGM])
    want = compiled(gemm(constraints=[WorkgroupMapping("grouped(6)")]), subs=sizes(512, 384, 32))
    assert found.schedule_for(WGM=3) == want.schedule


def test_a_symbol_that_stays_open_and_decides_nothing_leaves_the_schedule_known():
    kernel = compiled(
        gemm(epilogue=lambda x: x * cast(scalar(WGM), f32)), subs=sizes(70, 90, 50), dynamic_symbols=[WGM]
    )
    assert kernel.schedule == compiled(gemm(), subs=sizes(70, 90, 50)).schedule
    assert kernel.schedule == kernel.schedule_for(WGM=7)


# -- compiling ------------------------------------------------------------------------------------------------------


def test_compiling_twice_gives_what_fresh_kernels_give():
    shapes = [(300, 200, 64), (64, 64, 32), (129, 257, 65)]
    one = gemm()
    for order in (shapes, shapes[::-1], shapes):
        for shape in order:
            assert compiled(one, subs=sizes(*shape)).kernel == compiled(gemm(), subs=sizes(*shape)).kernel


def test_a_pass_that_runs_twice_has_two_names():
    kernel = compiled(gemm(), subs=sizes(70, 90, 50))
    names = [step.name for step in kernel.steps]
    assert len(names) == len(set(names))
    assert kernel.ir("simplify") == kernel.kernel
    for step in kernel.steps:
        assert kernel.ir(step.name) == step.after
    assert numbered_apart(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]


def test_what_is_printed_of_a_kernel_is_short():
    printed = []

    def look(x):
        printed.append(f"{x!r}; {x}; {x.dtype}")
        return x

    @wave(tiling())
    def looked_at(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
        printed.append(f"{a!r}; {a}")

        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(read(a), read(b), acc)

        write(look(total), c)

    kernel = compiled(looked_at, subs=sizes(70, 90, 50))
    tile = "a tile [M, N] (64x64 f32)"
    assert printed == ["a [M, K]; a [M, K]", f"{tile}; {tile}; f32"]
    assert repr(kernel) == f"<compiled looked_at for {kernel.target}: 4 workgroups, 2x2 tiles>"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell columns, and so no names")
def test_constants_keep_the_names_that_the_author_gave_them():
    @wave([WorkgroupConstraint(M, 16, 0)])
    def named(c: Memory[M, G, f32]):
        half = Register[M, f32](0.5)
        three = scalar(3.0, f32)
        scaled = half * three
        write(scaled * 2.0, c)

    text = str(compiled(named, subs={M: 64}).ir("trace"))
    assert "%half = const() {value = 0.5}" in text
    assert "%three = const() {value = 3.0}" in text
    assert "%scaled = mul(%half, " in text


def test_a_star_import_leaves_pythons_own_names_alone():
    names = {}
    exec("from tilewave import *", names)
    assert "bool" not in names
    assert "abs" not in names
    assert tw.bool.name == "bool"
