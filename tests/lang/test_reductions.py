"""Reductions: their results on the interpreter, compared with a tree written here, and the errors that authors get."""

from functools import reduce
from itertools import product

import numpy as np
import pytest
from kernels import G, K, M, N
from messages import HEAD, said, same

import tilewave as tw
from tilewave import *
from tilewave.errors import CallError, DimensionError, DTypeError, ShapeError, TraceError

P, T = sym.P, sym.T
HOWS = ("sum", "prod", "max", "min", "any", "all")
DTYPES = (f64, f32, f16, bf16, f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, i8, i32, i64, tw.bool)
FLOATS = DTYPES[:8]
WIDE = {f16: f32, bf16: f32, **dict.fromkeys(FLOATS[4:], f32), i8: i32, tw.bool: i32}
COMBINED = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
ROWS, STEP = 5, 8
LENGTHS = (1, 7, 8, 16, 37)


def made_in(how, dtype):
    """The dtype of what a reduction gives."""
    return tw.bool if how in ("any", "all") else WIDE.get(dtype, dtype) if how in ("sum", "prod") else dtype


def tree(how, numbers):
    """Combine neighbours first; an element without a neighbour waits."""
    with np.errstate(all="ignore"):
        while len(numbers) > 1:
            pairs = [COMBINED[how](a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=False)]
            numbers = pairs + numbers[len(pairs) * 2 :]
    return numbers[0]


def wanted(how, x, dtype):
    """One number of a row of an array; small floats are compared in f32, which holds them all."""
    if how in ("any", "all"):
        return tree(how, list(x.astype(np.float64) != 0))
    in_dtype = np.float32 if dtype in FLOATS[2:] else made_in(how, dtype).numpy
    return tree(how, list(x.astype(in_dtype))).astype(made_in(how, dtype).numpy)


def numbers(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == tw.bool:
        return rng.random(shape) < 0.5
    if dtype.is_int:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    return rng.standard_normal(shape).astype(dtype.numpy)


def agree(found, want):
    """Bit by bit, but for what a NaN carries."""
    found, want = (
        np.asarray(x).astype(np.float64) if x.dtype.kind not in "iub" else np.asarray(x) for x in (found, want)
    )
    np.testing.assert_array_equal(found, want)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(want)[found == 0])


def poisoned(shape, dtype):
    return np.full(shape, np.nan if dtype.is_float else 77 if dtype.is_int else True).astype(dtype.numpy)


# the ways a dim is there ----------------------------------------------------------------------------------------------


def whole(how, dtype, dims, compute=lambda x: x):
    @wave([WorkgroupConstraint(M, 4, 0)])
    def kernel(x: Memory[(*dims, G, dtype)], y: Memory[M, G, made_in(how, dtype)]):
        write(getattr(compute(read(x)), how)(dim=N), y)

    return kernel


def cut(how, dtype, dims):
    i = IndexMapping.iterator(0)
    there = IndexMapping(1, inputs={M: i}, outputs={M: i, P: WORKGROUP_1})

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, STEP, 1)])
    def kernel(x: Memory[(*dims, G, dtype)], y: Memory[M, P, G, made_in(how, dtype)]):
        write(getattr(tw, how)(read(x), dim=N), y, mapping=there)

    return kernel


def walked(how, dtype, dims):
    made = made_in(how, dtype)

    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, STEP)])
    def kernel(x: Memory[(*dims, G, dtype)], first: Memory[M, G, made], y: Memory[M, G, made]):
        @iterate(N, init_args=[read(first)])
        def total(acc):
            return getattr(tw, how)(read(x), acc, dim=N)

        write(total, y)

    return kernel


def build(kernel, **options):
    return wave_compile(WaveCompileOptions(target="numpy", **options), kernel)


def cases():
    return [pytest.param(how, dtype, id=f"{how}-{dtype}") for how, dtype in product(HOWS, DTYPES) if fits(how, dtype)]


def fits(how, dtype):
    return dtype != tw.bool or how not in ("max", "min")


