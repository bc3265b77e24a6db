"""The maximum of an online softmax stays while sums prove that nothing is too large; else a step is done again."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from attention_kernels import Attention, check, wanted
from hopper_kernels import changed, ops
from kernels import poisoned
from lane_runs import ORDERS
from test_hopper_attention import HEAD, arrays, compiled

from tilewave import *
from tilewave.errors import InterpreterError
from tilewave.interp.lanes import interpret_lanes
from tilewave.interp.wave import IN_STEPS, WaveRun
from tilewave.ir.ops import Agree, Arrive, Loop, WgmmaShared
from tilewave.ir.rewrite import walk

SIZES = (2, 72, 264)
BLOCK = 64


@cache
def lanes(causal=False, block_m=64):
    return compiled(Attention(causal=causal), block_m=block_m, sizes=SIZES).build.lanes


def grown(kind, seed=5):
    """Queries, keys and values whose scores grow or fall from block to block, or hold what is no number."""
    q, k, v = arrays(Attention(), seed, SIZES)
    blocks = np.arange(SIZES[2]) // BLOCK
    powers = {"growing": blocks, "falling": -blocks, "at once": 9.0 * (blocks == 2)}.get(kind, 0 * blocks)
    k = (k.astype(np.float64) * 2.0 ** np.minimum(powers, 9)[None, :, None]).astype(np.float16)
    if kind == "sorted":
        k = np.sort(k, axis=1) * np.float16(8)
    if kind == "infinite":
        k[0, 150, 3] = np.inf
    if kind == "nan":
        k[1, 70, 0] = np.nan
    return q, k, v


@pytest.fixture
def answers(monkeypatch):
    """What groups agreed on, in the order in which they did."""
    found = []

    def agree(self, op):
        (agreed,) = yield from WaveRun.agree(self, op)
        found.append(agreed)
        return (agreed,)

    monkeypatch.setitem(IN_STEPS, Agree, agree)
    return found


@pytest.mark.share(16)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("kind", ["usual", "growing", "falling", "at once", "sorted"])
def test_results_are_right_whichever_way_a_step_goes(kind, causal, order, answers):
    a, given = Attention(causal=causal), grown(kind)
    c = poisoned((2, SIZES[1], HEAD), a.out)
    interpret_lanes(lanes(causal), [*given, c], {}, order, 7)
    check(a, given, c, HEAD)
    if kind in ("usual", "falling"):
        assert all(answers) and answers
    if kind in ("growing", "at once") and not causal:
        assert not all(answers)


@pytest.mark.parametrize("kind", ["infinite", "nan"])
def test_what_is_no_number_shows_where_it_should(kind, answers):
    a, given = Attention(), grown(kind)
    c = poisoned((2, SIZES[1], HEAD), a.out)
    interpret_lanes(lanes(), [*given, c], {}, "random", 1)
    with np.errstate(invalid="ignore", over="ignore"):
        exact, _ = wanted(a, *given, HEAD)
    assert np.array_equal(np.isnan(c), np.isnan(exact)) and np.isnan(exact).any()
    assert not all(answers)


def test_the_first_step_takes_the_maximum_as_it_is():
    """Nothing is tried there: one product, and no question."""
    kernel = lanes()
    loops = [op for op in ops(kernel, Loop) if any(isinstance(inner, Agree) for inner in op.body.ops)]
    assert len(loops) == len(ops(kernel, Agree)) == 1
    once, again = [op for op in walk(loops[0].body) if isinstance(op, WgmmaShared)]
    assert once.later and not again.later
    assert len(ops(kernel, WgmmaShared)) == 3


def test_keys_are_left_when_nobody_needs_them_again():
    """The stage of the keys is released after the product that may be repeated."""
    a, given = Attention(), grown("growing")
    kernel = compiled(a, sizes=SIZES, num_stages=2).build.lanes
    (loop,) = [op for op in ops(kernel, Loop) if any(isinstance(inner, Agree) for inner in op.body.ops)]
    slow = next(
        i for i, op in enumerate(loop.body.ops) if any(isinstance(p, WgmmaShared) for b in op.blocks for p in walk(b))
    )
    leaves = [i for i, op in enumerate(loop.body.ops) if isinstance(op, Arrive)]
    assert leaves[0] < slow < leaves[1], "values are left in front, keys behind"
    c = poisoned((2, SIZES[1], HEAD), a.out)
    interpret_lanes(kernel, [*given, c], {}, "random", 3)
    check(a, given, c, HEAD)


def test_a_wave_that_answers_for_itself_is_found():
    """Four waves make a product together: one that goes another way than its neighbours leaves them waiting, or reads
    keys that were left."""
    q, k, v = arrays(Attention(), 5, SIZES)
    q[:, :16] *= np.float16(64)  # the rows of the first wave alone
    kernel = compiled(Attention(), sizes=SIZES, num_stages=2).build.lanes
    alone = changed(kernel, Agree, 0, lambda op: [replace(op, waves=1)])
    with pytest.raises(InterpreterError, match=r"wave . executes an MMA that the other waves|wave . ends without"):
        for seed in range(8):
            interpret_lanes(alone, [q, k, v, poisoned((2, SIZES[1], HEAD), Attention().out)], {}, "random", seed)


def plain(p, total, weighted, shrink):
    return p.sum(dim=sym.K2) + total * shrink, p, weighted * shrink


def kernel_with(result, step=plain):
    """Attention whose author writes `result(largest, total, weighted)`, and computes a step's sums as `step` does."""
    M, N, K1, K2 = sym.M, sym.N, sym.K1, sym.K2
    G = GLOBAL_ADDRESS_SPACE

    @wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K2, 64)])
    def kernel(q: Memory[M, K1, G, f16], k: Memory[K2, K1, G, f16], v: Memory[K2, N, G, f16], c: Memory[M, N, G, f32]):
        begin = Register[M, f32](-1e30), Register[M, f32](0.0), Register[M, N, f32](0.0)

        @iterate(K2, init_args=begin)
        def blocks(old, total, weighted):
            x = mma(read(q), read(k), Register[M, K2, f32](0.0))
            new = maximum(x.max(dim=K2), old)
            shrink = exp2((old - new) * 0.25)
            p = exp2((x - new) * 0.25)
            total, p, weighted = step(p, total, weighted, shrink)
            return new, total, mma(cast(p, f16), read(v), weighted)

        write(result(*blocks), c)

    sizes = {M: 64, N: 64, K1: 64, K2: 192}
    return wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), kernel).build.lanes


