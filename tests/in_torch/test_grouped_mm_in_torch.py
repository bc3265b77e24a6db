"""ops.grouped_mm of tensors: values and gradients of its forms beside torch's own products."""

import pytest

torch = pytest.importorskip("torch")

from tilewave import ops  # noqa: E402

COUNTS = [3, 0, 17, 12]
SHAPES = {
    "rows": ((32, 20), (4, 20, 24)),
    "columns": ((4, 24, 20), (20, 32)),
    "sums": ((20, 32), (32, 24)),
}


def by_torch(form, a, b):
    """Return the product of each group, by torch."""
    bounds = [(sum(COUNTS[:g]), sum(COUNTS[: g + 1])) for g in range(len(COUNTS))]
    if form == "rows":
        return torch.cat([a[s:e] @ b[g] for g, (s, e) in enumerate(bounds)])
    if form == "columns":
        return torch.cat([a[g] @ b[:, s:e] for g, (s, e) in enumerate(bounds)], dim=1)
    return torch.stack([a[:, s:e] @ b[s:e] for s, e in bounds])


@pytest.mark.parametrize("form", SHAPES)
def test_values_and_gradients(form):
    torch.manual_seed(0)
    a, b = (torch.randn(shape, requires_grad=True) for shape in SHAPES[form])
    wanted = by_torch(form, a, b)
    grad = torch.randn(wanted.shape)
    wanted_grads = torch.autograd.grad(wanted, (a, b), grad)
    ends = torch.tensor(COUNTS).cumsum(0).to(torch.int32)
    found = ops.grouped_mm(a, b, ends)
    grads = torch.autograd.grad(found, (a, b), grad)
    for x, y in zip((found, *grads), (wanted, *wanted_grads), strict=True):
        assert torch.allclose(x, y, rtol=0, atol=64 * 1.2e-7 * y.detach().abs().max().item())


def test_out_is_written():
    a, b = (torch.randn(shape) for shape in SHAPES["columns"])
    out = torch.empty(24, 32)
    assert ops.grouped_mm(a, b, torch.tensor(COUNTS).cumsum(0), out=out) is out
    assert torch.allclose(out, by_torch("columns", a, b), atol=1e-4)
