"""Kernels that SGLang and aiter ship in Triton, written in this language."""

import numpy as np
import pytest
from production_runs import check, run, sigmoid

from tilewave import *

pytestmark = pytest.mark.share(4)
G = GLOBAL_ADDRESS_SPACE
T, H, P, K, D, N, V, E, R, L = (getattr(sym, n) for n in "THPKDNVERL")
PAIR, C, FRAME, Y, X, OLD, NEW = sym.PAIR, sym.C, sym.FRAME, sym.Y, sym.X, sym.OLD, sym.NEW
TARGETS = ("tile", "cpu", "gfx942")


@wave([WorkgroupConstraint(T, 4, 0), WorkgroupConstraint(N, 64, 1)])
def situ_and_mul(x: Memory[T, PAIR, N, G, f16], y: Memory[T, N, G, f16], beta: f32):
    gate, up = (cast(read(x, at={PAIR: i}), f32) for i in (0, 1))
    write(cast(beta * tanh(gate / beta) / (1.0 + exp(-gate)) * up, f16), y)


@wave([WorkgroupConstraint(T, 8, 0), WorkgroupConstraint(D, 64, 1), TilingConstraint(K, 1)])
def fill_gateup_input(
    x: Memory[T, D, G, f16], experts: Memory[T, K, G, i32], places: Memory[T, K, G, i32, Indices(unique=True)],
    y: Memory[V, D, G, f16],
):  # fmt: skip
    rows = read(x)

    @iterate(K)
    def copy():
        write(rows, y, at={V: select(read(experts) >= 0, read(places), -1)})


@wave([WorkgroupConstraint(T, 8, 0), WorkgroupConstraint(K, 8, 1)])
def virtual_topk_ids(ids: Memory[T, K, G, i32], lora: Memory[T, G, i32], out: Memory[T, K, G, i32], experts: i32):
    base = read(ids)
    write(select(base < 0, base, base + maximum(read(lora), 0) * experts), out)


@wave([WorkgroupConstraint(T, 4, 0), WorkgroupConstraint(H, 2, 1), WorkgroupConstraint(P, 32, 2)])
def rotate_pairs(x: Memory[T, H, P, PAIR, G, f32], freqs: Memory[R, P, PAIR, G, f32], positions: Memory[T, G, i32]):
    """Rotary embedding of neighbouring elements, in place."""
    where = read(positions)
    cos_, sin_ = (read(freqs, at={R: where, PAIR: i}) for i in (0, 1))
    a, b = (read(x, at={PAIR: i}) for i in (0, 1))
    write(a * cos_ - b * sin_, x, at={PAIR: 0})
    write(a * sin_ + b * cos_, x, at={PAIR: 1})