@pytest.mark.parametrize(
    "result, is_kept",
    [
        (lambda m, total, weighted: weighted / total, True),
        (lambda m, total, weighted: weighted * reciprocal(total), True),
        (lambda m, total, weighted: select(total == 0.0, 0.0, weighted / total), True),
        (lambda m, total, weighted: weighted / total + (m * 0.25 + log2(total)), True),
        (lambda m, total, weighted: weighted, False),
        (lambda m, total, weighted: weighted / total + m, False),
        (lambda m, total, weighted: weighted / total + (m * 0.5 + log2(total)), False),
        (lambda m, total, weighted: weighted / (total + 1.0), False),
        (lambda m, total, weighted: weighted / (total * total), False),
        (lambda m, total, weighted: select(total < 2.0, 0.0, weighted / total), False),
    ],
    ids=["quotient", "reciprocal", "or 0", "log-sum-exp", "sums", "maximum", "another scale", "+ 1", "squared", "< 2"],
)
def test_any_maximum_will_do_only_where_it_does_not_show(result, is_kept):
    assert bool(ops(kernel_with(result), Agree)) == is_kept


def by_fma(p, total, weighted, shrink):
    return fma(total, shrink, p.sum(dim=sym.K2)), p, weighted * shrink


def by_halves(p, total, weighted, shrink):
    """A factor with a constant in it, which is not 1 where the maximum stays."""
    half = shrink * 0.5
    return p.sum(dim=sym.K2) + total * half * 2.0, p, weighted * half * 2.0


def of_others(p, total, weighted, shrink):
    """What is summed is not what is multiplied, and proves nothing of it."""
    return p.sum(dim=sym.K2) + total * shrink, p * 1024.0, weighted * shrink


@pytest.mark.parametrize("step, is_kept", [(plain, True), (by_fma, True), (by_halves, True), (of_others, False)])
def test_sums_however_they_are_written(step, is_kept):
    lanes = kernel_with(lambda m, total, weighted: weighted / total, step)
    assert bool(ops(lanes, Agree)) == is_kept
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (64, 192, 64))
    v = rng.standard_normal((192, 64)).astype(np.float16)
    k[64:128] *= np.float16(3)
    c = poisoned((64, 64), f32)
    interpret_lanes(lanes, [q, k, v, c], {}, "random", 2)
    x = q.astype(float) @ k.astype(float).T * 0.25
    w = np.exp2(x - x.max(axis=1, keepdims=True))
    exact = w @ v.astype(float) / w.sum(axis=1, keepdims=True) * (1024 if step is of_others else 1)
    # each weight is rounded to f16 once, and what is below its smallest number is lost
    off = (w * 2.0**-10 + 2.0**-24) @ np.abs(v.astype(float)) / w.sum(axis=1, keepdims=True)
    assert (np.abs(c - exact) <= off * (1024 if step is of_others else 1) + 1e-6).all()
