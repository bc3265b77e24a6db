"""Kernels that vLLM ships in Triton, written in this language."""

import math

import numpy as np
import pytest
from production_runs import check, run

from tilewave import *

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, K, D, S, L, N, P, R, M, H, HK = (getattr(sym, n) for n in (*"TKDSLNPRMH", "HK"))
PAGE, SLOT, FOUR, EIGHT = sym.PAGE, sym.SLOT, sym.FOUR, sym.EIGHT
TARGETS = ("tile", "cpu", "gfx942")


@wave([WorkgroupConstraint(T, 8, 0), WorkgroupConstraint(D, 64, 1), TilingConstraint(K, 1)])
def moe_fused_mul_sum(
    x: Memory[T, K, D, G, f16],
    weights: Memory[T, K, G, f32],
    ids: Memory[T, K, G, i32],
    expert_map: Memory[N, G, i32],
    y: Memory[T, D, G, f16],
):
    @iterate(K, init_args=[Register[T, D, f32](0.0)])
    def total(acc):
        here = read(expert_map, at={N: read(ids)}) >= 0
        weight = select(here, read(weights), 0.0)
        return acc + (cast(read(x), f32) * weight).sum(dim=K)

    write(cast(total, f16), y)


@wave([WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(K, 32, 1)])
def fetch_id_to_ragged(
    ids: Memory[S, K, G, i32], offsets: Memory[L, G, i32, Indices(sorted=True)], out: Memory[T, G, i32]
):
    begin, end = (read(offsets, at={L: first_index(S) + i}) for i in (0, 1))
    k = self_index(K, i32)
    write(read(ids), out, at={T: select(k < end - begin, begin + k, -1)})