@pytest.mark.share(6)
@pytest.mark.parametrize("dims", [(M, N), (N, M)], ids=["rows", "columns"])
@pytest.mark.parametrize(("how", "dtype"), cases())
def test_a_whole_dim_is_reduced_whether_its_length_is_fixed_or_open(how, dtype, dims):
    kernel, made = whole(how, dtype, dims), made_in(how, dtype)
    left_open = build(kernel, max_sizes={N: 64})
    for length in LENGTHS:
        rows = numbers(dtype, (ROWS, length), length)
        x = rows if dims == (M, N) else rows.T.copy()
        want = np.array([wanted(how, row, dtype) for row in rows])
        for run in (build(kernel, subs={M: ROWS, N: length}), left_open):
            y = poisoned(ROWS, made)
            run(x, y)
            agree(y, want)


@pytest.mark.share(6)
@pytest.mark.parametrize(("how", "dtype"), cases())
def test_a_dim_cut_over_the_grid_is_reduced_tile_by_tile(how, dtype):
    for length, subs in product((1, 8, 37), ({}, {M: ROWS})):
        parts, rows = -(-length // STEP), numbers(dtype, (ROWS, length), length)
        y = poisoned((ROWS, parts), made_in(how, dtype))
        sizes = {M: ROWS, N: length, P: parts} if subs else {P: parts}
        build(cut(how, dtype, (M, N)), subs=sizes)(rows, y)
        tiles = [[wanted(how, row[p * STEP :][:STEP], dtype) for p in range(parts)] for row in rows]
        agree(y, np.array(tiles))


@pytest.mark.share(6)
@pytest.mark.parametrize(("how", "dtype"), cases())
def test_a_dim_walked_by_a_loop_is_reduced_step_by_step_beginning_with_acc(how, dtype):
    made = made_in(how, dtype)
    for length, subs in product((1, 16, 37), ({}, {M: ROWS})):
        rows, first, y = numbers(dtype, (length, ROWS), length).T, numbers(made, ROWS), poisoned(ROWS, made)
        build(walked(how, dtype, (N, M)), subs={**subs, N: length} if subs else {})(rows.T, first, y)
        in_dtype = np.float32 if made.is_float and made.bits < 32 else made.numpy
        want = [
            reduce(
                COMBINED[how],
                [wanted(how, row[at : at + STEP], dtype).astype(in_dtype) for at in range(0, length, STEP)],
                one,
            )
            for one, row in zip(first.astype(in_dtype), rows, strict=True)
        ]
        agree(y, np.array(want).astype(made.numpy))


ODD = {
    "a nan": [1.0, np.nan, 2.0],
    "infinities": [np.inf, -np.inf, 1.0],
    "infinity": [1.0, np.inf, -3.0],
    "all as small as can be": [-np.inf] * 3,
    "zeros": [0.0, -0.0, 0.0],
    "negative": [-5.0, -4.0, -7.0],
    "positive": [5.0, 4.0, 7.0],
}


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("odd", ODD)
def test_odd_numbers_are_reduced_as_numpy_reduces_them(odd, dtype):
    row = np.array(ODD[odd]).astype(dtype.numpy)
    for how in HOWS:
        with np.errstate(all="ignore"):
            want = getattr(np, how)(row.astype(np.float32 if dtype != f64 else np.float64))
        y = poisoned(1, made_in(how, dtype))
        build(whole(how, dtype, (M, N)), subs={M: 1, N: 3})(row[None], y)
        np.testing.assert_array_equal(y[0].astype(np.float64), np.float64(want))
        build(whole(how, dtype, (M, N)), max_sizes={N: 16})(row[None], y)
        np.testing.assert_array_equal(y[0].astype(np.float64), np.float64(want))


def test_minus_zero_is_the_smaller_of_two_zeros():
    for how, sign in (("max", False), ("min", True)):
        for row in ([0.0, -0.0], [-0.0, 0.0]):
            y = np.empty(1, np.float32)
            build(whole(how, f32, (M, N)), subs={M: 1, N: 2})(np.array([row], np.float32), y)
            assert np.signbit(y[0]) == sign


@pytest.mark.share(8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", HOWS)
def test_what_was_computed_past_the_end_never_counts(how, dtype):
    """0 becomes what would decide every result: 100, or -100, or the truth and its opposite."""
    if not fits(how, dtype):
        pytest.skip("truth values are reduced by any and all")
    for other in (True, False) if dtype == tw.bool else (100, -100):

        def computed(x, other=other):
            zero = x == x.make(x.builder.const(0.0 if dtype.is_float else 0, x.type)) if dtype != tw.bool else ~x
            return zero == other if dtype == tw.bool else select(zero, cast(scalar(other, i32), dtype), x)

        rows = np.ones((3, 5)).astype(dtype.numpy)
        shown = np.full((3, 5), not other) if dtype == tw.bool else rows
        want = np.array([wanted(how, row, dtype) for row in shown])
        for options in ({"subs": {M: 3, N: 5}}, {"max_sizes": {N: 16}}):
            kernel = whole(how, dtype, (M, N), computed)
            y = poisoned(3, made_in(how, dtype))
            build(kernel, **options)(rows, y)
            agree(y, want)


# positions ------------------------------------------------------------------------------------------------------------


def positions(how, dtype, constraints=()):
    @wave([WorkgroupConstraint(M, 4, 0), *constraints])
    def kernel(x: Memory[M, N, G, dtype], y: Memory[M, G, i32]):
        write(getattr(tw, how)(read(x), dim=N), y)

    return kernel


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["argmax", "argmin"])
def test_positions_are_those_of_the_first(how, dtype):
    rng = np.random.default_rng(1)
    rows = (rng.random((9, 37)) < 0.1) if dtype == tw.bool else rng.integers(-3, 4, (9, 37)).astype(dtype.numpy)
    if dtype.is_float:
        rows[1, 20], rows[2, 3:9] = np.nan, np.nan
        rows[3], rows[4] = -5, 5  # one number all along
    for options in ({"subs": {M: 9, N: 37}}, {"max_sizes": {N: 64}}):
        y = np.full(9, -7, np.int32)
        build(positions(how, dtype), **options)(rows, y)
        in_dtype = rows.astype(np.float64) if dtype.is_float else rows
        np.testing.assert_array_equal(y, getattr(np, how)(in_dtype, axis=1))


def test_positions_of_a_dim_that_is_cut_are_those_of_the_whole_dim():
    i = IndexMapping.iterator(0)
    there = IndexMapping(1, inputs={M: i}, outputs={M: i, P: WORKGROUP_1})

    @wave([WorkgroupConstraint(M, 4, 0), WorkgroupConstraint(N, 8, 1)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, P, G, i32]):
        write(read(x).argmin(dim=N), y, mapping=there)

    x, y = np.ones((4, 19), np.float32), np.full((4, 3), -1, np.int32)
    x[:, 5], x[:, 11], x[:, 18] = 0.5, 0.5, 0.5
    build(kernel, subs={M: 4, N: 19, P: 3})(x, y)
    assert (y == [5, 11, 18]).all()


@pytest.mark.share(8)
@pytest.mark.parametrize("dims", [(M, N), (N, M)], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_running_sums(dtype, dims):
    made = made_in("sum", dtype)

    @wave([WorkgroupConstraint(M, 4, 0)])
    def kernel(x: Memory[(*dims, G, dtype)], y: Memory[(*dims, G, made)]):
        write(cumsum(read(x), dim=N), y)

    for length in (1, 2, 3, 16, 37):
        rng = np.random.default_rng(length)
        rows = rng.integers(0 if dtype == tw.bool else -2, 2, (3, length)).astype(dtype.numpy)  # their sums are exact
        x = rows if dims == (M, N) else rows.T.copy()
        want = np.cumsum(rows.astype(np.float64), axis=1)
        for options in ({"subs": {M: 3, N: length}}, {"max_sizes": {N: 64}}):
            y = poisoned(x.shape, made)
            build(kernel, **options)(x, y)
            np.testing.assert_array_equal(y if dims == (M, N) else y.T, want)


# several dims, all of them, and what a reduction begins with ----------------------------------------------------------


def test_several_dims_at_once_the_last_of_the_tile_first():
    @wave([WorkgroupConstraint(M, 2, 0)])
    def kernel(x: Memory[M, N, K, G, f32], y: Memory[M, G, f32], z: Memory[M, G, f32], top: Memory[M, G, f32]):
        tile = read(x)
        write(tile.sum(dim=[N, K]), y)
        write(tile.sum(dim=(K, N)), z)
        write(tile.max(dim=(N, K)), top)

    x = np.random.default_rng(0).standard_normal((3, 7, 5)).astype(np.float32)
    y, z, top = (np.full(3, np.nan, np.float32) for _ in range(3))
    for options in ({"subs": {M: 3, N: 7, K: 5}}, {"max_sizes": {N: 16, K: 32}}):
        build(kernel, **options)(x, y, z, top)
        want = [tree("sum", [tree("sum", list(row)) for row in plane]) for plane in x]
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(z, want)
        np.testing.assert_array_equal(top, x.max((1, 2)))


def test_all_dims_leave_a_number_that_goes_with_any_tile():
    @wave([WorkgroupConstraint(M, 16, 0)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        tile = read(x)
        write(tile / tile.sum() + cast(tile.argmax(dim=N).max(), f32), y)

    x = np.random.default_rng(0).random((3, 7)).astype(np.float32)
    y = np.full_like(x, np.nan)
    build(kernel, subs={M: 3, N: 7})(x, y)
    total = tree("sum", [tree("sum", list(row)) for row in x])
    np.testing.assert_array_equal(y, x / total + np.float32(x.argmax(1).max()))


def test_acc_may_be_a_number():
    @wave([WorkgroupConstraint(M, 4, 0)])
    def kernel(x: Memory[M, N, G, f16], y: Memory[M, G, f32], z: Memory[M, G, f16]):
        write(tw.sum(read(x), 10.0, dim=N), y)
        write(read(x).max(dim=N, acc=2.0), z)

    x, y, z = np.ones((4, 3), np.float16), np.empty(4, np.float32), np.empty(4, np.float16)
    build(kernel, subs={M: 4, N: 3})(x, y, z)
    assert (y == 13).all() and (z == 2).all()


def test_of_nothing_the_sum_is_0_and_the_product_1():
    for options in ({"subs": {M: 3, N: 0}}, {"max_sizes": {N: 16}}):
        for how, want in (("sum", 0), ("prod", 1), ("any", False), ("all", True)):
            y = poisoned(3, made_in(how, f32))
            build(whole(how, f32, (M, N)), **options)(np.empty((3, 0), np.float32), y)
            assert (y == want).all()


def test_of_nothing_a_call_knows_no_largest_element():
    compiled = build(whole("max", f32, (M, N)), max_sizes={N: 16})
    with pytest.raises(CallError, match="N is 0, and of no elements there is no largest or smallest one"):
        compiled(np.empty((3, 0), np.float32), np.empty(3, np.float32))


def test_a_tile_carried_out_of_a_loop_is_reduced_behind_it():
    """Each element adds up a column of steps; past the end it added zeros."""

    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(N, 8)])
    def kernel(x: Memory[M, N, G, i32], y: Memory[M, G, i32]):
        @iterate(N, init_args=[Register[M, N, i32](0)])
        def parts(acc):
            return acc + read(x)

        write(parts.sum(dim=N), y)

    for length in (0, 3, 8, 21):
        x, y = np.arange(4 * length, dtype=np.int32).reshape(4, length), np.full(4, -1, np.int32)
        build(kernel, subs={M: 4, N: length})(x, y)
        assert (y == x.sum(1)).all()


def test_softmax_and_a_norm_in_a_persistent_kernel():
    @wave([WorkgroupConstraint(M, 2, 0), GridConstraint(3)])
    def softmax(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        tile = read(x)
        e = exp(tile - tile.max(dim=N))
        write(e / e.sum(dim=N), y)

    x = np.random.default_rng(0).standard_normal((13, 37)).astype(np.float32)
    x[3, :30] = -np.inf
    y = np.full_like(x, np.nan)
    build(softmax, max_sizes={N: 64})(x, y)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.abs(y - e / e.sum(1, keepdims=True)).max() < 2**-22  # e is near to 2⁻²⁴, and so are sum and quotient
    np.testing.assert_array_equal(y[3, :30], 0)


def test_the_same_sum_has_the_same_bits_however_long_a_row_may_be():
    x = np.random.default_rng(0).standard_normal((4, 37)).astype(np.float32)
    found = []
    for options in ({"subs": {M: 4, N: 37}}, *({"max_sizes": {N: most}} for most in (37, 64, 1000))):
        y = np.full(4, np.nan, np.float32)
        build(whole("sum", f32, (M, N)), **options)(x, y)
        found.append(y.tobytes())
    assert len(set(found)) == 1


def test_a_kernel_that_places_its_own_tiles_reduces_whole_and_walked_dims():
    row = sym.ROW
    i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
    there = IndexMapping(2, inputs={M: i + row, N: j}, outputs={M: i, N: j})
    back = IndexMapping(1, inputs={M: i}, outputs={M: i + row})

    @wave([GridConstraint(2), WorkgroupConstraint(M, 4, 0), TilingConstraint(T)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, G, f32], z: Memory[M, G, f32]):
        @iterate(T, start=scalar(WORKGROUP_0), condition=ceiling(M / 4) > T)
        def every_tile():
            set_symbol(row, self_index(T) * 4)
            tile = exp(read(x, mapping=there))
            write(tile.sum(dim=N), y, mapping=back)
            write(tile.max(dim=N), z, mapping=back)
            set_symbol(T, self_index(T) + 2)

    x = -np.ones((11, 5), np.float32)
    for options in ({"subs": {M: 11, N: 5}}, {"max_sizes": {N: 8}}):
        y, z = np.full(11, np.nan, np.float32), np.full(11, np.nan, np.float32)
        build(kernel, **options)(x, y, z)
        e = np.exp(np.float64(-1)).astype(np.float32)
        np.testing.assert_array_equal(y, tree("sum", [e] * 5))
        np.testing.assert_array_equal(z, e)


# the errors that authors get ----------------------------------------------------------------------------------------

KERNEL = """import tilewave as tw
@wave([WorkgroupConstraint(M, 4, 0)])
def rows(x: Memory[M, N, G, f32], b: Memory[M, N, G, tw.bool], y: Memory[M, G, f32]):
    tile = read(x)
    {line}
    write(tile, y)

wave_compile(WaveCompileOptions(subs={{M: 8, N: {length}}}, target="numpy"), rows)
"""


def told(line, what, remedy, error=DimensionError, length=16):
    return error, HEAD + KERNEL.format(line=line, length=length), line, what, remedy


MESSAGES = {
    "a dim that the tile does not have": told(
        "tile = tile.sum(dim=K)",
        "sum: a tile [M, N] (4x16 f32) has no dim K",
        "its dims are M, N: write x.sum(dim=N)",
    ),
    "a dim that is no symbol": told(
        "tile = tw.max(tile, dim=1)",
        "max: a tile [M, N] (4x16 f32) has no dim 1",
        "its dims are M, N: write x.max(dim=N)",
    ),
    "no dim at all": told(
        "tile = tile.min(dim=[])",
        "min: dim=[] names no dim",
        "write dim=N, or leave it out to reduce all: M, N",
    ),
    "a dim twice": told(
        "tile = tile.prod(dim=[N, N])",
        "prod: dim=[N, N] names N twice",
        "name each dim once",
    ),
    "acc with other dims": told(
        "tile = tile.sum(dim=N, acc=tile)",
        "sum: what it begins with is a tile [M, N] (4x16 f32), but a tile [M] (4 f32) is left of the tile",
        "give it the dims [M], or leave it out",
        ShapeError,
    ),
    "acc of another dtype": told(
        "tile = tile.sum(dim=N, acc=cast(tile.sum(dim=N), f64))",
        "a tile [M] (4 f32) and a tile [M] (4 f64) do not go together",
        "write cast(x, f32) or cast(x, f64) for one of them",
        DTypeError,
    ),
    "the largest truth value": told(
        "tile = read(b).max(dim=N)",
        "max compares numbers, not a tile [M, N] (4x16 bool)",
        "write any(x, dim=…)",
        DTypeError,
    ),
    "the smallest truth value": told(
        "tile = tw.min(read(b), dim=N)",
        "min compares numbers, not a tile [M, N] (4x16 bool)",
        "write all(x, dim=…)",
        DTypeError,
    ),
    "a list of Python's": told(
        "tile = tw.sum([1, 2])",
        "sum reduces a tile, not a list of numbers",
        "give it a tile, such as read(a); Python's own sum is builtins.sum",
        TraceError,
    ),
    "numbers of Python's": told(
        "tile = tw.max(1, 2)",
        "max reduces a tile, not 1",
        "give it a tile, such as read(a); Python's own max is builtins.max",
        TraceError,
    ),
    "a memory": told(
        "tile = tw.sum(x, dim=N)",
        "sum reduces a tile, not x [M, N]",
        "give it a tile, such as read(a); Python's own sum is builtins.sum",
        TraceError,
    ),
    "one number": told(
        "tile = tile.sum().sum()",
        "sum reduces a tile, not a number (f32)",
        "give it a tile, such as read(a)",
        TraceError,
    ),
    "the largest of none": told(
        "tile = tile.max(dim=N)",
        "max: N is 0 long, and of no elements there is no largest or smallest one",
        "give N at least 1 element",
        length=0,
    ),
    "the place of the largest of none": told(
        "tile = tile.argmin(dim=N)",
        "argmin: N is 0 long, and of no elements there is no largest or smallest one",
        "give N at least 1 element",
        length=0,
    ),
    "places along two dims": told(
        "tile = tile.argmax(dim=[M, N])",
        "argmax goes along one dim, not [M, N]",
        "write argmax(x, dim=N)",
    ),
    "places along a dim that is not there": told(
        "tile = tile.argmax(dim=K)",
        "argmax: a tile [M, N] (4x16 f32) has no dim K",
        "its dims are M, N: write x.argmax(dim=N)",
    ),
    "running sums along two dims": told(
        "tile = cumsum(tile, dim=[M, N])",
        "cumsum goes along one dim, not [M, N]",
        "write cumsum(x, dim=N)",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_author_is_told(case, tmp_path, monkeypatch):
    error, source, line, what, remedy = MESSAGES[case]
    expression = line.removeprefix("tile = ")
    excerpt = f"  gemm.py:12\n      {line}\n      {' ' * 7}{'^' * len(expression)}"
    same(said(tmp_path, monkeypatch, source, error), f"{what}\n{excerpt}\n  {remedy}")


@pytest.mark.parametrize("word", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum"])
def test_outside_a_kernel_there_is_nothing_to_reduce(word):
    with pytest.raises(TraceError, match=f"{word} is called outside a kernel"):
        getattr(tw, word)(np.ones(3), dim=N)


PLACED = """
i, ROW = IndexMapping.iterator(0), sym.ROW
there = IndexMapping(1, inputs={M: i + ROW}, outputs={M: i})
@wave([GridConstraint(2), WorkgroupConstraint(M, 4, 0), TilingConstraint(T)])
def own_tiles(x: Memory[M, G, f32], y: Memory[M, G, f32]):
    @iterate(T, start=scalar(WORKGROUP_0), condition=ceiling(M / 4) > T)
    def every_tile():
        set_symbol(ROW, self_index(T) * 4)
        tile = read(x, mapping=there)
        total = tile.max(dim=M)
        set_symbol(T, self_index(T) + 2)

wave_compile(WaveCompileOptions(subs={M: 11}, target="numpy"), own_tiles)
"""


def test_where_the_kernel_places_its_own_tiles_the_end_of_a_dim_is_not_known(tmp_path, monkeypatch):
    expected = """
        max: the kernel's own loop places its tiles of M, so which elements are past its end is not known
          gemm.py:17
              total = tile.max(dim=M)
                      ^^^^^^^^^^^^^^^
          tile M for iterate or take it whole, or leave the tiles to GridConstraint without that loop
        """
    same(said(tmp_path, monkeypatch, HEAD + PLACED, DimensionError), expected)
