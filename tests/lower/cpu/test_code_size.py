"""Rows of any length, any number of them per tile: the LLVM IR stays short, because loops iterate over rows."""

import math

import numpy as np
import pytest
from kernels import G, poisoned

from tilewave import *
from tilewave.backend.cpu.build import run_passes
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.lower.cpu.kernel import LONGEST_BLOCK, longest_block, lower

B, M, N, Q = sym.B, sym.M, sym.N, sym.Q
SETS = [name for name, s in INSTRUCTION_SETS.items() if not s.matrix_unit]
LONGEST_LOOPS = 7_000
"""Lines of LLVM IR: a row of an awkward length has loops for its whole parts, and for each of falling powers of two."""


def log_softmax(rows, dtype=f32):
    @wave([WorkgroupConstraint(M, rows, 0)])
    def log_softmax(x: Memory[M, N, G, dtype], y: Memory[M, N, G, dtype]):
        r = cast(read(x), f32)
        r = r - r.max(dim=N)
        write(cast(r - log(exp(r).sum(dim=N)), dtype), y)

    return log_softmax


def softmax(rows, dtype=f32):
    @wave([WorkgroupConstraint(M, rows, 0)])
    def softmax(x: Memory[M, N, G, dtype], y: Memory[M, N, G, dtype]):
        r = cast(read(x), f32)
        e = exp(r - r.max(dim=N))
        write(cast(e / e.sum(dim=N), dtype), y)

    return softmax


def causal(rows, dtype=f32):
    @wave([WorkgroupConstraint(M, rows, 0)])
    def causal(x: Memory[M, N, G, dtype], y: Memory[M, N, G, dtype]):
        s = select(self_index(M, i32) >= self_index(N, i32), cast(read(x), f32), -math.inf)
        e = exp(s - s.max(dim=N))
        write(cast(e / e.sum(dim=N), dtype), y)

    return causal


def weighted(rows, dtype=f32):
    """The weights are dear to compute, and every row needs all of them."""

    @wave([WorkgroupConstraint(M, rows, 0)])
    def weighted(x: Memory[M, N, G, dtype], w: Memory[N, G, dtype], y: Memory[M, N, G, dtype]):
        q = exp(cast(read(w), f32))
        r = cast(read(x), f32) * (q / q.sum(dim=N))
        write(cast(r - r.sum(dim=N), dtype), y)

    return weighted


def argmax(rows, dtype=f32):
    @wave([WorkgroupConstraint(M, rows, 0)])
    def argmax(x: Memory[M, N, G, dtype], y: Memory[M, G, i32]):
        write(read(x).argmax(dim=N), y)

    return argmax


KERNELS = [log_softmax, softmax, causal, weighted, argmax]


def lowered(kernel, instruction_set, **sizes):
    s = INSTRUCTION_SETS[instruction_set]
    return lower(run_passes(kernel.compile(target="numpy", **sizes).kernel, s)[0], s)


def code_lines(kernel, instruction_set, **sizes):
    return lowered(kernel, instruction_set, **sizes).code_lines


def test_blocks_end_at_labels():
    assert longest_block("") == 0
    assert longest_block("define void @f() {\n.entry:\n  a\n  b\n.next:\n  c\n  d\n  e\n}\n") == 3


@pytest.mark.share(8)
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("instruction_set", SETS)
def test_code_does_not_grow_with_rows_nor_with_their_length(make, instruction_set):
    """Once the mask of an open length, made outside the loop over rows, kept rows of 1024 whole: 13,000 lines."""
    few = code_lines(make(1), instruction_set, max_sizes={N: 1024})
    for rows, length in ((2, 1024), (4, 1024), (8, 2048)):
        assert code_lines(make(rows), instruction_set, max_sizes={N: length}) <= 1.5 * few + 300
        assert code_lines(make(rows), instruction_set, subs={M: 101, N: length}) <= 1.5 * few + 300


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make.__name__)
def test_rows_of_awkward_lengths_have_a_bound(make, dtype):
    """LLVM takes under a second of processor time for each: they took up to 5, unrolled."""
    for instruction_set in ("avx512", "neon"):
        for rows, length in ((4, 500), (3, 77), (7, 333), (4, 1023)):
            made = lowered(make(rows, dtype), instruction_set, max_sizes={N: length})
            assert made.code_lines <= LONGEST_LOOPS
            assert made.longest_block <= LONGEST_BLOCK


def whole_causal():
    """Both dims whole: their positions are the same numbers, and one is an axis that is added up."""

    @wave([WorkgroupConstraint(B, 1, 0)])
    def causal(x: Memory[B, M, N, G, f32], y: Memory[B, M, N, G, f32]):
        s = select(self_index(M, i32) >= self_index(N, i32), read(x), -math.inf)
        e = exp(s - s.max(dim=N))
        write(e / e.sum(dim=N), y)

    return causal


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("length", [32, 33, 48, 64, 65, 128, 200])
def test_a_causal_softmax_of_two_whole_dims_compiles_everywhere(instruction_set, length):
    sizes = {B: 2, M: length, N: length}
    assert code_lines(whole_causal(), instruction_set, subs=sizes) <= LONGEST_LOOPS


@pytest.mark.parametrize("length", [33, 64, 128])
def test_a_causal_softmax_of_two_whole_dims_is_right(length):
    x = np.random.default_rng(length).standard_normal((2, length, length)).astype(np.float32)
    y = poisoned(x.shape, f32)
    whole_causal().compile(target="cpu", subs={B: 2, M: length, N: length})(x, y)
    e = np.where(np.tri(length) > 0, np.exp(x.astype(np.float64)), 0)
    # exp to two roundings of an argument below 2**4, a sum of `length` terms in a tree, a quotient
    bound = (2 * 16 + math.log2(length) + 4) * np.finfo(np.float32).eps
    np.testing.assert_allclose(y, e / e.sum(axis=-1, keepdims=True), rtol=bound, atol=0)


RANKS = {
    "before or smaller": (
        lambda a, b: (b < a) | (self_index(Q, i32) < self_index(N, i32)),
        lambda a, b, n, q: (b < a) | (q < n),
    ),
    "before and smaller": (
        lambda a, b: (self_index(N, i32) > self_index(Q, i32)) & (a > b),
        lambda a, b, n, q: (b < a) & (q < n),
    ),
    "among the first": (lambda a, b: (b == a) & (self_index(Q, i32) < 5), lambda a, b, n, q: (b == a) & (q < 5)),
    "at most": (lambda a, b: (b < a) | (b == a), lambda a, b, n, q: b <= a),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_by_comparing_pairs(name):
    """Both dims have the same length, and so the same positions; each is cut alone."""
    compared, wanted = RANKS[name]

    @wave([WorkgroupConstraint(M, 1, 0)])
    def ranks(x: Memory[M, N, G, f32], y: Memory[M, Q, G, f32], rank: Memory[M, N, G, i32]):
        write(compared(read(x), read(y)).sum(dim=Q), rank)

    sizes = {M: 3, N: 60, Q: 60}
    for instruction_set in SETS:
        assert code_lines(ranks, instruction_set, subs=sizes) <= LONGEST_LOOPS
    x, y = np.random.default_rng(0).integers(-9, 9, (2, 3, 60)).astype(np.float32)
    rank = np.full((3, 60), -1, np.int32)
    ranks.compile(target="cpu", subs=sizes)(x, y, rank)
    n, q = np.arange(60)[None, :, None], np.arange(60)[None, None, :]
    np.testing.assert_array_equal(rank, wanted(x[:, :, None], y[:, None, :], n, q).sum(axis=2))
