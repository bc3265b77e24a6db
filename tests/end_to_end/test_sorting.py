"""sort, argsort and topk of rows and columns: every dtype, ties, NaN, infinity and signed zeros, on every target."""

import numpy as np
import pytest
from hostile_indices import TARGETS, run

from tilewave import *
from tilewave.errors import TilewaveError
from tilewave.ir.types import DTYPES
from tilewave.lang.sorting import exchanges

pytestmark = pytest.mark.share(12)
M, N, K, G = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE
targets = pytest.mark.parametrize("target", TARGETS)
DTYPES_SORTED = ("f64", "f32", "f16", "bf16", "f8e5m2", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")


def row_of(name, shape, seed=0):
    """Numbers with ties and all that is special in a dtype."""
    dtype, rng = DTYPES[name], np.random.default_rng(seed)
    if name == "bool":
        return rng.random(shape) < 0.5
    x = rng.integers(-5 if dtype.is_float or dtype.is_signed else 0, 6, shape).astype(dtype.numpy)
    flat = x.reshape(-1)
    if dtype.is_float:
        flat[::7], flat[3::11], flat[5::13], flat[1::5], flat[2::5] = np.nan, np.inf, -np.inf, -0.0, 0.0
    else:
        flat[::7], flat[3::11] = dtype.bounds
    return x


def ranks(x):
    """Integers with the order of x, in which NaN is the largest and 0 is -0."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x.astype(object)
    finite = np.where(wide != wide, np.inf, wide) if x.dtype.kind not in "iub" else wide
    nans = (wide != wide).astype(int) if x.dtype.kind not in "iub" else np.zeros(x.shape, int)
    values = sorted({(int(n), v) for n, v in zip(nans.ravel(), finite.ravel(), strict=True)})
    known = {pair: i for i, pair in enumerate(values)}
    pairs = zip(nans.ravel(), finite.ravel(), strict=True)
    return np.array([known[int(n), v] for n, v in pairs]).reshape(x.shape)


def order_of(x, descending, axis=1):
    return np.argsort(-ranks(x) if descending else ranks(x), axis=axis, kind="stable")


def same_bits(found, want):
    """Every bit, but those of NaN."""
    is_nan = (want != want) if want.dtype.kind not in "iub" else np.zeros(want.shape, bool)
    np.testing.assert_array_equal((found != found) if found.dtype.kind not in "iub" else is_nan, is_nan)
    got, wanted = (np.where(is_nan, np.zeros((), want.dtype), x) for x in (found, want))
    assert got.tobytes() == wanted.tobytes()


def sorting(dtype, descending, dims=(M, N)):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def kernel(x: Memory[(*dims, G, dtype)], y: Memory[(*dims, G, dtype)], places: Memory[(*dims, G, i32)]):
        values, at = sort(read(x), dim=N, descending=descending)
        write(values, y)
        write(at, places)

    return kernel


def largest(dtype):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def kernel(x: Memory[M, N, G, dtype], y: Memory[M, K, G, dtype], places: Memory[M, K, G, i32]):
        values, at = topk(read(x), dim=N, k=K)
        write(values, y)
        write(at, places)

    return kernel


@pytest.mark.parametrize("count", [*range(1, 34), 100, 128])
def test_the_network_sorts_every_row_of_zeros_and_ones(count):
    """The 0-1 principle: a network that sorts these sorts everything."""
    rows = np.arange(2**count) if count <= 12 else np.random.default_rng(count).integers(0, 2, (2000, count))
    x = (rows[:, None] >> np.arange(count) & 1) if count <= 12 else rows
    for p, r, far in exchanges(count):
        first = [i for i in range(count - far) if i & p == r]
        second = [i + far for i in first]
        assert not set(first) & set(second)
        x[:, first], x[:, second] = np.minimum(x[:, first], x[:, second]), np.maximum(x[:, first], x[:, second])
    assert (np.diff(x, axis=1) >= 0).all()


@targets
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_rows_are_sorted(target, descending, length):
    x = row_of("f32", (5, length))
    y, places = np.zeros_like(x), np.zeros(x.shape, np.int32)
    run(sorting(f32, descending), target, x, y, places, M=5, N=length)
    order = order_of(x, descending)
    np.testing.assert_array_equal(places, order)
    same_bits(y, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("name", DTYPES_SORTED)
@pytest.mark.parametrize("target", ["numpy", "gfx950", "sm_90a"])
def test_every_dtype_is_sorted(target, name):
    x = row_of(name, (3, 12))
    y, places = np.zeros_like(x), np.zeros(x.shape, np.int32)
    run(sorting(DTYPES[name], True), target, x, y, places, M=3, N=12)
    order = order_of(x, True)
    np.testing.assert_array_equal(places, order)
    same_bits(y, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("target", ["numpy", "gfx942"])
def test_columns_are_sorted(target):
    x = row_of("i32", (19, 5))
    y, places = np.zeros_like(x), np.zeros(x.shape, np.int32)
    run(sorting(i32, False, (N, M)), target, x, y, places, M=5, N=19)
    np.testing.assert_array_equal(y, np.sort(x, axis=0))
    np.testing.assert_array_equal(places, order_of(x, False, 0))


@pytest.mark.parametrize("target", ["numpy", "gfx950"])
def test_a_tile_that_hangs_over_the_edge_sorts_what_is_inside(target):
    @wave([WorkgroupConstraint(M, 2, 0), WorkgroupConstraint(N, 8, 1)])
    def kernel(x: Memory[M, N, G, f32], places: Memory[M, N, G, i32]):
        write(argsort(read(x), dim=N), places)

    x = row_of("f32", (3, 13))
    places = np.zeros(x.shape, np.int32)
    run(kernel, target, x, places)
    np.testing.assert_array_equal(places[:, :8], order_of(x[:, :8], False))
    np.testing.assert_array_equal(places[:, 8:], order_of(x[:, 8:], False) + 8)


@targets
@pytest.mark.parametrize(("length", "k"), [(1, 1), (8, 2), (60, 4), (128, 8), (300, 1)])
def test_the_largest_of_rows(target, length, k):
    x = row_of("f32", (5, length))
    y, places = np.zeros((5, k), np.float32), np.zeros((5, k), np.int32)
    run(largest(f32), target, x, y, places, M=5, N=length, K=k)
    order = order_of(x, True)[:, :k]
    np.testing.assert_array_equal(places, order)
    same_bits(y, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("name", DTYPES_SORTED)
@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
def test_the_largest_of_every_dtype(target, name):
    x = row_of(name, (3, 40))
    y, places = np.zeros((3, 3), x.dtype), np.zeros((3, 3), np.int32)
    run(largest(DTYPES[name]), target, x, y, places, M=3, N=40, K=3)
    order = order_of(x, True)[:, :3]
    np.testing.assert_array_equal(places, order)
    same_bits(y, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_rows_with_too_few_elements_have_no_place_for_the_rest(target):
    x = np.array([[3, np.nan, -np.inf]], np.float32)
    y, places = np.zeros((1, 5), np.float32), np.zeros((1, 5), np.int32)
    made = largest(f32).compile(target="cpu", max_sizes={N: 16, K: 5})
    (made if target == "cpu" else made.interpret)(x, y, places)
    np.testing.assert_array_equal(places, [[1, 0, 2, -1, -1]])
    np.testing.assert_array_equal(y[0, 1:3], [3, -np.inf])


@pytest.mark.parametrize(
    ("of", "what", "remedy"),
    [
        (lambda x: topk(x, dim=N, k=3)[1], "topk: k is 3, and takes the dim", "subs={K: 8}"),
        (lambda x: topk(x, dim=N, k=M)[1], "topk: k is M", "topk(x, dim=N, k=K)"),
        (lambda x: topk(x, dim=N, k=sym.L)[1], "topk: L is cut into tiles", "leave L out"),
        (lambda x: topk(x, dim=N, k=K)[1], "8 elements along N, and 9 of them are wanted", "at most 8"),
        (lambda x: topk(x, k=K)[1], "topk goes along one dim, not [M, N]", "topk(x, dim=N)"),
        (lambda x: sort(x)[1], "sort goes along one dim, not [M, N]", "sort(x, dim=N)"),
        (lambda x: argsort(3.0, dim=N), "argsort reduces a tile, not 3.0", "read(a)"),
    ],
)
def test_what_cannot_be_sorted_says_what_to_write(of, what, remedy):
    @wave([WorkgroupConstraint(M, 2, 0), WorkgroupConstraint(sym.L, 4, 1)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, N, G, i32]):
        write(of(read(x)), y)

    with pytest.raises(TilewaveError) as caught:
        kernel.compile(target="numpy", subs={M: 2, N: 8, K: 9, sym.L: 8})
    assert what in caught.value.what and remedy in caught.value.remedy
    assert "test_sorting.py" in str(caught.value)
