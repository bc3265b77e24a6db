"""Kernels and operations on rows at hostile indices, on CUDA tensors, against numpy and torch in float64."""

from itertools import pairwise

import numpy as np
import pytest
from hostile_indices import distinct, inside, picked, table_of

from tilewave import kernels, ops

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
WIDTHS = [1, 24, 128, 256, 2048, 2049, 5000]


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time(torch):
    torch.manual_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def on(torch, a):
    return torch.from_numpy(a).to(DEVICE)


def near(found, want, most, roundings):
    eps = np.finfo(found.dtype).eps / 2 if found.dtype != np.float32 else 0
    allowed = roundings * 2.0**-24 * most
    assert (np.abs(found - want) <= allowed + eps * (np.abs(want) + allowed) + 2.0**-24).all()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_embeddings(torch, rng, columns, dtype):
    table, ids = (rng.standard_normal((500, columns)) * 9).astype(dtype), table_of(rng, 1037, 500, np.int64)
    ids[5:7] = 2**63 - 1, -(2**63)
    found = ops.embedding(on(torch, table), on(torch, ids))
    np.testing.assert_array_equal(found.cpu().numpy(), picked(table, ids))


@pytest.mark.parametrize("columns", WIDTHS)
def test_sums_at_indices(torch, rng, columns):
    x, source = (rng.standard_normal((n, columns)).astype(np.float32) for n in (40, 1037))
    index = table_of(rng, 1037, 40)
    want, most, there = x.astype(np.float64), np.abs(x).astype(np.float64), inside(index, 40)
    np.add.at(want, index[there], source[there])
    np.add.at(most, index[there], np.abs(source[there]))
    near(ops.index_add(on(torch, x), 0, on(torch, index), on(torch, source)).cpu().numpy(), want, most, 1038)
    halves = ops.index_add(on(torch, x).half(), 0, on(torch, index), on(torch, source).half())
    assert halves.dtype == torch.float16 and torch.isfinite(halves).all()


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_embeddings(torch, rng, is_sorted, dtype):
    ids = on(torch, table_of(rng, 1037, 40, np.int64))
    weight = torch.randn(40, 2049, device=DEVICE, dtype=getattr(torch, dtype), requires_grad=True)
    grad = torch.randn(1037, 2049, device=DEVICE, dtype=weight.dtype)
    torch.use_deterministic_algorithms(is_sorted)
    try:
        (found,) = torch.autograd.grad(ops.embedding(weight, ids), weight, grad)
    finally:
        torch.use_deterministic_algorithms(False)
    there = (ids >= 0) & (ids < 40)
    want, most = (torch.zeros(40, 2049, device=DEVICE, dtype=torch.float64) for _ in range(2))
    want.index_add_(0, ids[there], grad[there].double())
    most.index_add_(0, ids[there], grad[there].double().abs())
    near(found.cpu().numpy(), want.cpu().numpy(), most.cpu().numpy(), 1038)


@pytest.mark.parametrize("columns", [7, 1000, 32000, 65537, 262144])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_losses_and_their_gradients(torch, rng, columns, dtype):
    logits = torch.randn(37, columns, device=DEVICE).to(getattr(torch, dtype)).requires_grad_()
    labels = on(torch, table_of(rng, 37, columns, np.int64))
    there = (labels >= 0) & (labels < columns)
    exact = logits.detach().double().requires_grad_()
    want = torch.nn.functional.cross_entropy(exact, labels.where(there, torch.full_like(labels, -100)))
    found = ops.cross_entropy(logits, labels)
    found.backward()
    want.backward()
    eps = torch.finfo(logits.dtype).eps
    assert abs(found.double() - want) <= (eps + 1e-5) * want
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2 * eps + 1e-4, atol=1e-7)


def test_counts(torch, rng):
    x = table_of(rng, 100_003, 50)
    found = ops.bincount(on(torch, x), 50).cpu().numpy()
    np.testing.assert_array_equal(found, np.bincount(x[inside(x, 50)], minlength=50))


@pytest.mark.parametrize("columns", WIDTHS)
def test_tokens_to_experts_and_back(torch, rng, columns):
    x, slots = rng.standard_normal((137, columns)).astype(np.float16), distinct(rng, (137, 3), 450)
    sent, shares = np.full((450, columns), -7, np.float16), rng.random((137, 3)).astype(np.float32)
    there, tensors = inside(slots, 450), [on(torch, a) for a in (x, slots, sent, shares)]
    sent[slots[there]] = np.repeat(x[:, None], 3, axis=1)[there]
    kernels.permute_rows(*tensors[:3])
    np.testing.assert_array_equal(tensors[2].cpu().numpy(), sent)
    back = torch.empty_like(tensors[0])
    kernels.unpermute_rows(tensors[2], tensors[1], back, tensors[3])
    terms = picked(sent, slots).astype(np.float64) * shares[..., None]
    near(back.cpu().numpy(), terms.sum(axis=1), np.abs(terms).sum(axis=1), 5)


@pytest.mark.parametrize("columns", WIDTHS)
def test_segments(torch, rng, columns):
    x, offsets = rng.standard_normal((1037, columns)).astype(np.float32), np.array([-(2**31), 3, 3, 900, 2, 2**31 - 1])
    y = torch.full((5, columns), torch.nan, device=DEVICE)
    kernels.segment_sum(on(torch, x), on(torch, offsets.astype(np.int32)), y)
    clipped = [(max(a, 0), min(b, 1037)) for a, b in pairwise(offsets)]
    want, most = (
        np.stack([z[a:b].sum(axis=0) for a, b in clipped]) for z in (x.astype(float), np.abs(x).astype(float))
    )
    near(y.cpu().numpy(), want, most, 1038)


@pytest.mark.parametrize("heads, size", [(1, 576), (8, 128), (3, 20)])
def test_caches(torch, rng, heads, size):
    x, slots = rng.standard_normal((137, heads, size)).astype(np.float16), distinct(rng, 137, 30 * 16, np.int64)
    cache = np.full((30, 16, heads, size), -7, np.float16)
    stored = on(torch, cache)
    kernels.kv_cache_write(on(torch, x), on(torch, slots), stored)
    there = inside(slots, 480)
    cache.reshape(480, heads, size)[slots[there]] = x[there]
    np.testing.assert_array_equal(stored.cpu().numpy(), cache)
    angles = rng.random((64, size // 2)).astype(np.float32) * 6
    tables = [on(torch, a) for a in (np.cos(angles), np.sin(angles), np.arange(137) % 64)]
    kernels.kv_cache_write(on(torch, x), on(torch, slots), stored, *tables)
    c, s = (f(angles.astype(np.float64))[np.arange(137) % 64][:, None] for f in (np.cos, np.sin))
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    want = np.concatenate([a * c - b * s, b * c + a * s], axis=-1)[there]
    found = stored.cpu().numpy().reshape(480, heads, size)[slots[there]]
    assert (np.abs(found - want) <= 2.0**-11 * np.abs(want) + 2.0**-20 * 5).all()


def test_softmax_of_the_first_columns(torch, rng):
    x, lengths = rng.standard_normal((5, 70000)).astype(np.float32), np.array([0, 1, 300, 69999, 2**31 - 1], np.int32)
    y = torch.full((5, 70000), torch.nan, device=DEVICE)
    kernels.masked_softmax(on(torch, x), on(torch, lengths), y)
    powers = np.where(np.arange(70000) < lengths[:, None], np.exp(x.astype(np.float64)), 0)
    want = powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300)
    assert (np.abs(y.cpu().numpy() - want) <= 2.0**-18 * want).all()
