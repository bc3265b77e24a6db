"""ops.moe beside float64 numpy: counts of tokens and experts, dtypes, routings, layouts, and what is refused."""

import numpy as np
import pytest
from mixtures import BF16, expected, mixture, want_near

from tilewave import ops
from tilewave.errors import CallError, DTypeError


def poisoned(of):
    return np.full(of.x.shape, np.nan, of.x.dtype)


CASES = {
    "a few tokens": ({"tokens": 23}, 2),
    "one token": ({"tokens": 1}, 2),
    "fewer tokens than experts": ({"tokens": 5, "experts": 40}, 3),
    "one expert has all": ({"tokens": 50, "favoured": [4]}, 1),
    "two experts have all": ({"tokens": 50, "favoured": [0, 5]}, 2),
    "one expert": ({"tokens": 20, "experts": 1}, 1),
    "all experts": ({"tokens": 20}, 6),
    "eight of many": ({"tokens": 70, "experts": 40}, 8),
    "many tokens": ({"tokens": 600, "hidden": 16, "narrow": 8, "experts": 3}, 2),
    "hidden numbers that tiles do not divide": ({"tokens": 33, "hidden": 131, "narrow": 67}, 2),
    "one hidden number": ({"tokens": 9, "hidden": 1, "narrow": 1}, 2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16])
@pytest.mark.share(16)
def test_results(case, dtype):
    shape, top_k = CASES[case]
    of = mixture(**shape, dtype=dtype)
    out = poisoned(of)
    assert ops.moe(*of.arrays, top_k, out=out) is out
    want_near(out, expected(of, top_k))


@pytest.mark.parametrize("top_k", range(1, 9))
@pytest.mark.share(8)
def test_experts_of_a_token(top_k):
    of = mixture(20, experts=9, seed=top_k)
    want_near(ops.moe(*of.arrays, top_k), expected(of, top_k))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.share(4)
def test_weights(scoring, renormalize):
    of = mixture(20, seed=3)
    found = ops.moe(*of.arrays, 2, scoring=scoring, renormalize=renormalize)
    want_near(found, expected(of, 2, scoring, renormalize))


def test_another_activation():
    of = mixture(20, seed=4)
    found = ops.moe(*of.arrays, 2, activation="relu")
    want_near(found, expected(of, 2, activation=lambda x: np.maximum(x, 0)))


@pytest.mark.parametrize("dtype", [np.float64, BF16])
def test_logits_of_other_dtypes(dtype):
    """Those of 16 bits are often equal: the first of them is chosen."""
    of = mixture(60, seed=5)
    logits = (of.logits.astype(dtype) * 4).round() / 4
    of = type(of)(of.x, logits.astype(dtype), of.w1, of.w2)
    want_near(ops.moe(*of.arrays, 2), expected(of, 2))


def test_an_expert_that_no_token_wants():
    """Its matrices are not numbers, and no result has them."""
    of = mixture(30, favoured=[1, 2])
    for expert in (0, 3, 4, 5):
        of.w1[expert], of.w2[expert] = np.nan, np.inf
    want_near(ops.moe(*of.arrays, 2), expected(of, 2))


def test_tokens_and_results_with_other_strides():
    of = mixture(30)
    x, logits, w1, w2 = (np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) for a in of.arrays)
    out = np.full((2 * 30, 40), np.nan, np.float32)
    ops.moe(x, logits, w1, w2, 2, out=out[1::2])
    want_near(out[1::2], expected(of, 2))
    assert np.isnan(out[::2]).all()


def test_no_tokens():
    of = mixture(0)
    assert ops.moe(*of.arrays, 2).shape == (0, 40)


# the same bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_a_token_has_the_same_bits_alone_and_among_others(dtype):
    of = mixture(700, dtype=dtype, experts=3)
    whole = ops.moe(*of.arrays, 2)
    for part in (slice(0, 1), slice(5, 6), slice(17, 33), slice(1, 300), slice(699, 400, -1)):
        found = ops.moe(*of.of(part).arrays, 2)
        assert found.tobytes() == whole[part].tobytes()
    assert ops.moe(*of.arrays, 2).tobytes() == whole.tobytes()


def test_its_products_are_batch_invariant():
    kernel = ops.moe.kernel(*mixture(20).arrays, 2)
    assert kernel.name == "gated_product" and kernel.options.get("batch_invariant")


# what is refused ------------------------------------------------------------------------------------------------------


def without(of, name, change):
    arrays = dict(zip(("x", "logits", "w1", "w2"), of.arrays, strict=True))
    return (*{**arrays, name: change(arrays[name])}.values(), 2)


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("x", lambda x: x[:-1], "do not go together"),
        ("x", lambda x: x[0], "x is 40"),
        ("logits", lambda logits: logits[:, :-1], "do not go together"),
        ("w1", lambda w1: w1[:, :-1], "do not go together"),
        ("w1", lambda w1: w1[:-1], "do not go together"),
        ("w2", lambda w2: w2[:, :-1], "do not go together"),
        ("w2", lambda w2: w2[:, :, :0], "do not go together"),
        ("w1", lambda w1: w1.astype(np.float16), "w1 is f16, but x is f32"),
        ("x", lambda x: x.astype(np.int32), "x is i32, but it takes floats"),
        ("logits", lambda logits: logits.astype(np.int32), "router_logits is i32"),
    ],
)
def test_arrays_that_are_refused(name, change, what):
    with pytest.raises((CallError, DTypeError)) as caught:
        ops.moe(*without(mixture(9), name, change))
    assert what in caught.value.what


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"top_k": 0}, "0 of each row"),
        ({"top_k": 7}, "7 of each row"),
        ({"top_k": 1.5}, "1.5"),
        ({"top_k": 2, "scoring": "tanh"}, "no scoring is called 'tanh'"),
        ({"top_k": 2, "activation": "cos"}, "cos"),
        ({"top_k": 2, "out": np.zeros((9, 41), np.float32)}, "out"),
    ],
)
def test_arguments_that_are_refused(said, what):
    with pytest.raises((CallError, DTypeError)) as caught:
        ops.moe(*mixture(9).arrays, **said)
    assert what in caught.value.what


def test_a_wider_result():
    of, out = mixture(30, dtype=np.float16), np.full((30, 40), np.nan, np.float32)
    assert ops.moe(*of.arrays, 2, out=out) is out
    want_near(out, expected(of, 2))


def test_results_do_not_overlap_arguments():
    of = mixture(9)
    with pytest.raises(CallError):
        ops.moe(*of.arrays, 2, out=of.x[:, ::-1][:, ::-1])


# the sort -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "length"), [(1, 1), (40, 7), (2000, 70), (1025, 1)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_counting_sort(count, length, dtype):
    x = np.random.default_rng(count).integers(-1, length + 1, count).astype(dtype)
    places, ends = ops.counting_sort(x, length)
    is_value = (x >= 0) & (x < length)
    order = np.flatnonzero(is_value)[np.argsort(x[is_value], kind="stable")]
    np.testing.assert_array_equal(places[order], np.arange(len(order)))
    assert (places[~is_value] == -1).all()
    np.testing.assert_array_equal(ends, np.bincount(x[is_value], minlength=length).cumsum())


def test_a_counting_sort_of_no_numbers():
    places, ends = ops.counting_sort(np.zeros((0, 3), np.int32), 4)
    assert places.shape == (0, 3) and ends.tolist() == [0] * 4
    with pytest.raises(CallError):
        ops.counting_sort(np.zeros(3, np.int32), 0)
