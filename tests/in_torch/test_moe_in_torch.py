"""ops.moe of tensors: values and gradients beside float64, torch.compile, autocast, and no copy to the host."""

import pytest
from mixtures import mixture

torch = pytest.importorskip("torch", reason="these operators are torch's; it is not installed")

from tilewave import ops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck
F = torch.nn.functional


def tensors(tokens, dtype=torch.float32, grad=True, seed=0):
    """Return the tensors of a random mixture in which no token wants expert 2."""
    x, logits, w1, w2 = (torch.from_numpy(array) for array in mixture(tokens, seed=seed).arrays)
    logits[:, 2] -= 20
    return [t.requires_grad_(grad) for t in (x.to(dtype), logits, w1.to(dtype), w2.to(dtype))]


def by_torch(x, logits, w1, w2, top_k, scoring="softmax", renormalize=True, activation="silu"):
    """Return the layer token by token, in torch."""
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    chosen = logits.topk(top_k).indices
    weights = scores.gather(1, chosen)
    weights = weights / weights.sum(-1, keepdim=True) if renormalize else weights
    found = []
    for t in range(len(x)):
        gate, up = torch.einsum("efh,h->ef", w1[chosen[t]], x[t]).chunk(2, -1)
        hidden = getattr(F, activation)(gate) * up
        found.append(torch.einsum("e,ehf,ef->h", weights[t], w2[chosen[t]], hidden))
    return torch.stack(found)


def with_gradients(layer, arguments, grad):
    found = layer(*arguments)
    return found, *torch.autograd.grad(found, arguments, grad.to(found.dtype))


@pytest.mark.parametrize(
    ("top_k", "said"),
    [
        (2, {}),
        (3, {"renormalize": False}),
        (2, {"scoring": "sigmoid"}),
        (1, {"scoring": "sigmoid", "renormalize": False, "activation": "gelu"}),
    ],
)
def test_values_and_gradients(top_k, said):
    arguments = tensors(21, seed=top_k)
    grad = torch.randn(21, 40, generator=torch.Generator().manual_seed(0))
    wide = [t.detach().double().requires_grad_() for t in arguments]
    wanted = with_gradients(lambda *t: by_torch(*t, top_k, **said), wide, grad)
    found = with_gradients(lambda *t: ops.moe(*t, top_k, **said), arguments, grad)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.double() - theirs).norm() <= 2**-20 * theirs.norm()


def test_gradients_in_bf16():
    arguments, grad = tensors(40, dtype=torch.bfloat16), torch.randn(40, 40)
    wide = [t.detach().double().requires_grad_() for t in arguments]
    wanted = with_gradients(lambda *t: by_torch(*t, 2), wide, grad.bfloat16())
    found = with_gradients(lambda *t: ops.moe(*t, 2), arguments, grad)
    assert [t.dtype for t in found] == [torch.bfloat16, torch.bfloat16, torch.float32, *[torch.bfloat16] * 2]
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.double() - theirs).norm() <= 2**-6 * theirs.norm()


def test_gradients_of_some_arguments():
    x, logits, w1, w2 = tensors(9, grad=False)
    w2.requires_grad_()
    ops.moe(x, logits, w1, w2, 2).sum().backward()
    assert w2.grad is not None and x.grad is None and w1.grad is None


def test_gradients_of_no_tokens():
    arguments = tensors(0)
    found = torch.autograd.grad(ops.moe(*arguments, 2).sum(), arguments)
    assert all(not t.any() and t.shape == of.shape for t, of in zip(found, arguments, strict=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda: (torch.ops.tilewave.moe.default, (*tensors(9), 2, "softmax", True, "silu")),
        lambda: (torch.ops.tilewave.grouped_mm.default, (*asking((9, 4), (3, 4, 5)), torch.tensor([2, 2, 9]))),
        lambda: (torch.ops.tilewave.grouped_mm.default, (*asking((4, 9), (9, 5)), torch.tensor([2, 2, 9]))),
        lambda: (torch.ops.tilewave.counting_sort.default, (torch.tensor([2, 0, 2]), 3)),
    ],
)
def test_operators_are_torchs(call):
    torch.library.opcheck(*call())


def asking(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_compiled_for_all_counts_of_tokens():
    def layer(x, logits, w1, w2):
        return ops.moe(x * 2, logits, w1, w2, 2) + 1

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (9, 14):
        arguments, grad = tensors(tokens), torch.randn(tokens, 40)
        found, wanted = (with_gradients(of, arguments, grad) for of in (compiled, layer))
        assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


def test_under_autocast():
    """Products are in bf16; who is chosen is decided in f32."""
    x, logits, w1, w2 = tensors(12)
    with torch.autocast("cpu", torch.bfloat16):
        found = ops.moe(x, logits, w1, w2, 2)
    want = ops.moe(x.bfloat16(), logits, w1.bfloat16(), w2.bfloat16(), 2)
    assert torch.equal(found, want)
    ends = torch.tensor([3, 4, 5, 6, 7, 12])
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.grouped_mm(x, w1.mT, ends).dtype == torch.bfloat16


def test_given_results():
    arguments = tensors(12, grad=False)
    out = torch.full((12, 40), torch.nan)
    assert ops.moe(*arguments, 2, out=out) is out
    assert torch.equal(out, ops.moe(*arguments, 2))
