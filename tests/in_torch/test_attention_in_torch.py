"""Gradients of attention in torch, against torch's own in float64: masks, heads, layouts, what is kept for them."""

import pytest

import tilewave
from tilewave import ops

torch = pytest.importorskip("torch", reason="the gradients are torch's; it is not installed")
F = torch.nn.functional

ROUNDED = {torch.float32: 2.0**-18, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


@pytest.fixture(autouse=True)
def poisoned_memory():
    """New tensors are full of NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).requires_grad_()


def expected(q, k, v, bias=None, causal=False, window=None, scale=None, soft_cap=None):
    """Return attention in float64, written as it is defined."""
    shared = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(shared, -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
    scores = scores if bias is None else scores + bias
    queries, keys = scores.shape[-2:]
    apart = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    hidden = apart < 0 if causal else torch.zeros_like(apart, dtype=torch.bool)
    hidden = hidden if window is None else hidden | (apart.abs() >= window)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num() @ v


def check(tensors, grad, dtype=torch.float32, **asked):
    """Compare all gradients of a call with those of float64, by the norm of their difference."""
    y = ops.attention(*tensors[:3], bias=tensors[3] if len(tensors) > 3 else None, **asked)
    found = torch.autograd.grad(y, tensors, grad.to(y.dtype))
    wide = [x.detach().double().requires_grad_() for x in tensors]
    want = torch.autograd.grad(expected(*wide, **asked), wide, grad.to(y.dtype).double())
    for mine, theirs in zip(found, want, strict=True):
        assert (mine.double() - theirs).norm() <= ROUNDED[dtype] * theirs.norm()
    return found


KINDS = {
    "plain": ((2, 3, 20, 16), (2, 3, 33, 16), (2, 3, 33, 8), {}),
    "causal, heads share keys": ((1, 6, 37, 16), (1, 2, 41, 16), (1, 2, 41, 16), {"causal": True}),
    "queries before all keys": ((1, 2, 40, 8), (1, 2, 21, 8), (1, 2, 21, 8), {"causal": True}),
    "window": ((2, 50, 24), (2, 50, 24), (2, 50, 24), {"causal": True, "window": 9}),
    "window, capped": ((1, 4, 19, 8), (1, 2, 35, 8), (1, 2, 35, 8), {"window": 5, "soft_cap": 3.0, "scale": -0.5}),
    "one query": ((2, 4, 1, 16), (2, 4, 70, 16), (2, 4, 70, 16), {"causal": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_float64(kind):
    *shapes, asked = KINDS[kind]
    tensors = [drawn(*shape) for shape in shapes]
    check(tensors, torch.randn(*shapes[0][:-1], shapes[2][-1]), **asked)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_halves(dtype):
    tensors = [drawn(1, 4, 70, 32, dtype=dtype), drawn(1, 2, 90, 32, dtype=dtype), drawn(1, 2, 90, 16, dtype=dtype)]
    check(tensors, torch.randn(1, 4, 70, 16), dtype, causal=True)


@pytest.mark.parametrize("shape", [(33,), (20, 33), (4, 1, 33), (2, 4, 20, 33)], ids=str)
def test_a_bias_of_any_shape_has_a_gradient(shape):
    tensors = [drawn(2, 4, 20, 16), drawn(2, 2, 33, 16), drawn(2, 2, 33, 8), drawn(*shape)]
    check(tensors, torch.randn(2, 4, 20, 8), causal=True)


def test_a_bias_alone_has_a_gradient():
    q, k, v = (drawn(1, 2, n, 8).detach() for n in (20, 30, 30))
    bias = drawn(20, 30)
    y, want = ops.attention(q, k, v, bias=bias), expected(q, k, v, bias)
    found, theirs = (torch.autograd.grad(x.square().sum(), bias)[0] for x in (y, want))
    torch.testing.assert_close(found, theirs)


def test_tensors_of_any_layout_have_gradients():
    """Heads beside positions, a gradient that repeats one number, and one with gaps."""
    q, k, v = (drawn(2, 20, heads, 16).transpose(1, 2) for heads in (4, 2, 2))
    check((q, k, v), torch.ones(()).expand(2, 4, 20, 16))
    check((q, k, v), torch.randn(2, 20, 4, 32)[..., ::2].transpose(1, 2), causal=True)


def test_only_wanted_gradients_are_computed():
    q, k, v = drawn(1, 2, 20, 8), drawn(1, 2, 30, 8).detach(), drawn(1, 2, 30, 8)
    check((q, k.requires_grad_(), v), torch.randn(1, 2, 20, 8))
    k = k.detach()
    y = ops.attention(q, k, v)
    y.sum().backward()
    assert k.grad is None and q.grad.isfinite().all() and v.grad.isfinite().all()
    q, k, v = drawn(1, 0, 20, 8), drawn(1, 0, 30, 8), drawn(1, 0, 30, 8)
    ops.attention(q, k, v).sum().backward()
    assert k.grad.shape == k.shape


def test_keys_that_no_query_has_get_zeros():
    q, k, v = drawn(1, 2, 0, 8), drawn(1, 2, 30, 8), drawn(1, 2, 30, 8)
    ops.attention(q, k, v).sum().backward()
    assert not k.grad.any() and not v.grad.any()


def test_the_log_sum_exp_has_a_gradient():
    q, k, v = (drawn(1, 2, n, 8) for n in (20, 30, 30))
    y, lse = torch.ops.tilewave.attention(q, k, v, None, False, None, None, None)
    found = torch.autograd.grad((y.square().sum() + lse.sin().sum()), (q, k, v))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    sums = (wide[0] @ wide[1].mT / 8**0.5).logsumexp(-1)
    want = torch.autograd.grad(expected(*wide).square().sum() + sums.sin().sum(), wide)
    for mine, theirs in zip(found, want, strict=True):
        assert (mine.double() - theirs).norm() <= ROUNDED[torch.float32] * theirs.norm()


def test_nothing_of_the_size_of_all_weights_is_kept():
    kept = []
    q, k, v = (drawn(1, 1, 128, 8) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        ops.attention(q, k, v, causal=True)
    assert max(kept) == q.numel()


def test_gradients_have_the_same_bits_in_every_run():
    tensors = [drawn(1, 4, 70, 16), drawn(1, 2, 70, 16), drawn(1, 2, 70, 16)]
    grad = torch.randn(1, 4, 70, 16)
    first, *others = (torch.autograd.grad(ops.attention(*tensors, causal=True), tensors, grad) for _ in range(3))
    assert all(torch.equal(a, b) for found in others for a, b in zip(first, found, strict=True))


def test_a_compiled_call_has_the_same_gradients():
    tensors = [drawn(1, 4, 20, 16), drawn(1, 2, 30, 16), drawn(1, 2, 30, 16)]
    compiled = torch.compile(lambda *x: ops.attention(*x, causal=True), fullgraph=True, backend="aot_eager")
    ours, want = (f(*tensors).sin().sum() for f in (compiled, lambda *x: ops.attention(*x, causal=True)))
    for a, b in zip(torch.autograd.grad(ours, tensors), torch.autograd.grad(want, tensors), strict=True):
        assert torch.equal(a, b)


def test_torchs_own_attention_agrees():
    tensors = [drawn(2, 3, 24, 16) for _ in range(3)]
    grad = torch.randn(2, 3, 24, 16)
    ours = torch.autograd.grad(ops.attention(*tensors, causal=True), tensors, grad)
    theirs = torch.autograd.grad(F.scaled_dot_product_attention(*tensors, is_causal=True), tensors, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def fused(rows, heads, keys):
    """Return q, k and v as views of the result of one projection, with the heads of a position beside each other."""
    return rows.unflatten(-1, (heads + 2 * keys, 8)).transpose(1, 2).split([heads, keys, keys], 1)


@pytest.mark.parametrize(("length", "heads", "keys"), [(37, 4, 4), (37, 6, 2), (1, 4, 1), (64, 2, 1)])
def test_views_of_a_fused_projection_in_a_patched_module(length, heads, keys):
    class Attention(torch.nn.Module):
        def forward(self, rows):
            found = F.scaled_dot_product_attention(*fused(rows, heads, keys), is_causal=True, enable_gqa=True)
            return found.transpose(1, 2).flatten(2)

    module, rows = Attention(), drawn(2, length, (heads + 2 * keys) * 8)
    grad, wide = torch.randn(2, length, heads * 8), rows.detach().double().requires_grad_()
    want = module(wide)
    (theirs,) = torch.autograd.grad(want, wide, grad.double())
    tilewave.torch.patch(module)
    for _ in range(2):  # the second call is replayed
        y = module(rows)
        (mine,) = torch.autograd.grad(y, rows, grad)
        assert (y.double() - want).norm() <= ROUNDED[torch.float32] * want.norm()
        assert (mine.double() - theirs).norm() <= ROUNDED[torch.float32] * theirs.norm()


@pytest.mark.parametrize("ours", [True, False])
def test_views_of_a_fused_projection_are_copied_once_in_the_backward_pass_alone(ours):
    def call(rows):
        q, k, v = fused(rows, 6, 2)
        if ours:
            return ops.attention(q, k, v, causal=True).transpose(1, 2).flatten(2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)

    rows = drawn(2, 37, 80)
    torch.use_deterministic_algorithms(False)
    counts, y, grad = [], call(rows), torch.ones(2, 37, 48)
    for work in (lambda: call(rows), lambda: y.backward(grad)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            work()
        counts.append(sum(event.name == "aten::copy_" for event in found.events()))
    assert counts == [0, 1]