@wave([WorkgroupConstraint(T, 64, 0)])
def count_of_chunk(ids: Memory[T, G, i32], counts: Memory[L, E, G, i32]):
    """The first stage of aligning tokens by expert: each workgroup counts its tokens in a row of its own."""
    atomic_add(Register[T, i32](1), counts, at={L: first_index(T) // 64 + 1, E: read(ids)})


@wave([WorkgroupConstraint(T, 4, 0)])
def topk_sigmoid(
    logits: Memory[T, E, G, f32], bias: Memory[E, G, f32], weights: Memory[T, K, G, f32], chosen: Memory[T, K, G, i32]
):
    """Two experts a token, by sigmoid + bias; weights are sigmoids that add to 1."""
    p = reciprocal(1.0 + exp(-read(logits)))
    score, expert = p + read(bias), self_index(E, i32)
    picks, values = [], []
    for _ in range(2):
        best = select(score == score.max(dim=E), expert, 2**30).min(dim=E)
        picks.append(best)
        values.append(select(expert == best, p, 0.0).sum(dim=E))
        score = select(expert == best, -1e30, score)
    k = self_index(K, i32)
    write(select(k == 0, *values) / (values[0] + values[1]), weights)
    write(select(k == 0, *picks), chosen)


@wave([WorkgroupConstraint(N, 256, 0)])
def beta_sigmoid_fwd(x: Memory[N, G, f16], y: Memory[N, G, f16]):
    write(cast(reciprocal(1.0 + exp(-cast(read(x), f32))), f16), y)


@wave(
    [
        WorkgroupConstraint(C, 1, 0),
        WorkgroupConstraint(FRAME, 1, 1),
        WorkgroupConstraint(Y, 4, 2),
        WorkgroupConstraint(X, 16, 3),
    ]
)
def cat_and_pad(
    cache: Memory[C, OLD, H, P, G, f32], x: Memory[C, NEW, H, P, G, f32], out: Memory[C, FRAME, Y, X, G, f32],
    frames: i32, rows: i32, columns: i32,
):  # fmt: skip
    """Frames of a cache, then those of x, with zeros around them: what is out of bounds reads 0."""
    frame = cast(first_index(FRAME), i32) - frames
    inside = {H: self_index(Y, i32) - rows, P: self_index(X, i32) - columns}
    before, now = read(cache, at={OLD: frame, **inside}), read(x, at={NEW: frame - scalar(OLD, i32), **inside})
    write(before + now, out)


@wave([WorkgroupConstraint(T, 4, 0), TilingConstraint(K, 1)])
def survival(confidence: Memory[T, K, G, f32], kept: Memory[T, K, G, f32], extra: Memory[T, G, i32]):
    @iterate(K, init_args=[Register[T, f32](1.0)])
    def step(so_far):
        product = so_far * read(confidence).sum(dim=K)
        write(broadcast(product, (T, K)), kept)
        return product

    write(Register[T, i32](0), extra)


@wave([WorkgroupConstraint(T, 4, 0)])
def add_layer_norm_quantize(
    x: Memory[T, D, G, f32], res: Memory[T, D, G, f32], w: Memory[D, G, f32], b: Memory[D, G, f32],
    smooth: Memory[D, G, f32], res_out: Memory[T, D, G, f32], y: Memory[T, D, G, i8], scale: Memory[T, G, f32],
    eps: f32,
):  # fmt: skip
    h = read(x) + read(res)
    write(h, res_out)
    count = cast(scalar(D), f32)
    centred = h - h.sum(dim=D) / count
    normed = centred * rsqrt((centred * centred).sum(dim=D) / count + eps) * read(w) + read(b)
    normed = normed * read(smooth)
    largest = abs(normed).max(dim=D) / 127.0
    write(largest, scale)
    write(cast(roundeven(normed / largest), i8), y)


@pytest.mark.parametrize("target", TARGETS)
def test_elementwise(target):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((6, 2, 100)).astype(np.float16) * 4, np.zeros((6, 100), np.float16)
    run(situ_and_mul, target, x, y, 3.0)
    gate, up = x[:, 0].astype(float), x[:, 1].astype(float)
    check(y, 3 * np.tanh(gate / 3) * sigmoid(gate) * up, 12, "f16")
    z = np.zeros(600, np.float16)
    run(beta_sigmoid_fwd, target, x[:, 0].reshape(-1).copy(), z)
    check(z, sigmoid(gate.reshape(-1)), 6, "f16")


@pytest.mark.parametrize("target", TARGETS)
def test_fill_gateup_input(target):
    rng = np.random.default_rng(2)
    x, experts = rng.standard_normal((21, 72)).astype(np.float16), rng.integers(-1, 8, (21, 3)).astype(np.int32)
    places = rng.permutation(80)[:63].reshape(21, 3).astype(np.int32)
    y = np.full((80, 72), -7, np.float16)
    wanted = y.copy()
    for t, k in np.argwhere(experts >= 0):
        wanted[places[t, k]] = x[t]
    run(fill_gateup_input, target, x, experts, places, y)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_virtual_topk_ids(target):
    rng = np.random.default_rng(3)
    ids, lora = rng.integers(-1, 8, (21, 5)).astype(np.int32), rng.integers(-1, 4, 21).astype(np.int32)
    out = np.zeros((21, 5), np.int32)
    run(virtual_topk_ids, target, ids, lora, out, 8)
    np.testing.assert_array_equal(out, np.where(ids < 0, ids, ids + np.maximum(lora, 0)[:, None] * 8))


@pytest.mark.parametrize("target", TARGETS)
def test_rotate_pairs(target):
    rng = np.random.default_rng(4)
    x, freqs = (
        rng.standard_normal((9, 3, 40, 2)).astype(np.float32),
        rng.standard_normal((20, 40, 2)).astype(np.float32),
    )
    positions, before = rng.integers(0, 20, 9).astype(np.int32), x.astype(float)
    run(rotate_pairs, target, x, freqs, positions)
    rotated = (before[..., 0] + 1j * before[..., 1]) * (freqs[..., 0] + 1j * freqs[..., 1])[positions][:, None]
    check(x, np.stack([rotated.real, rotated.imag], -1), 3)


@pytest.mark.parametrize("target", TARGETS)
def test_count_of_chunk(target):
    ids = np.random.default_rng(5).integers(0, 8, 300).astype(np.int32)
    counts = np.zeros((6, 8), np.int32)
    run(count_of_chunk, target, ids, counts)
    chunks = [np.bincount(ids[i : i + 64], minlength=8) for i in range(0, 300, 64)]
    np.testing.assert_array_equal(counts, [np.zeros(8), *chunks])


@pytest.mark.parametrize("target", TARGETS)
def test_topk_sigmoid(target):
    rng = np.random.default_rng(6)
    logits, bias = rng.standard_normal((10, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32) / 8
    weights, chosen = np.zeros((10, 2), np.float32), np.zeros((10, 2), np.int32)
    run(topk_sigmoid, target, logits, bias, weights, chosen, E=24, K=2)
    p = sigmoid(logits.astype(float))
    best = np.argsort(-(p + bias), axis=1)[:, :2]
    np.testing.assert_array_equal(chosen, best)
    picked = np.take_along_axis(p, best, 1)
    check(weights, picked / picked.sum(1, keepdims=True), 8)


@pytest.mark.parametrize("target", TARGETS)
def test_cat_and_pad(target):
    rng = np.random.default_rng(7)
    cache, x = (rng.standard_normal((3, n, 5, 20)).astype(np.float32) for n in (2, 3))
    out = np.full((3, 7, 8, 23), np.nan, np.float32)
    run(cat_and_pad, target, cache, x, out, 1, 2, 1)
    wanted = np.zeros_like(out)
    wanted[:, 1:6, 2:7, 1:21] = np.concatenate([cache, x], axis=1)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_survival(target):
    confidence = np.random.default_rng(8).random((9, 7)).astype(np.float32)
    kept, extra = np.zeros((9, 7), np.float32), np.ones(9, np.int32)
    run(survival, target, confidence, kept, extra)
    check(kept, np.cumprod(confidence.astype(float), axis=1), 8)
    assert not extra.any()


@pytest.mark.parametrize("target", TARGETS)
def test_add_layer_norm_quantize(target):
    rng = np.random.default_rng(9)
    x, res = (rng.standard_normal((9, 96)).astype(np.float32) for _ in range(2))
    w, b, smooth = (rng.random(96).astype(np.float32) + 0.5 for _ in range(3))
    res_out, y, scale = np.zeros((9, 96), np.float32), np.zeros((9, 96), np.int8), np.zeros(9, np.float32)
    run(add_layer_norm_quantize, target, x, res, w, b, smooth, res_out, y, scale, 1e-5, D=96)
    h = x.astype(float) + res
    normed = ((h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5) * w + b) * smooth
    check(res_out, h, 1)
    check(scale, np.abs(normed).max(1) / 127, 200)
    assert np.abs(y - normed / scale[:, None]).max() <= 0.5 + 1e-3  # rounded to the nearest, of scales within 2⁻¹⁶


B, POOL = sym.B, sym.POOL


@wave([WorkgroupConstraint(B, 1, 0), WorkgroupConstraint(D, 32, 1)], subs={C: 3})
def causal_conv1d_update(
    x: Memory[B, D, G, f16],
    weights: Memory[D, C, G, f16],
    latest: Memory[D, G, f16],
    slots: Memory[B, G, i32, Indices(unique=True)],
    state: Memory[POOL, D, C, G, f16],
    y: Memory[B, D, G, f16],
):
    """One token: the last weight is of the token, the others of the C before, which move up by one."""
    b = {B: first_index(B)}
    slot, token = read(slots, at=b), read(x, at=b)
    old, own = read(state, at={POOL: slot}), allocate((D, C), (32, 3), f16)
    total = (cast(old, f32) * cast(read(weights), f32)).sum(dim=C) + cast(token, f32) * cast(read(latest), f32)
    write(cast(total / (1.0 + exp(-total)), f16), y, at=b)
    write(old, own)
    after = self_index(C, i32) + 1
    write(select(after < 3, read(own, at={C: after}), token), state, at={POOL: slot})


@pytest.mark.parametrize("target", (*TARGETS, "sm_90a"))
def test_causal_conv1d_update(target):
    rng = np.random.default_rng(11)
    x, weights, latest, state = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((5, 70), (70, 3), (70,), (8, 70, 3))
    )
    slots, y = np.array([6, 1, -1, 0, 3], np.int32), np.zeros((5, 70), np.float16)
    old = np.where((slots >= 0)[:, None, None], state[slots], np.float16(0))
    wanted = state.copy()
    wanted[slots[slots >= 0]] = np.concatenate([old[:, :, 1:], x[:, :, None]], axis=2)[slots >= 0]
    run(causal_conv1d_update, target, x, weights, latest, slots, state, y)
    np.testing.assert_array_equal(state, wanted)
    total = (old.astype(np.float64) * weights).sum(2) + x.astype(np.float64) * latest
    check(y, total / (1 + np.exp(-total)), 80, "f16")
