"""Elements past the end of a dim are masked once where that covers all uses, and the results are bit-equal."""

import numpy as np
import pytest
from kernels import G, poisoned

from tilewave import *
from tilewave import kernels as shipped
from tilewave.interp.tiles import interpret
from tilewave.ir.launch import bind
from tilewave.ir.ops import Select
from tilewave.ir.rewrite import walk
from tilewave.ir.types import Tile
from tilewave.kernels import AttentionTile, Heads, Scores
from tilewave.passes.softmax.merge_masks import merge_masks
from tilewave.pipeline.runner import run

M, N, K = sym.M, sym.N, sym.K
LOWEST = float(np.finfo(np.float32).min)


def recurrence(begin, step):
    """Return a loop along rows of x, whose length only a call determines."""

    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(K, 8)])
    def recurrence(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
        @iterate(K, init_args=[Register[M, f32](b) for b in begin])
        def found(*carried):
            return step(read(x), *carried)

        write(found if len(begin) == 1 else found[-1], y)

    return recurrence


def online(x, largest, total, more=lambda p, larger: p, shrinks=True):
    larger = x.max(dim=K, acc=largest)
    added = more(exp2(x - larger), larger).sum(dim=K)
    return larger, (total * exp2(largest - larger) if shrinks else total) + added


def fused(x, largest, total, scale=0.25):
    larger = maximum(x.max(dim=K), largest)
    return larger, fma(total, exp2((largest - larger) * scale), exp2(fma(x, scale, -larger * scale)).sum(dim=K))


def behind_the_largest_so_far(x, largest, total):
    return x.max(dim=K, acc=largest), total * 0.5 + exp2(x - largest).sum(dim=K)


RECURRENCES = {
    "online softmax": (1, [LOWEST, 0.0], online),
    "its scale fused": (1, [LOWEST, 0.0], fused),
    "begun with 0": (1, [0.0, 0.0], online),
    "squares of weights": (1, [LOWEST, 0.0], lambda *a: online(*a, more=lambda p, _: p * p)),
    "weights in another dtype": (1, [LOWEST, 0.0], lambda *a: online(*a, more=lambda p, _: cast(cast(p, f16), f32))),
    "a scale by which the lowest overflows": (2, [LOWEST, 0.0], lambda *a: fused(*a, scale=2.0)),
    "begun with -inf, which -inf less is no number": (2, [-np.inf, 0.0], online),
    "weights and 1": (2, [LOWEST, 0.0], lambda *a: online(*a, more=lambda p, _: p + 1.0)),
    "weights and the largest": (2, [LOWEST, 0.0], lambda *a: online(*a, more=lambda p, larger: p + larger)),
    "sums that may be numbers in a row whose largest is none": (2, [LOWEST, 0.0], lambda *a: online(*a, shrinks=False)),
    "the largest so far, which no sum shrinks by": (2, [60.0, 0.0], behind_the_largest_so_far),
    "a sum alone": (0, [0.0], lambda x, total: x.sum(dim=K, acc=total)),
}
"""How many selects are left, what the loop begins with, and its step."""


def masks(kernel):
    return [op for op in walk(kernel.body) if isinstance(op, Select) and isinstance(op.condition.type, Tile)]


def rows(keys, seed=3):
    """Ordinary ones, one that nothing is seen of, and what is infinite or no number in the first and the last step."""
    x = np.random.default_rng(seed).standard_normal((11, keys)).astype(np.float32) * 4
    x[1] = -np.inf
    x[2, ::2] = -np.inf
    for row, number in enumerate((np.inf, np.nan, -np.inf)):
        x[3 + 2 * row, 0] = x[4 + 2 * row, -1] = number
    x[9] = LOWEST
    return x


def interpreted(kernel, arrays, sizes):
    interpret(bind(kernel, sizes), arrays, {})
    return arrays[-1]


@pytest.mark.parametrize("name", RECURRENCES)
def test_one_select_is_left_where_it_does_for_all(name):
    left, begin, step = RECURRENCES[name]
    tiles = recurrence(begin, step).compile(target="numpy").kernel
    once, _ = run(tiles, [merge_masks])
    assert len(masks(once)) == left
    if left == 1:
        assert len(masks(tiles)) > 1


@pytest.mark.share(8)
@pytest.mark.parametrize("keys", [1, 7, 8, 9, 21])
@pytest.mark.parametrize("name", RECURRENCES)
def test_no_bit_changes(name, keys):
    _, begin, step = RECURRENCES[name]
    tiles = recurrence(begin, step).compile(target="numpy").kernel
    once, _ = run(tiles, [merge_masks])
    x, sizes = rows(keys), {"M": 11, "K": keys}
    want, got = (interpreted(kernel, [x, poisoned((11,), f32)], sizes) for kernel in (tiles, once))
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(got[0])


@pytest.mark.parametrize("asked", [{}, {"causal": True}, {"window": 5}, {"soft_cap": 2.0}], ids=str)
@pytest.mark.parametrize("bias", [None, f32])
def test_attention_hides_keys_behind_the_end_once(asked, bias):
    """0 and -inf where a row sees nothing, as before."""
    kernel = shipped.attention_kernel(
        AttentionTile(32, 16), Heads(16, 16), Scores(0.25, **asked), f16, f16, f16, f32, bias, f32
    )
    tiles = kernel.compile(target="numpy").kernel
    once, _ = run(tiles, [merge_masks])
    assert len(masks(tiles)) == 3 + bool({"causal", "window"} & asked.keys()) + 1  # and one after the loop
    assert len(masks(once)) == 2, "the end of the keys and the author's mask are one"
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, n, 16)).astype(np.float16) for n in (40, 23, 23))
    q[0, 0, 3], q[0, 0, 4, 0], k[0, 0, 7, 2] = np.inf, np.nan, -np.inf
    added = [] if bias is None else [rng.standard_normal((1, 1, 40, 23)).astype(np.float32)]
    for a in added:
        a[..., 30, :], a[..., 31, 20:] = -np.inf, -np.inf
    sizes = {"B": 1, "H": 1, "H_KV": 1, "M": 40, "K2": 23}
    found = []
    for which in (tiles, once):
        y, lse = poisoned((1, 1, 40, 16), f32), poisoned((1, 1, 40), f32)
        interpreted(which, [q, k, v, *added, y, lse], sizes)
        found.append((y, lse))
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_is_seen_by_others_stays():
    """x itself is written as well, so that it must not be masked."""

    @wave([WorkgroupConstraint(M, 4, 0), TilingConstraint(K, 8)])
    def seen(x: Memory[M, K, G, f32], y: Memory[M, G, f32], z: Memory[M, K, G, f32]):
        @iterate(K, init_args=[Register[M, f32](LOWEST), Register[M, f32](0.0)])
        def found(*carried):
            here = read(x) * 2.0
            write(here, z)
            return online(here, *carried)

        write(found[-1], y)

    tiles = seen.compile(target="numpy").kernel
    assert run(tiles, [merge_masks])[0] == tiles
