"""Dims of a tile under other names: every element of a row beside every other one."""

import numpy as np
import pytest
from hostile_indices import TARGETS, run

from tilewave import *
from tilewave.errors import TilewaveError

M, N, K, G = sym.M, sym.N, sym.K, GLOBAL_ADDRESS_SPACE


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [8, 13])
def test_ranks_by_counting(target, length):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def ranks(x: Memory[M, N, G, f32], y: Memory[M, N, G, i32], like: Memory[K, G, f32]):
        row = read(x)
        others = rename(row, {N: K})
        write(cast(cast(others < row, i32).sum(dim=K), i32), y)

    x = np.random.default_rng(0).permuted(np.arange(3 * length, dtype=np.float32).reshape(3, length), axis=1)
    y = np.zeros(x.shape, np.int32)
    run(ranks, target, x, y, np.zeros(length, np.float32), M=3, N=length, K=length)
    np.testing.assert_array_equal(y, np.argsort(np.argsort(x, axis=1), axis=1))


def test_elements_past_the_end_of_the_old_dim_are_0():
    @wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 8, 1)])
    def sums(x: Memory[M, G, f32], like: Memory[N, G, f32], y: Memory[N, G, f32]):
        ones = read(x) + 1.0
        write(rename(ones, {M: N}) + read(like) * 0.0, y)

    y = np.full(8, np.nan, np.float32)
    run(sums, "numpy", np.zeros(5, np.float32), np.zeros(8, np.float32), y, M=5, N=8)
    np.testing.assert_array_equal(y, [1] * 5 + [0] * 3)


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        ({K: M}, "has no dim K"),
        ({M: N}, "would have the dims [N, N]"),
        ({N: K}, "16 elements along N, and a tile"),
    ],
)
def test_what_cannot_be_renamed_says_why(dims, what):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def kernel(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], like: Memory[K, G, f32]):
        write(rename(read(x), dims), y)

    with pytest.raises(TilewaveError) as caught:
        kernel.compile(target="numpy", subs={M: 2, N: 16, K: 9})
    assert what in caught.value.what and caught.value.remedy
