"""`ops.embedding`, `ops.index_select`, `ops.index_add` and `ops.cross_entropy` on arrays of any number of axes."""

import ml_dtypes
import numpy as np
import pytest
from hostile_indices import inside, picked, table_of

from tilewave import ops
from tilewave.errors import CallError, DTypeError


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def ids_of(*shape, end=50, dtype=np.int64):
    return table_of(np.random.default_rng(1), shape, end, dtype)


def selected(x, dim, index):
    return np.moveaxis(picked(np.moveaxis(x, dim, 0), index), 0, dim)


@pytest.mark.parametrize("shape", [(), (1,), (37,), (3, 5), (2, 3, 4)], ids=str)
def test_embeddings_of_any_shape(shape):
    weight, ids = numbers(50, 136), ids_of(*shape)
    found = ops.embedding(weight, ids)
    assert found.shape == (*shape, 136) and found.dtype == weight.dtype
    np.testing.assert_array_equal(found, picked(weight, ids))


@pytest.mark.parametrize("shape", [(1,), (50,), (3, 50), (3, 50, 4), (2, 3, 50, 5)], ids=str)
def test_selections_along_any_axis(shape):
    x, index = numbers(*shape), ids_of(17)
    for dim in range(-len(shape), len(shape)):
        np.testing.assert_array_equal(ops.index_select(x, dim, index), selected(x, dim, index))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "int32", "int64"])
@pytest.mark.parametrize("alpha", [1, 2])
def test_sums_along_any_axis(dtype, alpha):
    rng = np.random.default_rng(2)
    x, index = rng.integers(-5, 6, (3, 20, 7)).astype(dtype), ids_of(17, end=3)
    for dim in (0, 1, -1):
        shape = [17 if i == dim % 3 else n for i, n in enumerate(x.shape)]
        source, there = rng.integers(-5, 6, shape).astype(dtype), inside(index, x.shape[dim])
        want = np.moveaxis(x.astype(np.float64), dim, 0)
        np.add.at(want, index[there], alpha * np.moveaxis(source.astype(np.float64), dim, 0)[there])
        found = ops.index_add(x, dim, index, source, alpha=alpha)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, np.moveaxis(want, 0, dim).astype(dtype))


def test_sums_of_16_bits_are_rounded_once():
    ones = np.ones((4096, 3), np.float16)
    assert (ops.index_add(0 * ones[:1], 0, np.zeros(4096, np.int32), ones) == 4096).all()  # f16 alone stops at 2048


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("shape", [(1000,), (3, 70), (0,), ()], ids=str)
def test_counts(dtype, shape):
    x = np.random.default_rng(3).integers(-3, 53, shape).astype(dtype).reshape(shape)
    found, there = ops.bincount(x, 50), inside(x, 50)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.bincount(x[there], minlength=50))
    weights = np.random.default_rng(4).integers(0, 9, shape).reshape(shape)
    for kind in ("float64", "float32", "float16", "int8", "int64"):
        found = ops.bincount(x, 50, weights.astype(kind))
        assert found.dtype == kind
        np.testing.assert_array_equal(found, np.bincount(x[there], weights[there], minlength=50).astype(kind))
    out = np.full(100, -1, np.int32)[::2]
    assert ops.bincount(x, 50, out=out) is out
    np.testing.assert_array_equal(out, np.bincount(x[there], minlength=50))


def losses_of(logits, labels, ignored=-100):
    wide = logits.astype(np.float64)
    there = inside(labels, wide.shape[1]) & (labels != ignored)
    lse = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)) + wide.max(axis=1)
    return np.where(there, lse - wide[np.arange(len(wide)), np.where(there, labels, 0)], 0), there


