"""`ops.attention` of few queries: rows of one tile are queries of heads that share keys, in whatever form they come."""

import numpy as np
import pytest
from attention_problems import Problem

from tilewave import bf16, call, f16, f32, f64, kernels, ops
from tilewave.errors import CallError
from tilewave.ops import plans
from tilewave.ops.arrays import NUMPY
from tilewave.ops.attending import AttentionAsked
from tilewave.ops.attending import attention as attend

ASKED = {
    "all": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 77},
    "both sides": {"window": 50},
    "capped": {"causal": True, "soft_cap": 1.5},
    "scaled": {"scale": 0.7},
}


def called(problem, q=None, k=None, v=None):
    """The result and the logarithms of its sums."""
    arrays = (q or (lambda x: x))(problem.q), (k or (lambda x: x))(problem.k), (v or (lambda x: x))(problem.v)
    return attend(NUMPY, (*arrays, problem.added, None), AttentionAsked(**problem.asked), True)


def transposed(x):
    """Return x's numbers as a view of [batch, position, head, element]."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def check(problem, **views):
    y, lse = called(problem, **views)
    problem.check(y, lse, -(-problem.keys // 16) + 2 * (-(-problem.keys // 64) + 1))


def kernel_of(problem):
    return ops.attention.kernel(problem.q, problem.k, problem.v).name


@pytest.mark.parametrize(
    "heads, queries, keys, name",
    [
        ((8, 2), 1, 700, "attention_rows"),
        ((8, 1), 1, 5000, "attention_parts"),
        ((8, 2), 4, 900, "attention_parts"),
        ((2, 2), 40, 3000, "attention_parts"),
        ((8, 8), 300, 300, "attention"),
    ],
)
def test_its_kernel_is_the_one_that_is_done_soonest(heads, queries, keys, name):
    problem = Problem(1, heads, queries, keys, 64, 64, dtype=f32)
    assert kernel_of(problem) == name
    check(problem)


@pytest.mark.share(12)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("queries, keys", [(1, 701), (3, 900), (16, 333)])
@pytest.mark.parametrize("bias", [None, f32], ids=str)
def test_whatever_is_asked_for(asked, queries, keys, bias):
    problem = Problem(1, (8, 2), queries, keys, 32, 32, dtype=f32, bias=bias, asked=asked)
    assert kernel_of(problem) != "attention" or queries == 16  # which fill the smallest tile of queries
    check(problem)


@pytest.mark.share(8)
@pytest.mark.parametrize("size", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_sizes_of_heads_and_dtypes(size, dtype):
    if dtype == f64:  # whose bound is counted in f32
        problem = Problem(1, (4, 1), 1, 500, size, size, dtype=f32, asked={"causal": True})
        y = ops.attention(*(x.astype(np.float64) for x in (problem.q, problem.k, problem.v)), causal=True)
        problem.check(y, None, 40)
    else:
        check(Problem(1, (4, 1), 1, 500, size, size, dtype=dtype, asked={"causal": True}))


@pytest.mark.parametrize("queries", [1, 4])
def test_tensors_lie_as_projections_leave_them(queries):
    """[batch, place, head, element], transposed: several queries of heads that share keys are copied into rows."""
    problem = Problem(2, (8, 2), queries, 900, 32, 32, dtype=f32, asked={"causal": True})
    check(problem, q=transposed, k=transposed, v=transposed)
    check(problem, q=transposed, k=transposed, v=transposed)  # by its plan


def test_a_bias_that_is_no_rows_is_not_copied():
    """One for all heads, of several queries each: as long as all scores, if it were."""
    problem = Problem(1, (8, 2), 4, 900, 32, 32, dtype=f32, bias=f32)
    problem.added = np.broadcast_to(problem.added[:, :1], problem.added.shape)
    check(problem)


def test_out_and_its_strides():
    problem = Problem(1, (8, 2), 4, 900, 32, 32, dtype=f32)
    out = np.full((1, 4, 8, 32), np.nan, np.float32).swapaxes(1, 2)
    assert ops.attention(problem.q, problem.k, problem.v, out=out) is out
    problem.check(out, None, 90)


@pytest.mark.parametrize(
    "shapes, has, needs",
    [
        ({"y": (2, 3, 2)}, "y is 2x3x2", "2x3x1x2"),
        ({"y": (3, 2, 1, 2)}, "y is 3x2x1x2", "2x3x1x2"),
        ({"y": (2, 3, 1, 2), "lse": (3, 2, 1)}, "lse is 3x2x1", "2x3x1"),
        ({"y": (2, 3, 1, 2), "bias": (2, 1, 1, 5)}, "bias is 2x1x1x5", "2x3x1x5"),
    ],
)
def test_arrays_of_another_shape_than_q_k_and_v_need_are_refused(shapes, has, needs):
    q, k, v = (np.ones((2, 3, n, size), np.float32) for n, size in ((1, 4), (5, 4), (5, 2)))
    given = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    with pytest.raises(CallError, match=f"{has}, but q, k and v need {needs}"):
        kernels.attention_decode(q, k, v, **given)
    assert np.isnan(given["y"]).all()


def test_one_more_key_compiles_nothing(monkeypatch):
    """A cache grows by a key at every step."""
    problem = Problem(1, (8, 1), 1, 3000, 32, 32, dtype=f32)
    compiled = []
    making = call.compiled_for
    monkeypatch.setattr(call, "compiled_for", lambda *facts: compiled.append(facts) or making(*facts))
    names = set()
    for keys in (100, 3000, *range(2000, 2020), *range(60, 70)):
        k, v = problem.k[:, :, :keys], problem.v[:, :, :keys]
        names.add(ops.attention.kernel(problem.q, k, v).name)
        if keys == 2000:
            compiled.clear()  # kernels for few keys and for many are there
        ops.attention(problem.q, k, v)
    assert names == {"attention_rows", "attention_parts"} and not compiled


def test_the_kernels_are_right_for_every_size():
    """No check at a call is needed when there are more keys than in any call before."""
    heads, scores, tile = kernels.Heads(64, 64, 4), kernels.Scores(0.1), kernels.AttentionTile(16, 64)
    find = kernels.attention_splits_kernel(tile, heads, scores, 1, f32, *[f16] * 3)
    whole = kernels.attention_rows_kernel(tile, heads, scores, 1, f32, *[f16] * 4)
    join = kernels.join_splits_kernel(64, f32, f16)
    assert all(kernel.compile("cpu").proof.holds for kernel in (find, whole, join))


def test_a_known_call_launches_both_kernels_at_once(monkeypatch):
    """With other arrays, of the same layout; what parts leave is no one's but the call's."""
    monkeypatch.setattr(plans, "MOST_NEW", 10**9)  # however many new layouts the tests before had
    problem, other = (Problem(1, (8, 1), 1, 5000, 64, 64, dtype=f32, seed=seed) for seed in (1, 2))
    called(problem)
    looked = []
    closely = plans.Operated._closely
    monkeypatch.setattr(plans.Operated, "_closely", lambda *a: looked.append(a) or closely(*a))
    check(other)
    check(problem)
    assert not looked