@wave([WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(T, 8, 1)])
def gather_window_of_cache(
    cache: Memory[PAGE, SLOT, D, G, f16],
    pages: Memory[S, P, G, i32],
    lengths: Memory[S, G, i32],
    out: Memory[S, T, D, G, f16],
    valid: Memory[S, T, G, i8],
):
    length = read(lengths, at={S: first_index(S)})
    token = maximum(length - scalar(T, i32), scalar(0, i32)) + self_index(T, i32)
    slots = scalar(SLOT, i32)
    page = read(pages, at={S: first_index(S), P: select(token < length, token // slots, -1)})
    page = select(token < length, page, -1)
    write(read(cache, at={PAGE: page, SLOT: token % slots}), out)
    write(cast(page >= 0, i8), valid)


@wave([WorkgroupConstraint(R, 4, 0)])
def rmsnorm_gelu(x: Memory[R, D, G, bf16], w: Memory[D, G, bf16], y: Memory[R, D, G, bf16], eps: f32):
    v = cast(read(x), f32)
    scale = rsqrt((v * v).sum(dim=D) / cast(scalar(D), f32) + eps)
    h = cast(cast(cast(v * scale, bf16) * read(w), bf16), f32)
    write(cast(0.5 * h * (1.0 + erf(h * 0.7071067811865476)), bf16), y)


@wave([WorkgroupConstraint(K, 8, 0), WorkgroupConstraint(N, 8, 1)])
def awq_dequantize(
    q: Memory[K, N, G, i32], scales: Memory[R, N, EIGHT, G, f16], zeros: Memory[R, N, G, i32],
    y: Memory[K, N, EIGHT, G, f16],
):  # fmt: skip
    """Eight numbers of four bits a word, in the order 0 4 1 5 2 6 3 7, with a scale and a zero for 16 rows."""
    e = self_index(EIGHT, i32)
    shift = ((e % 2) * 4 + e // 2) * 4
    group = {R: first_index(K) // 16}
    word, zero = (broadcast(x, (K, N, EIGHT)) for x in (read(q), read(zeros, at=group)))
    number = ((word >> shift) & 15) - ((zero >> shift) & 15)
    write(cast(cast(number, f32) * cast(read(scales, at=group), f32), f16), y)


@wave(
    [WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(H, 1, 1), WorkgroupConstraint(M, 32, 2), TilingConstraint(N, 32)]
)
def prefill_attention(
    offsets: Memory[L, G, i32, Indices(sorted=True)], q: Memory[T, H, D, G, f16], k: Memory[T, HK, D, G, f16],
    v: Memory[T, HK, D, G, f16], o: Memory[T, H, D, G, f16], scale: f32,
):  # fmt: skip
    """Causal attention of each sequence, whose rows begin at its offset; two heads of queries share one of keys."""
    begin, end = (read(offsets, at={L: first_index(S) + i}) for i in (0, 1))
    m, head = self_index(M, i32), first_index(H) // 2
    row = select(m < end - begin, begin + m, -1)
    query = read(q, at={T: row, H: first_index(H)})

    @iterate(
        N,
        stop=minimum(end - begin, cast(first_index(M), i32) + 32),
        init_args=[Register[M, f32](-1e30), Register[M, f32](0.0), Register[M, D, f32](0.0)],
    )
    def step(largest, total, acc):
        n = self_index(N, i32)
        key = select(n < end - begin, begin + n, -1)
        s = mma(query, read(k, at={T: key, HK: head}), Register[M, N, f32](0.0)) * scale
        s = select((n <= m) & (n < end - begin), s, -1e30)
        new = maximum(largest, s.max(dim=N))
        e, factor = exp(s - new), exp(largest - new)
        values = permute(read(v, at={T: key, HK: head}), (D, N))
        return new, total * factor + e.sum(dim=N), mma(cast(e, f16), values, acc * factor)

    _, total, acc = step
    write(cast(acc / total, f16), o, at={T: row, H: first_index(H)})


@pytest.mark.parametrize("target", TARGETS)
def test_moe_fused_mul_sum(target):
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((21, 4, 72)).astype(np.float16), rng.random((21, 4)).astype(np.float32)
    ids, experts = rng.integers(-1, 10, (21, 4)).astype(np.int32), rng.integers(-1, 2, 9).astype(np.int32)
    y = np.zeros((21, 72), np.float16)
    run(moe_fused_mul_sum, target, x, w, ids, experts, y)
    known = np.where((ids >= 0) & (ids < 9), experts[np.clip(ids, 0, 8)], 0) >= 0  # a read out of bounds gives 0
    check(y, np.einsum("tkd,tk->td", x.astype(float), np.where(known, w, 0)), 4, "f16", 8.0)


@pytest.mark.parametrize("target", TARGETS)
def test_fetch_id_to_ragged(target):
    rng = np.random.default_rng(2)
    ids, counts = rng.integers(0, 99, (6, 40)).astype(np.int32), np.array([3, 0, 40, 1, 33, 7])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    out = np.full(100, -7, np.int32)
    run(fetch_id_to_ragged, target, ids, offsets, out)
    wanted = np.concatenate([row[:n] for row, n in zip(ids, counts, strict=True)])
    np.testing.assert_array_equal(out, [*wanted, *[-7] * (100 - len(wanted))])


@pytest.mark.parametrize("target", [*TARGETS, "sm_90a"])
def test_gather_window_of_cache(target):
    rng = np.random.default_rng(3)
    cache, pages = rng.standard_normal((20, 4, 72)).astype(np.float16), rng.permutation(20).reshape(2, 10)
    pages, lengths = pages.astype(np.int32), np.array([37, 9], np.int32)
    pages[0, 7] = -1
    out, valid = np.ones((2, 20, 72), np.float16), np.ones((2, 20), np.int8)
    run(gather_window_of_cache, target, cache, pages, lengths, out, valid, D=72)
    for s, n in enumerate(lengths.tolist()):
        for t in range(20):
            token = max(n - 20, 0) + t
            page = pages[s, token // 4] if token < n else -1
            np.testing.assert_array_equal(out[s, t], cache[page, token % 4] if page >= 0 else np.zeros(72))
            assert valid[s, t] == (page >= 0)


@pytest.mark.parametrize("target", TARGETS)
def test_rmsnorm_gelu(target):
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(s).astype(bf16.numpy) for s in ((9, 96), (96,)))
    y = np.zeros((9, 96), bf16.numpy)
    run(rmsnorm_gelu, target, x, w, y, 1e-6, D=96)
    v = x.astype(float)
    h = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * w.astype(float)
    wanted = 0.5 * h * (1 + np.vectorize(math.erf)(h / np.sqrt(2)))
    assert (np.abs(y.astype(float) - wanted) <= 4 * 2.0**-8 * (np.abs(h) + 2.0**-8)).all()  # h is rounded twice


@pytest.mark.parametrize("target", TARGETS)
def test_awq_dequantize(target):
    rng = np.random.default_rng(5)
    q, zeros = (rng.integers(-(2**31), 2**31, s).astype(np.int32) for s in ((32, 9), (2, 9)))
    scales, y = rng.random((2, 9, 8)).astype(np.float16), np.zeros((32, 9, 8), np.float16)
    run(awq_dequantize, target, q, scales, zeros, y, EIGHT=8)
    order = np.array([0, 4, 1, 5, 2, 6, 3, 7])

    def fours(words):
        return (words.view(np.uint32)[..., None] >> (4 * order).astype(np.uint32)) & 15

    group = np.arange(32) // 16
    number = fours(q).astype(float) - fours(zeros)[group].astype(float)
    check(y, number * scales[group].astype(float), 1, "f16")


def attended(q, k, v, scale):
    """Return causal attention of one head, in float64."""
    x = (q.astype(float) @ k.astype(float).T) * scale
    e = np.tril(np.exp(x - np.where(np.tri(len(x)) > 0, x, -np.inf).max(1, keepdims=True)))
    return e / e.sum(1, keepdims=True) @ v.astype(float)


@pytest.mark.parametrize("target", [*TARGETS, "sm_90a"])
def test_prefill_attention(target):
    rng = np.random.default_rng(6)
    offsets = np.array([0, 5, 5, 48, 100], np.int32)
    q = rng.standard_normal((100, 4, 64)).astype(np.float16)
    k, v = (rng.standard_normal((100, 2, 64)).astype(np.float16) for _ in range(2))
    o = np.zeros_like(q)
    run(prefill_attention, target, offsets, q, k, v, o, 0.125, S=4, M=64, N=64, D=64)
    for begin, end in ((0, 5), (5, 48), (48, 100)):
        rows = slice(begin, end)
        for head in range(4):
            found, wanted = o[rows, head], attended(q[rows, head], k[rows, head // 2], v[rows, head // 2], 0.125)
            assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(v).max()  # weights of f16, and a result of f16


HV, V, POOL = sym.HV, sym.V, sym.POOL


@wave(
    [WorkgroupConstraint(S, 1, 0), WorkgroupConstraint(HV, 1, 1), WorkgroupConstraint(V, 8, 2), TilingConstraint(T, 1)]
)
def fused_recurrent_gated_delta_rule(
    q: Memory[T, H, K, G, f16],
    k: Memory[T, H, K, G, f16],
    v: Memory[T, HV, V, G, f16],
    g: Memory[T, HV, G, f32],
    beta: Memory[T, HV, G, f32],
    offsets: Memory[L, G, i32, Indices(sorted=True)],
    slots: Memory[S, G, i32, Indices(unique=True)],
    state: Memory[POOL, HV, V, K, G, f32],
    o: Memory[T, HV, V, G, f32],
    scale: f32,
):
    """Tokens of each sequence in order, its state in a slot of the pool, without speculative tokens."""
    begin, end = (read(offsets, at={L: first_index(S) + i}) for i in (0, 1))
    slot, hv = read(slots, at={S: first_index(S)}), first_index(HV)
    h = hv // (scalar(HV, i32) // scalar(H, i32))

    @iterate(T, start=begin, stop=end, init_args=[read(state, at={POOL: slot, HV: hv})])
    def last(carried):
        t = first_index(T)
        key, query = (cast(read(x, at={T: t, H: h}), f32) for x in (k, q))
        key, query = (x * rsqrt((x * x).sum(dim=K) + 1e-6) for x in (key, query))
        decayed = carried * exp(read(g, at={T: t, HV: hv}))
        change = (cast(read(v, at={T: t, HV: hv}), f32) - (decayed * key).sum(dim=K)) * read(beta, at={T: t, HV: hv})
        new = decayed + change * key
        token = self_index(T, i32)
        inside = select((begin <= token) & (token < end), token, -1)
        write((new * (query * scale)).sum(dim=K), o, at={T: inside, HV: hv})
        return new

    write(last, state, at={POOL: slot, HV: hv})


@pytest.mark.parametrize("target", (*TARGETS, "sm_90a"))
def test_fused_recurrent_gated_delta_rule(target):
    rng = np.random.default_rng(9)
    offsets, slots = np.array([0, 3, 3, 4, 9], np.int32), np.array([5, 0, -1, 2], np.int32)
    q, k = (rng.standard_normal((9, 2, 16)).astype(np.float16) for _ in range(2))
    v, g = rng.standard_normal((9, 4, 20)).astype(np.float16), -rng.random((9, 4)).astype(np.float32)
    beta = rng.random((9, 4)).astype(np.float32)
    state = rng.standard_normal((7, 4, 20, 16)).astype(np.float32)
    o, wanted, states = np.zeros((9, 4, 20), np.float32), np.zeros((9, 4, 20)), state.astype(np.float64)
    for s, slot in enumerate(slots):
        old = states[slot].copy() if slot >= 0 else np.zeros((4, 20, 16))
        for t in range(offsets[s], offsets[s + 1]):
            key, query = (np.repeat(x[t].astype(np.float64), 2, axis=0) for x in (k, q))
            key, query = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (key, query))
            old = old * np.exp(g[t].astype(np.float64))[:, None, None]
            change = (v[t].astype(np.float64) - (old * key[:, None]).sum(-1)) * beta[t][:, None]
            old = old + change[..., None] * key[:, None]
            wanted[t] = (old * query[:, None] * 0.25).sum(-1)
        if slot >= 0:
            states[slot] = old
    made = fused_recurrent_gated_delta_rule
    run(made, target, q, k, v, g, beta, offsets, slots, state, o, 0.25, K=16)
    check(o, wanted, 400)
    check(state, states, 400)