@pytest.mark.parametrize(("dtype", "alpha"), [(np.int64, 1e300), (np.int32, 2**31), (np.float32, 1e300)])
def test_an_alpha_that_sums_cannot_have_is_refused_before_anything_is_written(dtype, alpha):
    x, index, out = np.ones((3, 5), dtype), np.arange(3), np.full((3, 5), 7, dtype)
    with pytest.raises(CallError, match="alpha is"):
        ops.index_add(x, 0, index, x, alpha=alpha, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("ignored", [-100, 7])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(dtype, ignored, reduction):
    logits, labels = numbers(137, 300, dtype=dtype), ids_of(137, end=300)
    labels[5:20] = 7
    labels[20:30] = -100
    want, there = losses_of(logits, labels, ignored)
    want = {"none": want, "sum": want.sum(), "mean": want.sum() / there.sum()}[reduction]
    found = ops.cross_entropy(logits, labels, reduction=reduction, ignore_index=ignored)
    assert found.dtype == logits.dtype and found.shape == want.shape
    eps = float(ml_dtypes.finfo(logits.dtype).eps)
    unit = eps / 2 + 320 * (2.0**-53 if dtype == "float64" else 2.0**-24)
    assert (np.abs(found.astype(np.float64) - want) <= unit * np.maximum(np.abs(want), 10)).all()


@pytest.mark.parametrize("columns", [1, 5000, 262144])
def test_losses_of_any_number_of_classes(columns):
    logits, labels = numbers(3, columns), np.array([0, columns - 1, columns])
    want, _ = losses_of(logits, labels)
    found = ops.cross_entropy(logits, labels, reduction="none")
    assert np.abs(found - want).max() <= 2.0**-24 * 64 * 20
    assert np.isclose(ops.cross_entropy(logits[0], np.array(0)), want[0], atol=1e-5)


def test_a_mean_of_no_labels_is_none():
    logits = numbers(3, 5)
    assert np.isnan(ops.cross_entropy(logits, np.full(3, -100)))
    assert ops.cross_entropy(logits, np.full(3, -100), reduction="sum") == 0
    assert np.isnan(ops.cross_entropy(logits[:0], np.zeros(0, int)))
    assert ops.cross_entropy(logits[:0], np.zeros(0, int), reduction="sum") == 0
    assert ops.cross_entropy(logits[:0], np.zeros(0, int), reduction="none").shape == (0,)


def test_nothing_gives_nothing():
    weight, none = numbers(5, 7), np.zeros(0, np.int32)
    assert ops.embedding(weight, none).shape == (0, 7)
    assert ops.embedding(weight[:, :0], ids_of(4)).shape == (4, 0)
    assert (ops.embedding(weight[:0], ids_of(4)) == 0).all()
    assert ops.index_select(weight, 1, none).shape == (5, 0)
    np.testing.assert_array_equal(ops.index_add(weight, 0, none, weight[:0]), weight)
    assert ops.index_add(weight[:0], 0, ids_of(4), numbers(4, 7)).shape == (0, 7)


def test_arrays_in_other_layouts():
    weight, ids = numbers(50, 24), ids_of(3, 5)
    np.testing.assert_array_equal(ops.embedding(np.asfortranarray(weight), ids.T), picked(weight, ids.T))
    np.testing.assert_array_equal(ops.embedding(weight[::2, ::-1], ids[::2]), picked(weight[::2, ::-1], ids[::2]))
    x, index = numbers(6, 50, 4), ids_of(17)
    view = x.transpose(2, 1, 0)[::-1]
    for dim in range(3):
        np.testing.assert_array_equal(ops.index_select(view, dim, index), selected(view, dim, index))


def test_calls_are_replayed_with_other_numbers():
    weight, index = numbers(50, 24), ids_of(17)
    for seed in range(3):
        ids, source = np.random.default_rng(seed).integers(0, 50, 17), numbers(17, 24, seed=seed)
        np.testing.assert_array_equal(ops.embedding(weight, ids), weight[ids])
        want = weight.astype(np.float64)
        np.add.at(want, ids, 2.0 * source)
        assert np.abs(ops.index_add(weight, 0, ids, source, alpha=2) - want).max() < 1e-5
        labels = index % 24
        for ignored in (-100, 3):
            want, there = losses_of(source, labels, ignored)
            assert np.isclose(ops.cross_entropy(source, labels, ignore_index=ignored), want.sum() / there.sum())


def test_the_kernel_of_a_call_is_the_one_that_it_runs():
    x, index = numbers(50, 24), ids_of(17)
    assert ops.embedding.kernel(x, index).name == "embedding"
    assert ops.index_select.kernel(x, 0, index).name == "index_select"
    assert ops.index_add.kernel(x, 0, index, x[:17]).name == "index_add"
    assert ops.bincount.kernel(index, 50).name == "bincount"
    assert ops.cross_entropy.kernel(x[:17], index).name == "cross_entropy"


X, INDEX, F = numbers(3, 5), np.zeros(3, np.int32), np.zeros(3, np.float32)
REFUSED = [
    (lambda: ops.embedding(X, F), DTypeError, "embedding: ids is f32, but indices are integers"),
    (lambda: ops.embedding(F, INDEX), CallError, "embedding: weight is 3, but it takes rows and columns"),
    (lambda: ops.embedding(X, INDEX, out=X), CallError, "out overlaps weight"),
    (lambda: ops.embedding(X, INDEX, out=np.zeros((3, 5), int)), CallError, "out is i64, but the result is f32"),
    (lambda: ops.index_select(X, 2, INDEX), CallError, "dim is 2, but x has 2 axes"),
    (lambda: ops.index_select(X, 0, INDEX[None]), CallError, "index has 2 axes, but it takes a list"),
    (lambda: ops.index_select(F[0], 0, INDEX), CallError, "dim is 0, but x has 0 axes"),
    (lambda: ops.index_add(X, 0, INDEX, X[:2]), CallError, "source is 2x5, but what is added is 3x5"),
    (lambda: ops.index_add(X, 0, INDEX, X.astype(np.float64)), DTypeError, "source is f64, but x is f32"),
    (lambda: ops.index_add(X > 0, 0, INDEX, X > 0), DTypeError, "bool has no sums"),
    (lambda: ops.index_add(X, 0, F, X), DTypeError, "index is f32, but indices are integers"),
    (
        lambda: ops.index_add(INDEX, 0, INDEX, INDEX, alpha=0.5),
        CallError,
        "alpha is 0.5, but what it multiplies is i32",
    ),
    (lambda: ops.index_add(X, 0, INDEX, X, alpha="2"), CallError, "alpha is '2', not a number"),
    (lambda: ops.index_add(X, 0, INDEX, X, alpha=10**400), CallError, "not a finite number"),
    (lambda: ops.bincount(X, 5), DTypeError, "bincount: x is f32, but indices are integers"),
    (lambda: ops.bincount(INDEX, -1), CallError, "bincount: length is -1"),
    (lambda: ops.bincount(INDEX, 5, F[:2]), CallError, "weights is 2, but x is 3"),
    (lambda: ops.cross_entropy(X, INDEX[:2]), CallError, "labels are 2, but logits have 3 rows"),
    (lambda: ops.cross_entropy(X, F), DTypeError, "labels is f32, but indices are integers"),
    (lambda: ops.cross_entropy(X[None], INDEX[None]), CallError, "one row or a matrix of rows"),
    (lambda: ops.cross_entropy(X[:, :0], INDEX), CallError, "logits have no columns"),
    (lambda: ops.cross_entropy(X, INDEX, reduction="most"), CallError, "reduction is 'most'"),
    (lambda: ops.cross_entropy(X, INDEX, reduction=X), CallError, "reduction is array"),
    (lambda: ops.cross_entropy(X, INDEX, ignore_index=2**63), CallError, "ignore_index is 9223372036854775808"),
    (lambda: ops.cross_entropy(X, INDEX, ignore_index=1.5), CallError, "ignore_index is 1.5, not an integer"),
    (lambda: ops.cross_entropy(X.astype(int), INDEX), DTypeError, "cross_entropy: logits is i64, but it takes floats"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_does_not_fit_is_refused_with_the_author_s_line(call, error, message):
    with pytest.raises(error) as found:
        call()
    assert message in str(found.value) and found.value.loc.file == __file__ and found.value.remedy
